//! Which bucket, where, as whom: from flags or from a Secret, with the names that k3s gives them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base::chain::Chain;
use base::files::FileError;
use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Authority;
use pki::bundle::Bundle;
use pki::error::PkiError;

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

/// A value that cannot be used, by the flag's name. It begins with the name so that `--` may stand before it; causes
/// are in it.
#[derive(Debug, thiserror::Error)]
pub enum Bad {
    /// Neither true nor false.
    #[error("etcd-s3-{0}: want true or false")]
    Switch(&'static str),
    /// Nowhere to go.
    #[error("etcd-s3-bucket: no bucket is named")]
    NoBucket,
    /// No name of a bucket.
    #[error("etcd-s3-bucket: '{0}' is no name of a bucket")]
    Bucket(String),
    /// A key is not there.
    #[error("etcd-s3-{name}: is missing; give it in the configuration file or the variable {variable}")]
    Missing {
        /// The flag, without `etcd-s3-`.
        name: &'static str,
        /// The variable of the environment.
        variable: &'static str,
    },
    /// No host.
    #[error("etcd-s3-endpoint: '{0}' is not a host such as s3.example.com or minio.example.com:9000")]
    Endpoint(String),
    /// A file with authorities cannot be read.
    #[error("etcd-s3-endpoint-ca: {}", Chain(.0))]
    Unread(FileError),
    /// No authorities.
    #[error("etcd-s3-endpoint-ca: {0}")]
    Authorities(PkiError),
    /// None of the three.
    #[error("etcd-s3-bucket-lookup-type: '{0}' is none of auto, dns, path")]
    Lookup(String),
    /// No proxy. The text may hold a password: it is not repeated.
    #[error("etcd-s3-proxy: want a proxy such as http://proxy.example.com:3128")]
    Proxy,
    /// No duration.
    #[error("etcd-s3-timeout: {0}")]
    Timeout(BadTimeout),
}

/// A text that is no duration, or none that passes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a duration such as 5m0s")]
pub struct BadTimeout(String);

/// Reads a file with authorities by its path.
pub type ReadFile = dyn Fn(&Path) -> Result<String, FileError>;

/// Values by the part of their names after `etcd-s3-`.
///
/// Errors: the value that is wrong, or the one that is missing.
pub fn settings(given: &BTreeMap<String, Secret<String>>, read: &ReadFile) -> Result<Settings, Bad> {
    let of = |name: &str| given.get(name).map(|value| value.expose().trim()).filter(|value| !value.is_empty());
    let switch = |name: &'static str| match of(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Bad::Switch(name)),
    };
    let bucket = of("bucket").ok_or(Bad::NoBucket)?;
    if !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err(Bad::Bucket(bucket.to_owned()));
    }
    let secret = |name: &str| of(name).map(|value| Secret::new(value.to_owned()));
    let keys = Keys {
        access: secret("access-key").ok_or(Bad::Missing { name: "access-key", variable: "AWS_ACCESS_KEY_ID" })?,
        secret: secret("secret-key").ok_or(Bad::Missing { name: "secret-key", variable: "AWS_SECRET_ACCESS_KEY" })?,
        session: secret("session-token"),
    };
    let timeout = of("timeout").map(|text| parse_timeout(text).map_err(Bad::Timeout)).transpose()?;
    let region = of("region").unwrap_or(REGION).to_owned();
    let (endpoint, plain) = parse_endpoint(of("endpoint").unwrap_or(ENDPOINT))?;
    Ok(Settings {
        endpoint: of_region(endpoint, &region)?,
        insecure: switch("insecure")? || plain,
        trust: match (switch("skip-ssl-verify")?, of("endpoint-ca")) {
            (true, _) => Trust::Any,
            (false, Some(ca)) => Trust::These(parse_authorities(ca, read)?),
            (false, None) => Trust::System,
        },
        region,
        bucket: bucket.to_owned(),
        folder: of("folder").unwrap_or_default().trim_matches('/').to_owned(),
        lookup: match of("bucket-lookup-type") {
            None | Some("auto") => Lookup::Auto,
            Some("dns") => Lookup::Dns,
            Some("path") => Lookup::Path,
            Some(other) => return Err(Bad::Lookup(other.to_owned())),
        },
        keys,
        proxy: of("proxy").map(|text| parse_proxy(text).ok_or(Bad::Proxy)).transpose()?,
        timeout: timeout.unwrap_or(TIMEOUT),
    })
}

/// A duration as Go writes it, longer than nothing.
pub fn parse_timeout(text: &str) -> Result<Duration, BadTimeout> {
    let length = base::cron::duration(text)
        .and_then(|length| Duration::try_from(length).ok())
        .filter(|length| !length.is_zero());
    length.ok_or_else(|| BadTimeout(text.to_owned()))
}

/// The endpoint, and whether its scheme says that it speaks no TLS.
fn parse_endpoint(text: &str) -> Result<(Authority, bool), Bad> {
    let bad = || Bad::Endpoint(text.to_owned());
    let (host, plain) = match text.split_once("://") {
        Some(("http", host)) => (host, true),
        Some(("https", host)) => (host, false),
        None => (text, false),
        Some(_) => return Err(bad()),
    };
    let endpoint: Authority = host.trim_end_matches('/').parse().map_err(|_| bad())?;
    if endpoint.host().is_empty() || host.contains('@') { Err(bad()) } else { Ok((endpoint, plain)) }
}

