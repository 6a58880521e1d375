//! Frames of `.data` files (06 §8.1): verifying them, and making them of WAL frames and of staged ones [S-121, S-288].

use crate::frame::{self, entry, is_text, misfits, u16_at, u32_at, u64_at, Checked, Out, Why, HAS_NODE, HAS_TAG};
use crate::json::{self, meta_of, Meta};
use crate::write::{few_members, Limits, Place};
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

pub const HEADER_BYTES: usize = 29;
pub const FRAME_BYTES: usize = 38;
pub const FRAME_LEN_MIN: usize = 34;
pub const FRAME_LEN_MAX: usize = frame::FRAME_LEN_MAX - 8;
pub const DELETE_BYTE: u8 = 0xD5;
/// Checksum and delete flag.
pub const TAIL_BYTES: usize = 9;
const HOPS_SHIFT: u8 = 4;
/// Of the lengths in a frame; from there on a WAL frame has the same bytes behind its `ts`, up to the checksum.
const LENS_AT: usize = 21;
/// Of the seq in a WAL frame; from there on both kinds have the same bytes up to the checksum.
const WAL_SEQ_AT: usize = 14;

/// The lengths in the header of the frame at `at`: node, tag, data.
pub fn lens(bytes: &[u8], at: usize) -> (usize, usize, usize) {
    (u16_at(bytes, at + 21), u16_at(bytes, at + 23), u32_at(bytes, at + 25))
}

/// Every valid frame of a range, in ascending seq order.
///
/// A row is offset u64, seq u64, ts u64, len u32, flags u8, deleted u8.
pub fn verify(bytes: &[u8], mask: u64, begin: usize, end: usize) -> Checked {
    let mut rows = Vec::with_capacity((end - begin) / 150 * 30);
    let mut at = begin;
    let mut last = None;
    let why = loop {
        match checked(bytes, at, end, mask, last) {
            Ok(behind) => {
                last = Some(u64_at(bytes, at + 5));
                rows.extend_from_slice(&(at as u64).to_le_bytes());
                rows.extend_from_slice(&bytes[at + 5..at + 21]);
                rows.extend_from_slice(&((behind - at) as u32).to_le_bytes());
                rows.push(bytes[at + 4]);
                rows.push(u8::from(bytes[behind - 1] == DELETE_BYTE));
                at = behind;
            }
            Err(why) => break why,
        }
    };
    Checked { rows, stop: at, why }
}

/// Where the frame at `at` ends; what is wrong with it otherwise.
pub fn checked(bytes: &[u8], at: usize, end: usize, mask: u64, last: Option<u64>) -> Result<usize, Why> {
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
    if xxh3_64(&bytes[at + 4..behind - TAIL_BYTES]) ^ mask != u64_at(bytes, behind - TAIL_BYTES) {
        return Err(Why::Bad);
    }
    if !fits(bytes, at, behind) {
        return Err(Why::Misfit);
    }
    if last.is_some_and(|last| u64_at(bytes, at + 5) <= last) {
        return Err(Why::Disorder);
    }
    let (node_len, tag_len, _) = lens(bytes, at);
    if node_len + tag_len > 0 && !is_text(bytes, at + HEADER_BYTES, node_len, tag_len) {
        return Err(Why::NotText);
    }
    Ok(behind)
}

/// Whether a frame says that it ends at `behind`, and its parts fill it.
pub fn fits(bytes: &[u8], at: usize, behind: usize) -> bool {
    let (frame_len, (node_len, tag_len, data_len)) = (u32_at(bytes, at), lens(bytes, at));
    at + 4 + frame_len == behind && !misfits(frame_len - FRAME_LEN_MIN, bytes[at + 4], node_len, tag_len, data_len)
}

