//! One life of the process: read the Corefile, start what it names, start anew when it changes, end when told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use client::informer::Informers;
use client::transport::Credential;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::DnsError;
use crate::cache::Cache;
use crate::config::{self, Block, Place};
use crate::corefile::{self, ServerBlock};
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::kube_plugin::Kubernetes;
use crate::metrics::Metrics;
use crate::pages::{self, Page};
use crate::server::{self, LoopProbe, Server, Site};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// After the start, until what only starting needs is given back.
const SETTLED: Duration = Duration::from_secs(8);

/// What the arguments ask for.
pub(crate) enum Options {
    Say(String),
    Run(Run),
}

pub(crate) struct Run {
    corefile: PathBuf,
    port: u16,
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Options, DnsError> {
        let mut run = Run { corefile: "Corefile".into(), port: 53 };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, inline) = arg.split_once('=').map_or((arg.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
            let mut value =
                || inline.clone().or_else(|| args.next().cloned()).ok_or_else(|| DnsError::Usage(format!("{name} needs a value")));
            match name.trim_start_matches('-') {
                "conf" => run.corefile = value()?.into(),
                "dns.port" | "p" => run.port = value()?.parse().map_err(|_| DnsError::Usage(format!("{name} needs a port")))?,
                "version" => return Ok(Options::Say(format!("CoreDNS-compatible DNS of Kedge {VERSION}"))),
                "plugins" => return Ok(Options::Say(config::PLUGINS.replace(", ", "\n"))),
                _ => return Err(DnsError::Usage(format!("unknown argument {arg}"))),
            }
        }
        Ok(Options::Run(run))
    }
}

/// What outlives a change of the Corefile.
struct Process {
    group: Group,
    rng: Rng,
    metrics: Arc<Metrics>,
    /// By endpoint; the pod's own API server has the empty one.
    informers: BTreeMap<String, Informers>,
    fatal: mpsc::Sender<String>,
}

enum End {
    Stop(Duration),
    Changed,
}

pub(crate) async fn run(options: Run) -> Result<(), DnsError> {
    let (group, mut reports) = Group::root("dns");
    let (fatal, mut fatals) = mpsc::channel(1);
    let mut process = Process { group, rng: Rng::from_os(), metrics: Arc::default(), informers: BTreeMap::new(), fatal };
    let mut blocks = load(&options.corefile)?;
    let mut term = signal(SignalKind::terminate()).map_err(DnsError::Runtime)?;
    let mut int = signal(SignalKind::interrupt()).map_err(DnsError::Runtime)?;
    loop {
        let running = Running::start(&mut process, &blocks, &options).await?;
        info!(version = VERSION, "serving");
        process.group.spawn_short("settle", settle());
        let next = running.config_change(&options.corefile, &blocks);
        let end = tokio::select! {
            _ = term.recv() => End::Stop(running.lameduck()),
            _ = int.recv() => End::Stop(Duration::ZERO),
            Some(text) = fatals.recv() => return Err(DnsError::Loop(text)),
            Some(report) = reports.recv() => return Err(DnsError::Loop(report.to_string())),
            changed = next => {
                blocks = changed;
                End::Changed
            }
        };
        running.leaving.store(true, Ordering::Release);
        match end {
            End::Stop(lameduck) => {
                // Still serving, while those who watch our readiness send their questions elsewhere.
                tokio::time::sleep(lameduck).await;
                running.group.shutdown().await;
                process.group.shutdown().await;
                return Ok(());
            }
            End::Changed => {
                running.group.shutdown().await;
                info!("the Corefile has changed, starting anew");
            }
        }
    }
}

/// Gives back what only starting needed.
async fn settle() {
    tokio::time::sleep(SETTLED).await;
    if let Ok(Err(err)) = Group::blocking(base::sys::let_go_of_program_text).await {
        debug!(err = %err, "the program's pages stay in memory");
    }
}

fn load(path: &Path) -> Result<Vec<ServerBlock>, DnsError> {
    let text = std::fs::read_to_string(path).map_err(|source| DnsError::Read { path: path.to_owned(), source })?;
    Ok(corefile::parse(path, &text, &env)?)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a Corefile may name variables, and the pod's API server is given in two; cli.rs is not on this road"
)]
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What one Corefile started.
struct Running {
    group: Group,
    sites: Vec<Arc<Site>>,
    leaving: Arc<AtomicBool>,
    options_port: u16,
}

