//! The query of a URL.

/// Decoded pairs in the order sent.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`, percent signs and pluses decoded.
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|p| !p.is_empty());
        Query(
            pairs
                .map(|p| p.split_once('=').unwrap_or((p, "")))
                .map(|(k, v)| (decode(k, true), decode(v, true)))
                .collect(),
        )
    }

    /// The first value of a key; `None` if it is missing.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The first value of a key, empty if it is missing.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// All values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// As upstream converts strings to bool: missing, `0` and `false` are false, everything else is true.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }

    /// A number, if there is one.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// All pairs.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Decodes `%41`, and `+` as a space if `plus`. What is no valid escape stays as it is.
pub fn decode(text: &str, plus: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    String::from_utf8_lossy(&decoded(text, plus)).into_owned()
}

/// Decodes `%41` in a segment of a path. `None`: an escape is broken, or what comes out is no text.
pub fn decode_strictly(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|after| after.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))) {
        return None;
    }
    String::from_utf8(decoded(text, false)).ok()
}

fn decoded(text: &str, plus: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 2;
            }
            (b'+', ..) if plus => out.push(b' '),
            (other, ..) => out.push(other),
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_broken_ones_kept() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in&watch=1&x=%zz");
        assert_eq!(query.text("labelSelector"), "a=b,c in");
        assert!(query.flag("watch"));
        assert_eq!(query.text("x"), "%zz");
        assert!(!query.flag("missing"));
    }
}