/// Entries of the WAL frames at rows of `frame::verify`, and their accounted sizes as 64-bit integers.
///
/// What is no Append gets what means nothing. `None`: a row is of another buffer, or the twin has to look.
pub fn index_rows(bytes: &[u8], rows: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let count = rows.len() / frame::ROW_BYTES;
    let mut entries = Vec::with_capacity(count * frame::ENTRY_BYTES);
    let mut sizes = Vec::with_capacity(count * 8);
    for row in rows.chunks_exact(frame::ROW_BYTES) {
        let rest = bytes.get(usize::try_from(u64_at(row, 0)).ok()?..)?;
        let found = rest.get(..u32_at(row, 32))?;
        if found.len() < frame::FRAME_BYTES {
            return None;
        }
        let data_at = frame::HEADER_BYTES + u16_at(found, 30) + u16_at(found, 32);
        let envelope = found.get(data_at..data_at.checked_add(u32_at(found, 34))?)?;
        let accounted = if row[36] == frame::APPEND { accounted(envelope)? } else { 0 };
        let flags = row[37] & (HAS_TAG | HAS_NODE) | row[37] >> frame::HOPS_SHIFT << HOPS_SHIFT;
        entry(&mut entries, 0, found.len() - frame::EXTRA_BYTES, u64_at(row, 24), flags, accounted);
        sizes.extend_from_slice(&(accounted as u64).to_le_bytes());
    }
    Some((entries, sizes))
}

/// Flags of an entry whose record is deleted, and of one that is that or lost.
pub const DELETED: u8 = 0x04;
pub const DEAD: u8 = DELETED | 0x08;

/// How many bytes the WAL frames of new entries have; `None` if they are not what a tail may hold.
pub fn tail_bytes(entries: &[u8], ts_before: u64) -> Option<usize> {
    let mut total = 0;
    let mut last = ts_before;
    for entry in entries.chunks(frame::ENTRY_BYTES) {
        if entry.len() != frame::ENTRY_BYTES || u32_at(entry, 0) != 0 || u64_at(entry, 8) < last {
            return None;
        }
        last = u64_at(entry, 8);
        match u32_at(entry, 4) {
            0 if entry[16] & DEAD == 0 => return None,
            0 => {}
            size => total += size + frame::EXTRA_BYTES,
        }
    }
    Some(total)
}

/// Mark the live ones of these entries deleted, counted from `first`: how many they are, and their accounted bytes.
///
/// `None`, and nothing is changed: one of them is not there.
pub fn mark(entries: &mut [u8], first: u64, seqs: &[u64]) -> Option<(usize, usize)> {
    let count = (entries.len() / frame::ENTRY_BYTES) as u64;
    if seqs.iter().any(|seq| seq.wrapping_sub(first) >= count) {
        return None;
    }
    let (mut records, mut freed) = (0, 0);
    for seq in seqs {
        let entry = &mut entries[(seq - first) as usize * frame::ENTRY_BYTES..][..frame::ENTRY_BYTES];
        if entry[16] & DEAD == 0 {
            entry[16] |= DELETED;
            records += 1;
            freed += u32_at(entry, 4).saturating_sub(u32_at(entry, 16) >> 8);
        }
    }
    Some((records, freed))
}

/// What became of frames that were to be made into others.
#[derive(Debug, PartialEq, Eq)]
pub enum Made {
    /// Frames and their `.idx` entries.
    All(Vec<u8>, Vec<u8>),
    /// This one, counted from 0, is not what it should be; nothing was made.
    Wrong(usize),
    /// The twin has to look.
    Unclear,
}

/// Accounted size of an envelope [REC-12]; `None`: the twin has to look.
fn accounted(envelope: &[u8]) -> Option<usize> {
    match meta_of(envelope) {
        Meta::Absent => Some(envelope.len().saturating_sub(6)),
        Meta::At(_) => Some(envelope.len().saturating_sub(11)),
        Meta::Unclear => None,
    }
}

