//! `.data` frames whose places are known: whether they are what their entries say, and parts cut out of them.

use crate::data;
use crate::frame::{u32_at, u64_at, ENTRY_BYTES, HAS_NODE, HAS_TAG};

/// Bytes of an envelope around its data, without meta.
const PLAIN_BYTES: usize = 6;

/// For each place 1 where the frame there has that size and seq, and is intact and of the mask's topic; else 0.
///
/// Without a mask checksums are not looked at, nor is what they guard, but for its lengths. Starts, sizes and seqs are
/// 64-bit integers, as many of each.
pub fn agree(bytes: &[u8], mask: Option<u64>, starts: &[u8], sizes: &[u8], seqs: &[u8]) -> Vec<u8> {
    let places = starts.chunks_exact(8).zip(sizes.chunks_exact(8)).zip(seqs.chunks_exact(8));
    places.map(|((start, size), seq)| u8::from(agrees(bytes, mask, start, size, u64_at(seq, 0)))).collect()
}

fn agrees(bytes: &[u8], mask: Option<u64>, start: &[u8], size: &[u8], seq: u64) -> bool {
    let Some((start, end)) = span(start, size, bytes.len()) else {
        return false;
    };
    let fits = match mask {
        Some(mask) => data::checked(bytes, start, bytes.len(), mask, None) == Ok(end),
        None => end - start >= data::FRAME_BYTES && data::fits(bytes, start, end),
    };
    fits && u64_at(bytes, start + 5) == seq
}

fn span(start: &[u8], size: &[u8], len: usize) -> Option<(usize, usize)> {
    let start = usize::try_from(u64_at(start, 0)).ok()?;
    let end = start.checked_add(usize::try_from(u64_at(size, 0)).ok()?)?;
    (end <= len).then_some((start, end))
}

/// Which parts of records are wanted as columns.
#[derive(Clone, Copy)]
pub struct Chosen {
    pub node: bool,
    pub tag: bool,
    pub data: bool,
    /// `data` need not be text.
    pub binary: bool,
}

/// A column as Arrow has it: which values there are, where they end, the values one behind the other.
#[derive(Default)]
pub struct Column {
    /// A bit for each value, the lowest first; nothing if there are all of them.
    pub present: Vec<u8>,
    /// 32-bit integers: 0, then the end of each value.
    pub offsets: Vec<u8>,
    pub values: Vec<u8>,
    count: usize,
    whole: bool,
}

impl Column {
    fn with_room(count: usize, bytes: usize) -> Self {
        let mut made = Column { whole: true, values: Vec::with_capacity(bytes), ..Column::default() };
        made.offsets.reserve((count + 1) * 4);
        made.offsets.extend_from_slice(&[0; 4]);
        made.present.reserve(count / 8 + 1);
        made
    }

    /// Add a value; `None` if it begins in the middle of a character, or is too much.
    fn push(&mut self, value: Option<&[u8]>, text: bool) -> Option<()> {
        if self.count % 8 == 0 {
            self.present.push(0);
        }
        match value {
            Some(value) => {
                if text && value.first().is_some_and(|byte| byte & 0xC0 == 0x80) {
                    return None;
                }
                self.values.extend_from_slice(value);
                self.present[self.count / 8] |= 1 << (self.count % 8);
            }
            None => self.whole = false,
        }
        self.count += 1;
        let end = i32::try_from(self.values.len()).ok()?;
        self.offsets.extend_from_slice(&end.to_le_bytes());
        Some(())
    }

    /// `None` if it is to be text and is none. All of it together is, and each value begins with a character.
    fn finish(mut self, text: bool) -> Option<Self> {
        if self.whole {
            self.present.clear();
        }
        (!text || std::str::from_utf8(&self.values).is_ok()).then_some(self)
    }
}

