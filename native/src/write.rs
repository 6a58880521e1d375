//! The body of a write (02 §4): a strict scan, then the frames of its records [S-22, S-40].
//!
//! ```text
//! {"node":"n","records":[{"data":…,"tag":"t","node":"n","meta":{…}},…],"idempotency_key":"k"}
//! ```
//!
//! A scan keeps places in the body, no bytes; framing copies payloads once, straight to where they are written from.
//! What is not plainly right (bad JSON, a limit, a member twice, a name with escapes) is declined: the Python twin goes
//! over it and finds the words, so that every rule is decided in one place.

use crate::frame::{self, Head, Out, FRAME_BYTES, FRAME_LEN_MAX, HAS_NODE, HAS_TAG};
use crate::json::{compact, unescaped, Scanner};

/// What a write may hold (01 §1.1).
pub struct Limits {
    pub records: usize,
    pub record_bytes: usize,
    pub meta_bytes: usize,
    pub meta_members: usize,
    pub tag_bytes: usize,
    pub node_bytes: usize,
}

/// A value in the body, and how long it is without insignificant whitespace. A body is shorter than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    begin: u32,
    end: u32,
    len: u32,
}

impl Span {
    fn of<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        &body[self.begin as usize..self.end as usize]
    }

    fn size(&self) -> usize {
        self.len as usize
    }

    fn copy(&self, body: &[u8], out: &mut Out) {
        if self.len == self.end - self.begin {
            out.put(self.of(body));
        } else {
            let written = compact(self.of(body), out.next(self.size()));
            debug_assert_eq!(written, self.size());
        }
    }
}

/// A node or tag.
#[derive(Debug, PartialEq, Eq)]
pub enum Text {
    Absent,
    /// The inside of a string without escapes.
    At(u32, u32),
    Made(Box<[u8]>),
}

impl Text {
    pub fn bytes<'a>(&'a self, body: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Text::Absent => None,
            Text::At(begin, end) => Some(&body[*begin as usize..*end as usize]),
            Text::Made(text) => Some(text),
        }
    }
}

#[derive(Debug)]
pub struct Record {
    pub data: Span,
    pub meta: Option<Span>,
    pub tag: Text,
    pub node: Text,
}

impl Record {
    /// Canonical bytes of data and meta [REC-12].
    pub fn accounted(&self) -> usize {
        self.data.size() + self.meta.map_or(0, |meta| meta.size())
    }

    /// Of node and tag; `batch` is that of a node for records that have none.
    fn text_lens(&self, body: &[u8], batch: usize) -> (usize, usize) {
        (self.node.bytes(body).map_or(batch, <[u8]>::len), self.tag.bytes(body).map_or(0, <[u8]>::len))
    }

    fn envelope_bytes(&self) -> usize {
        self.data.size() + self.meta.map_or(6, |meta| meta.size() + 11)
    }

    /// The envelope the record is stored in [S-40].
    pub fn envelope(&self, body: &[u8], out: &mut Out) {
        out.put(b"{\"d\":");
        self.data.copy(body, out);
        if let Some(meta) = &self.meta {
            out.put(b",\"m\":");
            meta.copy(body, out);
        }
        out.put(b"}");
    }
}

/// Members of a write besides its records and node, as they were written.
pub const OTHERS: [&[u8]; 5] = [b"idempotency_key", b"producer", b"create", b"config", b"disable_backpressure"];

/// A body that is plainly right.
#[derive(Debug)]
pub struct Scanned {
    pub records: Vec<Record>,
    pub node: Text,
    pub others: [Option<(usize, usize)>; OTHERS.len()],
    /// Of all records.
    pub accounted: usize,
}

/// Scan a body; `None` for what is not plainly right.
pub fn scan(body: &[u8], limits: &Limits) -> Option<Scanned> {
    if u32::try_from(body.len()).is_err() || std::str::from_utf8(body).is_err() {
        return None;
    }
    let mut at = Scanner::new(body);
    let mut records = None;
    let mut node = None;
    let mut others = [None; OTHERS.len()];
    at.space();
    at.expect(b'{')?;
    at.space();
    loop {
        let name = name(&mut at)?;
        match name {
            b"records" if records.is_none() => records = Some(all(&mut at, limits)?),
            b"node" if node.is_none() => node = Some(text(&mut at, limits.node_bytes)?),
            b"records" | b"node" => return None,
            _ => {
                let begin = at.at;
                at.value()?;
                if let Some(known) = OTHERS.iter().position(|&other| other == name) {
                    if others[known].replace((begin, at.at)).is_some() {
                        return None;
                    }
                }
            }
        }
        at.space();
        if at.peek()? == b'}' {
            break;
        }
        at.expect(b',')?;
        at.space();
    }
    at.at += 1;
    at.space();
    if at.at != body.len() {
        return None;
    }
    summed(body, records?, node.unwrap_or(Text::Absent), others)
}

