//! Frames of the WAL (06 §3): writing and verifying them; entries of an `.idx` (06 §8.2).
//!
//! Layouts are those of `topics/codec/frame.py` and `segment.py`. No length is used before it was checked.

use xxhash_rust::xxh3::xxh3_64;

pub const APPEND: u8 = 1;
pub const HAS_TAG: u8 = 0x01;
pub const HAS_NODE: u8 = 0x02;
pub const MORE: u8 = 0x08;
pub const HOPS_SHIFT: u8 = 5;

/// Of a frame around node, tag and data.
pub const FRAME_BYTES: usize = 46;
pub const HEADER_BYTES: usize = 38;
pub const FRAME_LEN_MIN: usize = 42;
pub const FRAME_LEN_MAX: usize = 33_554_432;
/// What a WAL frame has more than a `.data` frame.
pub const EXTRA_BYTES: usize = 8;
pub const ENTRY_BYTES: usize = 20;
/// Of a row of `verify`.
pub const ROW_BYTES: usize = 38;

/// A buffer that is filled from its front; its size was computed before.
pub struct Out<'a> {
    pub bytes: &'a mut [u8],
    pub at: usize,
}

impl<'a> Out<'a> {
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Out { bytes, at: 0 }
    }

    pub fn put(&mut self, piece: &[u8]) {
        self.next(piece.len()).copy_from_slice(piece);
    }

    /// The next bytes, to be filled by the caller.
    pub fn next(&mut self, len: usize) -> &mut [u8] {
        let begin = self.at;
        self.at += len;
        &mut self.bytes[begin..self.at]
    }
}

pub fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

pub fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What an Append frame says besides its data.
pub struct Head<'a> {
    pub flags: u8,
    pub topic_id: u64,
    pub seq: u64,
    pub ts: u64,
    pub node: &'a [u8],
    pub tag: &'a [u8],
    pub data_len: usize,
}

/// Write an Append frame whose parts fit; its size. `data` writes so many bytes as the head says.
pub fn append(out: &mut Out, head: &Head, data: impl FnOnce(&mut Out)) -> usize {
    let begin = out.at;
    let frame_len = FRAME_LEN_MIN + head.node.len() + head.tag.len() + head.data_len;
    debug_assert!(frame_len <= FRAME_LEN_MAX);
    let fixed = out.next(HEADER_BYTES);
    fixed[..4].copy_from_slice(&(frame_len as u32).to_le_bytes());
    fixed[4] = APPEND;
    fixed[5] = head.flags;
    fixed[6..14].copy_from_slice(&head.topic_id.to_le_bytes());
    fixed[14..22].copy_from_slice(&head.seq.to_le_bytes());
    fixed[22..30].copy_from_slice(&head.ts.to_le_bytes());
    fixed[30..32].copy_from_slice(&(head.node.len() as u16).to_le_bytes());
    fixed[32..34].copy_from_slice(&(head.tag.len() as u16).to_le_bytes());
    fixed[34..38].copy_from_slice(&(head.data_len as u32).to_le_bytes());
    out.put(head.node);
    out.put(head.tag);
    data(out);
    let digest = xxh3_64(&out.bytes[begin + 4..out.at]);
    out.put(&digest.to_le_bytes());
    debug_assert_eq!(out.at - begin, frame_len + 4);
    out.at - begin
}

/// Add an `.idx` entry [S-122]; `size` is that of the `.data` frame.
pub fn entry(entries: &mut Vec<u8>, offset: usize, size: usize, ts: u64, flags: u8, accounted: usize) {
    let mut made = [0; ENTRY_BYTES];
    made[..4].copy_from_slice(&(offset as u32).to_le_bytes());
    made[4..8].copy_from_slice(&(size as u32).to_le_bytes());
    made[8..16].copy_from_slice(&ts.to_le_bytes());
    made[16..].copy_from_slice(&(u32::from(flags) | ((size - accounted) as u32) << 8).to_le_bytes());
    entries.extend_from_slice(&made);
}

/// Why bytes are not a frame [S-26]; the numbers are those of the Python twin.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Why {
    Short = 0,
    Zero = 1,
    Bad = 2,
    /// Lengths do not add up.
    Misfit = 3,
    /// Node or tag is not UTF-8.
    NotText = 4,
    /// Seq does not ascend; only of `.data` frames.
    Disorder = 5,
}

