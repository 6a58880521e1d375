//! From stored frames to the JSON records of an answer [REC-2, REC-3, REC-4]: payload bytes are copied, never parsed.

use crate::data::{self, lens, TAIL_BYTES};
use crate::frame::{self, misfits, u16_at, u32_at, u64_at, HAS_NODE, HAS_TAG};
use crate::json::{meta_of, quote, Meta, DATA_AT, META_GAP};
use xxhash_rust::xxh3::xxh3_64;

/// What of a record is wanted besides its seq, instant and node.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub tags: bool,
    pub metas: bool,
    pub data: bool,
}

/// Write a number in decimal digits.
pub fn number(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Write a number in hexadecimal digits.
fn hex(value: u64, out: &mut Vec<u8>) {
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..digits).rev().map(|at| b"0123456789abcdef"[(value >> (at * 4) & 15) as usize]));
}

const SEQ: &[u8] = b",{\"$seq\":";
const TS: &[u8] = b",\"$ts\":";

/// What a record begins with, and the comma in front: seqs ascend and instants repeat, so most of it stays as it was.
struct Opening {
    text: Vec<u8>,
    /// Where the digits of the seq end; 0: nothing was written yet.
    seq_end: usize,
    seq: u64,
    ts: u64,
}

impl Opening {
    fn new() -> Self {
        Opening { text: Vec::with_capacity(64), seq_end: 0, seq: 0, ts: 0 }
    }

    fn turn_to(&mut self, seq: u64, ts: u64) {
        let is_next = self.seq_end > 0 && ts == self.ts && seq.checked_sub(1) == Some(self.seq);
        if !(is_next && self.count_on()) {
            self.text.clear();
            self.text.extend_from_slice(SEQ);
            number(seq, &mut self.text);
            self.seq_end = self.text.len();
            self.text.extend_from_slice(TS);
            number(ts, &mut self.text);
        }
        (self.seq, self.ts) = (seq, ts);
    }

    /// The next seq in place of this one; false where it takes another digit.
    fn count_on(&mut self) -> bool {
        for digit in self.text[SEQ.len()..self.seq_end].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return true;
            }
            *digit = b'0';
        }
        false
    }
}

/// Records as JSON with commas in between.
pub struct Projected {
    pub text: Vec<u8>,
    opening: Opening,
}

impl Projected {
    /// Room for so many records of so many bytes.
    pub fn with_room(records: usize, bytes: usize) -> Self {
        Projected { text: Vec::with_capacity(bytes + records * 24), opening: Opening::new() }
    }

    fn quoted(&mut self, text: &[u8]) -> Option<()> {
        std::str::from_utf8(text).ok()?;
        quote(text, &mut self.text);
        Some(())
    }

    /// Add one record; `None` where the twin has to look. `meta` is known already, or to be found.
    fn add(&mut self, one: &Stored, meta: Option<Meta>, wanted: Wanted) -> Option<()> {
        let envelope = one.envelope;
        if envelope.len() <= DATA_AT {
            return None;
        }
        self.opening.turn_to(one.seq, one.ts);
        let comma = usize::from(self.text.is_empty());
        self.text.extend_from_slice(&self.opening.text[comma..]);
        if let Some(node) = one.node {
            self.text.extend_from_slice(b",\"$node\":");
            self.quoted(node)?;
        }
        if let (Some(tag), true) = (one.tag, wanted.tags) {
            self.text.extend_from_slice(b",\"$tag\":");
            self.quoted(tag)?;
        }
        let end = envelope.len() - 1;
        let data_end = match meta.unwrap_or_else(|| meta_of(envelope)) {
            Meta::Absent => end,
            Meta::At(at) => {
                if wanted.metas {
                    self.text.extend_from_slice(b",\"meta\":");
                    self.text.extend_from_slice(&envelope[at..end]);
                }
                at - META_GAP
            }
            Meta::Unclear => return None,
        };
        if wanted.data {
            self.text.extend_from_slice(b",\"data\":");
            if data_end == end {
                self.text.extend_from_slice(&envelope[DATA_AT..]); // with the brace that ends the envelope
                return Some(());
            }
            self.text.extend_from_slice(&envelope[DATA_AT..data_end]);
        }
        self.text.push(b'}');
        Some(())
    }
}

