//! HTTP probes and hooks. Certificates are not verified: the probe asks whether the server lives, not who it is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::task::Group;
use http::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use wire::dial::DialError;

use crate::probes::dial::{DialFailed, joined, port_of};

/// The user agents, with the minor version.
const PROBE: &str = "kube-probe/1.36";
const HOOK: &str = "kube-lifecycle/1.36";

/// Redirects that are followed, as Go's client.
const REDIRECTS_MAX: usize = 10;
/// Bytes of a redirect's body in a warning.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// A GET that is not good. The whole chain is upstream's text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    /// The port is no number, and the container gives no port this name.
    #[error("couldn't extract HTTP port: {0:?}")]
    Port(IntOrString),
    /// The server answers a probe with another status than 200 to 399.
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(u16),
    /// There is no answer.
    #[error("Get \"{url}\"")]
    NoAnswer {
        /// The last address that was asked.
        url: String,
        /// The fault.
        source: NoAnswer,
    },
}

/// Why an address gives no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    TimedOut,
    #[error("stopped after {REDIRECTS_MAX} redirects")]
    Redirects,
    /// HTTPS was asked for, and it was no TLS that came.
    #[error("http: server gave HTTP response to HTTPS client")]
    IsPlain,
    #[error(transparent)]
    Dial(DialFailed),
    /// A header of the probe is none.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The connection broke.
    #[error(transparent)]
    Connection(#[from] DialError),
}

impl NoAnswer {
    /// For `map_err`: adds the address.
    fn of(url: &str) -> impl FnOnce(NoAnswer) -> GetError {
        let url = url.to_owned();
        move |source| GetError::NoAnswer { url, source }
    }
}

/// Where a GET goes.
struct Target {
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// Where a GET goes first.
    fn first(get: &HTTPGetAction, container: &Container, host: &str) -> Result<Target, GetError> {
        let port = port_of(&get.port, container).ok_or_else(|| GetError::Port(get.port.clone()))?;
        let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Target { scheme, host: host.to_owned(), port, path })
    }

    fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, joined(&self.host, self.port), self.path)
    }

    /// Where a `Location` leads.
    fn follow(&self, location: &str) -> Option<Target> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(Target {
                scheme: self.scheme.clone(),
                host: self.host.clone(),
                port: self.port,
                path: location.to_owned(),
            });
        }
        let uri: http::Uri = location.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Target { scheme, host, port, path })
    }
}

/// One GET of a probe. Any status from 200 to 399 is good; redirects to the same host are
/// followed, one to another host is a success with a warning.
pub(crate) async fn get(
    get: &HTTPGetAction,
    container: &Container,
    host: &str,
    timeout: Duration,
    group: &Group,
) -> Result<Option<String>, GetError> {
    let first = Target::first(get, container, host)?;
    match within(timeout, get, first, PROBE, group).await? {
        End::Good => Ok(None),
        End::Elsewhere(body) => Ok(Some(format!("Probe terminated redirects, Response body: {body}"))),
        End::Bad(code) => Err(GetError::Status(code)),
    }
}

/// One GET of a hook, which is good whatever the status. A server that answers HTTPS with HTTP is asked again without
/// TLS and without credentials; then the address is returned that is to be told. Spec: `runHTTPHandler`,
/// pkg/kubelet/lifecycle/handlers.go v1.36.
pub(crate) async fn hook(
    get: &HTTPGetAction,
    container: &Container,
    host: &str,
    timeout: Duration,
    group: &Group,
) -> Result<Option<String>, GetError> {
    let first = Target::first(get, container, host)?;
    let failed = match within(timeout, get, first, HOOK, group).await {
        Ok(_) => return Ok(None),
        Err(failed) => failed,
    };
    if !matches!(failed, GetError::NoAnswer { source: NoAnswer::IsPlain, .. }) {
        return Err(failed);
    }
    let mut plain = HTTPGetAction { scheme: Some("HTTP".to_owned()), ..get.clone() };
    plain
        .http_headers
        .iter_mut()
        .for_each(|headers| headers.retain(|header| !header.name.eq_ignore_ascii_case("authorization")));
    let again = Target::first(&plain, container, host)?;
    let asked = joined(&again.host, again.port);
    // The first try's error is the one that counts.
    within(timeout, &plain, again, HOOK, group).await.map(|_| Some(asked)).map_err(|_| failed)
}