fn summed(body: &[u8], records: Vec<Record>, node: Text, others: [Option<(usize, usize)>; 5]) -> Option<Scanned> {
    let batch = node.bytes(body).map_or(0, <[u8]>::len);
    let mut accounted = 0;
    for record in &records {
        let (node_len, tag_len) = record.text_lens(body, batch);
        let size = FRAME_BYTES + node_len + tag_len + record.envelope_bytes();
        if size > FRAME_LEN_MAX + 4 || node_len.max(tag_len) > usize::from(u16::MAX) {
            return None;
        }
        accounted += record.accounted();
    }
    Some(Scanned { records, node, others, accounted })
}

/// How long the frames of some records are together.
pub fn frames_bytes(body: &[u8], records: &[Record], node: &Text) -> usize {
    let batch = node.bytes(body).map_or(0, <[u8]>::len);
    let sizes = records.iter().map(|record| {
        let (node_len, tag_len) = record.text_lens(body, batch);
        FRAME_BYTES + node_len + tag_len + record.envelope_bytes()
    });
    sizes.sum()
}

/// The name of a member that has no escapes, its colon passed.
fn name<'a>(at: &mut Scanner<'a>) -> Option<&'a [u8]> {
    let begin = at.at + 1;
    if at.string()? {
        return None;
    }
    let name = &at.text[begin..at.at - 1];
    at.colon()?;
    Some(name)
}

/// A string of so many bytes at most, or null.
fn text(at: &mut Scanner, most: usize) -> Option<Text> {
    if at.peek()? == b'n' {
        at.value()?;
        return Some(Text::Absent);
    }
    let begin = at.at + 1;
    let escaped = at.string()?;
    let inside = &at.text[begin..at.at - 1];
    if !escaped {
        return if inside.len() <= most { Some(Text::At(begin as u32, at.at as u32 - 1)) } else { None };
    }
    let made = unescaped(inside)?;
    if made.len() <= most {
        Some(Text::Made(made.into()))
    } else {
        None
    }
}

fn all(at: &mut Scanner, limits: &Limits) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    at.expect(b'[')?;
    loop {
        at.space();
        if records.len() == limits.records {
            return None;
        }
        let begin = at.at;
        records.push(one(at, limits)?);
        if records.len() == 1 {
            // Records of a write are mostly alike.
            let alike = (at.text.len() - at.at) / (at.at - begin);
            records.reserve_exact(alike.min(limits.records - 1));
        }
        at.space();
        if at.peek()? == b']' {
            at.at += 1;
            return Some(records);
        }
        at.expect(b',')?;
    }
}

fn one(at: &mut Scanner, limits: &Limits) -> Option<Record> {
    let (mut data, mut meta, mut tag, mut node) = (None, None, None, None);
    at.expect(b'{')?;
    at.space();
    loop {
        match name(at)? {
            b"data" if data.is_none() => data = Some(span(at)?),
            b"tag" if tag.is_none() => tag = Some(text(at, limits.tag_bytes)?),
            b"node" if node.is_none() => node = Some(text(at, limits.node_bytes)?),
            b"meta" if meta.is_none() => meta = Some(headers(at, limits)?),
            b"data" | b"tag" | b"node" | b"meta" => return None,
            _ => at.value()?,
        }
        at.space();
        if at.peek()? == b'}' {
            break;
        }
        at.expect(b',')?;
        at.space();
    }
    at.at += 1;
    let found = Record {
        data: data?,
        meta: meta.flatten(),
        tag: tag.unwrap_or(Text::Absent),
        node: node.unwrap_or(Text::Absent),
    };
    if found.accounted() <= limits.record_bytes {
        Some(found)
    } else {
        None
    }
}

fn span(at: &mut Scanner) -> Option<Span> {
    let (begin, spaces) = (at.at, at.spaces);
    at.value()?;
    let len = at.at - begin - (at.spaces - spaces);
    Some(Span { begin: begin as u32, end: at.at as u32, len: len as u32 })
}

/// An object that is small enough, or null.
fn headers(at: &mut Scanner, limits: &Limits) -> Option<Option<Span>> {
    let first = at.peek()?;
    let found = span(at)?;
    if first == b'n' {
        return Some(None);
    }
    if first != b'{' || found.size() > limits.meta_bytes {
        return None;
    }
    few_members(found.of(at.text), limits)?;
    Some(Some(found))
}

/// Whether a valid object has as few members as meta may have.
pub fn few_members(object: &[u8], limits: &Limits) -> Option<()> {
    let colons = object.iter().filter(|&&byte| byte == b':').count();
    if colons > limits.meta_members && members(object)? > limits.meta_members {
        return None;
    }
    Some(())
}

/// How many members an object has, repeated ones counted as often as they are written.
fn members(object: &[u8]) -> Option<usize> {
    let mut at = Scanner::new(object);
    let mut count = 0;
    at.expect(b'{')?;
    at.space();
    while at.peek()? != b'}' {
        at.string()?;
        at.colon()?;
        at.value()?;
        count += 1;
        at.space();
        if at.peek()? == b',' {
            at.at += 1;
            at.space();
        }
    }
    Some(count)
}