struct Stored<'a> {
    seq: u64,
    ts: u64,
    node: Option<&'a [u8]>,
    tag: Option<&'a [u8]>,
    envelope: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Parts of a frame whose lengths were checked: node, tag and envelope begin at `at`.
    fn new(bytes: &'a [u8], at: usize, flags: u8, lens: (usize, usize, usize), seq: u64, ts: u64) -> Self {
        let (tag_at, data_at) = (at + lens.0, at + lens.0 + lens.1);
        Stored {
            seq,
            ts,
            node: if flags & HAS_NODE != 0 { Some(&bytes[at..tag_at]) } else { None },
            tag: if flags & HAS_TAG != 0 { Some(&bytes[tag_at..data_at]) } else { None },
            envelope: &bytes[data_at..data_at + lens.2],
        }
    }
}

/// Live records in a row of a `.data` file, by their `.idx` entries, every frame verified [S-173].
///
/// The entry tells whether there is meta [S-347]; `None` where anything is out of the ordinary.
pub fn segment(bytes: &[u8], entries: &[u8], first_seq: u64, mask: u64, wanted: Wanted) -> Option<Projected> {
    let count = entries.len() / frame::ENTRY_BYTES;
    let sizes = entries.chunks_exact(frame::ENTRY_BYTES).map(|entry| u32_at(entry, 4));
    let mut out = Projected::with_room(count, sizes.sum());
    let mut behind = 0;
    for (seq, entry) in (first_seq..).zip(entries.chunks_exact(frame::ENTRY_BYTES)) {
        let (at, size) = (u32_at(entry, 0), u32_at(entry, 4));
        let end = at.checked_add(size)?;
        if size < data::FRAME_BYTES || at < behind || end > bytes.len() || entry[16] & data::DEAD != 0 {
            return None;
        }
        behind = end;
        let found = &bytes[at..end];
        let (node_len, tag_len, data_len) = lens(found, 0);
        let sum_at = size - TAIL_BYTES;
        if u32_at(found, 0) != size - 4
            || u64_at(found, 5) != seq
            || misfits(size - data::FRAME_BYTES, found[4], node_len, tag_len, data_len)
            || found[size - 1] != 0
            || xxh3_64(&found[4..sum_at]) ^ mask != u64_at(found, sum_at)
        {
            return None;
        }
        let around = (u32_at(entry, 16) >> 8).checked_sub(data::FRAME_BYTES + node_len + tag_len);
        let meta = if around == Some(6) { Some(Meta::Absent) } else { None };
        let lens = (node_len, tag_len, data_len);
        out.add(&Stored::new(found, data::HEADER_BYTES, found[4], lens, seq, u64_at(found, 13)), meta, wanted)?;
    }
    Some(out)
}

/// Live records in a row, rendered.
pub struct Page {
    pub text: Vec<u8>,
    pub records: usize,
    /// Canonical bytes of all data and meta [REC-12].
    pub accounted: usize,
}

/// At most so many records, and bytes of their frames; ending early with fewer than `few` is not worth it.
#[derive(Clone, Copy)]
pub struct Most {
    pub records: usize,
    pub bytes: usize,
    pub few: usize,
}

