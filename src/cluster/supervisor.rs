//! The server's side of joining: answers on the API's port below `/v1-kedge/`, and `/cacerts` and `/ping` for
//! everybody.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::layout::ServerFolder;
use base::task::Group;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use pki::bundle::Bundle;
use pki::csr::{self, Profile};
use pki::identity::Identity;
use pki::leaf::{Ca, SUPERVISOR};
use pki::server::Pki;
use store::store::Store;
use tracing::{debug, info};
use wire::body::CollectError;
use wire::{Body, ConnInfo, body};

use crate::checks::{Reserved, check_clock, check_flags, check_name, check_serving_names, check_version, check_words};
use crate::credentials::{Credentials, Shown};
use crate::identity::{Claim, Identities, NameStatus};
use crate::names::ServerNames;
use crate::node_names::Domain;
use crate::protocol::{
    AUTHORITIES, CACERTS, JOIN, JOIN_BYTES_MAX, JoinRequest, MEMBERS, NewMember, PING, PREFIX, RELAY, Role, SIGNATURE,
    Settings, TUNNEL, Welcome,
};
use crate::refusal::Refusal;
use crate::secrets::{self, Secrets};
use crate::tunnel::Tunnels;
use crate::turns::Turns;
use crate::{members, protocol};

/// A request's body comes within this, or not at all: strangers send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A node that opens a tunnel speaks on it within this.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// A wrong token waits this long for its answer, so that guessing is slow.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_millis(500);

/// A server without a majority keeps its nodes for so long: an election is shorter.
const LONELY_PAUSE: Duration = Duration::from_secs(6);

/// Settings and parts of the server side of joining.
pub struct Config {
    /// Signs nodes' certificates.
    pub pki: Arc<Pki>,
    /// Knows who may join.
    pub credentials: Credentials,
    /// Knows whose a name is.
    pub identities: Identities,
    /// Knows what the servers are called.
    pub names: ServerNames,
    /// Reads where servers are.
    pub client: kube::Client,
    /// The settings of nodes.
    pub settings: Settings,
    /// Flags that must agree on all servers.
    pub flags: std::collections::BTreeMap<String, String>,
    /// The program's version.
    pub version: String,
    /// Which set of authorities is in use.
    pub authorities: String,
    /// Wall time.
    pub clock: Clock,
    /// Holds the secrets that servers which join are given.
    pub server_folder: ServerFolder,
    /// The store that may grow; `None`: it is somebody else's.
    pub store: Option<Arc<Store>>,
}

/// Answers machines that join, and nodes that open tunnels.
pub struct Supervisor {
    config: Config,
    tunnels: Arc<Tunnels>,
    turns: Arc<Turns>,
    group: Group,
}

/// Whether a path is the supervisor's; all others are the API server's.
pub fn serves(path: &str) -> bool {
    path.starts_with(PREFIX) || path == CACERTS || path == PING
}

impl Supervisor {
    /// Tunnels that nodes open become known in `tunnels` and live in `group`.
    pub fn new(config: Config, tunnels: Arc<Tunnels>, group: &Group) -> Arc<Supervisor> {
        if let Some(store) = config.store.clone() {
            group.spawn("lonely-server", part_when_lonely(store, Arc::clone(&tunnels)));
        }
        Arc::new(Supervisor { config, tunnels, turns: Turns::new(), group: group.child("tunnels") })
    }

