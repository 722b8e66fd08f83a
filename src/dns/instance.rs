//! One life of the process: read the Corefile, start what it names, start anew when it changes, end when told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::chain::Chain;
use base::exposition::Labels;
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
use crate::config::{self, Block, Context};
use crate::corefile::{self, ServerBlock};
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::kube_plugin::Kubernetes;
use crate::metrics::{Gauge, Metrics};
use crate::pages::{self, Page};
use crate::server::{self, LoopProbe, Server, Site, Sockets};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// After the start, until what only starting needs is given back.
const SETTLED: Duration = Duration::from_secs(8);

/// The task that the arguments ask for.
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
            let (name, inline) =
                arg.split_once('=').map_or((arg.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
            let mut value = || {
                inline
                    .clone()
                    .or_else(|| args.next().cloned())
                    .ok_or_else(|| DnsError::Usage(format!("{name} needs a value")))
            };
            match name.trim_start_matches('-') {
                "conf" => run.corefile = value()?.into(),
                "dns.port" | "p" => {
                    run.port = value()?.parse().map_err(|_| DnsError::Usage(format!("{name} needs a port")))?
                }
                "version" => return Ok(Options::Say(format!("CoreDNS-compatible DNS of Kedge {VERSION}"))),
                "plugins" => return Ok(Options::Say(config::PLUGINS.replace(", ", "\n"))),
                _ => return Err(DnsError::Usage(format!("unknown argument {arg}"))),
            }
        }
        Ok(Options::Run(run))
    }
}

/// Parts that outlive a change of the Corefile.
struct Process {
    group: Group,
    rng: Rng,
    metrics: Arc<Metrics>,
    /// By endpoint; the pod's own API server has the empty one.
    informers: BTreeMap<String, Informers>,
    fatal: mpsc::Sender<String>,
    /// Questions wait in them while a new Corefile starts.
    sockets: Sockets,
}

enum End {
    Stop(Duration),
    Changed,
}

