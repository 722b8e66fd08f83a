//! Absolute URLs, taken apart.

use std::collections::BTreeMap;

/// A URL with its parts as Go's `net/url` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `https`
    pub scheme: String,
    /// `example.com:80`
    pub host: String,
    /// `/a%20b`
    pub path: String,
    /// `x=1&y=2`
    pub query: String,
}

impl Url {
    /// Reads a URI or an absolute path.
    pub fn read(text: &str) -> Option<Url> {
        if text.is_empty() || text.chars().any(|c| c.is_ascii_control()) {
            return None;
        }
        let text = text.split('#').next().unwrap_or_default();
        let (before, query) = text.split_once('?').unwrap_or((text, ""));
        let (scheme, rest) = match before.split_once(':') {
            Some((scheme, rest))
                if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
            {
                (scheme.to_lowercase(), rest)
            }
            _ if before.starts_with('/') => (String::new(), before),
            _ => return None,
        };
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let at = rest.find('/').unwrap_or(rest.len());
                (rest[..at].rsplit('@').next().unwrap_or_default(), &rest[at..])
            }
            None if rest.starts_with('/') => ("", rest),
            // `mailto:a@b` has no parts that are asked for.
            None => ("", ""),
        };
        let port = host.rsplit_once(':').filter(|(h, _)| !h.contains(':') || h.ends_with(']')).map_or("", |(_, p)| p);
        let escapes_are_whole = path
            .match_indices('%')
            .all(|(i, _)| path.get(i + 1..i + 3).is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit())));
        (!host.contains(' ')
            && port.bytes().all(|b| b.is_ascii_digit())
            && escapes_are_whole
            && (!host.starts_with('[') || host.contains(']')))
        .then(|| Url { scheme, host: host.to_owned(), path: escaped(path), query: query.to_owned() })
    }

    /// The host without its port and brackets.
    pub fn hostname(&self) -> &str {
        match self.host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.host.split(':').next().unwrap_or_default(),
        }
    }

    /// The port as text, empty if there is none.
    pub fn port(&self) -> &str {
        let rest = match self.host.rsplit_once(']') {
            Some((_, rest)) => rest,
            None => &self.host,
        };
        rest.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The query by name.
    pub fn queries(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.entry(decode(key)).or_default().push(decode(value));
        }
        all
    }
}

/// With what may not stand in a path put as its bytes.
fn escaped(path: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b);
    path.bytes().map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                at += 1;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
