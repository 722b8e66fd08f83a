//! AWS Signature Version 4 in a request's headers, over ring. Pure.
//!
//! No crate: those at hand bring a second SHA-256 and HMAC, and put the signature into the URL, where logs of others
//! show it. Spec: <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>

use base::hex;
use base::secret::Secret;
use jiff::Timestamp;
use ring::{digest, hmac};

/// Access keys of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// AWS_ACCESS_KEY_ID.
    pub access: Secret<String>,
    /// AWS_SECRET_ACCESS_KEY.
    pub secret: Secret<String>,
    /// AWS_SESSION_TOKEN, of keys that were lent.
    pub session: Option<Secret<String>>,
}

/// The signed parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `GET`, `PUT`, …
    pub method: &'a str,
    /// The Host header.
    pub host: &'a str,
    /// Path as it is sent: encoded, see `base::url::PATH`.
    pub path: &'a str,
    /// Query as it is sent: encoded, in order of names, `a=1&b=`.
    pub query: &'a str,
    /// SHA-256 of the body in hexadecimal.
    pub payload: &'a str,
    /// Where the bucket is.
    pub region: &'a str,
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// The headers to send beside `Host`.
pub fn headers(request: &Signed<'_>, keys: &Keys, now: Timestamp) -> Vec<(&'static str, String)> {
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut headers = vec![("x-amz-content-sha256", request.payload.to_owned()), ("x-amz-date", time.clone())];
    if let Some(session) = &keys.session {
        headers.push(("x-amz-security-token", session.expose().clone()));
    }
    let names: Vec<&str> = ["host"].into_iter().chain(headers.iter().map(|(name, _)| *name)).collect();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let counted = Counted { names: names.join(";"), lines: format!("host:{}\n{lines}", request.host) };
    let signature = request.signature(&counted, &time, &keys.secret);
    let (scope, names) = (request.scope(&time), counted.names);
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
        keys.access.expose()
    );
    headers.push(("authorization", authorization));
    headers
}

/// The headers that a signature counts.
pub struct Counted {
    /// Their names in order, with `;` between them.
    pub names: String,
    /// `name:value\n`, in the order of names.
    pub lines: String,
}

impl Signed<'_> {
    fn scope(&self, time: &str) -> String {
        format!("{}/{}/s3/aws4_request", time.get(..8).unwrap_or_default(), self.region)
    }

    /// The signature at `time`, as `x-amz-date` has it.
    pub fn signature(&self, headers: &Counted, time: &str, secret: &Secret<String>) -> String {
        let Signed { method, path, query, payload, region, .. } = self;
        let Counted { names, lines } = headers;
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{}\n{}", self.scope(time), sha256_hex(canonical.as_bytes()));
        let first = format!("AWS4{}", secret.expose());
        let mut key = hmac_of(first.as_bytes(), time.get(..8).unwrap_or_default());
        for part in [region, "s3", "aws4_request"] {
            key = hmac_of(key.as_ref(), part);
        }
        hex::encode(hmac_of(key.as_ref(), &text).as_ref())
    }
}

fn hmac_of(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use base::url;

    use super::*;

    /// The example account of the specification.
    fn example() -> Keys {
        Keys {
            access: Secret::new("AKIAIOSFODNN7EXAMPLE".to_owned()),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            session: None,
        }
    }

    /// The example bucket of the specification.
    fn request<'a>(method: &'a str, path: &'a str, query: &'a str, payload: &'a str) -> Signed<'a> {
        Signed { method, host: "examplebucket.s3.amazonaws.com", path, query, payload, region: "us-east-1" }
    }

    fn check(query: &str, signature: &str) {
        let payload = sha256_hex(b"");
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let made = headers(&request("GET", "/", query, &payload), &example(), now);
        let (_, authorization) = made.last().unwrap();
        assert_eq!(
            *authorization,
            format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                 SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature={signature}"
            )
        );
    }

    /// The examples of the specification.
    #[test]
    fn signatures_are_those_of_the_specification() {
        check("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
        check("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    }

    /// The other two examples of the specification, which sign headers that this client does not send.
    #[test]
    fn signatures_over_more_headers_are_those_of_the_specification() {
        let empty = sha256_hex(b"");
        let content = sha256_hex(b"Welcome to Amazon S3.");
        assert_eq!(content, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
        for (asked, names, lines, want) in [
            (
                request("GET", "/test.txt", "", &empty),
                "host;range;x-amz-content-sha256;x-amz-date",
                format!(
                    "host:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\nx-amz-content-sha256:{empty}\n\
                     x-amz-date:20130524T000000Z\n"
                ),
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                request("PUT", "/test%24file.text", "", &content),
                "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                format!(
                    "date:Fri, 24 May 2013 00:00:00 GMT\nhost:examplebucket.s3.amazonaws.com\n\
                     x-amz-content-sha256:{content}\nx-amz-date:20130524T000000Z\n\
                     x-amz-storage-class:REDUCED_REDUNDANCY\n"
                ),
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
        ] {
            let counted = Counted { names: names.to_owned(), lines };
            assert_eq!(asked.signature(&counted, "20130524T000000Z", &example().secret), want, "{names}");
        }
    }

    #[test]
    fn a_lent_keys_token_is_sent_and_signed() {
        let payload = sha256_hex(b"");
        let asked = request("GET", "/", "", &payload);
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let keys = Keys { session: Some(Secret::new("lent".to_owned())), ..example() };
        let made = headers(&asked, &keys, now);
        assert_eq!(made[2], ("x-amz-security-token", "lent".to_owned()));
        let (_, authorization) = made.last().unwrap();
        assert!(
            authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"),
            "{authorization}"
        );
        assert_ne!(*authorization, headers(&asked, &example(), now).last().unwrap().1);
    }

    #[test]
    fn names_are_sent_in_the_way_that_is_signed() {
        assert_eq!(url::encode("a b/ä~.zst", url::PATH), "a%20b/%C3%A4~.zst");
        assert_eq!(url::encode("a/b=", url::COMPONENT), "a%2Fb%3D");
    }
}
