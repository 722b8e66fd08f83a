//! Faults of JSON that cannot be read, in the words of Go's scanner.

use std::fmt;

/// The first mistake in a text that is no JSON.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mistake {
    #[error("unexpected end of JSON input")]
    End,
    #[error("exceeded max depth")]
    Depth,
    #[error("invalid character {} {context}", shown(*.byte))]
    Character { byte: u8, context: Context },
}

/// Where a character is not expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// In Go's words.
    At(&'static str),
    /// In `null`, `true` or `false`, and the letter that is expected there.
    In(&'static str, u8),
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Context::At(words) => f.write_str(words),
            Context::In(word, wanted) => write!(f, "in literal {word} (expecting '{}')", char::from(*wanted)),
        }
    }
}

/// A byte as Go quotes it.
fn shown(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

/// Reads `bytes` as Go's scanner does.
///
/// Errors: the first mistake.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Mistake> {
    let mut scan = Scan { bytes, at: 0 };
    scan.value(0)?;
    match scan.skip() {
        None => Ok(()),
        Some(_) => Err(scan.here("after top-level value")),
    }
}

/// The sentence about a YAML reader's complaint: `error: line 1 column 5: why` is Go's `yaml: line 1: why`.
pub(super) fn yaml_mistake(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let parts = first.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    match parts {
        Some((place, why)) => format!("yaml: line {}: {why}", place.split(' ').next().unwrap_or_default()),
        None => format!("yaml: {first}"),
    }
}

/// The sentence of Go's strict reader about a key that stands twice in a YAML mapping.
pub(super) fn repeated_key(err: &serde_saphyr::Error) -> String {
    let line = err.location().map_or(0, |at| at.line());
    let mut inner = err;
    while let serde_saphyr::Error::WithSnippet { error, .. } = inner {
        inner = error;
    }
    match inner {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("yaml: unmarshal errors:\n  line {line}: key \"{key}\" already set in map")
        }
        other => yaml_mistake(&other.to_string()),
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn skip(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// The mistake at the byte where we stand.
    fn here(&self, words: &'static str) -> Mistake {
        self.unexpected(Context::At(words))
    }

    fn unexpected(&self, context: Context) -> Mistake {
        self.bytes.get(self.at).map_or(Mistake::End, |byte| Mistake::Character { byte: *byte, context })
    }

    fn value(&mut self, depth: usize) -> Result<(), Mistake> {
        if depth > base::limits::NESTING_DEPTH_MAX {
            return Err(Mistake::Depth);
        }
        match self.skip() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.here("looking for beginning of value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), Mistake> {
        self.at += 1;
        if self.skip() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.skip() != Some(b'"') {
                return Err(self.here("looking for beginning of object key string"));
            }
            self.string()?;
            if self.skip() != Some(b':') {
                return Err(self.here("after object key"));
            }
            self.at += 1;
            self.value(depth + 1)?;
            let next = self.skip();
            match next {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.here("after object key:value pair")),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), Mistake> {
        self.at += 1;
        if self.skip() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            let next = self.skip();
            match next {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.here("after array element")),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), Mistake> {
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(0..0x20) | None => return Err(self.here("in string literal")),
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), Mistake> {
        match self.bytes.get(self.at) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.bytes.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                        return Err(self.here("in \\u hexadecimal character escape"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.here("in string escape code")),
        }
        Ok(())
    }

    fn literal(&mut self, word: &'static str) -> Result<(), Mistake> {
        for wanted in word.bytes() {
            if self.bytes.get(self.at) != Some(&wanted) {
                return Err(self.unexpected(Context::In(word, wanted)));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<(), Mistake> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else if self.digits() == 0 {
            return Err(self.here("in numeric literal"));
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.here("after decimal point in numeric literal"));
            }
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.here("in exponent of numeric literal"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_as_go_names_them() {
        for (text, why) in [
            ("", "unexpected end of JSON input"),
            ("{bad", "invalid character 'b' looking for beginning of object key string"),
            ("{\"a\":1", "unexpected end of JSON input"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("nul1", "invalid character '1' in literal null (expecting 'l')"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("\"a\\x\"", "invalid character 'x' in string escape code"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("\"a\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"a\u{1}\"", "invalid character '\\x01' in string literal"),
            ("\"a\n\"", "invalid character '\\n' in string literal"),
            ("\"a", "unexpected end of JSON input"),
            ("fals'", "invalid character '\\'' in literal false (expecting 'e')"),
            ("1.", "unexpected end of JSON input"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1e+]", "invalid character ']' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
        ] {
            assert_eq!(check(text.as_bytes()).unwrap_err().to_string(), why, "{text}");
        }
        assert_eq!(check("[".repeat(base::limits::NESTING_DEPTH_MAX + 2).as_bytes()), Err(Mistake::Depth));
        for text in ["{\"a\":[1.5e3,null,true,\"\\u00e9\"]}", " [ ] ", "{ }", "-0", "1E-7", "\"\\\\\""] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }
}
