//! Strict JSON (RFC 8259) over bytes that are valid UTF-8: where values end, and their text without whitespace.
//!
//! `None` means: not plainly right. Why is for the Python twin to say; nothing here finds words. No recursion: nesting
//! costs a bit per level and stops at `DEPTH_MAX`.

/// Levels of brackets that a value may have [API-11].
pub const DEPTH_MAX: usize = 256;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Walks a text. `spaces` counts the insignificant whitespace passed so far.
pub struct Scanner<'a> {
    pub text: &'a [u8],
    pub at: usize,
    pub spaces: usize,
}

/// Brackets that are open, one bit each: set for an object.
struct Open {
    bits: [u64; DEPTH_MAX / 64],
    depth: usize,
    /// The innermost one is an object.
    is_object: bool,
}

impl Open {
    fn push(&mut self, is_object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(is_object) << bit;
        self.depth += 1;
        self.is_object = is_object;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        if self.depth > 0 {
            let top = self.depth - 1;
            self.is_object = self.bits[top / 64] >> (top % 64) & 1 == 1;
        }
    }
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Scanner { text, at: 0, spaces: 0 }
    }

    /// The next byte, if there is one.
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Pass this byte.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        if self.peek()? == byte {
            self.at += 1;
            Some(())
        } else {
            None
        }
    }

    /// Pass insignificant whitespace.
    #[inline]
    pub fn space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.blanks();
        }
    }

    #[cold]
    fn blanks(&mut self) {
        let begin = self.at;
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        self.spaces += self.at - begin;
    }

    /// Pass the name of a member, its colon and the whitespace around that.
    fn member(&mut self) -> Option<()> {
        self.string()?;
        self.colon()
    }

    /// Pass a colon and the whitespace around it.
    pub fn colon(&mut self) -> Option<()> {
        self.space();
        self.expect(b':')?;
        self.space();
        Some(())
    }

    /// Pass a value.
    pub fn value(&mut self) -> Option<()> {
        let mut open = Open { bits: [0; DEPTH_MAX / 64], depth: 0, is_object: false };
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                byte @ (b'{' | b'[') => {
                    if open.depth == DEPTH_MAX {
                        return None;
                    }
                    self.at += 1;
                    self.space();
                    // `]` and `}` are two behind their opening brackets.
                    if self.peek()? == byte + 2 {
                        self.at += 1;
                    } else {
                        open.push(byte == b'{');
                        if byte == b'{' {
                            self.member()?;
                        }
                        continue;
                    }
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => return None,
            }
            if !self.ended(&mut open)? {
                return Some(());
            }
        }
    }

    /// A value has ended: pass closing brackets and a comma. Whether another value follows.
    #[inline]
    fn ended(&mut self, open: &mut Open) -> Option<bool> {
        while open.depth > 0 {
            self.space();
            let is_object = open.is_object;
            match self.peek()? {
                b',' => {
                    self.at += 1;
                    self.space();
                    if is_object {
                        self.member()?;
                    }
                    return Some(true);
                }
                b'}' if is_object => {}
                b']' if !is_object => {}
                _ => return None,
            }
            self.at += 1;
            open.pop();
        }
        Some(false)
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        if self.text.get(self.at..self.at + word.len())? != word {
            return None;
        }
        self.at += word.len();
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let begin = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at > begin {
            Some(())
        } else {
            None
        }
    }

    fn number(&mut self) -> Option<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        // `01` and `1x` end here for the caller: what follows a value is never a digit or letter.
        Some(())
    }

    /// Pass a string; whether it has escapes.
    pub fn string(&mut self) -> Option<bool> {
        self.expect(b'"')?;
        let mut escaped = false;
        loop {
            match self.plain()? {
                b'"' => {
                    self.at += 1;
                    return Some(escaped);
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return None,
            }
        }
    }

    /// Pass bytes of a string that need no look, eight at a time; the one that does: a quote, backslash or control.
    #[inline]
    fn plain(&mut self) -> Option<u8> {
        let (text, mut at) = (self.text, self.at);
        while let Some(piece) = text.get(at..at + 8) {
            let word = u64::from_le_bytes(piece.try_into().expect("eight bytes"));
            let quote = word ^ (ONES * u64::from(b'"'));
            let backslash = word ^ (ONES * u64::from(b'\\'));
            let found = (quote.wrapping_sub(ONES) & !quote
                | backslash.wrapping_sub(ONES) & !backslash
                | word.wrapping_sub(ONES * 0x20) & !word)
                & HIGHS;
            if found != 0 {
                // A borrow may mark bytes above the lowest one that counts, never below it.
                let bits = found.trailing_zeros() & !7;
                self.at = at + bits as usize / 8;
                return Some((word >> bits) as u8);
            }
            at += 8;
        }
        while let Some(&byte) = text.get(at) {
            if let b'"' | b'\\' | 0..=0x1f = byte {
                self.at = at;
                return Some(byte);
            }
            at += 1;
        }
        None
    }

    /// Pass one escape; surrogates come in pairs.
    fn escape(&mut self) -> Option<()> {
        self.at += 1;
        match self.peek()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 1;
                Some(())
            }
            b'u' => self.unicode().map(|_| ()),
            _ => None,
        }
    }

    /// The character of `uXXXX`, or of a pair of them.
    fn unicode(&mut self) -> Option<char> {
        let high = self.unit()?;
        if !(0xd800..0xe000).contains(&high) {
            return char::from_u32(high);
        }
        if high >= 0xdc00 || self.peek()? != b'\\' {
            return None;
        }
        self.at += 1;
        if self.peek()? != b'u' {
            return None;
        }
        let low = self.unit()?;
        if !(0xdc00..0xe000).contains(&low) {
            return None;
        }
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }

    fn unit(&mut self) -> Option<u32> {
        self.at += 1;
        let mut unit = 0;
        for &byte in self.text.get(self.at..self.at + 4)? {
            unit = unit << 4 | char::from(byte).to_digit(16)?;
        }
        self.at += 4;
        Some(unit)
    }
}