/// The columns node, tag and data of the frames at these starts, which agree with their entries.
///
/// `None` where a record has meta, or anything else is out of the ordinary: the twin looks.
pub fn columns(bytes: &[u8], starts: &[u8], entries: &[u8], chosen: Chosen) -> Option<[Column; 3]> {
    let count = starts.len() / 8;
    let room = if chosen.data { bytes.len() } else { 0 };
    let (mut node, mut tag) = (Column::with_room(count, count * 8), Column::with_room(count, count * 8));
    let mut data = Column::with_room(count, room);
    for (start, entry) in starts.chunks_exact(8).zip(entries.chunks_exact(ENTRY_BYTES)) {
        let start = usize::try_from(u64_at(start, 0)).ok()?;
        let found = bytes.get(start..start.checked_add(u32_at(entry, 4))?)?;
        if found.len() < data::FRAME_BYTES || !data::fits(found, 0, found.len()) {
            return None;
        }
        let (node_len, tag_len, data_len) = data::lens(found, 0);
        let around = (u32_at(entry, 16) >> 8).checked_sub(data::FRAME_BYTES + node_len + tag_len)?;
        if around != PLAIN_BYTES || data_len < PLAIN_BYTES {
            return None;
        }
        let (node_at, flags) = (data::HEADER_BYTES, entry[16]);
        let (tag_at, data_at) = (node_at + node_len, node_at + node_len + tag_len);
        if chosen.node {
            node.push((flags & HAS_NODE != 0).then_some(&found[node_at..tag_at]), true)?;
        }
        if chosen.tag {
            tag.push((flags & HAS_TAG != 0).then_some(&found[tag_at..data_at]), true)?;
        }
        if chosen.data {
            data.push(Some(&found[data_at + PLAIN_BYTES - 1..data_at + data_len - 1]), !chosen.binary)?;
        }
    }
    Some([node.finish(true)?, tag.finish(true)?, data.finish(!chosen.binary)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// A frame with a tag, and its entry.
    fn frame(tag: &[u8], data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let size = data::FRAME_BYTES + tag.len() + data.len();
        let mut frame = vec![0; data::HEADER_BYTES];
        frame[..4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
        frame[4] = HAS_TAG;
        frame[23..25].copy_from_slice(&(tag.len() as u16).to_le_bytes());
        frame[25..29].copy_from_slice(&(data.len() as u32).to_le_bytes());
        frame.extend_from_slice(tag);
        frame.extend_from_slice(data);
        frame.extend_from_slice(&[0; data::TAIL_BYTES]);
        let mut entry = vec![0; ENTRY_BYTES];
        entry[4..8].copy_from_slice(&(size as u32).to_le_bytes());
        let word = ((data::FRAME_BYTES + tag.len() + PLAIN_BYTES) as u32) << 8 | u32::from(HAS_TAG);
        entry[16..20].copy_from_slice(&word.to_le_bytes());
        (frame, entry)
    }

    const ALL: Chosen = Chosen { node: true, tag: true, data: true, binary: false };

    #[test]
    fn values_are_put_one_behind_the_other() {
        let ((one, entry), (other, second)) = (frame(b"ab", b"{\"d\":1}"), frame(b"", b"{\"d\":23}"));
        let starts = words(&[0, one.len() as u64]);
        let [node, tag, data] = columns(&[one, other].concat(), &starts, &[entry, second].concat(), ALL).unwrap();
        assert_eq!((node.present, node.values), (vec![0], Vec::new()));
        assert_eq!((tag.present, tag.values), (Vec::new(), b"ab".to_vec()));
        assert_eq!(data.values, b"123");
        assert_eq!(data.offsets, [0, 1, 3].iter().flat_map(|end: &i32| end.to_le_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn places_outside_are_declined() {
        let (one, entry) = frame(b"", b"{\"d\":1}");
        for start in [1, one.len() as u64, u64::MAX] {
            assert!(columns(&one, &words(&[start]), &entry, ALL).is_none());
        }
        let places = words(&[0, 3, 9, u64::MAX]);
        assert_eq!(agree(b"abc", Some(0), &places, &words(&[3, 0, 1, u64::MAX]), &words(&[0; 4])), [0; 4]);
    }

    #[test]
    fn half_a_character_is_no_text_even_where_its_other_half_follows() {
        let ((one, entry), (other, second)) = (frame(b"\xE2", b"{\"d\":1}"), frame(b"\x82\xAC", b"{\"d\":2}"));
        let starts = words(&[0, one.len() as u64]);
        let (bytes, entries) = ([one, other].concat(), [entry, second].concat());
        assert!(columns(&bytes, &starts, &entries, ALL).is_none());
        assert!(columns(&bytes, &starts, &entries, Chosen { tag: false, ..ALL }).is_some());
    }
}
