//! Which bucket, where, as whom: from flags or from a Secret, with the names that k3s gives them.

use std::collections::BTreeMap;
use std::time::Duration;

use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Authority;
use pki::bundle::Bundle;

use super::sign::Keys;

/// The endpoint that is the default: AWS, which has an address of its own in each region.
pub const ENDPOINT: &str = "s3.amazonaws.com";
/// Its first region.
pub const REGION: &str = "us-east-1";
/// How long one request may take.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// How the bucket is named in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// As part of the host's name at AWS, else in the path.
    #[default]
    Auto,
    /// `bucket.host/key`.
    Dns,
    /// `host/bucket/key`.
    Path,
}

/// Whose certificate is believed.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// The system's authorities.
    #[default]
    System,
    /// These.
    These(Bundle),
    /// Anybody's.
    Any,
}

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Value of Proxy-Authorization.
    pub authorization: Option<Secret<String>>,
}

/// All that is needed to reach a bucket.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host` or `host:port`.
    pub endpoint: Authority,
    /// HTTP without TLS.
    pub insecure: bool,
    /// Whose certificate is believed.
    pub trust: Trust,
    /// Where the bucket is.
    pub region: String,
    /// Its name.
    pub bucket: String,
    /// Folder in it, without slashes at its ends; may be empty.
    pub folder: String,
    /// How the bucket is named.
    pub lookup: Lookup,
    /// The keys that sign.
    pub keys: Keys,
    /// By way of this.
    pub proxy: Option<Proxy>,
    /// How long one request may take.
    pub timeout: Duration,
}

/// A value that cannot be used, by the flag's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {why}")]
pub struct Bad {
    /// `etcd-s3-…`.
    pub name: String,
    /// Why not, and what would do.
    pub why: String,
}

fn bad(name: &str, why: impl Into<String>) -> Bad {
    Bad { name: format!("etcd-s3-{name}"), why: why.into() }
}

/// Values by the part of their names after `etcd-s3-`. `read` gives what a path of an authority's file holds.
///
/// Errors: the value that is wrong, or the one that is missing.
pub fn settings(
    given: &BTreeMap<String, Secret<String>>,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Settings, Bad> {
    let of = |name: &str| given.get(name).map(|value| value.expose().trim()).filter(|value| !value.is_empty());
    let switch = |name: &str| match of(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(bad(name, "want true or false")),
    };
    let bucket = of("bucket").ok_or_else(|| bad("bucket", "no bucket is named"))?;
    if !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err(bad("bucket", format!("'{bucket}' is no name of a bucket")));
    }
    let secret = |name: &str| of(name).map(|value| Secret::new(value.to_owned()));
    let missing = |name: &str, variable: &str| {
        bad(name, format!("is missing; give it in the configuration file or the variable {variable}"))
    };
    let keys = Keys {
        access: secret("access-key").ok_or_else(|| missing("access-key", "AWS_ACCESS_KEY_ID"))?,
        secret: secret("secret-key").ok_or_else(|| missing("secret-key", "AWS_SECRET_ACCESS_KEY"))?,
        session: secret("session-token"),
    };
    let timeout = of("timeout").map(|text| parse_timeout(text).map_err(|why| bad("timeout", why))).transpose()?;
    let region = of("region").unwrap_or(REGION).to_owned();
    let (endpoint, plain) = parse_endpoint(of("endpoint").unwrap_or(ENDPOINT), &region)?;
    Ok(Settings {
        endpoint,
        insecure: switch("insecure")? || plain,
        trust: match (switch("skip-ssl-verify")?, of("endpoint-ca")) {
            (true, _) => Trust::Any,
            (false, Some(ca)) => Trust::These(parse_authorities(ca, read).map_err(|why| bad("endpoint-ca", why))?),
            (false, None) => Trust::System,
        },
        region,
        bucket: bucket.to_owned(),
        folder: of("folder").unwrap_or_default().trim_matches('/').to_owned(),
        lookup: match of("bucket-lookup-type") {
            None | Some("auto") => Lookup::Auto,
            Some("dns") => Lookup::Dns,
            Some("path") => Lookup::Path,
            Some(other) => return Err(bad("bucket-lookup-type", format!("'{other}' is none of auto, dns, path"))),
        },
        keys,
        proxy: of("proxy").map(|text| parse_proxy(text).map_err(|why| bad("proxy", why))).transpose()?,
        timeout: timeout.unwrap_or(TIMEOUT),
    })
}

/// A duration as Go writes it, longer than nothing.
///
/// Errors: a text for people.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let length = base::cron::duration(text)
        .and_then(|length| Duration::try_from(length).ok())
        .filter(|length| !length.is_zero());
    length.ok_or_else(|| format!("'{text}' is not a duration such as 5m0s"))
}