/// `.data` frames and entries of WAL frames, each verified first; `hops` where the frames cannot tell [S-27].
pub fn reframe(bytes: &[u8], offsets: &[u64], mask: u64, at: usize, hops: Option<&[u8]>) -> Made {
    let mut data = Vec::new();
    let mut entries = Vec::with_capacity(offsets.len() * frame::ENTRY_BYTES);
    let mut owner = None;
    for (i, &offset) in offsets.iter().enumerate() {
        let Some(found) = wal_frame(bytes, offset, mask, &mut owner) else {
            return Made::Wrong(i);
        };
        let flags = found[5] & (HAS_TAG | HAS_NODE);
        let kept = hops.map_or(found[5] >> frame::HOPS_SHIFT, |hops| hops[i]);
        let kept = flags | kept << HOPS_SHIFT;
        let (node_len, tag_len) = (u16_at(found, 30), u16_at(found, 32));
        let sum_at = found.len() - 8;
        let Some(accounted) = accounted(&found[frame::HEADER_BYTES + node_len + tag_len..sum_at]) else {
            return Made::Unclear;
        };
        let size = found.len() - frame::EXTRA_BYTES;
        let begin = data.len();
        if at + begin > u32::MAX as usize {
            return Made::Unclear;
        }
        data.extend_from_slice(&((size - 4) as u32).to_le_bytes());
        data.push(kept);
        data.extend_from_slice(&found[WAL_SEQ_AT..sum_at]);
        let digest = xxh3_64(&data[begin + 4..]) ^ mask;
        data.extend_from_slice(&digest.to_le_bytes());
        data.push(0);
        entry(&mut entries, at + begin, size, u64_at(found, 22), kept, accounted);
    }
    Made::All(data, entries)
}

/// The bytes of an intact Append frame of the mask's topic.
fn wal_frame<'a>(bytes: &'a [u8], offset: u64, mask: u64, owner: &mut Option<u64>) -> Option<&'a [u8]> {
    let rest = bytes.get(usize::try_from(offset).ok()?..)?;
    if rest.len() < frame::FRAME_BYTES {
        return None;
    }
    let frame_len = u32_at(rest, 0);
    if !(frame::FRAME_LEN_MIN..=frame::FRAME_LEN_MAX).contains(&frame_len) || rest[4] != frame::APPEND {
        return None;
    }
    let found = rest.get(..frame_len + 4)?;
    let (node_len, tag_len) = (u16_at(found, 30), u16_at(found, 32));
    if misfits(frame_len - frame::FRAME_LEN_MIN, found[5], node_len, tag_len, u32_at(found, 34)) {
        return None;
    }
    let topic_id = u64_at(found, 6);
    if *owner != Some(topic_id) {
        if xxh3_64(&topic_id.to_le_bytes()) != mask {
            return None;
        }
        *owner = Some(topic_id);
    }
    let sum_at = found.len() - 8;
    if xxh3_64(&found[4..sum_at]) != u64_at(found, sum_at) {
        return None;
    }
    let text = &found[frame::HEADER_BYTES..frame::HEADER_BYTES + node_len + tag_len];
    std::str::from_utf8(text).ok().map(|_| found)
}

/// Give staged frames their seq, `ts` and checksum, in place; their entries, with offsets in `frames` [S-288].
///
/// Nothing is changed unless all of them are staged frames.
pub fn stamp(frames: &mut [u8], begins: &[u64], first_seq: u64, ts: u64, mask: u64) -> Made {
    let mut entries = Vec::with_capacity(begins.len() * frame::ENTRY_BYTES);
    for (i, &begin) in begins.iter().enumerate() {
        let Some(found) = staged(frames, begin) else {
            return Made::Wrong(i);
        };
        let (node_len, tag_len, _) = lens(found, 0);
        let envelope = &found[HEADER_BYTES + node_len + tag_len..found.len() - TAIL_BYTES];
        let Some(accounted) = accounted(envelope) else {
            return Made::Unclear;
        };
        entry(&mut entries, begin as usize, found.len(), ts, found[4], accounted);
    }
    for (seq, &begin) in (first_seq..).zip(begins) {
        let begin = begin as usize;
        let sum_at = begin + 4 + u32_at(frames, begin) - TAIL_BYTES;
        let mut place = Out::new(&mut frames[begin + 5..begin + 21]);
        place.put(&seq.to_le_bytes());
        place.put(&ts.to_le_bytes());
        let digest = xxh3_64(&frames[begin + 4..sum_at]) ^ mask;
        frames[sum_at..sum_at + 8].copy_from_slice(&digest.to_le_bytes());
    }
    Made::All(Vec::new(), entries)
}