/// The live records in a row from an entry on, whose seq is `first_seq`; `None` where it takes a closer look.
pub fn page(bytes: &[u8], entries: &[u8], most: Most, first_seq: u64, mask: u64, wanted: Wanted) -> Option<Page> {
    let entries = &entries[..most.records.checked_mul(frame::ENTRY_BYTES)?.min(entries.len())];
    let (mut records, mut accounted) = (0usize, 0usize);
    for entry in entries.chunks_exact(frame::ENTRY_BYTES).take_while(|entry| entry[16] & data::DEAD == 0) {
        accounted += u32_at(entry, 4).saturating_sub(u32_at(entry, 16) >> 8);
        records += 1;
    }
    let last = entries.get(records.checked_sub(1)? * frame::ENTRY_BYTES..)?;
    let size = (u32_at(last, 0) + u32_at(last, 4)).checked_sub(u32_at(entries, 0))?;
    let ends_early = records * frame::ENTRY_BYTES < entries.len();
    if size == 0 || size > most.bytes || (ends_early && records < most.few) {
        return None;
    }
    let found = segment(bytes, &entries[..records * frame::ENTRY_BYTES], first_seq, mask, wanted)?;
    Some(Page { text: found.text, records, accounted })
}

/// The record of a WAL frame that was encoded here and never left memory: its checksum is not computed.
fn of_wal(bytes: &[u8], offset: u64) -> Option<Stored<'_>> {
    let found = bytes.get(usize::try_from(offset).ok()?..)?;
    if found.len() < frame::FRAME_BYTES {
        return None;
    }
    let lens = (u16_at(found, 30), u16_at(found, 32), u32_at(found, 34));
    let frame_len = u32_at(found, 0);
    if frame_len > found.len() - 4
        || misfits(frame_len.checked_sub(frame::FRAME_LEN_MIN)?, found[5], lens.0, lens.1, lens.2)
    {
        return None;
    }
    Some(Stored::new(found, frame::HEADER_BYTES, found[5], lens, u64_at(found, 14), u64_at(found, 22)))
}

/// Records of such frames.
pub fn wal(bytes: &[u8], offsets: &[u64], wanted: Wanted) -> Option<Projected> {
    let mut out = Projected::with_room(offsets.len(), 0);
    for &offset in offsets {
        out.add(&of_wal(bytes, offset)?, None, wanted)?;
    }
    Some(out)
}