/// The endpoint, and whether its scheme says that it speaks no TLS.
fn parse_endpoint(text: &str, region: &str) -> Result<(Authority, bool), Bad> {
    let (host, plain) = match text.split_once("://") {
        Some(("http", host)) => (host, true),
        Some(("https", host)) => (host, false),
        None => (text, false),
        Some(_) => {
            return Err(bad(
                "endpoint",
                format!("'{text}' is not a host such as s3.example.com or minio.example.com:9000"),
            ));
        }
    };
    // AWS's buckets of other regions are at other hosts.
    let host = if host == ENDPOINT && region != REGION {
        format!("s3.{region}.amazonaws.com")
    } else {
        host.trim_end_matches('/').to_owned()
    };
    let parsed: Option<Authority> =
        host.parse().ok().filter(|authority: &Authority| !authority.host().is_empty() && !host.contains('@'));
    Ok((
        parsed.ok_or_else(|| {
            bad("endpoint", format!("'{text}' is not a host such as s3.example.com or minio.example.com:9000"))
        })?,
        plain,
    ))
}

/// Authorities: PEM, PEM in base64, or the path of a file with PEM.
fn parse_authorities(text: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Bundle, String> {
    let decoded = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pem = match decoded {
        _ if text.contains("-----BEGIN") => text.to_owned(),
        Some(pem) if pem.contains("-----BEGIN") => pem,
        _ => read(text)?,
    };
    Bundle::from_pem(&pem).map_err(|err| err.to_string())
}

fn parse_proxy(text: &str) -> Result<Proxy, String> {
    // The text may hold a password: it is not repeated.
    let wrong = || "want a proxy such as http://proxy.example.com:3128".to_owned();
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let (who, host) = rest.rsplit_once('@').map_or((None, rest), |(who, host)| (Some(who), host));
    let authority: Authority = host.parse().map_err(|_| wrong())?;
    if authority.host().is_empty() {
        return Err(wrong());
    }
    Ok(Proxy {
        host: authority.host().trim_matches(['[', ']']).to_owned(),
        port: authority.port_u16().unwrap_or(80),
        authorization: who.map(|who| Secret::new(format!("Basic {}", STANDARD.encode(who)))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<Settings, String> {
        let base = [("bucket", "b"), ("access-key", "A"), ("secret-key", "S")];
        let given = base
            .iter()
            .chain(values)
            .map(|(name, value)| ((*name).to_owned(), Secret::new((*value).to_owned())))
            .collect();
        settings(&given, &|path| Err(format!("no file {path}"))).map_err(|err| err.to_string())
    }

    #[test]
    fn what_is_not_said_is_as_in_k3s() {
        let all = read(&[("folder", "/edge/one/"), ("proxy", "http://u:p@[::1]:3128/")]).unwrap();
        assert_eq!(
            (all.endpoint.as_str(), all.region.as_str(), all.folder.as_str()),
            ("s3.amazonaws.com", "us-east-1", "edge/one")
        );
        assert_eq!((all.insecure, all.lookup, all.timeout), (false, Lookup::Auto, TIMEOUT));
        let proxy = all.proxy.unwrap();
        assert_eq!(
            (proxy.host.as_str(), proxy.port, proxy.authorization.unwrap().expose().as_str()),
            ("::1", 3128, "Basic dTpw")
        );
        assert_eq!(read(&[("region", "eu-west-1")]).unwrap().endpoint.as_str(), "s3.eu-west-1.amazonaws.com");
        let own = read(&[("region", "eu"), ("endpoint", "http://10.0.0.9:9000"), ("timeout", "90s")]).unwrap();
        assert_eq!(
            (own.endpoint.as_str(), own.insecure, own.timeout),
            ("10.0.0.9:9000", true, Duration::from_secs(90))
        );
    }

    #[test]
    fn a_wrong_value_is_named_and_a_secret_one_is_not_repeated() {
        for (values, words) in [
            (&[("bucket", "")][..], "etcd-s3-bucket: no bucket is named"),
            (&[("bucket", "a/b")], "'a/b' is no name"),
            (&[("secret-key", "")], "AWS_SECRET_ACCESS_KEY"),
            (&[("endpoint", "ftp://x")], "etcd-s3-endpoint"),
            (&[("endpoint", "user@x")], "etcd-s3-endpoint"),
            (&[("bucket-lookup-type", "x")], "auto, dns, path"),
            (&[("insecure", "maybe")], "true or false"),
            (&[("timeout", "-5m")], "5m0s"),
            (&[("endpoint-ca", "/ca.pem")], "no file /ca.pem"),
        ] {
            let why = read(values).unwrap_err();
            assert!(why.contains(words), "{values:?}: {why}");
        }
        let why = read(&[("proxy", "socks5://u:hidden@x")]).unwrap_err();
        assert!(why.contains("etcd-s3-proxy") && !why.contains("hidden"), "{why}");
    }
}
