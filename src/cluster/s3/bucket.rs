//! Asking a bucket: every request signed, its body hashed, tried again where the network or the server failed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::files::FileError;
use base::rng::Rng;
use base::task::{Fatal, Group};
use base::time::Clock;
use base::url;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, ETAG, HOST, PROXY_AUTHORIZATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use pki::bundle::Bundle;
use pki::tls::ClientSetup;
use ring::digest;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio_util::io::ReaderStream;
use wire::body::{self, Body};
use wire::dial::{self, DialError, Stream};

use super::settings::{Lookup, Settings, Trust};
use super::sign::{self, Signed};
use super::xml::{self, Entry, Xml};

/// A larger file is put in parts of this size; S3 takes 10,000 of them.
pub const PART_BYTES: u64 = 64 * 1024 * 1024;
/// Longest answer that is no object: a page of 1,000 entries.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest answer of a proxy to CONNECT.
const CONNECT_BYTES_MAX: usize = 8 * 1024;
/// A request that failed for a passing reason is made this often.
const TRIES: u32 = 4;
/// Between two of them, twice as long each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Of a file, at once.
const CHUNK_BYTES: usize = 128 * 1024;

/// Why a proxy gave no way to a server.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The connection to it broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The head of its answer is too long.
    #[error("its answer has no end")]
    Endless,
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// Why a bucket did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// The server or the proxy is not reached.
    #[error("S3 at {host} is not reached")]
    Dial {
        /// The endpoint.
        host: String,
        /// Why.
        source: DialError,
    },
    /// The proxy does not lead there.
    #[error("the proxy does not lead to S3 at {host}")]
    Proxy {
        /// The endpoint.
        host: String,
        /// Why.
        source: ProxyError,
    },
    /// The server said no.
    #[error("S3 at {host} refused to {doing}: {status} {code}: {message}")]
    Refused {
        /// The endpoint.
        host: String,
        /// The request.
        doing: String,
        /// HTTP's status.
        status: u16,
        /// S3's word for it.
        code: String,
        /// Its sentence.
        message: String,
    },
    /// The answer broke off or makes no sense.
    #[error("S3 at {host} gave no usable answer when asked to {doing}: {why}")]
    Answer {
        /// The endpoint.
        host: String,
        /// The request.
        doing: String,
        /// The fault.
        why: String,
    },
    /// No answer in time.
    #[error("S3 at {host} did not {doing} within {secs} s (--etcd-s3-timeout)")]
    Timeout {
        /// The endpoint.
        host: String,
        /// The request.
        doing: String,
        /// The limit.
        secs: u64,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The authorities of this machine cannot be used.
    #[error("TLS to S3")]
    Tls(#[from] pki::error::PkiError),
    /// Work outside the async threads died.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

impl S3Error {
    /// Whether the same request may be answered in a while.
    fn is_passing(&self) -> bool {
        match self {
            S3Error::Dial { .. } | S3Error::Answer { .. } => true,
            S3Error::Refused { status, .. } => matches!(status, 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether it says that there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, S3Error::Refused { status: 404, code, .. } if code != "NoSuchBucket")
    }
}

/// Body of a request.
enum Payload<'a> {
    Bytes(Bytes),
    Part { file: &'a Path, offset: u64, len: u64 },
}

struct Ask<'a> {
    method: Method,
    /// Name in the folder; `None` asks the bucket itself.
    object: Option<&'a str>,
    /// In order of names.
    query: Vec<(&'static str, String)>,
    payload: Payload<'a>,
    /// Ends "refused to …".
    doing: String,
}

impl<'a> Ask<'a> {
    fn new(method: Method, object: &'a str, doing: String) -> Ask<'a> {
        Ask { method, object: Some(object), query: Vec::new(), payload: Payload::Bytes(Bytes::new()), doing }
    }

    fn query(mut self, name: &'static str, value: impl Into<String>) -> Ask<'a> {
        self.query.push((name, value.into()));
        self
    }

    fn payload(mut self, payload: Payload<'a>) -> Ask<'a> {
        self.payload = payload;
        self
    }
}

/// A bucket, and the folder in it where snapshots are.
pub struct Bucket {
    settings: Settings,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// The Host header.
    host: String,
    /// The host without a port.
    name: String,
    /// The beginning of every object's path.
    root: String,
    part_bytes: u64,
    clock: Clock,
    rng: Rng,
    group: Group,
}

impl Bucket {
    /// Connections live in `group`. Nothing is asked yet.
    pub fn new(settings: Settings, clock: Clock, rng: Rng, group: &Group) -> Result<Bucket, S3Error> {
        let tls = match &settings.trust {
            _ if settings.insecure => None,
            Trust::Any => Some(ClientSetup::http1(None, None)?),
            Trust::These(authorities) => Some(ClientSetup::http1(Some(authorities), None)?),
            Trust::System => Some(ClientSetup::http1(Some(&Bundle::of_system()?), None)?),
        };
        let in_host = match settings.lookup {
            Lookup::Dns => true,
            Lookup::Path => false,
            // A bucket with a dot has no certificate under AWS's names.
            Lookup::Auto => settings.endpoint.host().contains("amazonaws.com") && !settings.bucket.contains('.'),
        };
        let bare = settings.endpoint.host().trim_matches(['[', ']']);
        let (host, name, root) = match in_host {
            true => (
                format!("{}.{}", settings.bucket, settings.endpoint),
                format!("{}.{bare}", settings.bucket),
                "/".to_owned(),
            ),
            false => (settings.endpoint.to_string(), bare.to_owned(), format!("/{}/", settings.bucket)),
        };
        let tls = tls.map(|setup| setup.config());
        Ok(Bucket { settings, tls, host, name, root, part_bytes: PART_BYTES, clock, rng, group: group.clone() })
    }

    #[cfg(test)]
    pub(super) fn in_parts_of(mut self, part_bytes: u64) -> Bucket {
        self.part_bytes = part_bytes;
        self
    }

    /// Where an object is, for people.
    pub fn location(&self, name: &str) -> String {
        format!("s3://{}/{}", self.settings.bucket, self.key(name))
    }

    fn key(&self, name: &str) -> String {
        if self.settings.folder.is_empty() { name.to_owned() } else { format!("{}/{name}", self.settings.folder) }
    }

    /// Puts a file, whole or not at all.
    pub async fn put(&self, name: &str, file: &Path) -> Result<(), S3Error> {
        let len = std::fs::metadata(file).map_err(FileError::at("cannot read", file))?.len();
        if len > self.part_bytes {
            return self.put_in_parts(name, file, len).await;
        }
        let ask = Ask::new(Method::PUT, name, format!("take {}", self.location(name)));
        self.send(&ask.payload(Payload::Part { file, offset: 0, len })).await.map(drop)
    }

    async fn put_in_parts(&self, name: &str, file: &Path, len: u64) -> Result<(), S3Error> {
        let doing = || format!("take {}", self.location(name));
        let begin = Ask::new(Method::POST, name, doing()).query("uploads", "");
        let text = self.text_of(&begin).await?;
        let id = Xml(&text).text_of("UploadId").ok_or_else(|| self.answer(&begin, "it names no upload"))?;
        let sent = self.put_parts(name, file, len, &id).await;
        if sent.is_err() {
            let stop = Ask::new(Method::DELETE, name, format!("forget the parts of {}", self.location(name)))
                .query("uploadId", &*id);
            if let Err(err) = self.send(&stop).await {
                tracing::warn!(err = %base::chain::Chain(&err), "parts of a snapshot stay in the bucket");
            }
        }
        sent
    }

    async fn put_parts(&self, name: &str, file: &Path, len: u64, id: &str) -> Result<(), S3Error> {
        let mut parts = String::new();
        for number in 1..=len.div_ceil(self.part_bytes) {
            let offset = (number - 1) * self.part_bytes;
            let part = Payload::Part { file, offset, len: self.part_bytes.min(len - offset) };
            let ask = Ask::new(Method::PUT, name, format!("take part {number} of {}", self.location(name)));
            let ask = ask.query("partNumber", number.to_string()).query("uploadId", id).payload(part);
            let answer = self.send(&ask).await?;
            let tag = answer.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
            let tag = tag.ok_or_else(|| self.answer(&ask, "a part has no ETag"))?;
            parts.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>",
                tag.replace('"', "&quot;")
            ));
        }
        let list = format!(
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{parts}\
             </CompleteMultipartUpload>"
        );
        let end = Ask::new(Method::POST, name, format!("take {}", self.location(name))).query("uploadId", id);
        let end = end.payload(Payload::Bytes(list.into()));
        let text = self.text_of(&end).await?;
        // This one request says that it failed in an answer that begins well.
        match Xml(&text).text_of("Code").filter(|_| text.contains("<Error")) {
            Some(code) => {
                let message = Xml(&text).text_of("Message").unwrap_or_default();
                Err(self.refused(StatusCode::OK, &end.doing, code, message))
            }
            None => Ok(()),
        }
    }

    /// The objects of the folder, their names without it.
    pub async fn list(&self) -> Result<Vec<Entry>, S3Error> {
        let prefix = self.key("");
        let (mut all, mut next) = (Vec::new(), None);
        loop {
            let mut ask = Ask::new(Method::GET, "", format!("list s3://{}/{prefix}", self.settings.bucket));
            ask.object = None;
            if let Some(token) = next {
                ask = ask.query("continuation-token", token);
            }
            let page = xml::page(Xml(&self.text_of(&ask.query("list-type", "2").query("prefix", &*prefix)).await?));
            all.extend(page.entries.into_iter().filter_map(|entry| {
                let name = entry.key.strip_prefix(&prefix)?.to_owned();
                Some(Entry { key: name, ..entry })
            }));
            next = page.next;
            if next.is_none() {
                return Ok(all);
            }
        }
    }

    /// Deletes an object. One that is not there is no error, as S3 has it.
    pub async fn delete(&self, name: &str) -> Result<(), S3Error> {
        self.send(&Ask::new(Method::DELETE, name, format!("delete {}", self.location(name)))).await.map(drop)
    }

    /// Writes an object into a new file of mode 0600. Returns its bytes.
    pub async fn get(&self, name: &str, to: &Path) -> Result<u64, S3Error> {
        let ask = Ask::new(Method::GET, name, format!("give {}", self.location(name)));
        let mut content = self.send(&ask).await?.into_body();
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to)
            .map_err(FileError::at("cannot write", to))?;
        let mut file = tokio::fs::File::from_std(file);
        let mut written = 0;
        loop {
            let frame = tokio::time::timeout(self.settings.timeout, content.frame())
                .await
                .map_err(|_| self.late(&ask.doing))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|err| self.answer(&ask, &err.to_string()))?;
            let Ok(bytes) = frame.into_data() else { continue };
            written += bytes.len() as u64;
            file.write_all(&bytes).await.map_err(FileError::at("cannot write", to))?;
        }
        file.sync_all().await.map_err(FileError::at("cannot write", to))?;
        Ok(written)
    }

    async fn text_of(&self, ask: &Ask<'_>) -> Result<String, S3Error> {
        let content = self.send(ask).await?.into_body();
        let read = tokio::time::timeout(self.settings.timeout, body::collect(content, ANSWER_BYTES_MAX)).await;
        let bytes = read.map_err(|_| self.late(&ask.doing))?.map_err(|err| self.answer(ask, &err.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// An answer of success, tried for.
    async fn send(&self, ask: &Ask<'_>) -> Result<Response<Body>, S3Error> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let once = tokio::time::timeout(self.settings.timeout, self.once(ask)).await;
            let failed = match once.unwrap_or_else(|_| Err(self.late(&ask.doing))) {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                Ok(answer) => self.why(answer, &ask.doing).await,
                Err(err) => err,
            };
            let wait = backoff.next(&self.rng);
            if backoff.failures() >= TRIES || !failed.is_passing() {
                return Err(failed);
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn once(&self, ask: &Ask<'_>) -> Result<Response<Body>, S3Error> {
        let (payload, len) = match &ask.payload {
            Payload::Bytes(bytes) => (sign::sha256_hex(bytes), bytes.len() as u64),
            Payload::Part { file, offset, len } => (hash(file, *offset, *len).await?, *len),
        };
        let key = ask.object.map(|name| self.key(name)).unwrap_or_default();
        let path = format!("{}{}", self.root, url::encode(&key, url::PATH));
        let query: Vec<String> =
            ask.query.iter().map(|(name, value)| format!("{name}={}", url::encode(value, url::COMPONENT))).collect();
        let query = query.join("&");
        let Settings { region, keys, proxy, .. } = &self.settings;
        let signed = Signed {
            method: ask.method.as_str(),
            host: &self.host,
            path: &path,
            query: &query,
            payload: &payload,
            region,
        };
        let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        // A proxy that is not asked for a tunnel wants to know for whom.
        let plain_proxy = proxy.as_ref().filter(|_| self.tls.is_none());
        let uri = if plain_proxy.is_some() { format!("http://{}{target}", self.host) } else { target };
        let mut request =
            Request::builder().method(&ask.method).uri(uri).header(HOST, &self.host).header(CONTENT_LENGTH, len);
        for (name, value) in sign::headers(&signed, keys, self.clock.now()) {
            request = request.header(name, value);
        }
        if let Some(who) = plain_proxy.and_then(|proxy| proxy.authorization.as_ref()) {
            request = request.header(PROXY_AUTHORIZATION, who.expose());
        }
        let content = match &ask.payload {
            Payload::Bytes(bytes) => body::full(bytes.clone()),
            Payload::Part { file, offset, len } => part(file, *offset, *len).await?,
        };
        let request = request.body(content).map_err(|err| self.answer(ask, &err.to_string()))?;
        let stream = self.connect().await?;
        dial::request(stream, &self.host, request, &self.group)
            .await
            .map_err(|source| S3Error::Dial { host: self.host.clone(), source })
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, S3Error> {
        let failed = |source| S3Error::Dial { host: self.host.clone(), source };
        let name = self.name.as_str();
        let port = self.settings.endpoint.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let Some(proxy) = &self.settings.proxy else {
            return dial::tcp(name, port, name, self.tls.clone()).await.map_err(failed);
        };
        let mut stream = dial::tcp(&proxy.host, proxy.port, &proxy.host, None).await.map_err(failed)?;
        let Some(tls) = &self.tls else { return Ok(stream) };
        let to = if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") };
        let who = proxy
            .authorization
            .as_ref()
            .map(|who| format!("Proxy-Authorization: {}\r\n", who.expose()))
            .unwrap_or_default();
        let refused = |source| S3Error::Proxy { host: self.host.clone(), source };
        tunnel(&mut stream, &format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{who}\r\n")).await.map_err(refused)?;
        dial::tls(stream, name, Arc::clone(tls)).await.map_err(failed)
    }

    async fn why(&self, answer: Response<Body>, doing: &str) -> S3Error {
        let status = answer.status();
        let text = match tokio::time::timeout(
            self.settings.timeout,
            body::collect(answer.into_body(), ANSWER_BYTES_MAX),
        )
        .await
        {
            Ok(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            // The status alone says enough.
            _ => String::new(),
        };
        let code =
            Xml(&text).text_of("Code").unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason").to_owned());
        self.refused(status, doing, code, Xml(&text).text_of("Message").unwrap_or_default())
    }

    fn refused(&self, status: StatusCode, doing: &str, code: String, message: String) -> S3Error {
        S3Error::Refused { host: self.host.clone(), doing: doing.to_owned(), status: status.as_u16(), code, message }
    }

    fn answer(&self, ask: &Ask<'_>, why: &str) -> S3Error {
        S3Error::Answer { host: self.host.clone(), doing: ask.doing.clone(), why: why.to_owned() }
    }

    fn late(&self, doing: &str) -> S3Error {
        S3Error::Timeout { host: self.host.clone(), doing: doing.to_owned(), secs: self.settings.timeout.as_secs() }
    }
}

/// Asks a proxy for a tunnel and reads its answer to the end of the head.
async fn tunnel(stream: &mut Box<dyn Stream>, request: &str) -> Result<(), ProxyError> {
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= CONNECT_BYTES_MAX {
            return Err(ProxyError::Endless);
        }
        // Byte by byte: what follows the head is TLS's.
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    let first = text.lines().next().unwrap_or_default();
    match first.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(()),
        _ => Err(ProxyError::Refused(first.to_owned())),
    }
}

/// SHA-256 of a part of a file.
async fn hash(file: &Path, offset: u64, len: u64) -> Result<String, S3Error> {
    let path: PathBuf = file.to_owned();
    let hashed = Group::blocking(move || -> io::Result<String> {
        let mut opened = File::open(&path)?;
        opened.seek(SeekFrom::Start(offset))?;
        let (mut opened, mut context) = (opened.take(len), digest::Context::new(&digest::SHA256));
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match opened.read(&mut chunk)? {
                0 => return Ok(base::hex::encode(context.finish().as_ref())),
                n => context.update(&chunk[..n]),
            }
        }
    });
    Ok(hashed.await?.map_err(FileError::at("cannot read", file))?)
}

/// A part of a file as a body.
async fn part(file: &Path, offset: u64, len: u64) -> Result<Body, S3Error> {
    let opened = async {
        let mut opened = tokio::fs::File::open(file).await?;
        opened.seek(SeekFrom::Start(offset)).await?;
        Ok(opened)
    };
    let opened = opened.await.map_err(FileError::at("cannot read", file))?;
    Ok(body::stream(ReaderStream::with_capacity(opened.take(len), CHUNK_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proxy's answer to CONNECT, and the verdict on it with what is left in the stream.
    async fn connected(answer: &[u8]) -> (Result<(), String>, Vec<u8>) {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let mut near: Box<dyn Stream> = Box::new(near);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let verdict = tunnel(&mut near, "CONNECT a:443 HTTP/1.1\r\n\r\n").await.map_err(|err| err.to_string());
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        (verdict, rest)
    }

    #[tokio::test]
    async fn a_proxys_answer_ends_at_its_head_and_only_200_and_its_like_is_a_tunnel() {
        let (verdict, rest) = connected(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n\x16\x03").await;
        assert_eq!((verdict, rest.as_slice()), (Ok(()), &b"\x16\x03"[..]), "what follows the head is TLS's");
        for (answer, want) in [
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "HTTP/1.1 407 Proxy Authentication Required"),
            ("SSH-2.0-x\r\n\r\n", "SSH-2.0-x"),
            ("\r\n\r\n", ""),
        ] {
            assert_eq!(connected(answer.as_bytes()).await.0, Err(want.to_owned()));
        }
        let endless = [b"HTTP/1.1 200 OK\r\n".as_slice(), &b"x".repeat(CONNECT_BYTES_MAX)].concat();
        assert_eq!(connected(&endless).await.0, Err("its answer has no end".to_owned()));
        assert!(connected(b"HTTP/1.1 200 OK\r\n").await.0.is_err(), "it broke off");
    }
}
