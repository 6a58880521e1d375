//! Records of the log library (07 §3): making plain ones and going over the usual ones.

use crate::frame::u32_at;

/// Of the smallest record.
pub const SIZE_MIN: usize = 7;
const TOMBSTONE: u8 = 1;

/// How long a record without a TTL is, its value as it is.
pub fn size(key: &[u8], value: &[u8]) -> usize {
    varint_size(key.len()) + varint_size(value.len()) + 1 + key.len() + value.len() + 4
}

/// Write it into a place of its size.
pub fn encode(made: &mut [u8], key: &[u8], value: &[u8], tombstone: bool) {
    let at = varint(made, 0, key.len());
    let at = varint(made, at, value.len());
    made[at] = if tombstone { TOMBSTONE } else { 0 };
    let middle = at + 1 + key.len();
    let end = middle + value.len();
    made[at + 1..middle].copy_from_slice(key);
    made[middle..end].copy_from_slice(value);
    let sum = crc32c::crc32c(&made[..end]);
    made[end..].copy_from_slice(&sum.to_le_bytes());
}

fn varint_size(n: usize) -> usize {
    (usize::BITS - (n | 1).leading_zeros()).div_ceil(7) as usize
}

fn varint(made: &mut [u8], mut at: usize, mut n: usize) -> usize {
    while n > 0x7f {
        made[at] = n as u8 | 0x80;
        n >>= 7;
        at += 1;
    }
    made[at] = n as u8;
    at + 1
}

/// How many usual records follow each other from `begin` on, and where the first other bytes are.
///
/// Usual: lengths of one byte for the key and at most two for the value, no TTL, no compression, a right checksum.
pub fn walk(bytes: &[u8], begin: usize, end: usize) -> (usize, usize) {
    let bytes = &bytes[..end];
    let (mut count, mut at) = (0, begin);
    while let Some(size) = usual(&bytes[at..]) {
        count += 1;
        at += size;
    }
    (count, at)
}

/// The size of the usual record that these bytes begin with.
fn usual(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < SIZE_MIN {
        return None;
    }
    let (key_len, low, high) = (bytes[0], bytes[1], bytes[2]);
    let (value_len, at) = match (low > 0x7f, high > 0x7f) {
        (false, _) => (usize::from(low), 2),
        (true, false) => (usize::from(low & 0x7f) | usize::from(high) << 7, 3),
        (true, true) => return None,
    };
    if key_len > 0x7f || bytes[at] & !TOMBSTONE != 0 {
        return None;
    }
    let stop = at + 1 + usize::from(key_len) + value_len;
    if stop + 4 > bytes.len() || crc32c::crc32c(&bytes[..stop]) as usize != u32_at(bytes, stop) {
        return None;
    }
    Some(stop + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(key: &[u8], value: &[u8], tombstone: bool) -> Vec<u8> {
        let mut made = vec![0; size(key, value)];
        encode(&mut made, key, value, tombstone);
        made
    }

    #[test]
    fn a_record_is_its_lengths_flags_key_value_and_checksum() {
        let raw = made(b"key", &[9; 200], true);
        assert_eq!(raw[..7], [3, 0xc8, 1, TOMBSTONE, b'k', b'e', b'y']);
        assert_eq!(raw[7..207], [9; 200]);
        assert_eq!(raw[207..], crc32c::crc32c(&raw[..207]).to_le_bytes());
        assert_eq!(made(b"", &[0; 1 << 14], false)[..5], [0, 0x80, 0x80, 1, 0]);
    }

    #[test]
    fn usual_records_are_passed_and_damage_is_not() {
        let log = [made(b"k", b"v", false), made(b"", &[7; 300], false), made(b"key", b"", true)].concat();
        assert_eq!(walk(&log, 0, log.len()), (3, log.len()));
        let first = made(b"k", b"v", false).len();
        for end in 0..first {
            assert_eq!(walk(&log, 0, end), (0, 0));
        }
        for at in 0..first {
            let mut bad = log.clone();
            bad[at] ^= 0x10;
            assert_eq!(walk(&bad, 0, bad.len()), (0, 0), "byte {at}");
        }
        assert_eq!(walk(&[0; 64], 0, 64), (0, 0));
    }
}