/// How a walk ended that got answers.
enum End {
    Good,
    /// It was sent to another host; the beginning of the body.
    Elsewhere(String),
    /// The status.
    Bad(u16),
}

async fn within(
    timeout: Duration,
    get: &HTTPGetAction,
    first: Target,
    agent: &str,
    group: &Group,
) -> Result<End, GetError> {
    let url = first.url();
    match tokio::time::timeout(timeout, walk(get, first, agent, group)).await {
        Ok(answer) => answer,
        Err(_) => Err(GetError::NoAnswer { url, source: NoAnswer::TimedOut }),
    }
}

async fn walk(get: &HTTPGetAction, first: Target, agent: &str, group: &Group) -> Result<End, GetError> {
    let origin = first.host.clone();
    let mut target = first;
    for _ in 0..=REDIRECTS_MAX {
        let answer = one(get, &target, agent, group).await.map_err(NoAnswer::of(&target.url()))?;
        let code = answer.status().as_u16();
        let location = answer.headers().get(LOCATION).and_then(|l| l.to_str().ok()).and_then(|l| target.follow(l));
        match (code, location) {
            (301 | 302 | 303 | 307 | 308, Some(next)) if next.host == origin => target = next,
            (300..400, _) => {
                let body = beginning(answer.into_body()).await;
                return Ok(End::Elsewhere(String::from_utf8_lossy(&body).into_owned()));
            }
            (200..300, _) => return Ok(End::Good),
            _ => return Ok(End::Bad(code)),
        }
    }
    Err(GetError::NoAnswer { url: target.url(), source: NoAnswer::Redirects })
}

/// The beginning of a body.
async fn beginning(mut body: wire::Body) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(bytes) = frame.into_data() {
            read.extend_from_slice(&bytes);
        }
        if read.len() >= BODY_BYTES_MAX {
            read.truncate(BODY_BYTES_MAX);
            break;
        }
    }
    read
}

async fn one(
    get: &HTTPGetAction,
    target: &Target,
    agent: &str,
    group: &Group,
) -> Result<http::Response<wire::Body>, NoAnswer> {
    let (host, port) = (target.host.as_str(), target.port);
    let tls = (target.scheme == "https").then(insecure);
    let stream = wire::dial::tcp(host, port, host, tls).await.map_err(|err| match err {
        DialError::Connect { source, .. } if is_plain(&source) => NoAnswer::IsPlain,
        DialError::Connect { source, .. } => NoAnswer::Dial(DialFailed::new(host, port, source)),
        other => NoAnswer::Connection(other),
    })?;
    let request = request(get, target, agent)?;
    // The connection's task ends with the answer: dropping it closes the socket.
    Ok(wire::dial::request(stream, &target.url(), request, &group.child("http-probe")).await?)
}

