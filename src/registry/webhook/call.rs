//! Where a webhook is and how it is trusted: a `clientConfig` of the API, read.

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine as _};
use serde_json::Value;

/// Why an address of a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Neither a URL nor a service.
    #[error("one of url or service is required")]
    NoPlace,
    /// No URL at all.
    #[error("parse {url:?}")]
    Malformed {
        /// The text.
        url: String,
        /// Reason.
        source: http::uri::InvalidUri,
    },
    /// A URL without a host.
    #[error("parse {url:?}: no host")]
    NoHost {
        /// The text.
        url: String,
    },
    /// Neither `https` nor `http`; empty: none.
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
    /// A bundle that is no base64.
    #[error("caBundle")]
    Bundle(#[source] DecodeError),
    /// A bundle that is no text.
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    BundleIsNoText,
}

/// Where to knock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A fixed host.
    Host {
        /// `https` or `http`.
        tls: bool,
        /// Name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A service of this cluster, reached through its endpoints.
    Service {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// The service's port (not the pods').
        port: u16,
    },
}

/// One webhook's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub target: Target,
    /// Path and query, with its slash.
    pub path: String,
    /// Authorities to trust, PEM; empty: those of the system.
    pub ca_pem: String,
}

impl Endpoint {
    /// Reads `clientConfig` (admission, conversion): `url` or `service`, and `caBundle`.
    ///
    /// Errors: it names no place, or one that cannot be read.
    pub fn from_client_config(config: &Value) -> Result<Endpoint, EndpointError> {
        let ca_pem = ca_bundle(&config["caBundle"])?;
        if let Some(url) = config["url"].as_str() {
            return Ok(Endpoint { ca_pem, ..Endpoint::from_url(url)? });
        }
        let service = &config["service"];
        if !service.is_object() {
            return Err(EndpointError::NoPlace);
        }
        let text = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
        let path = text("path");
        let target = Target::Service {
            namespace: text("namespace"),
            name: text("name"),
            port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
        };
        Ok(Endpoint { target, path: if path.starts_with('/') { path } else { format!("/{path}") }, ca_pem })
    }

    /// Reads `https://host:port/path?query`.
    ///
    /// Errors: it is another kind of URL, or none.
    pub fn from_url(url: &str) -> Result<Endpoint, EndpointError> {
        let uri: http::Uri = url.parse().map_err(|source| EndpointError::Malformed { url: url.to_owned(), source })?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => return Err(EndpointError::Scheme(other.unwrap_or_default().to_owned())),
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(EndpointError::NoHost { url: url.to_owned() });
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Ok(Endpoint { target: Target::Host { tls, host, port }, path, ca_pem: String::new() })
    }

    /// The name that the certificate must show.
    pub fn server_name(&self) -> String {
        match &self.target {
            Target::Host { host, .. } => host.clone(),
            Target::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// `host:port` for the `Host` header, and the URL's beginning in messages.
    pub fn authority(&self) -> String {
        match &self.target {
            Target::Host { tls, host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                if *port == if *tls { 443 } else { 80 } { host } else { format!("{host}:{port}") }
            }
            Target::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// As Go prints the URL of a request.
    pub fn url(&self) -> String {
        let scheme = if matches!(self.target, Target::Host { tls: false, .. }) { "http" } else { "https" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }
}

/// The PEM text in a `caBundle`; empty without one.
///
/// Errors: it is no base64 of a text.
pub fn ca_bundle(value: &Value) -> Result<String, EndpointError> {
    let Some(text) = value.as_str().filter(|t| !t.is_empty()) else { return Ok(String::new()) };
    let bytes = STANDARD.decode(text).map_err(EndpointError::Bundle)?;
    String::from_utf8(bytes).map_err(|_| EndpointError::BundleIsNoText)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::chain::Chain;
    use serde_json::json;

    #[test]
    fn a_service_is_443_and_its_certificate_names_it() {
        let config = json!({ "service": { "namespace": "ns", "name": "hook", "path": "mutate" }, "caBundle": "QUJD" });
        let endpoint = Endpoint::from_client_config(&config).unwrap();
        assert_eq!(endpoint.url(), "https://hook.ns.svc:443/mutate");
        assert_eq!(endpoint.server_name(), "hook.ns.svc");
        assert_eq!(endpoint.ca_pem, "ABC");
    }

    #[test]
    fn a_url_keeps_its_port_and_path() {
        let endpoint = Endpoint::from_client_config(&json!({ "url": "https://10.0.0.1:8443/x?y=z" })).unwrap();
        assert_eq!(endpoint.url(), "https://10.0.0.1:8443/x?y=z");
        assert_eq!(endpoint.target, Target::Host { tls: true, host: "10.0.0.1".into(), port: 8443 });
    }

    #[test]
    fn an_address_that_cannot_be_used_says_why() {
        for (config, expected) in [
            (json!({}), "one of url or service is required"),
            (json!({ "service": "hook" }), "one of url or service is required"),
            (json!({ "url": "ftp://x/" }), "unsupported protocol scheme \"ftp\""),
            (json!({ "url": "/x" }), "unsupported protocol scheme \"\""),
            (json!({ "url": "https://a b/" }), "parse \"https://a b/\": invalid uri character"),
            (json!({ "url": "https://a/", "caBundle": "*" }), "caBundle: Invalid symbol 42, offset 0."),
            (
                json!({ "url": "https://a/", "caBundle": "/w==" }),
                "unable to load root certificates: unable to parse bytes as PEM block",
            ),
        ] {
            let err = Endpoint::from_client_config(&config).unwrap_err();
            assert_eq!(Chain(&err).to_string(), expected, "{config}");
        }
    }

    #[test]
    fn ports_of_the_scheme_go_without_saying() {
        for (url, authority, shown) in [
            ("https://h:443/x", "h", "https://h/x"),
            ("http://h:80", "h", "http://h/"),
            ("http://h:443/", "h:443", "http://h:443/"),
            ("https://[fd00::1]:8443/x", "[fd00::1]:8443", "https://[fd00::1]:8443/x"),
        ] {
            let endpoint = Endpoint::from_url(url).unwrap();
            assert_eq!((endpoint.authority().as_str(), endpoint.url().as_str()), (authority, shown), "{url}");
        }
    }
}
