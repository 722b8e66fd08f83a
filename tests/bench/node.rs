//! A node of kedge on an empty disk, and how long it takes until it is of use.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::task::Group;
use base::time::Stopwatch;
use http::Method;
use serde_json::Value;

use crate::Bench;
use crate::api::Api;
use crate::process::{Running, output, wait_for};
use crate::report::{Row, p50};

/// Starts measured; the median is told, and the last one stays for the other parts.
const STARTS: usize = 3;
/// The node's name.
pub(crate) const NAME: &str = "bench";
pub(crate) const API_PORT: u16 = 16443;
const KUBELET_PORT: u16 = 16250;
/// The tenth address of the service range.
const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 43, 0, 10)), 53);
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running node.
pub(crate) struct Node {
    process: Running,
    kedge: PathBuf,
    data_dir: PathBuf,
    /// Its API, as admin.
    pub(crate) api: Api,
    /// Whether it came as far as Ready.
    pub(crate) ready: bool,
}

/// From the start of the process. `None` for what did not come.
#[derive(Clone, Copy)]
struct Times {
    readyz: Duration,
    node_ready: Option<Duration>,
    dns: Option<Duration>,
}

impl Node {
    /// Its kedge process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// The folder its store lies in.
    pub(crate) fn db_dir(&self) -> PathBuf {
        self.data_dir.join("server/db")
    }

    /// The folder of its state.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// An error if the process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check().context("kedge server")
    }

    async fn start(bench: &Bench) -> Result<(Node, Times)> {
        let data_dir = bench.dir.join("node");
        std::fs::create_dir_all(&data_dir)?;
        // Named, so that a configuration of the machine's own is not read.
        let (config, kubeconfig) = (bench.dir.join("config.yaml"), data_dir.join("kubeconfig"));
        std::fs::write(&config, "")?;
        let flags = [
            ("config", config.display().to_string()),
            ("data-dir", data_dir.display().to_string()),
            ("https-listen-port", API_PORT.to_string()),
            ("kubelet-port", KUBELET_PORT.to_string()),
            ("node-name", NAME.to_owned()),
            ("tls-san", crate::agent::LINK[0].to_owned()),
            ("write-kubeconfig", kubeconfig.display().to_string()),
        ];
        let args: Vec<String> =
            ["server".to_owned()].into_iter().chain(flags.map(|(flag, value)| format!("--{flag}={value}"))).collect();
        let clock = Stopwatch::start();
        let mut process = Running::start(&bench.kedge, &args, &bench.dir.join("kedge.log"))?;
        let addr = SocketAddr::from(([127, 0, 0, 1], API_PORT));
        let readyz = wait_for("/readyz", START_LIMIT, Duration::from_millis(3), async || {
            let ended = process.check().is_err();
            let ready = !ended && is_ready(addr, &bench.group).await.is_ok();
            (ended || ready).then(|| clock.elapsed())
        })
        .await?;
        process.check().context("kedge server; its log is kedge.log in the bench's folder")?;
        let api = wait_for("the kubeconfig", START_LIMIT, Duration::from_millis(3), async || {
            Api::admin(&kubeconfig, addr, &bench.group).ok()
        })
        .await?;
        let node_ready = node_ready(&api, NAME, clock).await;
        let dns = match node_ready {
            Some(_) => {
                wait_for("DNS", START_LIMIT, Duration::from_millis(5), async || dns_answers().then(|| clock.elapsed()))
                    .await
                    .ok()
            }
            None => None,
        };
        Ok((
            Node { process, kedge: bench.kedge.clone(), data_dir, api, ready: node_ready.is_some() },
            Times { readyz, node_ready, dns },
        ))
    }

    /// Ends the server, takes the service proxy's rules away, and starts it again on what it has. The clock runs from
    /// the start.
    pub(crate) async fn restart_without_rules(self, bench: &Bench) -> Result<(Node, Stopwatch)> {
        self.process.stop().await?;
        output("nft", &["delete", "table", "ip", "kedge-proxy"])?;
        let clock = Stopwatch::start();
        let (node, _) = Node::start(bench).await?;
        Ok((node, clock))
    }

    /// Stops the server and its pods and removes what it wrote.
    pub(crate) async fn stop(self) -> Result<()> {
        let state = containerd_socket().ok();
        self.process.stop().await?;
        let killed =
            output(&self.kedge.display().to_string(), &["killall", "--data-dir", &self.data_dir.display().to_string()]);
        if let Err(err) = killed {
            eprintln!("bench: {err:#}");
        }
        std::fs::remove_dir_all(&self.data_dir).with_context(|| format!("remove {}", self.data_dir.display()))?;
        // /run/kedge-XXXXXXXX/containerd/containerd.sock
        match state.as_deref().and_then(Path::parent).and_then(Path::parent) {
            Some(dir) if dir.starts_with("/run") && dir.exists() => Ok(std::fs::remove_dir_all(dir)?),
            _ => Ok(()),
        }
    }
}

