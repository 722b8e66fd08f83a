//! Where a webhook is and how it is trusted: a `clientConfig` of the API, read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Where to knock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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
    pub place: Place,
    /// Path and query, with its slash.
    pub path: String,
    /// Authorities to trust, PEM; empty: those of the system.
    pub ca_pem: String,
}

impl Endpoint {
    /// Reads `clientConfig` (admission, conversion): `url` or `service`, and `caBundle`.
    ///
    /// Errors: a text for people.
    pub fn from_client_config(config: &Value) -> Result<Endpoint, String> {
        let ca_pem = ca_bundle(&config["caBundle"])?;
        if let Some(url) = config["url"].as_str() {
            return Ok(Endpoint { ca_pem, ..Endpoint::from_url(url)? });
        }
        let service = &config["service"];
        if !service.is_object() {
            return Err("one of url or service is required".to_owned());
        }
        let text = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
        let path = text("path");
        let place = Place::Service {
            namespace: text("namespace"),
            name: text("name"),
            port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
        };
        Ok(Endpoint { place, path: if path.starts_with('/') { path } else { format!("/{path}") }, ca_pem })
    }

    /// Reads `https://host:port/path?query`.
    pub fn from_url(url: &str) -> Result<Endpoint, String> {
        let uri: http::Uri = url.parse().map_err(|err| format!("parse {url:?}: {err}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => return Err(format!("unsupported protocol scheme {:?}", other.unwrap_or_default())),
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(format!("parse {url:?}: no host"));
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Ok(Endpoint { place: Place::Host { tls, host, port }, path, ca_pem: String::new() })
    }

    /// The name that the certificate must show.
    pub fn server_name(&self) -> String {
        match &self.place {
            Place::Host { host, .. } => host.clone(),
            Place::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// `host:port` for the `Host` header, and the URL's beginning in messages.
    pub fn authority(&self) -> String {
        match &self.place {
            Place::Host { tls, host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                if *port == if *tls { 443 } else { 80 } { host } else { format!("{host}:{port}") }
            }
            Place::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// As Go prints the URL of a request.
    pub fn url(&self) -> String {
        let scheme = if matches!(self.place, Place::Host { tls: false, .. }) { "http" } else { "https" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }
}

/// The PEM text in a `caBundle`; empty without one.
///
/// Errors: a text for people.
pub fn ca_bundle(value: &Value) -> Result<String, String> {
    let Some(text) = value.as_str().filter(|t| !t.is_empty()) else { return Ok(String::new()) };
    let bytes = STANDARD.decode(text).map_err(|err| format!("caBundle: {err}"))?;
    String::from_utf8(bytes)
        .map_err(|_| "unable to load root certificates: unable to parse bytes as PEM block".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(endpoint.place, Place::Host { tls: true, host: "10.0.0.1".into(), port: 8443 });
        assert!(Endpoint::from_url("ftp://x/").unwrap_err().contains("ftp"));
    }
}