    /// Answers one request for which [`serves`] is true.
    pub async fn answer(&self, req: Request<Body>, conn: &ConnInfo) -> Response<Body> {
        let (method, path) = (req.method().clone(), req.uri().path().to_owned());
        match (method, path.as_str()) {
            (Method::GET, PING) => Response::new(body::full("pong")),
            (Method::GET, CACERTS) => {
                Response::new(body::full(self.config.pki.authority(Ca::Server).bundle().to_owned()))
            }
            (Method::GET, AUTHORITIES) => Response::new(body::full(self.config.authorities.clone())),
            (Method::POST, JOIN) => self.answer_join(req, conn).await,
            (Method::POST, MEMBERS) => match self.member(req, conn).await {
                Ok(()) => text(StatusCode::OK, "ok"),
                Err(refusal) => {
                    info!(peer = %conn.peer, why = %refusal, "a server was not taken in");
                    as_json(status_of(&refusal), &refusal)
                }
            },
            (Method::POST, TUNNEL) => self.tunnel(req, conn),
            (Method::POST, path) if path.starts_with(protocol::RELAY) => self.relay(req, conn, &path[RELAY.len()..]),
            _ => text(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    /// Judges a machine that wants to join. A wrong token is answered later, so that guessing is slow: the pause counts
    /// among what its address asks at once, and takes nobody's turn.
    async fn answer_join(&self, req: Request<Body>, conn: &ConnInfo) -> Response<Body> {
        let judged = match self.turns.enter(conn.peer.ip()) {
            Ok(place) => self.join(req, conn).await.map_err(|refusal| (refusal, Some(place))),
            Err(refusal) => Err((refusal, None)),
        };
        match judged {
            Ok(welcome) => {
                conn.vouch();
                as_json(StatusCode::OK, &welcome)
            }
            Err((refusal, place)) => {
                info!(peer = %conn.peer, why = %refusal, "a machine was not let in");
                if place.is_some() && status_of(&refusal) == StatusCode::UNAUTHORIZED {
                    tokio::time::sleep(WRONG_TOKEN_PAUSE).await;
                }
                as_json(status_of(&refusal), &refusal)
            }
        }
    }

    async fn join(&self, req: Request<Body>, conn: &ConnInfo) -> Result<Welcome, Refusal> {
        let (parts, body) = req.into_parts();
        let header = |name: http::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let shown = Shown::parse(header(AUTHORIZATION).as_deref());
        let signature = header(http::HeaderName::from_static(SIGNATURE)).unwrap_or_default();
        // Before the turn: a slow sender keeps nobody waiting but itself.
        let bytes = body::collect_within(body, JOIN_BYTES_MAX, BODY_TIMEOUT).await;
        let bytes = bytes.map_err(|err| match err {
            CollectError::TooLong { .. } => Refusal::Invalid { why: Chain(&err).to_string() },
            CollectError::Broken(_) | CollectError::TooSlow { .. } => {
                Refusal::NotReady { why: Chain(&err).to_string() }
            }
        })?;
        let _turn = self.turns.turn().await?;
        let asked: JoinRequest = serde_json::from_slice(&bytes)
            .map_err(|err| Refusal::Invalid { why: format!("the join request cannot be read: {err}") })?;
        if !pki::node_key::verify(&asked.public_key, &bytes, &signature) {
            return Err(Refusal::Invalid { why: "the join request is not signed with the node key in it".to_owned() });
        }
        let now = self.config.clock.now();
        let claim = Claim {
            name: asked.node_name.clone(),
            public_key: asked.public_key.clone(),
            machine_id: asked.machine_id.clone(),
            address: conn.peer.ip().to_canonical(),
        };
        check_name(&asked.node_name, Domain(&self.config.settings.cluster_domain))?;
        check_words(&asked)?;
        self.admit(&asked, &claim, shown).await?;
        check_clock(asked.unix_ms, now.as_millisecond())?;
        check_version(&asked, &self.config.version)?;
        if asked.role == Role::Server {
            check_flags(&self.config.flags, &asked.flags)?;
        }
        let servers = self.servers().await?;
        let mut welcome = Welcome {
            server_ca: self.config.pki.authority(Ca::Server).bundle().to_owned(),
            client_ca: self.config.pki.authority(Ca::Client).bundle().to_owned(),
            authorities: self.config.authorities.clone(),
            kubelet_client: String::new(),
            kubelet_serving: String::new(),
            proxy_client: String::new(),
            settings: self.config.settings.clone(),
            servers,
            version: self.config.version.clone(),
            unix_ms: now.as_millisecond(),
            secrets: Secrets::new(),
        };
        if asked.role == Role::Server {
            return self.welcome_server(&asked, &claim, welcome).await;
        }
        let requests = self.checked_requests(&asked, self.reserved(&welcome.servers).await?)?;
        if asked.check {
            return Ok(welcome);
        }
        self.config.identities.record(&claim).await?;
        [welcome.kubelet_client, welcome.kubelet_serving, welcome.proxy_client] = self.sign(requests)?;
        info!(node = %asked.node_name, peer = %conn.peer, version = asked.version, "node certificates issued");
        Ok(welcome)
    }

    /// A server signs its own certificates: it is given the authorities.
    async fn welcome_server(
        &self,
        asked: &JoinRequest,
        claim: &Claim,
        mut welcome: Welcome,
    ) -> Result<Welcome, Refusal> {
        if asked.check {
            return Ok(welcome);
        }
        self.config.identities.record(claim).await?;
        welcome.secrets = secrets::collect(&self.config.server_folder)
            .map_err(|err| Refusal::NotReady { why: Chain(&err).to_string() })?;
        info!(
            node = %asked.node_name,
            peer = %claim.address,
            version = asked.version,
            "a server joins: it is given the cluster's secrets"
        );
        Ok(welcome)
    }

    /// Takes a server into the store that shows the supervisor's certificate.
    async fn member(&self, req: Request<Body>, conn: &ConnInfo) -> Result<(), Refusal> {
        let Some(store) = &self.config.store else {
            return Err(Refusal::NoMembers { why: "its store is an external etcd".to_owned() });
        };
        if !self.is_server(conn) {
            return Err(Refusal::Invalid {
                why: "only servers of this cluster may become members of its store".to_owned(),
            });
        }
        let unread =
            |err: &dyn std::fmt::Display| Refusal::Invalid { why: format!("the request cannot be read: {err}") };
        let bytes = body::collect_within(req.into_body(), JOIN_BYTES_MAX, BODY_TIMEOUT)
            .await
            .map_err(|err| unread(&Chain(&err)))?;
        let new: NewMember = serde_json::from_slice(&bytes).map_err(|err| unread(&err))?;
        check_name(&new.name, Domain(&self.config.settings.cluster_domain))?;
        members::admit(store, &new).await
    }

    /// The identity that the connection shows, if the cluster's authority vouches for its certificate now.
    fn verified(&self, conn: &ConnInfo) -> Option<Identity> {
        let clients = Bundle::from_pem(self.config.pki.authority(Ca::Client).bundle()).ok()?;
        clients.verify_client(&conn.client_certs, self.config.clock.now()).ok()?;
        pki::identity::parse(conn.client_certs.first()?).ok()
    }

    /// Whether the connection shows the certificate of a server's supervisor. Its group no signer gives to anybody
    /// (`pki/csr.rs`), so a common name that somebody approved is not enough.
    fn is_server(&self, conn: &ConnInfo) -> bool {
        self.verified(conn).is_some_and(|who| who.common_name == SUPERVISOR && who.is_in("system:masters"))
    }

    /// Passes another server's dials on to a node that holds a tunnel open to this one.
    fn relay(&self, mut req: Request<Body>, conn: &ConnInfo, node: &str) -> Response<Body> {
        if !self.is_server(conn) {
            return text(StatusCode::FORBIDDEN, "relays are for servers");
        }
        if wire::upgrade::requested(req.headers()).as_deref() != Some(wire::tunnel::PROTOCOL) {
            return text(StatusCode::BAD_REQUEST, "want an upgrade to kedge-tunnel");
        }
        let Some(way) = self.tunnels.to(node) else { return text(StatusCode::NOT_FOUND, "no tunnel to that node") };
        let (upgrade, group) = (wire::upgrade::take(&mut req), self.group.clone());
        self.group.spawn_short("relay", async move {
            let served = async { wire::tunnel::serve(wire::upgrade::stream(upgrade).await?, way, &group).await };
            if let Err(err) = served.await {
                debug!(err = %Chain(&err), "relay ended");
            }
        });
        wire::upgrade::switching(wire::tunnel::PROTOCOL, &[])
    }

    /// A machine is let in by its node key when the cluster knows it, else by its token.
    async fn admit(&self, asked: &JoinRequest, claim: &Claim, shown: Result<Shown, Refusal>) -> Result<(), Refusal> {
        let status = self.config.identities.status(claim).await?;
        if status == NameStatus::Own && asked.role == Role::Agent {
            return match self.tunnels.elsewhere(&claim.name, claim.address) {
                Some(other) => Err(Refusal::Twin { name: claim.name.clone(), address: other.to_string() }),
                None => Ok(()),
            };
        }
        self.config.credentials.judge(&shown?, asked.role, self.config.clock.now()).await?;
        match status {
            NameStatus::Taken { same_machine } => Err(self.config.identities.taken(claim, same_machine).await),
            NameStatus::Own | NameStatus::Free => Ok(()),
        }
    }

    /// Where servers answer: the endpoints of the service `kubernetes`.
    async fn servers(&self) -> Result<Vec<String>, Refusal> {
        let api: Api<EndpointSlice> = Api::namespaced(self.config.client.clone(), "default");
        let why = match api.get("kubernetes").await {
            Ok(slice) => return Ok(addresses_of(&slice)),
            // So it is for a moment at the first start, and for ever where servers call themselves 127.0.0.1.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                "none of its servers has an address that other machines reach; if that stays so, start it with another \
                 --advertise-address or --node-ip"
                    .to_owned()
            }
            Err(err) => format!("it does not know its servers: {}", Chain(&err)),
        };
        Err(Refusal::NotReady { why })
    }

    /// The three signing requests, if they ask for nothing but what this node may have.
    fn checked_requests(
        &self,
        asked: &JoinRequest,
        reserved: Reserved,
    ) -> Result<[(Vec<u8>, Ca, Profile); 3], Refusal> {
        let refused = |what: &str, why: &dyn std::fmt::Display| Refusal::Invalid {
            why: format!("the request for the {what} certificate is refused: {why}"),
        };
        let read = |what: &str, encoded: &str| {
            let der = STANDARD.decode(encoded).map_err(|err| refused(what, &err))?;
            let request = csr::parse(&der).map_err(|err| refused(what, &err))?;
            Ok::<_, Refusal>((der, request))
        };
        let user = format!("system:node:{}", asked.node_name);
        let (client_der, client) = read("kubelet's client", &asked.kubelet_client_csr)?;
        let (serving_der, serving) = read("kubelet's serving", &asked.kubelet_serving_csr)?;
        let (proxy_der, proxy) = read("proxy's client", &asked.proxy_client_csr)?;
        if client.common_name != user || serving.common_name != user {
            return Err(refused("kubelet's", &format!("its subject is not {user}")));
        }
        if proxy.common_name != "system:kube-proxy" || !proxy.organizations.is_empty() {
            return Err(refused("proxy's client", &"its subject is not system:kube-proxy"));
        }
        check_serving_names(&asked.node_name, &serving.sans, &reserved)?;
        Ok([
            (client_der, Ca::Client, Profile::KubeletClient),
            (serving_der, Ca::Server, Profile::KubeletServing),
            (proxy_der, Ca::Client, Profile::Client),
        ])
    }

    /// Names that a kubelet's certificate must not hold, for then it could pose as an API server: those of this server
    /// and of all others, whether they run or not.
    async fn reserved(&self, servers: &[String]) -> Result<Reserved, Refusal> {
        let unread = |err: &store::error::Error| Refusal::NotReady {
            why: format!("it does not know its servers' names: {}", Chain(err)),
        };
        let members = match &self.config.store {
            Some(store) => Some(store.members().await.map_err(|err| unread(&err))?),
            None => None,
        };
        let counts =
            |node: &str| members.as_ref().is_none_or(|members| members.iter().any(|member| member.name == node));
        let mut names = self.config.names.all(counts).await.map_err(|err| unread(&err))?;
        names.extend(pki::leaf::Leaf::ServingApiserver.spec(self.config.pki.options()).sans);
        names.extend(
            servers
                .iter()
                .filter_map(|server| server.rsplit_once(':'))
                .map(|(host, _)| host.trim_matches(['[', ']']).to_owned()),
        );
        Ok(Reserved { names, ranges: self.config.settings.service_cidrs.clone() })
    }

    fn sign(&self, requests: [(Vec<u8>, Ca, Profile); 3]) -> Result<[String; 3], Refusal> {
        let now = self.config.clock.now();
        let sign = |(der, ca, profile): &(Vec<u8>, Ca, Profile)| {
            let signed =
                self.config.pki.authority(*ca).sign_csr(der, *profile, None, pki::authority::Start::Epoch(now));
            signed.map_err(|err| Refusal::Invalid { why: Chain(&err).to_string() })
        };
        let [a, b, c] = &requests;
        Ok([sign(a)?, sign(b)?, sign(c)?])
    }

    /// Takes a tunnel that a node opens with its client certificate.
    fn tunnel(&self, mut req: Request<Body>, conn: &ConnInfo) -> Response<Body> {
        let Some(node) = self.node_of(conn) else {
            return text(StatusCode::FORBIDDEN, "tunnels are opened with a node's client certificate");
        };
        if self.config.store.as_ref().is_some_and(|store| !is_heard(store)) {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "this server hears no majority of the servers: turn to another",
            );
        }
        if wire::upgrade::requested(req.headers()).as_deref() != Some(wire::tunnel::PROTOCOL) {
            return text(StatusCode::BAD_REQUEST, "want an upgrade to kedge-tunnel");
        }
        let upgrade = wire::upgrade::take(&mut req);
        let (tunnels, peer) = (Arc::clone(&self.tunnels), conn.peer.ip().to_canonical());
        self.group.spawn_short("tunnel", async move {
            let opened = async { wire::tunnel::Tunnel::accept(wire::upgrade::stream(upgrade).await?).await };
            let late = |_| Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not speak in time"));
            match tokio::time::timeout(TUNNEL_TIMEOUT, opened).await.unwrap_or_else(late) {
                Ok((tunnel, ended)) => {
                    let (id, cut) = tunnels.add(&node, peer, tunnel);
                    info!(node = %node, peer = %peer, "tunnel opened");
                    tokio::select! {
                        () = ended => {}
                        () = cut.cancelled() => {}
                    }
                    tunnels.remove(&node, id);
                    info!(node = %node, peer = %peer, "tunnel closed");
                }
                Err(err) => debug!(node = %node, err = %Chain(&err), "tunnel could not be opened"),
            }
        });
        wire::upgrade::switching(wire::tunnel::PROTOCOL, &[])
    }

    /// The node whose certificate the connection shows.
    fn node_of(&self, conn: &ConnInfo) -> Option<String> {
        let who = self.verified(conn)?;
        who.common_name.strip_prefix("system:node:").filter(|_| who.is_in("system:nodes")).map(str::to_owned)
    }
}

/// Whether the server is in touch with a majority, as far as it knows.
fn is_heard(store: &Store) -> bool {
    let now = *store.leadership().borrow();
    now.is_me || now.leader.is_some_and(|leader| leader != store.member_id())
}

/// A server that hears no majority can neither read nor write: nodes that hold to it are let go.
async fn part_when_lonely(store: Arc<Store>, tunnels: Arc<Tunnels>) {
    let mut leadership = store.leadership();
    loop {
        let changed = async {
            if is_heard(&store) {
                return leadership.changed().await.is_ok();
            }
            match tokio::time::timeout(LONELY_PAUSE, leadership.changed()).await {
                Ok(changed) => changed.is_ok(),
                Err(_) => {
                    tunnels.cut_all();
                    leadership.changed().await.is_ok()
                }
            }
        };
        if !changed.await {
            std::future::pending::<()>().await;
        }
    }
}

/// `host:port` of each endpoint of the service `kubernetes`.
pub fn addresses_of(slice: &EndpointSlice) -> Vec<String> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).unwrap_or(i32::from(base::ports::API));
    let mut all: Vec<String> = Vec::new();
    for address in slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses) {
        all.push(if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") });
    }
    all
}