/// The socket of the one containerd in this network namespace.
pub(crate) fn containerd_socket() -> Result<PathBuf> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let path = sockets
        .lines()
        .find_map(|line| line.split_whitespace().last().filter(|path| path.ends_with("/containerd.sock")));
    path.map(PathBuf::from).context("no containerd listens")
}

async fn is_ready(addr: SocketAddr, group: &Group) -> Result<()> {
    Api::anonymous(addr, group)?.connect().await?.call(Method::GET, "/readyz", "".into()).await.map(drop)
}

/// How long since `clock` began until a node is Ready; `None` if that takes too long.
pub(crate) async fn node_ready(api: &Api, name: &str, clock: Stopwatch) -> Option<Duration> {
    let mut connection = api.connect().await.ok()?;
    let path = format!("/api/v1/nodes/{name}");
    wait_for("the node to be Ready", START_LIMIT, Duration::from_millis(5), async || {
        let node = connection.get(&path).await.ok()?;
        let conditions = node["status"]["conditions"].as_array()?;
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        conditions.iter().any(ready).then(|| clock.elapsed())
    })
    .await
    .ok()
}

/// Whether the cluster's DNS tells the address of `kubernetes`.
fn dns_answers() -> bool {
    let mut query = vec![0x4b, 0x64, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc", "cluster", "local"] {
        query.push(u8::try_from(label.len()).unwrap_or(0));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let ask = || -> std::io::Result<bool> {
        // A socket of its own each time: a remembered connection would keep the way of a try before the rules were
        // there.
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        socket.connect(DNS)?;
        socket.send(&query)?;
        let mut answer = [0; 512];
        let n_bytes = socket.recv(&mut answer)?;
        // No error in the fourth byte, and at least one answer.
        Ok(n_bytes > 12 && answer[3] & 15 == 0 && answer[7] > 0)
    };
    ask().unwrap_or(false)
}

fn row(name: &str, times: &[Duration], limit: f64) -> Row {
    if times.is_empty() {
        return Row::missing(name, &format!("not within {} s", START_LIMIT.as_secs()));
    }
    let (median, worst) = (p50(times).as_secs_f64(), times.iter().max().copied().unwrap_or_default().as_secs_f64());
    Row::of(name, format!("{median:.2} s (worst of {}: {worst:.2} s)", times.len()))
        .budget(format!("≤ {limit} s"), median <= limit)
}

/// Measures starts and leaves the last node running.
pub(crate) async fn measure(bench: &mut Bench) -> Result<Node> {
    let mut all = Vec::new();
    let node = loop {
        let (node, times) = Node::start(bench).await?;
        all.push(times);
        // One that does not get there is enough to know.
        if all.len() == STARTS || times.node_ready.is_none() {
            break node;
        }
        node.stop().await?;
    };
    let column = |pick: &dyn Fn(&Times) -> Option<Duration>| all.iter().filter_map(pick).collect::<Vec<_>>();
    bench.report.add(row("start → /readyz, empty disk", &column(&|t| Some(t.readyz)), 0.5));
    bench.report.add(row("start → node Ready", &column(&|t| t.node_ready), 1.5));
    bench.report.add(row("start → DNS answers", &column(&|t| t.dns), 3.0));
    if all.iter().any(|times| times.node_ready.is_none()) {
        eprintln!("bench: the node did not become Ready; see {}", bench.dir.join("kedge.log").display());
    }
    Ok(node)
}

/// The binary's size beside what Debian's etcd alone needs.
pub(crate) fn binary(kedge: &Path) -> Result<Row> {
    let n_bytes = std::fs::metadata(kedge)?.len();
    if n_bytes == 0 {
        bail!("it is empty");
    }
    let mb = |n: u64| n as f64 / 1e6;
    let sections = output("readelf", &["-S", "--wide", &kedge.display().to_string()]).unwrap_or_default();
    let stripped = if sections.contains(".symtab") { ", not stripped" } else { "" };
    let row = Row::of("binary", format!("{:.1} MB{stripped}", mb(n_bytes))).budget("≤ 25 MB", mb(n_bytes) <= 25.0);
    Ok(match crate::process::installed("etcd").and_then(|path| std::fs::metadata(path).ok()) {
        Some(etcd) => row.beside(format!("etcd alone: {:.1} MB", mb(etcd.len())), n_bytes as f64 / etcd.len() as f64),
        None => row,
    })
}
