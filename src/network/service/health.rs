//! Health over HTTP: `/healthz` and `/livez` of the proxy on 10256, each `healthCheckNodePort` for outside load
//! balancers, and metrics on 127.0.0.1:10249. Names, ports and answers are kube-proxy's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::ports::{PROXY_HEALTH, PROXY_METRICS};
use base::sync::Mutex;
use base::task::Group;
use base::time::{Clock, rfc3339_secs};
use http::{Request, Response, StatusCode};
use serde_json::json;
use tracing::warn;
use wire::{Body, ConnInfo, Handler};

use crate::service::snapshot::ServicePort;

/// A port that another program has is tried again this much later.
const BIND_RETRY: Duration = Duration::from_secs(10);

/// Upper bounds of the sync histogram, in seconds.
const BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// How many endpoints of a Service are on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LocalEndpoints {
    ns: String,
    name: String,
    count: usize,
}

/// Services with a health check port.
pub(crate) fn local_endpoints(ports: &[ServicePort]) -> BTreeMap<u16, LocalEndpoints> {
    let mut all = BTreeMap::new();
    for port in ports {
        let Some(number) = port.health_port else { continue };
        let here = |v4: bool| port.endpoints.iter().filter(|e| e.local && e.ready && e.addr.is_ipv4() == v4).count();
        // A pod of both families is one endpoint.
        let count = here(true).max(here(false));
        let entry: &mut LocalEndpoints = all.entry(number).or_default();
        *entry = LocalEndpoints { ns: port.ns.clone(), name: port.name.clone(), count: entry.count.max(count) };
    }
    all
}

#[derive(Default)]
struct State {
    /// Whether the rules in force are those of the objects.
    healthy: bool,
    synced_at: Option<String>,
    synced_unix: f64,
    failures: u64,
    took: [u64; BUCKETS.len() + 1],
    took_sum: f64,
    local: BTreeMap<u16, LocalEndpoints>,
}

/// Health that the proxy reports and the servers answer from.
#[derive(Clone)]
pub(crate) struct Health {
    state: Arc<Mutex<State>>,
    clock: Clock,
    group: Group,
    /// Between two tries to listen.
    retry: Duration,
    /// Where everybody asks.
    any: IpAddr,
    /// One server a health check port.
    open: Arc<Mutex<BTreeMap<u16, Group>>>,
}

