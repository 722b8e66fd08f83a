//! Pages that come through `proxy`: links and redirects to the root of the proxied server lead back through the proxy, as upstream's
//! `apimachinery/pkg/util/proxy/transport.go` has it. Everything else passes untouched.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use wire::{Body, body, gzip};

use crate::status::Status;

/// Bytes of a page that is rewritten; a longer one is refused rather than held in memory.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Attributes that hold URLs, by element.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// What must be known to lead links back.
pub struct Way {
    /// Path of the API server up to `/proxy`.
    prefix: String,
    /// `host:port` of the server behind.
    behind: String,
    /// What the client called this server.
    asked: String,
}

impl Way {
    /// Notes the way and tells the server behind of it.
    pub fn mark(prefix: &str, host: &str, port: u16, path_and_query: &str, headers: &mut HeaderMap) -> Way {
        let asked = headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or_default().to_owned();
        let path = path_and_query.split('?').next().unwrap_or_default();
        let uri = format!("{}{path}", prefix.trim_end_matches('/'));
        if let Ok(value) = HeaderValue::from_str(&uri) {
            headers.insert(HeaderName::from_static("x-forwarded-uri"), value);
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        // Of packed pages only gzip can be read here.
        if headers.contains_key(ACCEPT_ENCODING) {
            let offer = if gzip::accepted(headers) { "gzip" } else { "identity" };
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(offer));
        }
        Way { prefix: prefix.to_owned(), behind: format!("{host}:{port}"), asked }
    }

    /// Leads the answer's redirect or links back.
    ///
    /// Errors: 502 for a page that breaks off or is too long.
    pub async fn lead_back(&self, mut answer: Response<Body>, is_head: bool) -> Result<Response<Body>, Status> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        if let Some(to) = answer.headers().get(LOCATION).and_then(|v| v.to_str().ok()).map(|to| self.link(to)) {
            if let Ok(value) = HeaderValue::from_str(&to) {
                answer.headers_mut().insert(LOCATION, value);
            }
            return Ok(answer);
        }
        let (kind, packed) = (text(answer.headers(), CONTENT_TYPE), text(answer.headers(), CONTENT_ENCODING));
        // The answer to a HEAD has the page's headers and no page.
        if is_head || kind.split(';').next().map(str::trim) != Some("text/html") || !matches!(packed.as_str(), "" | "gzip") {
            return Ok(answer);
        }
        let (mut parts, page) = answer.into_parts();
        let broken = |why: String| Status::new(502, "", format!("error reading a proxied page: {why}"));
        let mut page = body::collect(page, PAGE_BYTES_MAX).await.map_err(|err| broken(err.to_string()))?;
        if packed == "gzip" {
            page = gzip::decompress(&page, PAGE_BYTES_MAX).map(Bytes::from).map_err(|err| broken(err.to_string()))?;
            parts.headers.remove(CONTENT_ENCODING);
        }
        parts.headers.remove(CONTENT_LENGTH);
        Ok(Response::from_parts(parts, body::full(self.page(&page))))
    }

    /// One URL: led back if it points to the root of the server behind.
    fn link(&self, url: &str) -> String {
        let (host, path) = match url.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?', '#']) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            _ => match url.strip_prefix("//") {
                Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
                None => ("", url),
            },
        };
        let foreign = !host.is_empty() && host != self.behind && host != self.asked;
        if foreign || !path.starts_with('/') {
            return url.to_owned();
        }
        if path.starts_with(&self.prefix) { path.to_owned() } else { format!("{}{path}", self.prefix) }
    }

    /// A page with its links led back. What is no start tag stays byte by byte.
    fn page(&self, page: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + page.len() / 8);
        let mut rest = page;
        while let Some(open) = rest.iter().position(|b| *b == b'<') {
            out.extend_from_slice(&rest[..open]);
            rest = &rest[open..];
            let end = tag_end(rest);
            let (tag, after) = rest.split_at(end);
            self.tag(tag, &mut out);
            rest = after;
        }
        out.extend_from_slice(rest);
        out
    }

    /// `tag` runs from `<` to `>`.
    fn tag(&self, tag: &[u8], out: &mut Vec<u8>) {
        let name_end = tag.iter().skip(1).position(|b| !b.is_ascii_alphanumeric()).map_or(tag.len(), |at| at + 1);
        let name = String::from_utf8_lossy(&tag[1..name_end]).to_ascii_lowercase();
        let Some((_, wanted)) = LINKS.iter().find(|(element, _)| *element == name) else { return out.extend_from_slice(tag) };
        let mut at = 0;
        for attribute in attributes(tag, name_end) {
            let key = String::from_utf8_lossy(&tag[attribute.key.clone()]).to_ascii_lowercase();
            if let (true, Ok(value)) = (wanted.contains(&key.as_str()), std::str::from_utf8(&tag[attribute.value.clone()])) {
                out.extend_from_slice(&tag[at..attribute.value.start]);
                out.extend_from_slice(self.link(value).as_bytes());
                at = attribute.value.end;
            }
        }
        out.extend_from_slice(&tag[at..]);
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> String {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().trim().to_owned()
}

/// Where the markup that `text` starts with ends: behind the `>` outside of quotes, or of a comment behind `-->`.
fn tag_end(text: &[u8]) -> usize {
    if text.starts_with(b"<!--") {
        return text.windows(3).skip(4).position(|w| w == b"-->").map_or(text.len(), |at| at + 4 + 3);
    }
    if !text.get(1).is_some_and(u8::is_ascii_alphabetic) {
        return 1;
    }
    let mut quote = None;
    for (at, byte) in text.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return at + 1,
            (None, b'"' | b'\'') if text[..at].trim_ascii_end().ends_with(b"=") => quote = Some(*byte),
            (Some(q), b) if q == *b => quote = None,
            _ => {}
        }
    }
    text.len()
}

