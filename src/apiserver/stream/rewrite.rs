//! Pages that come through `proxy`: links and redirects to the root of the proxied server lead back through the proxy,
//! as upstream's `apimachinery/pkg/util/proxy/transport.go` has it. Everything else passes untouched.

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use wire::body::BodyError;
use wire::{Body, body, gzip};

use super::page::Page;

/// A page is read in pieces: each link of one may become as long as the path to the proxy.
const PIECE_BYTES_MAX: usize = 4 * 1024;
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

/// The server behind a proxy, and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Path of the API server up to `/proxy`.
    pub prefix: &'a str,
    /// Host of the server behind.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// Path and query there.
    pub path_and_query: &'a str,
}

/// Facts by which links are led back.
pub struct Way {
    /// Path of the API server up to `/proxy`.
    prefix: String,
    /// `host:port` of the server behind.
    behind: String,
    /// Host by which the client called this server.
    asked: String,
}

impl Way {
    /// Notes the way and tells the server behind of it.
    pub fn mark(to: Destination<'_>, headers: &mut HeaderMap) -> Way {
        let Destination { prefix, host, port, path_and_query } = to;
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

    /// Leads the answer's redirect or links back. A page is rewritten as it passes, and ends as the one that comes in
    /// does.
    pub fn lead_back(self, mut answer: Response<Body>, is_head: bool) -> Response<Body> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return answer;
        }
        if let Some(to) = answer.headers().get(LOCATION).and_then(|v| v.to_str().ok()).map(|to| self.link(to)) {
            if let Ok(value) = HeaderValue::from_str(&to) {
                answer.headers_mut().insert(LOCATION, value);
            }
            return answer;
        }
        let (kind, packed) = (text(answer.headers(), CONTENT_TYPE), text(answer.headers(), CONTENT_ENCODING));
        // The answer to a HEAD has the page's headers and no page.
        if is_head
            || kind.split(';').next().map(str::trim) != Some("text/html")
            || !matches!(packed.as_str(), "" | "gzip")
        {
            return answer;
        }
        let (mut parts, body) = answer.into_parts();
        parts.headers.remove(CONTENT_ENCODING);
        parts.headers.remove(CONTENT_LENGTH);
        let opening = (packed == "gzip").then(gzip::Opening::default);
        let led = Led {
            way: self,
            body,
            opening,
            page: Page::default(),
            came: Bytes::new(),
            html: Bytes::new(),
            progress: Progress::Comes,
        };
        let pieces = stream::try_unfold(led, |mut led| async move {
            Ok::<_, BodyError>(led.next().await?.map(|piece| (piece, led)))
        });
        Response::from_parts(parts, body::stream(pieces))
    }

    /// One URL: led back if it points to the root of the server behind.
    fn link(&self, url: &str) -> String {
        let (host, path) = match url.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?', '#']) => {
                rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()))
            }
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

    /// A start tag with its links led back. `tag` runs from `<` to `>`.
    fn tag(&self, tag: &[u8], out: &mut Vec<u8>) {
        let name_end = tag.iter().skip(1).position(|b| !b.is_ascii_alphanumeric()).map_or(tag.len(), |at| at + 1);
        let name = String::from_utf8_lossy(&tag[1..name_end]).to_ascii_lowercase();
        let Some((_, wanted)) = LINKS.iter().find(|(element, _)| *element == name) else {
            return out.extend_from_slice(tag);
        };
        let mut at = 0;
        for attribute in attributes(tag, name_end) {
            let key = String::from_utf8_lossy(&tag[attribute.key.clone()]).to_ascii_lowercase();
            if let (true, Ok(value)) =
                (wanted.contains(&key.as_str()), std::str::from_utf8(&tag[attribute.value.clone()]))
            {
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

/// How far a page has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Comes,
    /// All of it is here.
    Came,
    /// All of it is read.
    Over,
}

/// A page on its way to the client.
struct Led {
    way: Way,
    body: Body,
    /// Opens what comes, if it is packed.
    opening: Option<gzip::Opening>,
    page: Page,
    /// Bytes that came and are not opened yet.
    came: Bytes,
    /// Text that is opened and not led back yet.
    html: Bytes,
    progress: Progress,
}

impl Led {
    /// The next piece of the page, some bytes long; `None` behind its end.
    ///
    /// Errors: the page breaks off, or is not packed as it says.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let mut out = Vec::new();
        while out.is_empty() {
            if !self.html.is_empty() {
                let piece = self.html.split_to(PIECE_BYTES_MAX.min(self.html.len()));
                let Led { way, page, .. } = self;
                page.feed(&piece, &mut out, |tag, out| way.tag(tag, out));
            } else if !self.came.is_empty() {
                self.html = match &mut self.opening {
                    Some(opening) => opening.step(&mut self.came)?.into(),
                    None => std::mem::take(&mut self.came),
                };
            } else if self.progress == Progress::Comes {
                match self.body.frame().await.transpose()? {
                    Some(frame) => self.came = frame.into_data().unwrap_or_default(),
                    None => {
                        self.progress = Progress::Came;
                        self.html = self.opening.take().map(gzip::Opening::end).transpose()?.unwrap_or_default().into();
                    }
                }
            } else if self.progress == Progress::Came {
                self.progress = Progress::Over;
                let Led { way, page, .. } = self;
                page.end(&mut out, |tag, out| way.tag(tag, out));
            } else {
                return Ok(None);
            }
        }
        Ok(Some(out.into()))
    }
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
        Way {
            prefix: "/api/v1/namespaces/n/pods/p/proxy".into(),
            behind: "10.0.0.1:80".into(),
            asked: "api:6443".into(),
        }
    }

    /// A page, rewritten.
    pub(super) fn led(way: &Way, html: &[u8]) -> Vec<u8> {
        let (mut page, mut out) = (Page::default(), Vec::new());
        page.feed(html, &mut out, |tag, out| way.tag(tag, out));
        page.end(&mut out, |tag, out| way.tag(tag, out));
        out
    }

    fn page_of(packing: &str, chunks: impl Iterator<Item = Vec<u8>> + Send + 'static) -> Response<Body> {
        let chunks = chunks.map(|chunk| Ok::<_, std::convert::Infallible>(Bytes::from(chunk)));
        let answer =
            Response::builder().header(CONTENT_TYPE, "text/html; charset=utf-8").header(CONTENT_ENCODING, packing);
        answer.header(CONTENT_LENGTH, 7).body(body::stream(stream::iter(chunks))).unwrap()
    }

    // security-3 F1: one page of links was made gigabytes in memory, and of others up to 16 MiB were held each.
    #[tokio::test]
    async fn a_page_is_led_back_in_pieces_and_nothing_of_it_is_held() {
        let links = "<a href=/>".repeat(100_000);
        let packed = gzip::compress(&[Bytes::from(links.clone())]).unwrap();
        // The first page has no end.
        for (packing, chunk, n_chunks) in [("", links.into_bytes(), usize::MAX), ("gzip", packed.to_vec(), 1)] {
            let answer = way().lead_back(page_of(packing, std::iter::repeat_n(chunk, n_chunks)), false);
            assert!(!answer.headers().contains_key(CONTENT_LENGTH) && !answer.headers().contains_key(CONTENT_ENCODING));
            let (mut body, mut n_bytes) = (answer.into_body(), 0);
            while let Some(frame) = body.frame().await {
                let piece = frame.unwrap().into_data().unwrap();
                assert!(piece.len() <= PIECE_BYTES_MAX * 8, "{} bytes in one piece", piece.len());
                n_bytes += piece.len();
                if n_chunks > 1 && n_bytes > 8_000_000 {
                    break;
                }
            }
            let all = 100_000 * r#"<a href=/api/v1/namespaces/n/pods/p/proxy/>"#.len();
            assert!(n_bytes == all || n_chunks > 1, "{n_bytes} of {all}");
        }
    }

    #[tokio::test]
    async fn a_page_that_breaks_off_ends_as_broken() {
        let packed = gzip::compress(&[Bytes::from("<a href=/>x</a>".repeat(1000))]).unwrap();
        let cut = packed[..packed.len() - 9].to_vec();
        let answer = way().lead_back(page_of("gzip", std::iter::once(cut)), false);
        assert!(matches!(body::collect(answer.into_body(), 1 << 20).await, Err(body::CollectError::Broken(_))));
        let behind = [packed.to_vec(), b"behind its end".to_vec()].into_iter();
        let answer = way().lead_back(page_of("gzip", behind), false);
        assert!(body::collect(answer.into_body(), 1 << 20).await.unwrap().ends_with(b"proxy/>x</a>"));
    }

    #[test]
    fn links_to_the_root_lead_back_and_others_stay() {
        let page = |html: &str| String::from_utf8(led(&way(), html.as_bytes())).unwrap();
        assert_eq!(
            page(r#"<a href="/rewriteme">test</a>"#),
            r#"<a href="/api/v1/namespaces/n/pods/p/proxy/rewriteme">test</a>"#
        );
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
        let to = |method, path| {
            to_root(&method, path, Some("a=b")).map(|r| r.headers()[LOCATION].to_str().unwrap().to_owned())
        };
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
        let way = Way::mark(
            Destination { prefix: "/api/v1/namespaces/n/pods/p/proxy", host: "h", port: 80, path_and_query: "/a/b?c" },
            &mut HeaderMap::new(),
        );
        let page = "<!-- <a href='/x'> --><a href = \"/a\" class=b><img src=/b/c><link href='http://h:80/d'/><form \
            action=/e>é</form>";
        let words = ["<", ">", "\"", "'", "=", "<!--", "-->", "<a ", "href", "/", "//", "http://h/", " ", "\\"];
        for _ in fuzz::rounds(4_000) {
            let page = fuzz::mutated_text(&rng, page, &words);
            let led = super::tests::led(&way, page.as_bytes());
            // Whatever is not a link stays as it is.
            assert!(page.contains('<') || led == page.as_bytes(), "{page:?}");
            let _link = way.link(&page);
        }
    }
}