/// Whether what came in place of TLS is text: its first byte is no type of a TLS record.
fn is_plain(err: &std::io::Error) -> bool {
    let inner = err.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

fn request(get: &HTTPGetAction, target: &Target, agent: &str) -> Result<http::Request<wire::Body>, http::Error> {
    let mut request = http::Request::get(&target.path)
        .header(HOST, joined(&target.host, target.port))
        .header(USER_AGENT, agent)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(wire::body::empty())?;
    for header in get.http_headers.iter().flatten() {
        let (name, value) =
            (HeaderName::try_from(header.name.as_str())?, HeaderValue::try_from(header.value.as_str())?);
        request.headers_mut().insert(name, value);
    }
    Ok(request)
}

fn insecure() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    let make = || pki::tls::probe_client_config().expect("ring offers the default protocol versions");
    Arc::clone(CONFIG.get_or_init(make))
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A server without TLS, as small ones are: whatever comes, it says the same. Returns its port, and what it heard.
    async fn plain_server(status: &'static str, group: &Group) -> (u16, tokio::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, heard) = tokio::sync::mpsc::channel(8);
        group.spawn("server", async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = [0; 2048];
                let n = stream.read(&mut bytes).await.unwrap();
                let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(text.as_bytes()).await.unwrap();
                tell.send(String::from_utf8_lossy(&bytes[..n]).into_owned()).await.unwrap();
            }
        });
        (port, heard)
    }

    fn action(scheme: &str, port: u16) -> HTTPGetAction {
        let headers =
            serde_json::json!([{"name": "authorization", "value": "Bearer x"}, {"name": "X-A", "value": "1"}]);
        serde_json::from_value(
            serde_json::json!({"scheme": scheme, "port": port, "path": "bye", "httpHeaders": headers}),
        )
        .unwrap()
    }

    // review node.md L8
    #[tokio::test]
    async fn a_hook_over_https_falls_back_to_http_without_credentials() {
        let (group, _fatal) = Group::root("t");
        let (port, mut heard) = plain_server("200 OK", &group).await;
        let second = Duration::from_secs(10);
        let told = hook(&action("HTTPS", port), &Container::default(), "127.0.0.1", second, &group).await;
        assert_eq!(told.unwrap(), Some(format!("127.0.0.1:{port}")));
        let (_hello, request) = (heard.recv().await.unwrap(), heard.recv().await.unwrap());
        assert!(request.starts_with("GET /bye HTTP/1.1\r\n") && request.contains("kube-lifecycle/1.36"), "{request}");
        assert!(
            request.to_lowercase().contains("x-a: 1") && !request.to_lowercase().contains("authorization"),
            "{request}"
        );
        // A probe does not.
        let probed = get(&action("HTTPS", port), &Container::default(), "127.0.0.1", second, &group).await;
        let text = Chain(&probed.unwrap_err()).to_string();
        assert_eq!(
            text,
            format!("Get \"https://127.0.0.1:{port}/bye\": http: server gave HTTP response to HTTPS client")
        );
        group.shutdown().await;
    }

    #[tokio::test]
    async fn a_status_is_no_matter_to_a_hook_and_all_to_a_probe() {
        let (group, _fatal) = Group::root("t");
        let (port, _heard) = plain_server("500 No", &group).await;
        let second = Duration::from_secs(10);
        let hooked = hook(&action("HTTP", port), &Container::default(), "127.0.0.1", second, &group).await;
        assert_eq!(hooked.unwrap(), None);
        let probed = get(&action("HTTP", port), &Container::default(), "127.0.0.1", second, &group).await;
        assert_eq!(probed.unwrap_err().to_string(), "HTTP probe failed with statuscode: 500");
        group.shutdown().await;
    }

    fn target(get: serde_json::Value) -> Result<String, String> {
        let container = serde_json::json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]});
        let container: Container = serde_json::from_value(container).unwrap();
        let get: HTTPGetAction = serde_json::from_value(get).unwrap();
        Target::first(&get, &container, "10.0.0.1").map(|target| target.url()).map_err(|err| err.to_string())
    }

    #[test]
    fn a_get_goes_where_its_action_says() {
        for (get, expected) in [
            (serde_json::json!({"port": 80}), Ok("http://10.0.0.1:80/")),
            (serde_json::json!({"port": "web", "path": "up"}), Ok("http://10.0.0.1:8080/up")),
            (serde_json::json!({"port": "8081", "path": "/up?x=1"}), Ok("http://10.0.0.1:8081/up?x=1")),
            (serde_json::json!({"port": 443, "scheme": "HTTPS", "path": ""}), Ok("https://10.0.0.1:443/")),
            (serde_json::json!({"port": "none"}), Err("couldn't extract HTTP port: String(\"none\")")),
            (serde_json::json!({"port": 65536}), Err("couldn't extract HTTP port: Int(65536)")),
        ] {
            assert_eq!(target(get), expected.map(str::to_owned).map_err(str::to_owned));
        }
    }

    #[test]
    fn a_redirect_leads_to_the_same_server_or_to_another() {
        let from = Target { scheme: "http".to_owned(), host: "10.0.0.1".to_owned(), port: 8080, path: "/a".to_owned() };
        for (location, expected) in [
            ("/b", Some("http://10.0.0.1:8080/b")),
            ("http://10.0.0.1/b?c", Some("http://10.0.0.1:80/b?c")),
            ("https://other", Some("https://other:443/")),
            ("http://[fd00::1]:81/x", Some("http://[fd00::1]:81/x")),
            ("//other/b", None),
            ("b", None),
        ] {
            assert_eq!(from.follow(location).map(|target| target.url()).as_deref(), expected, "{location}");
        }
    }
}