/// Where the frames of a write go, and what they say.
pub struct Place {
    pub topic_id: u64,
    pub first_seq: u64,
    pub ts: u64,
    /// Of every frame; not `MORE`.
    pub flags: u8,
    /// The submission goes on behind the last of them.
    pub more: bool,
}

/// Write the frames and the index entries of some records; where each frame begins, as 64-bit numbers.
pub fn frames(
    body: &[u8],
    records: &[Record],
    node: &Text,
    place: &Place,
    out: &mut Out,
    entries: &mut Vec<u8>,
) -> Vec<u8> {
    let batch_node = node.bytes(body);
    let mut offsets = Vec::with_capacity(records.len() * 8);
    entries.reserve(records.len() * frame::ENTRY_BYTES);
    let last = records.len().wrapping_sub(1);
    for (i, record) in records.iter().enumerate() {
        let tag = record.tag.bytes(body);
        let node = record.node.bytes(body).or(batch_node);
        let kind = tag.map_or(0, |_| HAS_TAG) | node.map_or(0, |_| HAS_NODE);
        let more = if place.more || i != last { frame::MORE } else { 0 };
        let head = Head {
            flags: place.flags | kind | more,
            topic_id: place.topic_id,
            seq: place.first_seq + i as u64,
            ts: place.ts,
            node: node.unwrap_or(b""),
            tag: tag.unwrap_or(b""),
            data_len: record.envelope_bytes(),
        };
        offsets.extend_from_slice(&(out.at as u64).to_le_bytes());
        let size = frame::append(out, &head, |out| record.envelope(body, out));
        frame::entry(entries, 0, size - frame::EXTRA_BYTES, place.ts, kind, record.accounted());
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { records: 3, record_bytes: 50, meta_bytes: 20, meta_members: 2, tag_bytes: 4, node_bytes: 4 };

    fn found(body: &str) -> Option<Scanned> {
        scan(body.as_bytes(), &LIMITS)
    }

    #[test]
    fn a_plain_body_is_scanned() {
        let body = r#" {"node":"n", "records" : [{"data": [1, 2] ,"tag":"t\n"},{"meta":{"a":1},"data":2,"x":[]}],"create":true}"#;
        let scanned = found(body).unwrap();
        assert_eq!(scanned.records.len(), 2);
        assert_eq!(scanned.accounted, 5 + 8);
        assert_eq!(scanned.records[0].tag, Text::Made(b"t\n"[..].into()));
        assert_eq!(scanned.node.bytes(body.as_bytes()), Some(&b"n"[..]));
        let (begin, end) = scanned.others[2].unwrap();
        assert_eq!(&body[begin..end], "true");
        let mut raw = vec![0; frames_bytes(body.as_bytes(), &scanned.records, &scanned.node)];
        let mut entries = Vec::new();
        let place = Place { topic_id: 7, first_seq: 9, ts: 11, flags: 4, more: false };
        let mut out = Out::new(&mut raw);
        let offsets = frames(body.as_bytes(), &scanned.records, &scanned.node, &place, &mut out, &mut entries);
        assert_eq!(out.at, out.bytes.len());
        let checked = frame::verify(&raw, 0, raw.len());
        assert_eq!((checked.stop, checked.rows.len()), (raw.len(), 2 * frame::ROW_BYTES));
        assert_eq!(offsets, [0u64.to_le_bytes(), (46u64 + 1 + 2 + 5 + 6).to_le_bytes()].concat());
        assert_eq!(entries.len(), 40);
        assert!(raw.windows(11).any(|piece| piece == b"{\"d\":[1,2]}"));
    }

    #[test]
    fn what_is_not_plainly_right_is_declined() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"records":[]}"#,
            r#"{"records":[{}]}"#,
            r#"{"records":[{"data":1}]} x"#,
            r#"{"records":[{"data":1}],"records":[{"data":1}]}"#,
            r#"{"records":[{"data":1,"data":2}]}"#,
            r#"{"records":[{"data":1,"tag":"12345"}]}"#,
            r#"{"records":[{"data":1,"tag":7}]}"#,
            r#"{"records":[{"data":1,"meta":[]}]}"#,
            r#"{"records":[{"data":1,"meta":{"a":1,"b":2,"c":3}}]}"#,
            r#"{"records":[{"data":1},{"data":1},{"data":1},{"data":1}]}"#,
            r#"{"rec\u006frds":[{"data":1}]}"#,
            r#"{"records":[{"data":1},]}"#,
            r#"{"records":[{"data":1}],}"#,
            r#"{"records":[{"data":1,}]}"#,
            r#"{"node":"12345","records":[{"data":1}]}"#,
            r#"{"records":{"data":1}}"#,
            r#"{"records":[{"data":"123456789012345678901234567890123456789012345678901234567890"}]}"#,
        ] {
            assert!(found(bad).is_none(), "{bad}");
        }
        assert!(scan(b"{\"records\":[{\"data\":\"\xff\"}]}", &LIMITS).is_none());
    }
}
