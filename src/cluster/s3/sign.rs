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
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let lines = format!("host:{}\n{lines}", request.host);
    let signature = signature(request, &lines, &names, &time, keys.secret.expose());
    let scope = scope(&time, request.region);
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
        keys.access.expose()
    );
    headers.push(("authorization", authorization));
    headers
}

fn scope(time: &str, region: &str) -> String {
    format!("{}/{region}/s3/aws4_request", time.get(..8).unwrap_or_default())
}

/// The signature; `lines` are the headers that count, `name:value\n` in order of names, and `names` their names.
pub fn signature(request: &Signed<'_>, lines: &str, names: &str, time: &str, secret: &str) -> String {
    let Signed { method, path, query, payload, region, .. } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{}\n{}", scope(time, region), sha256_hex(canonical.as_bytes()));
    let mut key = hmac_of(format!("AWS4{secret}").as_bytes(), time.get(..8).unwrap_or_default());
    for part in [region, "s3", "aws4_request"] {
        key = hmac_of(key.as_ref(), part);
    }
    hex::encode(hmac_of(key.as_ref(), &text).as_ref())
}

fn hmac_of(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use base::url;

    use super::*;

    fn check(query: &str, signature: &str) {
        let payload = sha256_hex(b"");
        let request = Signed {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query,
            payload: &payload,
            region: "us-east-1",
        };
        let keys = Keys {
            access: Secret::new("AKIAIOSFODNN7EXAMPLE".to_owned()),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            session: None,
        };
        let made = headers(&request, &keys, "2013-05-24T00:00:00Z".parse().unwrap());
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

    #[test]
    fn names_are_sent_in_the_way_that_is_signed() {
        assert_eq!(url::encode("a b/ä~.zst", url::PATH), "a%20b/%C3%A4~.zst");
        assert_eq!(url::encode("a/b=", url::COMPONENT), "a%2Fb%3D");
    }
}