impl Running {
    async fn start(process: &mut Process, source: &[ServerBlock], options: &Run) -> Result<Running, DnsError> {
        let blocks = understand(source, options)?;
        let group = process.group.child("servers");
        let mut by_port: BTreeMap<u16, Vec<Arc<Site>>> = BTreeMap::new();
        let mut sites = Vec::new();
        for block in blocks {
            let ports: Vec<u16> = block.zones.iter().map(|zone| zone.port).collect();
            let site = Arc::new(site(process, block, &group)?);
            for port in ports {
                let list = by_port.entry(port).or_default();
                if !list.iter().any(|known| Arc::ptr_eq(known, &site)) {
                    list.push(Arc::clone(&site));
                }
            }
            sites.push(site);
        }
        let running = Running { group, sites, leaving: Arc::default(), options_port: options.port };
        running.serve_pages(process).await?;
        for (port, sites) in by_port {
            let binds: Vec<_> = sites.iter().flat_map(|site| site.block.bind.clone()).collect();
            let probes: Vec<Name> = sites.iter().filter_map(|site| site.loop_probe.as_ref()).map(|probe| probe.name.clone()).collect();
            let server = Server::new(sites, port, Arc::clone(&process.metrics), process.rng.clone(), process.fatal.clone());
            server::listen(Arc::new(server), &binds, port, &running.group).await?;
            for name in probes {
                running.group.spawn_short("loop", probe_loop(name, port));
            }
        }
        Ok(running)
    }

    async fn serve_pages(&self, process: &Process) -> Result<(), DnsError> {
        let mut pages: BTreeMap<std::net::SocketAddr, Vec<Page>> = BTreeMap::new();
        for site in &self.sites {
            if let Some(health) = &site.block.health {
                pages.entry(health.addr).or_default().push(Arc::new(|path| (path == "/health").then(|| ("200 OK", "OK".to_owned()))));
            }
            if let Some(addr) = site.block.ready {
                let (sites, leaving) = (self.sites.clone(), Arc::clone(&self.leaving));
                pages.entry(addr).or_default().push(Arc::new(move |path| (path == "/ready").then(|| ready(&sites, &leaving))));
            }
            if let Some(addr) = site.block.prometheus {
                let (sites, metrics) = (self.sites.clone(), Arc::clone(&process.metrics));
                pages
                    .entry(addr)
                    .or_default()
                    .push(Arc::new(move |path| (path == "/metrics").then(|| ("200 OK", metrics.render(&gauges(&sites))))));
            }
        }
        for (addr, pages) in pages {
            let listener = match TcpListener::bind(addr).await {
                Err(_) if addr.ip().is_unspecified() => TcpListener::bind(("0.0.0.0", addr.port())).await,
                bound => bound,
            };
            let listener = listener.map_err(|source| DnsError::Listen { addr, source })?;
            let page: Page = Arc::new(move |path| pages.iter().find_map(|page| page(path)));
            self.group.spawn("pages", pages::serve(listener, page, self.group.clone()));
        }
        Ok(())
    }

    fn lameduck(&self) -> Duration {
        self.sites.iter().filter_map(|site| site.block.health.as_ref()).map(|health| health.lameduck).max().unwrap_or_default()
    }

    /// Resolves with the new blocks when the Corefile says something else that can be understood.
    async fn config_change(&self, path: &Path, now: &[ServerBlock]) -> Vec<ServerBlock> {
        let Some(interval) = self.sites.iter().filter_map(|site| site.block.reload).min() else { return std::future::pending().await };
        let mut refused = None;
        loop {
            tokio::time::sleep(interval.max(Duration::from_secs(2))).await;
            let run = Run { corefile: path.to_owned(), port: self.options_port };
            let fresh = load(path).and_then(|blocks| understand(&blocks, &run).map(|_| blocks));
            match fresh {
                Ok(blocks) if blocks != now => return blocks,
                Ok(_) => refused = None,
                Err(err) => {
                    let text = Chain(&err).to_string();
                    if refused.as_ref() != Some(&text) {
                        warn!(err = %text, "the Corefile has changed but cannot be used, keeping the last one");
                    }
                    refused = Some(text);
                }
            }
        }
    }
}

fn understand(source: &[ServerBlock], options: &Run) -> Result<Vec<Block>, DnsError> {
    let file = options.corefile.display().to_string();
    Ok(config::understand(source, &Place { file: &file, port: options.port, resolv: &|path| std::fs::read_to_string(path) })?)
}

