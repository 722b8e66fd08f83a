//! Connections of strangers: too many, too slow, kept for ever.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use http::{Method, Request};
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use wire::Body;
use wire::dial::{self, Stream};

use crate::harness::Server;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A client of 127.0.0.1 that calls from an address of its own choice.
pub(crate) struct Caller {
    trust: Bundle,
    port: u16,
    from: [u8; 4],
    shown: Option<Arc<CertStore>>,
}

impl Caller {
    /// To a port of a server's machine.
    pub(crate) fn to(server: &Server, port: u16, from: [u8; 4]) -> Caller {
        let ca = std::fs::read_to_string(server.place.data_dir().join("server/tls/server-ca.crt")).unwrap();
        Caller { trust: Bundle::from_pem(&ca).unwrap(), port, from, shown: None }
    }

    /// With a client certificate.
    pub(crate) fn showing(self, shown: Arc<CertStore>) -> Caller {
        Caller { shown: Some(shown), ..self }
    }

    /// A connection after its TLS handshake; it offers HTTP/1.1 alone.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        self.connect_with(&[b"http/1.1"], None).await
    }

    /// The same for an attacker, who tries again: on a busy machine a handshake may not end in its time. Whether others
    /// are let in, the honest client says.
    pub(crate) async fn connect_at_last(&self) -> Box<dyn Stream> {
        for _ in 0..10 {
            if let Ok(stream) = self.connect().await {
                return stream;
            }
        }
        self.connect().await.unwrap()
    }

    /// The same with other protocols, and with so many bytes for what was not read yet.
    pub(crate) async fn connect_with(&self, alpn: &[&[u8]], unread: Option<u32>) -> io::Result<Box<dyn Stream>> {
        let socket = TcpSocket::new_v4()?;
        unread.map(|bytes| socket.set_recv_buffer_size(bytes)).transpose()?;
        socket.bind((self.from, 0).into())?;
        let stream = socket.connect(([127, 0, 0, 1], self.port).into()).await?;
        let mut config =
            rustls::ClientConfig::clone(&*pki::tls::client_config(&self.trust, self.shown.clone()).unwrap());
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        dial::tls(Box::new(stream), "127.0.0.1", Arc::new(config)).await.map_err(io::Error::other)
    }

    pub(crate) async fn try_ask(&self, req: Request<Body>) -> Result<String, String> {
        self.told(req).await.map(|(_, text)| text)
    }

    /// The status and the body of an answer.
    async fn told(&self, req: Request<Body>) -> Result<(u16, String), String> {
        let (group, _fatal) = Group::root("caller");
        let stream = self.connect().await.map_err(|err| err.to_string())?;
        let answer = dial::request(stream, "server", req, &group).await.map_err(|err| err.to_string())?;
        let status = answer.status().as_u16();
        let bytes = wire::body::collect(answer.into_body(), 1 << 24).await.map_err(|err| err.to_string())?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    pub(crate) async fn ask(&self, req: Request<Body>) -> String {
        self.try_ask(req).await.unwrap()
    }
}

#[test]
fn strangers_crowd_out_one_another_and_nobody_who_is_known() {
    let server = Server::start();
    let tls = server.place.data_dir().join("server/tls");
    let read = |name: &str| std::fs::read_to_string(tls.join(name)).unwrap();
    let admin = CertStore::new(Pair::from_pem(&read("client-admin.crt"), &read("client-admin.key")).unwrap());
    runtime().block_on(async {
        let crowd = Caller::to(&server, server.place.port, [127, 0, 0, 4]);
        let mut known = Caller::to(&server, server.place.port, [127, 0, 0, 4]).showing(admin).connect().await.unwrap();
        let mut quiet = Caller::to(&server, server.place.port, [127, 0, 0, 5]).connect().await.unwrap();
        let mut held = Vec::new();
        for _ in 0..300 {
            held.push(crowd.connect().await.unwrap());
        }
        let mut byte = [0; 1];
        let first = tokio::time::timeout(Duration::from_secs(10), held[0].read(&mut byte)).await;
        let ended = first.expect("300 strangers of one address are all kept");
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
        for stream in [&mut known, &mut quiet] {
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
            let mut answer = vec![0; 1024];
            let n = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.unwrap().unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..n]));
        }
    });
    server.ok(&["get", "ns"]);
    server.check_log();
}

/// Paths that need a user, whatever they answer to one.
const CLOSED: [&str; 34] = [
    "/",
    "/api",
    "/api/v1",
    "/api/v1/nodes",
    "/api/v1/secrets",
    "/api/v1/secrets?watch=1",
    "/api/v1/namespaces/kube-public/configmaps/cluster-info",
    "/api/v1/namespaces/kube-system/secrets",
    "/api/v1/namespaces/default/pods/p/exec?command=sh",
    "/api/v1/nodes/test/proxy/metrics",
    "/apis",
    "/apis/apps/v1",
    "/apis/metrics.k8s.io/v1beta1/nodes",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/configz",
    "/debug/flags/v",
    "/debug/pprof",
    "/debug/pprof/profile?seconds=1",
    "/flagz",
    "/kedge/secrets-encrypt/status",
    "/logs",
    "/logs/kedge.log",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openid/v1/jwks",
    "/.well-known/openid-configuration",
    "/statusz",
    "/version/more",
    "/versions",
    "/nothing-that-there-is",
];

