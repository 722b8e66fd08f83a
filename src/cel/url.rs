//! Absolute URLs, taken apart.

use std::collections::BTreeMap;

use base::url;

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
        .then(|| Url {
            scheme,
            host: host.to_owned(),
            path: url::encode(path, url::WRITTEN_PATH),
            query: query.to_owned(),
        })
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
        for (key, value) in url::Query::parse(&self.query).pairs() {
            all.entry(key.clone()).or_default().push(value.clone());
        }
        all
    }
}