fn site(process: &mut Process, block: Block, group: &Group) -> Result<Site, DnsError> {
    let hosts = block.hosts.clone().map(Hosts::new);
    if let Some(hosts) = &hosts {
        group.spawn("hosts", Arc::clone(hosts).follow());
    }
    let kubernetes = match &block.kubernetes {
        None => None,
        Some(config) => Some(Kubernetes::start(config.clone(), &informers(process, config)?, group)),
    };
    let forwarders = block.forwards.iter().map(|config| Forwarder::new(config.clone(), &process.rng, group)).collect();
    let cache = block.cache.clone().map(Cache::new);
    let loop_probe = match block.zones.first().filter(|_| block.detect_loops) {
        None => None,
        Some(zone) => {
            let name = format!("{}.{}.", process.rng.below(u64::MAX), process.rng.below(u64::MAX));
            Name::from_ascii(name).ok().and_then(|name| name.append_domain(&zone.name).ok()).map(LoopProbe::new)
        }
    };
    Ok(Site { block, cache, hosts, kubernetes, forwarders, loop_probe })
}

fn ready(sites: &[Arc<Site>], leaving: &AtomicBool) -> (&'static str, String) {
    let waiting = sites.iter().any(|site| site.kubernetes.as_ref().is_some_and(|plugin| !plugin.is_ready()));
    match () {
        () if leaving.load(Ordering::Acquire) => ("503 Service Unavailable", "leaving".to_owned()),
        () if waiting => ("503 Service Unavailable", "kubernetes".to_owned()),
        () => ("200 OK", "OK".to_owned()),
    }
}

fn gauges(sites: &[Arc<Site>]) -> Vec<(&'static str, String, f64)> {
    let mut gauges = vec![("coredns_build_info", format!("version=\"kedge-{VERSION}\""), 1.0)];
    for (site, cache) in sites.iter().filter_map(|site| Some((site, site.cache.as_ref()?))) {
        let port = site.block.zones.first().map_or(53, |zone| zone.port);
        let (success, denial) = cache.sizes();
        #[allow(clippy::cast_precision_loss, reason = "a cache has thousands of entries")]
        for (kind, n) in [("success", success as f64), ("denial", denial as f64)] {
            gauges.push(("coredns_cache_entries", format!("server=\"dns://:{port}\",type=\"{kind}\",zones=\".\",view=\"\""), n));
        }
    }
    gauges
}

/// Asks ourselves for a name that nobody has: when it comes back from a resolver, questions go in a circle.
async fn probe_loop(name: Name, port: u16) {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::HINFO));
    let (Ok(bytes), Ok(socket)) = (message.to_vec(), UdpSocket::bind("127.0.0.1:0").await) else { return };
    // Nobody waits for the answer; what counts is whether the question is seen again.
    let _unanswered = socket.send_to(&bytes, ("127.0.0.1", port)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// The informers of the API server that the plugin names; made once a process, as a reload must not list everything again.
fn informers(process: &mut Process, config: &config::Kubernetes) -> Result<Informers, DnsError> {
    let slot = config.endpoint.clone().unwrap_or_default();
    if let Some(known) = process.informers.get(&slot) {
        return Ok(known.clone());
    }
    let bad = |what: &dyn std::fmt::Display| DnsError::Credentials(what.to_string());
    let pod_ca = PathBuf::from(SERVICE_ACCOUNT).join("ca.crt");
    let (server, ca, identity) = match (&config.endpoint, &config.tls) {
        (Some(endpoint), Some([cert, key, ca])) => (endpoint.clone(), ca, Some((cert, key))),
        _ => {
            let (Some(host), Some(port)) = (env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")) else {
                return Err(DnsError::NoApiServer);
            };
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            (format!("https://{host}:{port}"), &pod_ca, None)
        }
    };
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(ca).map_err(|err| bad(&format!("{}: {err}", ca.display())))? {
        roots.add(cert.map_err(|err| bad(&err))?).map_err(|err| bad(&err))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|err| bad(&err))?;
    let builder = builder.with_root_certificates(roots);
    let tls = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let certs: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).map_err(|err| bad(&err))?.collect();
            let key = PrivateKeyDer::from_pem_file(key).map_err(|err| bad(&err))?;
            builder.with_client_auth_cert(certs.map_err(|err| bad(&err))?, key).map_err(|err| bad(&err))?
        }
    };
    let authority = server.trim_start_matches("https://").trim_end_matches('/');
    let authority = authority.parse().map_err(|_| bad(&format!("{server:?} is not an https:// URL")))?;
    let credential = match identity {
        Some(_) => Credential::Certificate,
        // The kubelet renews the token; the transport reads the file for each request.
        None => Credential::TokenFile(PathBuf::from(SERVICE_ACCOUNT).join("token")),
    };
    let transport = client::transport::tls(authority, tls, credential);
    let informers = Informers::new(kube::Client::new(transport, "default"), &process.group);
    process.informers.insert(slot, informers.clone());
    Ok(informers)
}
