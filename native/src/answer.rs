//! What a write answers [WR-3] and what a watch is sent [FRM-1], assembled from bytes.

use crate::render::number;

/// The body of an answer to a write that appended records to a topic that was there.
///
/// `name` has no character that JSON escapes: names of topics never do [NAME-1]. `performance` is the member of that
/// name (02 §1.7).
pub fn write(name: &[u8], first: u64, count: u64, head: u64, seqs: bool, performance: &[u8]) -> Vec<u8> {
    let last = first + count - 1;
    let mut out = Vec::with_capacity(256 + name.len() + if seqs { count as usize * 12 } else { 0 });
    out.extend_from_slice(b"{\"topic\":\"");
    out.extend_from_slice(name);
    out.extend_from_slice(b"\",\"first_seq\":");
    number(first, &mut out);
    out.extend_from_slice(b",\"last_seq\":");
    number(last, &mut out);
    if seqs {
        out.extend_from_slice(b",\"seqs\":[");
        for seq in first..last {
            number(seq, &mut out);
            out.push(b',');
        }
        number(last, &mut out);
        out.push(b']');
    }
    out.extend_from_slice(b",\"head_seq\":");
    number(head, &mut out);
    out.extend_from_slice(b",\"count\":");
    number(count, &mut out);
    out.extend_from_slice(b",\"created\":false,\"deduped\":false,");
    out.extend_from_slice(performance);
    out.push(b'}');
    out
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Base64 for addresses, without padding.
fn base64(raw: &[u8], out: &mut Vec<u8>) {
    for part in raw.chunks(3) {
        let bits = part.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - part.len()));
        for at in 0..=part.len() {
            out.push(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        }
    }
}

/// A batch as server-sent events for whoever follows its topic alone: `record`, and `caught-up` where it ends at the head.
///
/// `name` as in `write`; `records` are pieces to be joined by commas.
pub fn events(name: &[u8], from: u64, to: u64, head: u64, records: &[&[u8]], chunked: bool) -> Vec<u8> {
    let mut cursor = Vec::with_capacity(name.len() + 26);
    cursor.extend_from_slice(b"{\"");
    cursor.extend_from_slice(name);
    cursor.extend_from_slice(b"\":");
    number(to, &mut cursor);
    cursor.push(b'}');
    let mut id = Vec::with_capacity(cursor.len() * 4 / 3 + 10);
    id.extend_from_slice(b"id: ");
    base64(&cursor, &mut id);
    id.push(b'\n');
    let size = records.iter().map(|piece| piece.len() + 1).sum::<usize>();
    let mut out = Vec::with_capacity(size + 2 * (id.len() + name.len()) + 256);
    out.extend_from_slice(&id);
    out.extend_from_slice(b"event: record\ndata: {\"topic\":\"");
    out.extend_from_slice(name);
    out.extend_from_slice(b"\",\"from_seq\":");
    number(from, &mut out);
    out.extend_from_slice(b",\"to_seq\":");
    number(to, &mut out);
    out.extend_from_slice(b",\"head_seq\":");
    number(head, &mut out);
    out.extend_from_slice(b",\"records\":[");
    for (at, piece) in records.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(b"]}\n\n");
    if to >= head {
        out.extend_from_slice(&id);
        out.extend_from_slice(b"event: caught-up\ndata: {\"topic\":\"");
        out.extend_from_slice(name);
        out.extend_from_slice(b"\",\"head_seq\":");
        number(head, &mut out);
        out.extend_from_slice(b"}\n\n");
    }
    if chunked {
        out.extend_from_slice(b"\r\n");
        let begin = format!("{:x}\r\n", out.len() - 2);
        out.splice(0..0, begin.into_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_seqs() {
        let told = br#"{"topic":"t","first_seq":4,"last_seq":6,"seqs":[4,5,6],"head_seq":9,"count":3,"created":false,"deduped":false,"p":1}"#;
        assert_eq!(write(b"t", 4, 3, 9, true, b"\"p\":1"), told);
    }

    #[test]
    fn a_batch_says_where_it_leads_and_when_that_is_the_head() {
        let behind = events(b"t", 4, 6, 9, &[b"1", b"2,3"], false);
        let told = b"id: eyJ0Ijo2fQ\nevent: record\ndata: {\"topic\":\"t\",\"from_seq\":4,\"to_seq\":6,\"head_seq\":9,\"records\":[1,2,3]}\n\n";
        assert_eq!(behind, told);
        let last = events(b"tu", 4, 9, 9, &[b"1"], true);
        let end = b"id: eyJ0dSI6OX0\nevent: caught-up\ndata: {\"topic\":\"tu\",\"head_seq\":9}\n\n\r\n";
        assert!(
            last.ends_with(end) && last.starts_with(b"ab\r\nid: eyJ0dSI6OX0\n"),
            "{}",
            String::from_utf8_lossy(&last)
        );
    }
}
