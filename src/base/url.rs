//! Percent-encoding and queries of URLs: which characters stay as they are in which place, and the way back.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// One part of a path, or a name or value of a query: letters, digits and `-_.~` stay (RFC 3986, "unreserved").
pub const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Several parts of a path: [`COMPONENT`], and slashes stay.
pub const PATH: &AsciiSet = &COMPONENT.remove(b'/');

/// A path that a person wrote, as Go's `net/url` prints it: escapes stay, and all that may stand in a path.
pub const WRITTEN_PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

/// A part of a header's name: the characters of a token (RFC 9110) stay, but for the percent sign.
pub const HEADER_NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Writes `%41` for each byte of `set`, and of what is not ASCII.
pub fn encode(text: &str, set: &'static AsciiSet) -> String {
    utf8_percent_encode(text, set).to_string()
}

/// Reads `%41`. What is no valid escape stays as it is; what comes out and is no text is replaced.
pub fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Reads `%41` in a segment of a path. `None`: an escape is broken, or what comes out is no text.
pub fn decode_strictly(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|after| after.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// The query of a URL: decoded pairs in the order sent.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`, percent signs and pluses decoded.
    pub fn parse(text: &str) -> Query {
        Query(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
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

    /// A choice: missing, `0` and `false` are no, everything else is yes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_keeps_the_characters_that_may_stand_there() {
        let all: String = (0x20..0x7f).map(char::from).collect();
        let kept = |set| {
            let of = |c: &char| encode(&c.to_string(), set).len() == 1 && !c.is_ascii_alphanumeric();
            all.chars().filter(of).collect::<String>()
        };
        assert_eq!(kept(COMPONENT), "-._~");
        assert_eq!(kept(PATH), "-./_~");
        assert_eq!(kept(WRITTEN_PATH), "!#$%&'()*+,-./:;=?@[]_~");
        assert_eq!(kept(HEADER_NAME), "!#$&'*+-.^_`|~");
        for set in [COMPONENT, PATH, WRITTEN_PATH, HEADER_NAME] {
            assert_eq!(encode("aZ9\n\u{7f}ä", set), "aZ9%0A%7F%C3%A4");
        }
    }

    #[test]
    fn what_was_encoded_is_read_back() {
        for text in ["a b&c=ü%", "../../secrets?x", "%zz", "+", ""] {
            assert_eq!(decode(&encode(text, COMPONENT)), text);
            assert_eq!(decode_strictly(&encode(text, COMPONENT)).as_deref(), Some(text));
            assert_eq!(Query::parse(&format!("a={}", encode(text, COMPONENT))).text("a"), text);
        }
    }

    #[test]
    fn broken_escapes_are_kept_or_refused() {
        for (text, kept) in [("%zz", "%zz"), ("%", "%"), ("a%4", "a%4"), ("%+5", "%+5"), ("%é", "%é"), ("+", "+")] {
            assert_eq!(decode(text), kept);
            assert_eq!(decode_strictly(text).is_some(), !text.contains('%'), "{text}");
        }
        assert_eq!(decode("%ff"), "\u{fffd}");
        assert_eq!(decode_strictly("%ff"), None);
    }

    #[test]
    fn a_query_keeps_order_repeated_keys_and_broken_escapes() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in&&follow=1&x=%zz&command=sh&command=-c&bare&no=FALSE&n=-7");
        assert_eq!(query.text("labelSelector"), "a=b,c in");
        assert!(query.flag("follow") && !query.flag("missing") && !query.flag("no"));
        assert_eq!(query.text("x"), "%zz");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c"]);
        assert_eq!((query.get("bare"), query.get("missing")), (Some(""), None));
        assert_eq!((query.number("n"), query.number("x")), (Some(-7), None));
        assert_eq!(query.pairs().len(), 8);
    }
}