/// Frames that a client sent, as they are staged.
#[derive(Debug, PartialEq, Eq)]
pub struct Staged {
    /// Of whole frames, of so many bytes as was asked for or a little more.
    pub pieces: Vec<Vec<u8>>,
    pub records: usize,
    pub accounted: usize,
    /// Of all pieces.
    pub digest: [u8; 16],
}

/// Take in the frames that a client sent [TXN-1]; `None` unless every one is plainly right.
///
/// Right: lengths and checksum, no seq, `ts`, hops or delete flag, an envelope of canonical JSON, within all limits.
pub fn uploaded(bytes: &[u8], limits: &Limits, piece_bytes: usize) -> Option<Staged> {
    let mut made = Staged { pieces: Vec::new(), records: 0, accounted: 0, digest: [0; 16] };
    let mut hasher = Xxh3::new();
    let mut at = 0;
    while at < bytes.len() {
        let mut piece = Vec::with_capacity(piece_bytes.min(bytes.len() - at) + 1024);
        while at < bytes.len() && piece.len() < piece_bytes {
            let (found, accounted) = sent(&bytes[at..], limits)?;
            piece.extend_from_slice(&found[..found.len() - TAIL_BYTES]);
            piece.extend_from_slice(&[0; TAIL_BYTES]);
            made.records += 1;
            made.accounted += accounted;
            at += found.len();
        }
        hasher.update(&piece);
        made.pieces.push(piece);
    }
    made.digest = hasher.digest128().to_be_bytes();
    if (1..=limits.records).contains(&made.records) {
        Some(made)
    } else {
        None
    }
}

/// The frame that bytes begin with, as a client makes it, and its accounted size.
fn sent<'a>(rest: &'a [u8], limits: &Limits) -> Option<(&'a [u8], usize)> {
    if rest.len() < FRAME_BYTES {
        return None;
    }
    let frame_len = u32_at(rest, 0);
    if !(FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&frame_len) {
        return None;
    }
    let found = rest.get(..frame_len + 4)?;
    let (node_len, tag_len, data_len) = lens(found, 0);
    let sum_at = found.len() - TAIL_BYTES;
    let is_placed = found[5..21].iter().any(|&byte| byte != 0) || found[sum_at + 8] != 0;
    if misfits(frame_len - FRAME_LEN_MIN, found[4], node_len, tag_len, data_len)
        || found[4] & !(HAS_TAG | HAS_NODE) != 0
        || is_placed
        || node_len > limits.node_bytes
        || tag_len > limits.tag_bytes
        || !is_text(found, HEADER_BYTES, node_len, tag_len)
        || xxh3_64(&found[4..sum_at]) != u64_at(found, sum_at)
    {
        return None;
    }
    let accounted = allowed(&found[sum_at - data_len..sum_at], limits)?;
    Some((found, accounted))
}

/// Accounted size of an envelope that is within the limits.
fn allowed(envelope: &[u8], limits: &Limits) -> Option<usize> {
    let accounted = match json::parsed(envelope)? {
        Meta::Absent => envelope.len() - 6,
        Meta::At(at) => {
            let meta = &envelope[at..envelope.len() - 1];
            if meta.len() > limits.meta_bytes {
                return None;
            }
            few_members(meta, limits)?;
            envelope.len() - 11
        }
        Meta::Unclear => return None,
    };
    if accounted <= limits.record_bytes {
        Some(accounted)
    } else {
        None
    }
}