/// The text of a string's inside that has escapes, and passed `string` before.
pub fn unescaped(inside: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(inside.len());
    let mut scanner = Scanner::new(inside);
    while let Some(byte) = scanner.peek() {
        scanner.at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escape = scanner.peek()?;
        let plain = match escape {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let found = scanner.unicode()?;
                out.extend_from_slice(found.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            other => other,
        };
        scanner.at += 1;
        out.push(plain);
    }
    Some(out)
}

/// Copy a valid value without its insignificant whitespace; how many bytes were written.
pub fn compact(value: &[u8], out: &mut [u8]) -> usize {
    let mut scanner = Scanner::new(value);
    let mut to = 0;
    while let Some(byte) = scanner.peek() {
        let begin = scanner.at;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {
                scanner.at += 1;
                continue;
            }
            b'"' => {
                scanner.string();
            }
            _ => scanner.at += 1,
        }
        let piece = &value[begin..scanner.at];
        out[to..to + piece.len()].copy_from_slice(piece);
        to += piece.len();
    }
    to
}

/// Write text as a JSON string, escaped as msgspec does it.
pub fn quote(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            0..=31 => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// What an envelope holds besides its data [S-40].
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Meta {
    /// None: the data ends before the last byte.
    Absent,
    /// From here on, behind `,"m":`; it ends before the last byte.
    At(usize),
    /// Not the envelope of canonical JSON that is written here: the twin has to look.
    Unclear,
}

/// Where the data of an envelope begins.
pub const DATA_AT: usize = 5;

/// Bytes between data and meta.
pub const META_GAP: usize = 5;

/// Whether and where an envelope has meta; parsed only where the bytes leave it open [S-347].
pub fn meta_of(envelope: &[u8]) -> Meta {
    if !envelope.ends_with(b"}}") || !has_needle(envelope) {
        return Meta::Absent;
    }
    parsed(envelope).unwrap_or(Meta::Unclear)
}

fn has_needle(envelope: &[u8]) -> bool {
    let needle = b",\"m\":{";
    envelope.windows(needle.len()).any(|piece| piece == needle)
}

/// The same of any bytes, all of them looked at; `None` for what is no envelope of canonical JSON.
pub fn parsed(envelope: &[u8]) -> Option<Meta> {
    if !envelope.starts_with(b"{\"d\":") || std::str::from_utf8(envelope).is_err() {
        return None;
    }
    let mut scanner = Scanner::new(envelope);
    scanner.at = DATA_AT;
    scanner.value()?;
    let mut found = Meta::Absent;
    if scanner.peek()? == b',' {
        scanner.literal(b",\"m\":")?;
        found = Meta::At(scanner.at);
        if scanner.peek()? != b'{' {
            return None;
        }
        scanner.value()?;
    }
    scanner.expect(b'}')?;
    if scanner.at == envelope.len() && scanner.spaces == 0 {
        Some(found)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> bool {
        let mut scanner = Scanner::new(text.as_bytes());
        scanner.value().is_some() && scanner.at == text.len()
    }

    #[test]
    fn what_rfc_8259_allows_is_passed_and_nothing_else() {
        for good in [
            "1",
            "-0",
            "0.5",
            "1e+5",
            "1E5",
            "-0.0e-0",
            "\"\"",
            "\"\\u00e9\\\\\\/\"",
            "\"\\ud83d\\ude00\"",
            "[]",
            "{}",
            "[1,[2,{\"a\":[]}]]",
            "{\"a\":1,\"b\":{}}",
            "true",
            "false",
            "null",
            "\"a long string of plain text\"",
        ] {
            assert!(whole(good), "{good}");
        }
        for bad in [
            "",
            "01",
            "1.",
            ".5",
            "1e",
            "-",
            "tru",
            "[1,]",
            "{\"a\":1,}",
            "{1:2}",
            "\"\\q\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud83dx\"",
            "\"\\ud83d\\u0041\"",
            "\"a\u{1}\"",
            "\"open",
            "[1",
            "{\"a\"",
            "[1}",
            "{\"a\":1]",
            "+1",
            "NaN",
            "\"\\u00zz\"",
            "\"\\u00",
            "{\"a\" 1}",
        ] {
            assert!(!whole(bad), "{bad}");
        }
    }

    #[test]
    fn nesting_stops_at_its_bound() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(whole(&nested(DEPTH_MAX)));
        assert!(!whole(&nested(DEPTH_MAX + 1)));
    }

    #[test]
    fn whitespace_is_counted_and_taken_out() {
        let text = b" { \"a b\" : [ 1 ,\t2 ] ,\n\"c\" : \"\\\" \" } ";
        let mut scanner = Scanner::new(text);
        scanner.space();
        scanner.value().unwrap();
        scanner.space();
        assert_eq!(scanner.at, text.len());
        let mut out = vec![0; text.len() - scanner.spaces];
        assert_eq!(compact(text, &mut out), out.len());
        assert_eq!(out, b"{\"a b\":[1,2],\"c\":\"\\\" \"}");
    }

    #[test]
    fn escapes_become_what_they_stand_for() {
        assert_eq!(unescaped(b"a\\n\\u00e9\\ud83d\\ude00\\/\\\"").unwrap(), "a\né😀/\"".as_bytes());
        let mut out = Vec::new();
        quote("a\n\u{1}\"\\é\u{7f}".as_bytes(), &mut out);
        assert_eq!(out, "\"a\\n\\u0001\\\"\\\\é\u{7f}\"".as_bytes());
    }

    #[test]
    fn meta_is_found_where_it_is() {
        assert_eq!(meta_of(b"{\"d\":1}"), Meta::Absent);
        assert_eq!(meta_of(b"{\"d\":{\"x\":1,\"m\":{}}}"), Meta::Absent);
        assert_eq!(meta_of(b"{\"d\":1,\"m\":{}}"), Meta::At(11));
        assert_eq!(meta_of(b"{\"d\":1,\"m\":{} }}"), Meta::Unclear);
        assert_eq!(meta_of(b"{\"d\": 1,\"m\":{}}"), Meta::Unclear);
    }
}