/// The valid frames of a range.
#[derive(Debug)]
pub struct Checked {
    pub rows: Vec<u8>,
    pub stop: usize,
    pub why: Why,
}

/// Whether lengths fail to add up to what a frame holds, or break S-22.
pub fn misfits(body_len: usize, flags: u8, node_len: usize, tag_len: usize, data_len: usize) -> bool {
    node_len + tag_len + data_len != body_len
        || (flags & HAS_NODE == 0 && node_len != 0)
        || (flags & HAS_TAG == 0 && tag_len != 0)
}

/// Whether the node at `at` and the tag behind it are valid UTF-8, each by itself.
pub fn is_text(bytes: &[u8], at: usize, node_len: usize, tag_len: usize) -> bool {
    let (node, tag) = bytes[at..at + node_len + tag_len].split_at(node_len);
    std::str::from_utf8(node).is_ok() && std::str::from_utf8(tag).is_ok()
}

/// Steps 1-6 of S-26 for every frame of a range; what control frames hold is for the caller to look at.
///
/// A row is offset u64, topic_id u64, seq u64, ts u64, len u32, type u8, flags u8.
pub fn verify(bytes: &[u8], begin: usize, end: usize) -> Checked {
    let mut rows = Vec::with_capacity((end - begin) / 160 * ROW_BYTES);
    let mut at = begin;
    let why = loop {
        match checked(bytes, at, end) {
            Ok(behind) => {
                rows.extend_from_slice(&(at as u64).to_le_bytes());
                rows.extend_from_slice(&bytes[at + 6..at + 30]);
                rows.extend_from_slice(&((behind - at) as u32).to_le_bytes());
                rows.extend_from_slice(&bytes[at + 4..at + 6]);
                at = behind;
            }
            Err(why) => break why,
        }
    };
    Checked { rows, stop: at, why }
}

/// The offset behind the frame at `at`.
fn checked(bytes: &[u8], at: usize, end: usize) -> Result<usize, Why> {
    if end - at < 4 {
        return Err(Why::Short);
    }
    let frame_len = u32_at(bytes, at);
    if frame_len == 0 {
        return Err(Why::Zero);
    }
    if !(FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&frame_len) {
        return Err(Why::Bad);
    }
    let behind = at + 4 + frame_len;
    if behind > end {
        return Err(Why::Short);
    }
    if xxh3_64(&bytes[at + 4..behind - 8]) != u64_at(bytes, behind - 8) {
        return Err(Why::Bad);
    }
    let (node_len, tag_len) = (u16_at(bytes, at + 30), u16_at(bytes, at + 32));
    if misfits(frame_len - FRAME_LEN_MIN, bytes[at + 5], node_len, tag_len, u32_at(bytes, at + 34)) {
        return Err(Why::Misfit);
    }
    if node_len + tag_len > 0 && !is_text(bytes, at + HEADER_BYTES, node_len, tag_len) {
        return Err(Why::NotText);
    }
    Ok(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(node: &[u8], tag: &[u8], data: &[u8]) -> Vec<u8> {
        let flags = if node.is_empty() { 0 } else { HAS_NODE } | if tag.is_empty() { 0 } else { HAS_TAG };
        let head = Head { flags, topic_id: 1, seq: 2, ts: 3, node, tag, data_len: data.len() };
        let mut raw = vec![0; FRAME_BYTES + node.len() + tag.len() + data.len()];
        let mut out = Out::new(&mut raw);
        append(&mut out, &head, |out| out.put(data));
        raw
    }

    #[test]
    fn every_truncation_and_every_flip_is_noticed() {
        let good = framed(b"n", "tä".as_bytes(), b"{\"d\":1}");
        assert_eq!(verify(&good, 0, good.len()).stop, good.len());
        for end in 0..good.len() {
            let checked = verify(&good[..end], 0, end);
            assert_eq!((checked.stop, checked.why), (0, Why::Short));
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(verify(&bad, 0, bad.len()).stop, 0, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn what_follows_the_last_frame_is_told() {
        let mut raw = framed(b"", b"", b"{\"d\":1}");
        let end = raw.len();
        raw.extend_from_slice(&[0; 8]);
        let checked = verify(&raw, 0, raw.len());
        assert_eq!((checked.stop, checked.why, checked.rows.len()), (end, Why::Zero, ROW_BYTES));
        assert_eq!(verify(&framed(b"\xff", b"", b""), 0, 47).why, Why::NotText);
    }
}
