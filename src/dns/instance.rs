//! One life of the process: read the Corefile, start what it names, start anew when it changes, end when told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::exposition::Labels;
use base::rng::Rng;
use base::task::Group;
use client::informer::Informers;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{debug, info};

use crate::apiserver;
use crate::config::{self, Block};
use crate::corefile::ServerBlock;
use crate::error::DnsError;
use crate::events::{Faults, Outcome};
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::kube_plugin::Kubernetes;
use crate::load::{self, Fault, Source};
use crate::metrics::{Gauge, Metrics};
use crate::pages::{self, Page};
use crate::server::listen::{self, Sockets};
use crate::server::{LoopProbe, Server, Shared, Site};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// After the start, until what only starting needs is given back.
const SETTLED: Duration = Duration::from_secs(8);

/// The task that the arguments ask for.
pub(crate) enum Options {
    Say(String),
    Run(Source),
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Options, DnsError> {
        let mut run = Source { path: "Corefile".into(), port: 53 };
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
                "conf" => run.path = value()?.into(),
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
    Changed(Vec<ServerBlock>),
}

pub(crate) async fn run(source: Source) -> Result<(), DnsError> {
    let (group, mut reports) = Group::root("dns");
    let (fatal, mut fatals) = mpsc::channel(1);
    let mut faults = Faults::new(&group);
    let mut process = Process {
        rng: group.rng().clone(),
        group,
        metrics: Arc::default(),
        informers: BTreeMap::new(),
        fatal,
        sockets: Sockets::default(),
    };
    let loaded = load::usable(&source)?;
    faults.tell(&loaded.faults, Outcome::LeftOut);
    let (mut blocks, mut running) = start(&mut process, &source, loaded.blocks, &mut faults).await?;
    let mut term = signal(SignalKind::terminate()).map_err(DnsError::Runtime)?;
    let mut int = signal(SignalKind::interrupt()).map_err(DnsError::Runtime)?;
    loop {
        process.sockets.forget_unused();
        info!(version = VERSION, "serving");
        process.group.spawn_short("settle", settle());
        let next = running.config_change(&source, &blocks, &mut faults);
        let end = tokio::select! {
            _ = term.recv() => End::Stop(running.lameduck()),
            _ = int.recv() => End::Stop(Duration::ZERO),
            Some(text) = fatals.recv() => return Err(DnsError::Loop(text)),
            Some(report) = reports.recv() => return Err(DnsError::Loop(report.to_string())),
            changed = next => End::Changed(changed),
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
            End::Changed(changed) => {
                running.group.shutdown().await;
                info!("the Corefile has changed, starting anew");
                (blocks, running) = restart(&mut process, &source, [changed, blocks], &mut faults).await?;
            }
        }
    }
}

/// Starts a changed Corefile, or the one before it: what cannot be started is told, and what ran goes on.
async fn restart(
    process: &mut Process,
    source: &Source,
    [changed, before]: [Vec<ServerBlock>; 2],
    faults: &mut Faults,
) -> Result<(Vec<ServerBlock>, Running), DnsError> {
    match start(process, source, changed.clone(), faults).await {
        Ok((_, running)) => Ok((changed, running)),
        Err(err) => {
            process.metrics.count("coredns_reload_failed_total", Labels::default());
            faults.tell(&[Fault::new(&source.path, &err)], Outcome::Kept);
            let running = Running::start(process, &before, source).await?;
            // It is compared with what the file says: the same words are not tried again.
            Ok((changed, running))
        }
    }
}

/// Starts these blocks. A port that a file of the administrator's names may be taken, or a certificate be missing:
/// names of the cluster do not wait for that, and the Corefile is served without that file.
async fn start(
    process: &mut Process,
    source: &Source,
    blocks: Vec<ServerBlock>,
    faults: &mut Faults,
) -> Result<(Vec<ServerBlock>, Running), DnsError> {
    let (mut left_out, mut attempt) = (Vec::new(), blocks.clone());
    loop {
        let err = match Running::start(process, &attempt, source).await {
            Ok(running) => {
                if !left_out.is_empty() {
                    faults.tell(&left_out, Outcome::LeftOut);
                }
                // What the file says is not tried again until it says something else.
                return Ok((blocks, running));
            }
            Err(err) => err,
        };
        let Some(file) = load::culprit(source, &attempt, &err) else { return Err(err) };
        let known = left_out.iter().any(|fault: &Fault| fault.file == file);
        left_out.push(Fault::new(&file, &err));
        let files: Vec<PathBuf> = left_out.iter().map(|fault| fault.file.clone()).collect();
        if known {
            return Err(err);
        }
        attempt = load::usable_without(source, &files)?.blocks;
    }
}

/// Gives back what only starting needed.
async fn settle() {
    tokio::time::sleep(SETTLED).await;
    if let Ok(Err(err)) = Group::blocking(base::sys::let_go_of_program_text).await {
        debug!(err = %err, "the program's pages stay in memory");
    }
}

/// Tasks that one Corefile started.
struct Running {
    group: Group,
    sites: Vec<Arc<Site>>,
    leaving: Arc<AtomicBool>,
}

impl Running {
    async fn start(process: &mut Process, source: &[ServerBlock], options: &Source) -> Result<Running, DnsError> {
        let blocks = load::understand(source, options)?;
        let group = process.group.child("servers");
        let started = Running::start_in(process, blocks, group.clone()).await;
        if started.is_err() {
            // What of it runs already must not answer beside what is started instead.
            group.shutdown().await;
        }
        started
    }