impl Health {
    /// Opens the two fixed ports. One that another proxy has is said and left.
    pub(crate) async fn start(any: IpAddr, group: &Group) -> Health {
        let health = Health {
            state: Arc::default(),
            clock: group.clock().clone(),
            group: group.child("health"),
            retry: BIND_RETRY,
            any,
            open: Arc::default(),
        };
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_METRICS));
        health.serve(SocketAddr::new(any, PROXY_HEALTH), Page::Proxy, &health.group).await;
        health.serve(own, Page::Metrics, &health.group).await;
        health
    }

    /// Listens; where another program has the port, as soon as it lets go of it.
    async fn serve(&self, addr: SocketAddr, page: Page, group: &Group) {
        let health = self.clone();
        let bind = move || wire::serve::Server::bind(addr, None, Arc::new(Answers { health: health.clone(), page }));
        match bind().await {
            Ok(server) => return server.start(group),
            Err(err) => warn!(addr = %addr, err = %err, "cannot listen for health checks, trying again"),
        }
        let (own, retry) = (group.clone(), self.retry);
        group.spawn_short("health-port", async move {
            loop {
                tokio::time::sleep(retry).await;
                if let Ok(server) = bind().await {
                    return server.start(&own);
                }
            }
        });
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn failed(&self) {
        let mut state = self.state();
        state.healthy = false;
        state.failures += 1;
    }

    /// Rules are in force; opens and closes health check ports to match.
    pub(crate) async fn synced(&self, took: Duration, local: BTreeMap<u16, LocalEndpoints>) {
        let wanted: Vec<u16> = local.keys().copied().collect();
        {
            let now = self.clock.now();
            let mut state = self.state();
            state.healthy = true;
            state.synced_at = Some(rfc3339_secs(now));
            state.synced_unix = now.as_millisecond() as f64 / 1000.0;
            state.took_sum += took.as_secs_f64();
            let bucket = BUCKETS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BUCKETS.len());
            state.took[bucket] += 1;
            state.local = local;
        }
        let (closed, opened) = {
            let mut open = self.open.lock();
            let gone: Vec<u16> = open.keys().copied().filter(|port| !wanted.contains(port)).collect();
            let closed: Vec<Group> = gone.iter().filter_map(|port| open.remove(port)).collect();
            let fresh: Vec<u16> = wanted.into_iter().filter(|port| !open.contains_key(port)).collect();
            let opened: Vec<(u16, Group)> = fresh.into_iter().map(|port| (port, self.group.child("check"))).collect();
            open.extend(opened.iter().map(|(port, group)| (*port, group.clone())));
            (closed, opened)
        };
        for group in closed {
            group.shutdown().await;
        }
        for (port, group) in opened {
            self.serve(SocketAddr::new(self.any, port), Page::Service(port), &group).await;
        }
    }

    fn proxy(&self) -> Response<Body> {
        let (healthy, updated) = {
            let state = self.state();
            (state.healthy, state.synced_at.clone())
        };
        let text =
            json!({ "lastUpdated": updated, "currentTime": rfc3339_secs(self.clock.now()), "nodeEligible": true })
                .to_string();
        answer(if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, "application/json", text, None)
    }

    fn service(&self, port: u16) -> Response<Body> {
        let (healthy, local) = {
            let state = self.state();
            (state.healthy, state.local.get(&port).cloned().unwrap_or_default())
        };
        let text = json!({
            "service": { "namespace": local.ns, "name": local.name }, "localEndpoints": local.count,
            "serviceProxyHealthy": healthy,
        });
        let code = if healthy && local.count > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        answer(code, "application/json", text.to_string(), Some(local.count))
    }

    fn metrics(&self) -> Response<Body> {
        let state = self.state();
        let (mut text, mut sum) = (String::new(), 0);
        let name = "kubeproxy_sync_proxy_rules_duration_seconds";
        let _infallible = writeln!(text, "# HELP {name} SyncProxyRules latency in seconds\n# TYPE {name} histogram");
        for (bound, count) in BUCKETS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]).zip(&state.took) {
            sum += count;
            let _infallible = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let _infallible = writeln!(text, "{name}_sum {}\n{name}_count {sum}", state.took_sum);
        for (name, help, kind, value) in [
            (
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                "gauge",
                state.synced_unix,
            ),
            (
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "Cumulative proxy nftables sync failures",
                "counter",
                state.failures as f64,
            ),
        ] {
            let _infallible = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        drop(state);
        answer(StatusCode::OK, "text/plain; version=0.0.4", text, None)
    }
}

#[derive(Clone, Copy)]
enum Page {
    Proxy,
    Service(u16),
    Metrics,
}

struct Answers {
    health: Health,
    page: Page,
}

#[async_trait::async_trait]
impl Handler for Answers {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        match (self.page, req.uri().path()) {
            (Page::Service(port), _) => self.health.service(port),
            (Page::Proxy, "/healthz" | "/livez") => self.health.proxy(),
            (Page::Metrics, "/metrics") => self.health.metrics(),
            (Page::Metrics, "/healthz") => answer(StatusCode::OK, "text/plain", "ok".to_owned(), None),
            (Page::Metrics, "/proxyMode") => answer(StatusCode::OK, "text/plain", "nftables".to_owned(), None),
            _ => answer(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".to_owned(), None),
        }
    }
}

fn answer(code: StatusCode, kind: &str, text: String, weight: Option<usize>) -> Response<Body> {
    let mut builder =
        Response::builder().status(code).header("content-type", kind).header("x-content-type-options", "nosniff");
    if let Some(weight) = weight {
        builder = builder.header("x-load-balancing-endpoint-weight", weight);
    }
    builder.body(wire::body::full(text)).unwrap_or_else(|_| Response::new(wire::body::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md L9: it was tried once, and a load balancer outside took the node for dead from then on
    #[tokio::test]
    async fn a_health_check_port_that_was_taken_is_served_once_it_is_free() {
        let (group, _fatal) = Group::root("t");
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        let retry = Duration::from_millis(5);
        let health = Health {
            state: Arc::default(),
            clock: Clock::system(),
            group: group.clone(),
            retry,
            any: own,
            open: Arc::default(),
        };
        let other = std::net::TcpListener::bind((own, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        health.synced(Duration::ZERO, [(port, LocalEndpoints { count: 1, ..LocalEndpoints::default() })].into()).await;
        drop(other);
        let ask = async {
            loop {
                let Ok(stream) = wire::dial::tcp("127.0.0.1", port, "", None).await else { continue };
                let request = Request::get("/healthz").header("host", "localhost").body(wire::body::empty()).unwrap();
                return wire::dial::request(stream, "the port", request, &group).await.unwrap().status();
            }
        };
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), ask).await.unwrap(), StatusCode::OK);
        group.shutdown().await;
    }
}