/// The same as jobs that were claimed for the first time, all until one instant; their ids count up [CLM-6].
pub fn jobs(bytes: &[u8], offsets: &[u64], first_id: u64, deadline: u64) -> Option<Vec<u8>> {
    let mut until = Vec::with_capacity(40);
    until.extend_from_slice(b"\",\"deadline\":");
    number(deadline, &mut until);
    until.extend_from_slice(b",\"$ts\":");
    let mut out = Projected::with_room(offsets.len(), bytes.len().min(offsets.len() * 512));
    for (&offset, id) in offsets.iter().zip(first_id..) {
        let one = of_wal(bytes, offset)?;
        if one.envelope.len() <= DATA_AT {
            return None;
        }
        let end = one.envelope.len() - 1;
        let meta = match meta_of(one.envelope) {
            Meta::Absent => None,
            Meta::At(at) => Some(at),
            Meta::Unclear => return None,
        };
        let comma = usize::from(out.text.is_empty());
        out.text.extend_from_slice(&SEQ[comma..]);
        number(one.seq, &mut out.text);
        out.text.extend_from_slice(b",\"lease_id\":\"lease_");
        hex(id, &mut out.text);
        out.text.extend_from_slice(&until);
        number(one.ts, &mut out.text);
        if let Some(tag) = one.tag {
            out.text.extend_from_slice(b",\"$tag\":");
            out.quoted(tag)?;
        }
        out.text.extend_from_slice(b",\"deliveries\":1,\"data\":");
        out.text.extend_from_slice(&one.envelope[DATA_AT..meta.map_or(end, |at| at - META_GAP)]);
        if let Some(at) = meta {
            out.text.extend_from_slice(b",\"meta\":");
            out.text.extend_from_slice(&one.envelope[at..end]);
        }
        out.text.push(b'}');
    }
    Some(out.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{reframe, Made};
    use crate::frame::{append, Head, Out};

    #[test]
    fn the_opening_is_written_anew_where_counting_on_is_not_enough() {
        let mut opening = Opening::new();
        let told = [(0, 0), (1, 0), (8, 7), (9, 7), (10, 7), (11, 7), (11, 7), (12, 9), (99, 9), (100, 9), (5, 9)];
        for (seq, ts) in told.into_iter().chain((995..1005).map(|seq| (seq, u64::MAX))) {
            opening.turn_to(seq, ts);
            assert_eq!(opening.text, format!(",{{\"$seq\":{seq},\"$ts\":{ts}").into_bytes());
        }
        opening.turn_to(u64::MAX, 0);
        opening.turn_to(0, 0);
        assert_eq!(opening.text, b",{\"$seq\":0,\"$ts\":0");
    }

    #[test]
    fn frames_become_json() {
        let data = b"{\"d\":[1],\"m\":{\"k\":1}}";
        let mut raw = vec![0; frame::FRAME_BYTES + 2 + data.len()];
        let flags = HAS_NODE | HAS_TAG;
        let head = Head { flags, topic_id: 7, seq: 31, ts: 1790, node: b"n", tag: b"\"", data_len: data.len() };
        append(&mut Out::new(&mut raw), &head, |out| out.put(data));
        let all = Wanted { tags: true, metas: true, data: true };
        let told = br#"{"$seq":31,"$ts":1790,"$node":"n","$tag":"\"","meta":{"k":1},"data":[1]}"#;
        assert_eq!(wal(&raw, &[0], all).unwrap().text, told);
        let mask = xxh3_64(&7u64.to_le_bytes());
        let Made::All(stored, entries) = reframe(&raw, &[0], mask, 0, None) else { panic!() };
        assert_eq!(segment(&stored, &entries, 31, mask, all).unwrap().text, told);
        let few = Wanted { tags: false, metas: false, data: true };
        let found = segment(&stored, &entries, 31, mask, few).unwrap();
        assert_eq!(found.text, br#"{"$seq":31,"$ts":1790,"$node":"n","data":[1]}"#);
        assert!(segment(&stored, &entries, 32, mask, all).is_none());
        let most = Most { records: 9, bytes: stored.len(), few: 2 };
        let made = page(&stored, &entries, most, 31, mask, all).unwrap();
        assert_eq!((&made.text[..], made.records, made.accounted), (&told[..], 1, 10));
        assert!(page(&stored, &entries, Most { bytes: stored.len() - 1, ..most }, 31, mask, all).is_none());
        assert!(page(&stored, &entries, Most { records: 0, ..most }, 31, mask, all).is_none());
        assert!(page(&stored, &[], most, 31, mask, all).is_none());
        for dead in [0x04, 0x08] {
            let mut marked = entries.clone();
            marked[16] |= dead;
            assert!(segment(&stored, &marked, 31, mask, all).is_none());
            assert!(page(&stored, &marked, most, 31, mask, all).is_none());
            let two = [&entries[..], &marked[..]].concat();
            assert!(page(&stored, &two, most, 31, mask, all).is_none());
            assert_eq!(page(&stored, &two, Most { few: 1, ..most }, 31, mask, all).unwrap().records, 1);
        }
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 1;
            assert!(segment(&bad, &entries, 31, mask, all).is_none(), "byte {at}");
        }
        for end in 0..raw.len() {
            assert!(wal(&raw[..end], &[0], all).is_none());
            assert!(jobs(&raw[..end], &[0], 1, 2).is_none());
        }
        let told = br#"{"$seq":31,"lease_id":"lease_2f","deadline":9,"$ts":1790,"$tag":"\"","deliveries":1,"data":[1],"meta":{"k":1}}"#;
        assert_eq!(jobs(&raw, &[0], 0x2f, 9).unwrap(), told);
    }

    #[test]
    fn numbers_are_written_in_hexadecimal_digits() {
        for value in [0, 1, 9, 10, 15, 16, 255, 256, 0xdead_beef, 1 << 40, u64::MAX] {
            let mut told = Vec::new();
            hex(value, &mut told);
            assert_eq!(told, format!("{value:x}").into_bytes());
        }
    }
}