fn status_of(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::NotReady { .. } | Refusal::Unheard { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::NoToken | Refusal::WrongToken | Refusal::UnknownToken { .. } | Refusal::ExpiredToken { .. } => {
            StatusCode::UNAUTHORIZED
        }
        Refusal::UselessToken { .. } | Refusal::AgentToken => StatusCode::FORBIDDEN,
        Refusal::ClockSkew { .. } | Refusal::VersionSkew { .. } | Refusal::Invalid { .. } => StatusCode::BAD_REQUEST,
        Refusal::NameTaken { .. } | Refusal::Twin { .. } | Refusal::FlagsDiffer { .. } => StatusCode::CONFLICT,
        // Those that a machine finds out by itself.
        Refusal::Unreachable { .. }
        | Refusal::NotKedge { .. }
        | Refusal::WrongCa { .. }
        | Refusal::WrongName { .. }
        | Refusal::NoMembers { .. } => StatusCode::BAD_REQUEST,
    }
}

fn as_json<T: serde::Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the answer");
    };
    let mut answer = Response::new(body::full(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn text(status: StatusCode, why: &'static str) -> Response<Body> {
    let mut answer = Response::new(body::full(why));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_its_own_paths_are_the_supervisors() {
        for path in ["/v1-kedge/join", "/v1-kedge/other", "/cacerts", "/ping"] {
            assert!(serves(path), "{path}");
        }
        for path in ["/", "/api", "/cacerts/", "/pingpong", "/v1-kedge", "/apis/v1-kedge/x"] {
            assert!(!serves(path), "{path}");
        }
    }

    #[test]
    fn servers_are_the_endpoints_with_the_port_of_the_slice() {
        let addresses = |slice: serde_json::Value| addresses_of(&serde_json::from_value(slice).unwrap());
        let endpoints = json!([{ "addresses": ["10.0.0.1"] }, { "addresses": ["fd00::1", "10.0.0.2"] }]);
        let whole = json!({ "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "port": 7443 }] });
        assert_eq!(addresses(whole), ["10.0.0.1:7443", "[fd00::1]:7443", "10.0.0.2:7443"]);
        let bare = json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["10.0.0.1"] }] });
        assert_eq!(addresses(bare), ["10.0.0.1:6443"]);
        assert_eq!(addresses(json!({ "addressType": "IPv4", "endpoints": [] })), [""; 0]);
    }

    #[test]
    fn a_refusal_has_the_status_of_its_kind() {
        let text = || "x".to_owned();
        for (refusal, status) in [
            (Refusal::NoToken, 401),
            (Refusal::WrongToken, 401),
            (Refusal::UnknownToken { id: text() }, 401),
            (Refusal::ExpiredToken { id: text(), at: text() }, 401),
            (Refusal::UselessToken { id: text(), lacks: text() }, 403),
            (Refusal::AgentToken, 403),
            (Refusal::Invalid { why: text() }, 400),
            (Refusal::ClockSkew { ahead_secs: 999 }, 400),
            (Refusal::VersionSkew { joining: text(), server: text() }, 400),
            (Refusal::NoMembers { why: text() }, 400),
            (Refusal::NameTaken { name: text(), address: text(), same_machine: true }, 409),
            (Refusal::Twin { name: text(), address: text() }, 409),
            (Refusal::FlagsDiffer { flags: Vec::new() }, 409),
            (Refusal::NotReady { why: text() }, 503),
            (Refusal::Unheard { address: text() }, 503),
        ] {
            assert_eq!(status_of(&refusal).as_u16(), status, "{refusal}");
        }
    }
}