/// Paths that begin like an open one, or look like one.
const DISGUISED: [&str; 10] = [
    "/healthz/../metrics",
    "/healthz/%2e%2e/metrics",
    "/healthz%2f..%2fmetrics",
    "/livez/..//api/v1/secrets",
    "/readyz/../openapi/v2",
    "/readyz/nothing-that-there-is",
    "/version/../api/v1/secrets",
    "//metrics",
    "/ping/../metrics",
    "/cacerts/../v1-kedge/members",
];

/// Fields of `/version`, as upstream's.
const VERSION: [&str; 13] = [
    "buildDate",
    "compiler",
    "emulationMajor",
    "emulationMinor",
    "gitCommit",
    "gitTreeState",
    "gitVersion",
    "goVersion",
    "major",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "minor",
    "platform",
];

/// Kedge's own doors: method, path and the answer to a stranger.
const DOORS: [(&str, &str, u16); 10] = [
    ("GET", "/v1-kedge/join", 404),
    ("GET", "/v1-kedge/members", 404),
    ("GET", "/v1-kedge/nothing-that-there-is", 404),
    ("GET", "/v1-kedge/tunnel", 404),
    ("POST", "/v1-kedge/join", 400),
    ("POST", "/v1-kedge/members", 400),
    ("POST", "/v1-kedge/relay/test", 403),
    ("POST", "/v1-kedge/tunnel", 403),
    ("POST", "/cacerts", 404),
    ("PUT", "/ping", 404),
];

#[test]
fn a_stranger_reads_health_version_and_authorities_and_nothing_else() {
    let server = Server::start();
    let authorities = std::fs::read_to_string(server.place.data_dir().join("server/tls/server-ca.crt")).unwrap();
    runtime().block_on(async {
        let stranger = Caller::to(&server, server.place.port, [127, 0, 0, 6]);
        let ask = async |method: Method, path: &str, headers: &[(&str, &str)]| {
            let req =
                headers.iter().fold(Request::builder().method(method).uri(path).header("host", "s"), |req, (k, v)| {
                    req.header(*k, *v)
                });
            stranger.told(req.body(wire::body::empty()).unwrap()).await.unwrap()
        };
        let read = async |path: &str| ask(Method::GET, path, &[]).await;
        for path in ["/healthz", "/livez", "/readyz", "/livez/ping", "/readyz/ping"] {
            assert_eq!(read(path).await, (200, "ok".to_owned()), "{path}");
        }
        // Names of checks, and whether each holds.
        let (code, checks) = read("/readyz?verbose").await;
        let (lines, last) = checks.trim_end().rsplit_once('\n').unwrap();
        assert_eq!((code, last), (200, "readyz check passed"));
        let is_check = |line: &str| {
            line.strip_prefix("[+]").and_then(|rest| rest.strip_suffix(" ok")).is_some_and(|name| !name.contains(' '))
        };
        assert!(lines.lines().all(is_check), "{checks}");
        assert_eq!(read("/ping").await, (200, "pong".to_owned()));
        assert_eq!(read("/cacerts").await, (200, authorities));
        let (code, version) = read("/version").await;
        let version: serde_json::Value = serde_json::from_str(&version).unwrap();
        let fields: Vec<&str> = version.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((code, &fields[..]), (200, &VERSION[..]));
        let (code, fingerprint) = read("/v1-kedge/authorities").await;
        assert!(
            code == 200 && fingerprint.len() == 64 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit()),
            "{fingerprint}"
        );
        // One answer for all that needs a user, so that it does not tell what there is.
        let (code, refusal) = read("/nothing-that-there-is").await;
        assert!(
            code == 401 && refusal.contains(r#""reason":"Unauthorized""#) && refusal.len() < 300,
            "{code} {refusal}"
        );
        for path in CLOSED {
            assert_eq!(read(path).await, (401, refusal.clone()), "{path}");
        }
        for path in DISGUISED {
            let (code, said) = read(path).await;
            assert!((400..500).contains(&code) && said.len() < 500, "{path}: {code} {said}");
        }
        // Nobody is believed to be somebody, where a user is needed or not.
        for headers in [
            &[("x-remote-user", "admin"), ("x-remote-group", "system:masters")][..],
            &[("impersonate-user", "admin"), ("impersonate-group", "system:masters")],
            &[("authorization", "Bearer nonsense")],
            &[("authorization", "Basic YWRtaW46YWRtaW4=")],
        ] {
            assert_eq!(ask(Method::GET, "/api/v1/secrets", headers).await.0, 401, "{headers:?}");
        }
        let code =
            ask(Method::GET, "/version", &[("impersonate-user", "admin"), ("impersonate-group", "system:masters")])
                .await
                .0;
        assert_eq!(code, 403, "a stranger speaks for somebody");
        // Kedge's own doors.
        for (method, path, want) in DOORS {
            let (code, said) = ask(method.parse().unwrap(), path, &[]).await;
            assert!(code == want && said.len() < 300, "{path}: {code} {said}");
        }
    });
    server.check_log();
}