struct Attribute {
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
}

fn attributes(tag: &[u8], from: usize) -> Vec<Attribute> {
    let mut found = Vec::new();
    let skip = |mut at: usize, is: &dyn Fn(u8) -> bool| {
        while tag.get(at).is_some_and(|b| is(*b)) {
            at += 1;
        }
        at
    };
    let mut at = from;
    while at < tag.len() {
        let key = skip(at, &|b| b.is_ascii_whitespace() || b == b'/');
        let key_end = skip(key, &|b| !b.is_ascii_whitespace() && !matches!(b, b'=' | b'>' | b'/'));
        let equals = skip(key_end, &|b| b.is_ascii_whitespace());
        if tag.get(equals) != Some(&b'=') {
            at = equals.max(key_end).max(key + 1);
            continue;
        }
        let start = skip(equals + 1, &|b| b.is_ascii_whitespace());
        let (value, next) = match tag.get(start) {
            Some(&quote @ (b'"' | b'\'')) => {
                let end = skip(start + 1, &|b| b != quote);
                (start + 1..end, end + 1)
            }
            _ => {
                let end = skip(start, &|b| !b.is_ascii_whitespace() && b != b'>');
                (start..end, end)
            }
        };
        found.push(Attribute { key: key..key_end, value });
        at = next;
    }
    found
}

/// A page of its own has a path; asked without one, the client is sent to the root, so that relative links work.
pub fn to_root(method: &Method, path: &str, query: Option<&str>) -> Option<Response<Body>> {
    if path.ends_with('/') || !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let to = format!("{path}/{}", query.map(|q| format!("?{q}")).unwrap_or_default());
    let mut answer = Response::new(body::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    answer.headers_mut().insert(LOCATION, HeaderValue::from_str(&to).ok()?);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> Way {
        Way { prefix: "/api/v1/namespaces/n/pods/p/proxy".into(), behind: "10.0.0.1:80".into(), asked: "api:6443".into() }
    }

    #[test]
    fn links_to_the_root_lead_back_and_others_stay() {
        let page = |html: &str| String::from_utf8(way().page(html.as_bytes())).unwrap();
        assert_eq!(page(r#"<a href="/rewriteme">test</a>"#), r#"<a href="/api/v1/namespaces/n/pods/p/proxy/rewriteme">test</a>"#);
        for same in [
            r#"<a href="rel/x">a</a>"#,
            r#"<a title="/x" href='http://other/x'>1 < 2</a>"#,
            r#"<!-- <a href="/x"> --><p href="/x">"#,
            r#"<a href="/api/v1/namespaces/n/pods/p/proxy/x">"#,
            "<a href=",
        ] {
            assert_eq!(page(same), same);
        }
        assert_eq!(page("<IMG alt='a>b' SRC=/i.png>"), "<IMG alt='a>b' SRC=/api/v1/namespaces/n/pods/p/proxy/i.png>");
    }

    #[test]
    fn redirects_within_the_server_behind_lead_back() {
        assert_eq!(way().link("http://10.0.0.1:80/login?x=1"), "/api/v1/namespaces/n/pods/p/proxy/login?x=1");
        assert_eq!(way().link("https://api:6443/login"), "/api/v1/namespaces/n/pods/p/proxy/login");
        assert_eq!(way().link("https://example.com/login"), "https://example.com/login");
    }

    #[test]
    fn only_readers_are_sent_to_the_root() {
        let to = |method, path| to_root(&method, path, Some("a=b")).map(|r| r.headers()[LOCATION].to_str().unwrap().to_owned());
        assert_eq!(to(Method::GET, "/x/proxy").as_deref(), Some("/x/proxy/?a=b"));
        assert_eq!(to(Method::POST, "/x/proxy"), None);
        assert_eq!(to(Method::HEAD, "/x/proxy/"), None);
    }
}

#[cfg(test)]
mod fuzz_tests {
    use super::*;
    use base::fuzz;

    /// A page is the pod's; it may be anything.
    #[test]
    fn pages_of_any_bytes_are_led_back_or_left() {
        let rng = fuzz::rng(1);
        let way = Way::mark("/api/v1/namespaces/n/pods/p/proxy", "h", 80, "/a/b?c", &mut HeaderMap::new());
        let page = "<!-- <a href='/x'> --><a href = \"/a\" class=b><img src=/b/c><link href='http://h:80/d'/><form action=/e>é</form>";
        let words = ["<", ">", "\"", "'", "=", "<!--", "-->", "<a ", "href", "/", "//", "http://h/", " ", "\\"];
        for _ in fuzz::rounds(4_000) {
            let page = fuzz::mutated_text(&rng, page, &words);
            let led = way.page(page.as_bytes());
            // Whatever is not a link stays as it is.
            assert!(page.contains('<') || led == page.as_bytes(), "{page:?}");
            let _link = way.link(&page);
        }
    }
}
