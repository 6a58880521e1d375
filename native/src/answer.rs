//! What a write answers [WR-3], assembled from bytes.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_seqs() {
        let told = br#"{"topic":"t","first_seq":4,"last_seq":6,"seqs":[4,5,6],"head_seq":9,"count":3,"created":false,"deduped":false,"p":1}"#;
        assert_eq!(write(b"t", 4, 3, 9, true, b"\"p\":1"), told);
    }
}