pub(crate) async fn run(options: Run) -> Result<(), DnsError> {
    let (group, mut reports) = Group::root("dns");
    let (fatal, mut fatals) = mpsc::channel(1);
    let mut process = Process {
        rng: group.rng().clone(),
        group,
        metrics: Arc::default(),
        informers: BTreeMap::new(),
        fatal,
        sockets: Sockets::default(),
    };
    let mut blocks = load_usable(&options)?;
    // A port that a file of the administrator's names may be taken: names of the cluster do not wait for that.
    let mut fallback = Some(load_plain(&options)?).filter(|plain| !plain.is_empty() && *plain != blocks);
    let mut term = signal(SignalKind::terminate()).map_err(DnsError::Runtime)?;
    let mut int = signal(SignalKind::interrupt()).map_err(DnsError::Runtime)?;
    loop {
        let running = match Running::start(&mut process, &blocks, &options).await {
            Err(err @ DnsError::Listen { .. }) if fallback.is_some() => {
                warn!(err = %Chain(&err), "cannot serve with the imported files, serving without them");
                blocks = fallback.take().unwrap_or_default();
                continue;
            }
            started => started?,
        };
        process.sockets.forget_unused();
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
    Ok(corefile::parse(path, &read(path)?, &env)?)
}

fn read(path: &Path) -> Result<String, DnsError> {
    std::fs::read_to_string(path).map_err(|source| DnsError::Read { path: path.to_owned(), source })
}

/// The Corefile at the start of the process. An imported file with which it cannot be used is left out, and said: one
/// bad line of `coredns-custom` must not take the cluster's names away.
///
/// Errors: the Corefile cannot be used without any of them.
fn load_usable(options: &Run) -> Result<Vec<ServerBlock>, DnsError> {
    let (path, text) = (&options.corefile, read(&options.corefile)?);
    let try_with = |wanted: &dyn Fn(&Path) -> bool| {
        let (parsed, imports) = corefile::parse_part(path, &text, &env, wanted);
        let usable = parsed.map_err(DnsError::from).and_then(|blocks| understand(&blocks, options).map(|_| blocks));
        (usable, imports)
    };
    let (whole, imports) = try_with(&|_| true);
    let Err(err) = whole else { return whole };
    if imports.is_empty() {
        return Err(err);
    }
    let mut good: Vec<PathBuf> = Vec::new();
    for file in &imports {
        match try_with(&|path| path == file || good.iter().any(|good| good == path)).0 {
            Ok(_) => good.push(file.clone()),
            Err(err) => {
                warn!(file = %file.display(), err = %Chain(&err), "the imported file cannot be used and is left out")
            }
        }
    }
    try_with(&|path| good.iter().any(|good| good == path)).0
}

/// The Corefile without imported files; one that is nothing without them counts as empty.
fn load_plain(options: &Run) -> Result<Vec<ServerBlock>, DnsError> {
    let (parsed, _) = corefile::parse_part(&options.corefile, &read(&options.corefile)?, &env, &|_| false);
    Ok(parsed.ok().filter(|blocks| understand(blocks, options).is_ok()).unwrap_or_default())
}

#[allow(
    clippy::disallowed_methods,
    reason = "a Corefile may name variables, and the pod's API server is given in two; cli.rs is not on this road"
)]
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Tasks that one Corefile started.
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
        let started = Running::start_in(process, blocks, options, group.clone()).await;
        if started.is_err() {
            // What of it runs already must not answer beside what is started instead.
            group.shutdown().await;
        }
        started
    }

    async fn start_in(
        process: &mut Process,
        blocks: Vec<Block>,
        options: &Run,
        group: Group,
    ) -> Result<Running, DnsError> {
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
        process.sockets.begin();
        for (port, sites) in by_port {
            let binds: Vec<_> = sites.iter().flat_map(|site| site.block.bind.clone()).collect();
            let probes: Vec<Name> =
                sites.iter().filter_map(|site| site.loop_probe.as_ref()).map(|probe| probe.name.clone()).collect();
            let server =
                Server::new(sites, port, Arc::clone(&process.metrics), process.rng.clone(), process.fatal.clone());
            server::listen(Arc::new(server), &binds, port, &mut process.sockets, &running.group).await?;
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
                pages
                    .entry(health.addr)
                    .or_default()
                    .push(Arc::new(|path| (path == "/health").then(|| ("200 OK", "OK".to_owned()))));
            }
            if let Some(addr) = site.block.ready {
                let (sites, leaving) = (self.sites.clone(), Arc::clone(&self.leaving));
                pages
                    .entry(addr)
                    .or_default()
                    .push(Arc::new(move |path| (path == "/ready").then(|| ready(&sites, &leaving))));
            }
            if let Some(addr) = site.block.prometheus {
                let (sites, metrics) = (self.sites.clone(), Arc::clone(&process.metrics));
                pages.entry(addr).or_default().push(Arc::new(move |path| {
                    (path == "/metrics").then(|| ("200 OK", metrics.render(&gauges(&sites))))
                }));
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
        self.sites
            .iter()
            .filter_map(|site| site.block.health.as_ref())
            .map(|health| health.lameduck)
            .max()
            .unwrap_or_default()
    }

    /// Resolves with the new blocks when the Corefile says something else that can be understood.
    async fn config_change(&self, path: &Path, now: &[ServerBlock]) -> Vec<ServerBlock> {
        let Some(interval) = self.sites.iter().filter_map(|site| site.block.reload).min() else {
            return std::future::pending().await;
        };
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
    Ok(config::understand(
        source,
        &Context { file: &file, port: options.port, resolv: &|path| std::fs::read_to_string(path) },
    )?)
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

fn gauges(sites: &[Arc<Site>]) -> Vec<Gauge> {
    let version = Labels::of(&[("version", &format!("kedge-{VERSION}"))]);
    let mut gauges = vec![Gauge { name: "coredns_build_info", labels: version, value: 1.0 }];
    for (site, cache) in sites.iter().filter_map(|site| Some((site, site.cache.as_ref()?))) {
        let server = format!("dns://:{}", site.block.zones.first().map_or(53, |zone| zone.port));
        let (success, denial) = cache.sizes();
        #[allow(clippy::cast_precision_loss, reason = "a cache has thousands of entries")]
        for (kind, value) in [("success", success as f64), ("denial", denial as f64)] {
            let labels = Labels::of(&[("server", &server), ("type", kind), ("zones", "."), ("view", "")]);
            gauges.push(Gauge { name: "coredns_cache_entries", labels, value });
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

/// The informers of the API server that the plugin names; made once a process, as a reload must not list everything
/// again.
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
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| bad(&err))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_imported_file_is_left_out_at_the_start_and_the_good_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("Corefile", ".:53 {\n errors\n import *.override\n}\nimport *.server\n");
        write("a.override", "log\n");
        write("b.override", "rewrite name a b\n");
        write("c.override", "}\n");
        write("d.server", "example.org {\n cache 5\n}\n");
        write("e.server", "tls://example.net {\n log\n}\n");
        write("f.server", "example.com {\n log\n");
        let options = Run { corefile: dir.path().join("Corefile"), port: 53 };
        assert!(load(&options.corefile).is_err());
        let blocks = load_usable(&options).unwrap();
        let names: Vec<&str> = blocks[0].directives.iter().map(|directive| directive.name.as_str()).collect();
        assert_eq!(
            (names, blocks.len(), blocks[1].keys.as_slice()),
            (vec!["errors", "log"], 2, &["example.org".to_owned()][..])
        );
        write("Corefile", ".:53 {\n nonsense\n import *.override\n}\n");
        assert!(load_usable(&options).is_err(), "the Corefile itself is wrong");
    }

    #[tokio::test]
    async fn a_new_corefile_keeps_the_sockets() {
        let (group, _reports) = Group::root("test");
        let mut sockets = Sockets::default();
        let addr = "127.0.0.1:0".parse().unwrap();
        let first = sockets.open(addr).await.unwrap();
        sockets.begin();
        let again = sockets.open(addr).await.unwrap();
        assert!(Arc::ptr_eq(&first.0, &again.0) && Arc::ptr_eq(&first.1, &again.1));
        sockets.begin();
        sockets.forget_unused();
        assert!(!Arc::ptr_eq(&first.0, &sockets.open(addr).await.unwrap().0));
        group.shutdown().await;
    }
}