    async fn start_in(process: &mut Process, blocks: Vec<Block>, group: Group) -> Result<Running, DnsError> {
        let mut by_addr: BTreeMap<(Option<IpAddr>, u16), Vec<Arc<Site>>> = BTreeMap::new();
        let mut sites = Vec::new();
        for block in blocks {
            let ports: Vec<u16> = block.zones.iter().map(|zone| zone.port).collect();
            let binds: Vec<Option<IpAddr>> = match block.bind.as_slice() {
                [] => vec![None],
                binds => binds.iter().copied().map(Some).collect(),
            };
            let site = Arc::new(site(process, block, &group)?);
            for addr in ports.iter().flat_map(|port| binds.iter().map(move |bind| (*bind, *port))) {
                let list = by_addr.entry(addr).or_default();
                if !list.iter().any(|known| Arc::ptr_eq(known, &site)) {
                    list.push(Arc::clone(&site));
                }
            }
            sites.push(site);
        }
        let running = Running { group, sites, leaving: Arc::default() };
        running.serve_pages(process).await?;
        process.sockets.begin();
        let shared = Shared {
            metrics: Arc::clone(&process.metrics),
            rng: process.rng.clone(),
            fatal: process.fatal.clone(),
            group: running.group.clone(),
        };
        for ((bind, port), sites) in by_addr {
            let probes: Vec<Name> =
                sites.iter().filter_map(|site| site.loop_probe.as_ref()).map(|probe| probe.name.clone()).collect();
            let server = Arc::new(Server::new(sites, &label(bind, port), shared.clone()));
            listen::listen(server, bind, port, &mut process.sockets, &running.group).await?;
            for name in probes {
                running.group.spawn_short("loop", probe_loop(name, bind, port));
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

    /// Resolves with the new blocks when the Corefile says something else that can be used, with all its imported files
    /// or without the bad ones.
    async fn config_change(&self, source: &Source, now: &[ServerBlock], faults: &mut Faults) -> Vec<ServerBlock> {
        let Some(interval) = self.sites.iter().filter_map(|site| site.block.reload).min() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(interval.max(Duration::from_secs(2))).await;
            // Most of the time nothing has changed; zone files are not read for that.
            if load::words(source).is_some_and(|words| words == now) {
                faults.tell(&[], Outcome::LeftOut);
                continue;
            }
            match load::usable(source) {
                Ok(loaded) => {
                    faults.tell(&loaded.faults, Outcome::LeftOut);
                    if loaded.blocks != now {
                        return loaded.blocks;
                    }
                }
                Err(err) => {
                    let fault = Fault::new(&source.path, &err);
                    faults.tell(&[fault], Outcome::Kept);
                }
            }
        }
    }
}

/// `dns://:53`, `dns://127.0.0.1:53`.
fn label(bind: Option<IpAddr>, port: u16) -> String {
    bind.map_or_else(|| format!("dns://:{port}"), |ip| format!("dns://{}", std::net::SocketAddr::new(ip, port)))
}

fn site(process: &mut Process, block: Block, group: &Group) -> Result<Site, DnsError> {
    let mut site = Site::of(block);
    site.hosts = site.block.hosts.clone().map(Hosts::new);
    if let Some(hosts) = &site.hosts {
        group.spawn("hosts", Arc::clone(hosts).follow());
    }
    for zones in &site.files {
        group.spawn("file", Arc::clone(zones).follow());
    }
    if let Some(config) = &site.block.kubernetes {
        site.kubernetes = Some(Kubernetes::start(config.clone(), &informers(process, config)?, group));
    }
    let forwarder = |config: &config::Forward| Forwarder::new(config.clone(), &process.rng, group, &process.metrics);
    site.forwarders = site.block.forwards.iter().map(forwarder).collect();
    if let Some(zone) = site.block.zones.first().filter(|_| site.block.detect_loops) {
        let name = format!("{}.{}.", process.rng.below(u64::MAX), process.rng.below(u64::MAX));
        let name = Name::from_ascii(name).ok().and_then(|name| name.append_domain(&zone.name).ok());
        site.loop_probe = name.map(LoopProbe::new);
    }
    Ok(site)
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
    #[allow(clippy::cast_precision_loss, reason = "a hosts file has thousands of entries")]
    let n_hosts = sites.iter().filter_map(|site| site.hosts.as_ref()).map(|hosts| hosts.n_entries() as f64).sum();
    gauges.push(Gauge { name: "coredns_hosts_entries", labels: Labels::default(), value: n_hosts });
    gauges
}

/// Asks ourselves for a name that nobody has: when it comes back from a resolver, questions go in a circle.
async fn probe_loop(name: Name, bind: Option<IpAddr>, port: u16) {
    let server = bind.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::HINFO));
    let (Ok(bytes), Ok(socket)) = (message.to_vec(), UdpSocket::bind((any, 0)).await) else { return };
    // Nobody waits for the answer; what counts is whether the question is seen again.
    let _unanswered = socket.send_to(&bytes, (server, port)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// The informers of the API server that the plugin names; made once a process, as a reload must not list everything
/// again.
fn informers(process: &mut Process, config: &config::Kubernetes) -> Result<Informers, DnsError> {
    let slot = config.endpoint.clone().unwrap_or_default();
    if let Some(known) = process.informers.get(&slot) {
        return Ok(known.clone());
    }
    let client = match (&config.endpoint, &config.tls) {
        (Some(endpoint), Some(files)) => apiserver::at(endpoint, files)?,
        _ => apiserver::of_pod()?,
    };
    let informers = Informers::new(client, &process.group);
    process.informers.insert(slot, informers.clone());
    Ok(informers)
}

#[cfg(test)]
mod tests {
    use super::*;

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
