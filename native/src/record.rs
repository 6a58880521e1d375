//! Records of the log library (07 §3): going over the usual ones.

use crate::frame::u32_at;

/// Of the smallest record.
pub const SIZE_MIN: usize = 7;
const TOMBSTONE: u8 = 1;

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

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut raw = vec![key.len() as u8];
        if value.len() > 0x7f {
            raw.extend_from_slice(&[value.len() as u8 & 0x7f | 0x80, (value.len() >> 7) as u8]);
        } else {
            raw.push(value.len() as u8);
        }
        raw.push(0);
        raw.extend_from_slice(key);
        raw.extend_from_slice(value);
        let sum = crc32c::crc32c(&raw);
        raw.extend_from_slice(&sum.to_le_bytes());
        raw
    }

    #[test]
    fn usual_records_are_passed_and_damage_is_not() {
        let log = [record(b"k", b"v"), record(b"", &[7; 300]), record(b"key", b"")].concat();
        assert_eq!(walk(&log, 0, log.len()), (3, log.len()));
        let first = record(b"k", b"v").len();
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