/// AWS's buckets of other regions are at other hosts.
fn of_region(endpoint: Authority, region: &str) -> Result<Authority, Bad> {
    if endpoint != ENDPOINT || region == REGION {
        return Ok(endpoint);
    }
    let host = format!("s3.{region}.amazonaws.com");
    host.parse().map_err(|_| Bad::Endpoint(host))
}

/// Authorities: PEM, PEM in base64 (in lines or not), or the path of a file with PEM.
fn parse_authorities(text: &str, read: &ReadFile) -> Result<Bundle, Bad> {
    let joined: String = text.split_ascii_whitespace().collect();
    let decoded = STANDARD.decode(joined).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pem = match decoded {
        _ if text.contains("-----BEGIN") => text.to_owned(),
        Some(pem) if pem.contains("-----BEGIN") => pem,
        _ => read(Path::new(text)).map_err(Bad::Unread)?,
    };
    Bundle::from_pem(&pem).map_err(Bad::Authorities)
}

fn parse_proxy(text: &str) -> Option<Proxy> {
    let rest = text.strip_prefix("http://")?.trim_end_matches('/');
    let (who, host) = rest.rsplit_once('@').map_or((None, rest), |(who, host)| (Some(who), host));
    let authority: Authority = host.parse().ok().filter(|authority: &Authority| !authority.host().is_empty())?;
    Some(Proxy {
        host: authority.host().trim_matches(['[', ']']).to_owned(),
        port: authority.port_u16().unwrap_or(80),
        authorization: who.map(|who| Secret::new(format!("Basic {}", STANDARD.encode(who)))),
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<Settings, String> {
        let base = [("bucket", "b"), ("access-key", "A"), ("secret-key", "S")];
        let given = base
            .iter()
            .chain(values)
            .map(|(name, value)| ((*name).to_owned(), Secret::new((*value).to_owned())))
            .collect();
        let read = |path: &Path| Err(FileError::at("cannot read", path)(io::ErrorKind::NotFound.into()));
        settings(&given, &read).map_err(|err| err.to_string())
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
            (&[("endpoint-ca", "/ca.pem")], "etcd-s3-endpoint-ca: cannot read /ca.pem: entity not found"),
            (&[("endpoint-ca", "-----BEGIN")], "etcd-s3-endpoint-ca: no usable certificate"),
            (&[("endpoint", "http://")], "etcd-s3-endpoint: 'http://' is not a host"),
            (&[("region", "a b")], "etcd-s3-endpoint: 's3.a b.amazonaws.com' is not a host"),
            (&[("access-key", " ")], "etcd-s3-access-key: is missing; give it in the configuration file"),
        ] {
            let why = read(values).unwrap_err();
            assert!(why.contains(words), "{values:?}: {why}");
        }
        let why = read(&[("proxy", "socks5://u:hidden@x")]).unwrap_err();
        assert!(why.contains("etcd-s3-proxy") && !why.contains("hidden"), "{why}");
    }

    #[test]
    fn authorities_are_pem_or_base64_of_it_in_lines_or_not() {
        let (authority, _) = pki::authority::Authority::create("s3", jiff::Timestamp::UNIX_EPOCH).unwrap();
        let one = STANDARD.encode(authority.bundle());
        // As `base64` writes it, and as a block of YAML holds it.
        let lines: Vec<&str> = one.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        for text in [authority.bundle().to_owned(), one.clone(), format!("{}\n", lines.join("\n"))] {
            let trust = read(&[("endpoint-ca", &text)]).unwrap().trust;
            assert!(matches!(trust, Trust::These(_)), "{text}");
        }
    }

    #[test]
    fn switches_lookups_and_timeouts_are_read() {
        let all = read(&[("insecure", "true"), ("skip-ssl-verify", "true"), ("bucket-lookup-type", "path")]).unwrap();
        assert_eq!((all.insecure, all.lookup), (true, Lookup::Path));
        assert!(matches!(all.trust, Trust::Any));
        assert_eq!(read(&[("bucket-lookup-type", "dns")]).unwrap().lookup, Lookup::Dns);
        assert_eq!(read(&[("bucket-lookup-type", " ")]).unwrap().lookup, Lookup::Auto);
        for (text, secs) in [("90s", Some(90)), ("1m30s", Some(90)), ("0s", None), ("-1s", None), ("5", None)] {
            assert_eq!(parse_timeout(text).ok().map(|length| length.as_secs()), secs, "{text}");
        }
    }

    #[test]
    fn a_proxy_is_plain_http_and_its_password_may_hold_an_at_sign() {
        let shown = |text: &str| {
            let proxy = parse_proxy(text)?;
            Some((proxy.host, proxy.port, proxy.authorization.map(|who| who.expose().clone())))
        };
        assert_eq!(shown("http://p.example"), Some(("p.example".to_owned(), 80, None)));
        let who = format!("Basic {}", STANDARD.encode("u:a@b"));
        assert_eq!(shown("http://u:a@b@10.0.0.9:3128/"), Some(("10.0.0.9".to_owned(), 3128, Some(who))));
        for text in ["https://p.example", "p.example:3128", "http://", "http://u@", "http://a b"] {
            assert_eq!(shown(text), None, "{text}");
        }
    }
}