/// Records of a staged chunk as the log and the index take them.
#[derive(Debug, PartialEq, Eq)]
pub struct Framed<'a> {
    /// Of the WAL.
    pub frames: Vec<u8>,
    /// Where each of them begins, as 64-bit numbers.
    pub offsets: Vec<u8>,
    pub entries: Vec<u8>,
    /// Of each record; empty where none has one.
    pub tags: Vec<Option<&'a [u8]>>,
    pub accounted: usize,
}

/// WAL frames of the staged frames at `begins`; `None`: one is none, or the twin has to look.
pub fn appends<'a>(chunk: &'a [u8], begins: &[u64], place: &Place) -> Option<Framed<'a>> {
    let mut made = Framed {
        frames: Vec::with_capacity(begins.len() * frame::EXTRA_BYTES + chunk.len().min(begins.len() * 4096)),
        offsets: Vec::with_capacity(begins.len() * 8),
        entries: Vec::with_capacity(begins.len() * frame::ENTRY_BYTES),
        tags: Vec::new(),
        accounted: 0,
    };
    let last = begins.len().wrapping_sub(1);
    for (i, (seq, &begin)) in (place.first_seq..).zip(begins).enumerate() {
        let found = staged(chunk, begin)?;
        let (node_len, tag_len, _) = lens(found, 0);
        let (tag_at, sum_at) = (HEADER_BYTES + node_len, found.len() - TAIL_BYTES);
        let accounted = accounted(&found[tag_at + tag_len..sum_at])?;
        let more = if place.more || i != last { frame::MORE } else { 0 };
        if found[4] & HAS_TAG != 0 {
            made.tags.resize(i, None);
            made.tags.push(Some(&found[tag_at..tag_at + tag_len]));
        }
        let at = made.frames.len();
        made.offsets.extend_from_slice(&(at as u64).to_le_bytes());
        made.frames.extend_from_slice(&((found.len() + frame::EXTRA_BYTES - 4) as u32).to_le_bytes());
        made.frames.extend_from_slice(&[frame::APPEND, place.flags | found[4] | more]);
        made.frames.extend_from_slice(&place.topic_id.to_le_bytes());
        made.frames.extend_from_slice(&seq.to_le_bytes());
        made.frames.extend_from_slice(&place.ts.to_le_bytes());
        made.frames.extend_from_slice(&found[LENS_AT..sum_at]);
        let digest = xxh3_64(&made.frames[at + 4..]);
        made.frames.extend_from_slice(&digest.to_le_bytes());
        entry(&mut made.entries, 0, found.len(), place.ts, found[4], accounted);
        made.accounted += accounted;
    }
    if !made.tags.is_empty() {
        made.tags.resize(begins.len(), None);
    }
    Some(made)
}

