//! A small S3 for tests: it checks every signature and hash by itself, and keeps objects in memory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use base::secret::Secret;
use base::sync::Mutex;

use super::sign::{self, Counted, Signed};

/// A request as it came.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Kept {
    pub(super) objects: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<u64, Vec<u8>>,
    /// Requests as they came: `PUT /b/x`.
    pub(super) log: Vec<String>,
    /// The next requests are answered with these, 0 is an answer as it should be.
    pub(super) failures: Vec<u16>,
}

pub(super) struct FakeS3 {
    pub(super) address: String,
    pub(super) kept: Arc<Mutex<Kept>>,
}

pub(super) const SECRET: &str = "the-secret-key";

impl FakeS3 {
    pub(super) fn start() -> FakeS3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = FakeS3 { address: listener.local_addr().unwrap().to_string(), kept: Arc::default() };
        let kept = Arc::clone(&fake.kept);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A client that went away is not this side's matter.
                let Some(asked) = read(&mut stream) else { continue };
                let (status, headers, body) = answer(&asked, &mut kept.lock());
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n",
                    body.len()
                );
                let _gone = stream.write_all(&[head.as_bytes(), &body].concat());
            }
        });
        fake
    }
}

fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |n| n.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    Some(Asked { method, target, headers, body })
}

/// Whether the request is signed with [`SECRET`] as it stands, its body included.
pub(super) fn is_signed(asked: &Asked) -> bool {
    let Some(authorization) = asked.headers.get("authorization") else { return false };
    let field =
        |name: &str| authorization.split([' ', ',']).find_map(|part| part.strip_prefix(name)).unwrap_or_default();
    let scope: Vec<&str> = field("Credential=").split('/').collect();
    let names = field("SignedHeaders=");
    let lines: String = names.split(';').map(|name| format!("{name}:{}\n", asked.headers[name])).collect();
    let counted = Counted { names: names.to_owned(), lines };
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    let payload = sign::sha256_hex(&asked.body);
    let signed = Signed {
        method: &asked.method,
        host: &asked.headers["host"],
        path,
        query,
        payload: &payload,
        region: scope[2],
    };
    asked.headers["x-amz-content-sha256"] == payload
        && names.split(';').any(|name| name == "host")
        && signed.signature(&counted, &asked.headers["x-amz-date"], &Secret::new(SECRET.to_owned()))
            == field("Signature=")
}

fn answer(asked: &Asked, kept: &mut Kept) -> (u16, String, Vec<u8>) {
    kept.log.push(format!("{} {}", asked.method, asked.target));
    let refused = |status: u16, code: &str| {
        (status, String::new(), format!("<Error><Code>{code}</Code><Message>Because.</Message></Error>").into_bytes())
    };
    let failure = if kept.failures.is_empty() { 0 } else { kept.failures.remove(0) };
    if failure > 0 {
        return refused(failure, "SlowDown");
    }
    if !is_signed(asked) {
        return refused(403, "SignatureDoesNotMatch");
    }
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    let Some(key) = path.strip_prefix("/b/") else { return refused(404, "NoSuchBucket") };
    let key = key.to_owned();
    let part = query.strip_prefix("partNumber=").and_then(|rest| rest.split('&').next()?.parse().ok());
    let fine = |body: String| (200, String::new(), body.into_bytes());
    match (asked.method.as_str(), part) {
        ("GET", _) if key.is_empty() => fine(list(query, kept)),
        ("GET", _) => match kept.objects.get(&key) {
            Some(body) => (200, String::new(), body.clone()),
            None => refused(404, "NoSuchKey"),
        },
        ("PUT", Some(number)) => {
            kept.parts.insert(number, asked.body.clone());
            (200, format!("etag: \"{number}\"\r\n"), Vec::new())
        }
        ("PUT", None) => {
            kept.objects.insert(key, asked.body.clone());
            fine(String::new())
        }
        ("POST", _) if query == "uploads=" => fine("<R><UploadId>up/1</UploadId></R>".to_owned()),
        ("POST", _) => {
            let whole = std::mem::take(&mut kept.parts).into_values().flatten().collect();
            kept.objects.insert(key, whole);
            fine("<R/>".to_owned())
        }
        _ => {
            kept.objects.remove(&key);
            kept.parts.clear();
            (204, String::new(), Vec::new())
        }
    }
}

/// Pages of two.
fn list(query: &str, kept: &Kept) -> String {
    let of =
        |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)).unwrap_or_default().replace("%2F", "/");
    let (after, prefix) = (of("continuation-token="), of("prefix="));
    let all: Vec<_> = kept.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).collect();
    let entries: String = all
        .iter()
        .take(2)
        .map(|(key, body)| format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", body.len()))
        .collect();
    let next = if all.len() > 2 {
        format!("<NextContinuationToken>{}</NextContinuationToken>", all[1].0)
    } else {
        String::new()
    };
    format!("<L><IsTruncated>{}</IsTruncated>{next}{entries}</L>", all.len() > 2)
}