/// The bytes of a frame that has no place yet.
fn staged(frames: &[u8], begin: u64) -> Option<&[u8]> {
    let rest = frames.get(usize::try_from(begin).ok()?..)?;
    if rest.len() < FRAME_BYTES {
        return None;
    }
    let frame_len = u32_at(rest, 0);
    if !(FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&frame_len) {
        return None;
    }
    let found = rest.get(..frame_len + 4)?;
    let (node_len, tag_len, data_len) = lens(found, 0);
    let blank = found[5..21].iter().chain(&found[found.len() - TAIL_BYTES..]).all(|&byte| byte == 0);
    if misfits(frame_len - FRAME_LEN_MIN, found[4], node_len, tag_len, data_len)
        || found[4] & !(HAS_TAG | HAS_NODE) != 0
        || !blank
    {
        return None;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{append, Head, FRAME_BYTES as WAL_FRAME_BYTES};

    fn wal(seq: u64, flags: u8, tag: &[u8], data: &[u8]) -> Vec<u8> {
        let mut raw = vec![0; WAL_FRAME_BYTES + tag.len() + data.len()];
        let head = Head { flags, topic_id: 7, seq, ts: 5, node: b"", tag, data_len: data.len() };
        append(&mut Out::new(&mut raw), &head, |out| out.put(data));
        raw
    }

    #[test]
    fn reframed_frames_verify_and_damage_does_not_become_valid() {
        let mask = xxh3_64(&7u64.to_le_bytes());
        let mut raw = wal(1, HAS_TAG, b"t", b"{\"d\":1}");
        let second = raw.len() as u64;
        raw.extend(wal(2, 3 << frame::HOPS_SHIFT, b"", b"{\"d\":1,\"m\":{}}"));
        let Made::All(data, entries) = reframe(&raw, &[0, second], mask, 100, None) else { panic!() };
        let found = verify(&data, mask, 0, data.len());
        assert_eq!((found.stop, found.rows.len(), entries.len()), (data.len(), 60, 40));
        assert_eq!(u32_at(&entries, 0), 100);
        assert_eq!(entries[36], 3 << HOPS_SHIFT);
        assert_eq!(reframe(&raw, &[0, second], mask ^ 1, 0, None), Made::Wrong(0));
        for at in 0..raw.len() {
            raw[at] ^= 1;
            let wrong = usize::from(at >= second as usize);
            assert_eq!(reframe(&raw, &[0, second], mask, 0, None), Made::Wrong(wrong), "byte {at}");
            raw[at] ^= 1;
        }
    }

    #[test]
    fn a_tail_takes_what_it_may_hold() {
        let mut entries = Vec::new();
        entry(&mut entries, 0, 45, 9, 0, 1);
        entry(&mut entries, 0, 0, 9, 4, 0);
        assert_eq!(tail_bytes(&entries, 9), Some(53));
        assert_eq!(tail_bytes(&entries, 10), None);
        assert_eq!(tail_bytes(&entries[1..], 0), None);
        entries[36] = 0;
        assert_eq!(tail_bytes(&entries, 9), None);
    }

    #[test]
    fn live_entries_are_marked_once() {
        let mut entries = Vec::new();
        for (size, flags) in [(45, 0), (0, 4), (47, 8), (50, 1)] {
            entry(&mut entries, 0, size, 9, flags, size.min(7));
        }
        let before = entries.clone();
        for wrong in [6, 11, u64::MAX] {
            assert_eq!(mark(&mut entries, 7, &[7, wrong]), None);
            assert_eq!(entries, before);
        }
        assert_eq!(mark(&mut entries, 7, &[7, 8, 9, 10, 10]), Some((2, 14)));
        assert_eq!([0, 1, 2, 3].map(|at| entries[at * 20 + 16]), [4, 4, 8, 5]);
        assert_eq!(mark(&mut entries, 7, &[7, 10]), Some((0, 0)));
    }

    #[test]
    fn staged_frames_are_stamped_all_or_none() {
        let mask = xxh3_64(&7u64.to_le_bytes());
        let data = b"{\"d\":12}";
        let mut one = vec![0; FRAME_BYTES + data.len()];
        one[..4].copy_from_slice(&((FRAME_LEN_MIN + data.len()) as u32).to_le_bytes());
        one[25..29].copy_from_slice(&(data.len() as u32).to_le_bytes());
        one[29..29 + data.len()].copy_from_slice(data);
        let mut chunk = [one.clone(), one.clone()].concat();
        let begins = [0, one.len() as u64];
        let Made::All(_, entries) = stamp(&mut chunk, &begins, 5, 9, mask) else { panic!() };
        assert_eq!(entries.len(), 40);
        assert_eq!(verify(&chunk, mask, 0, chunk.len()).stop, chunk.len());
        let before = chunk.clone();
        assert_eq!(stamp(&mut chunk, &begins, 5, 9, mask), Made::Wrong(0));
        assert_eq!(chunk, before);
        assert_eq!(stamp(&mut chunk, &[u64::MAX], 5, 9, mask), Made::Wrong(0));
    }
}
