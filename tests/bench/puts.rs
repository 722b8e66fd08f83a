//! Durable puts of kedge beside Debian's etcd, in etcd's gRPC by the same client: one server each, then three each that
//! agree.
//!
//! Kedge is spoken to on the socket in its store's folder, etcd in clear text on the loopback address. Clients are
//! spread over all servers, whichever of them leads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::rng::Rng;
use base::time::Stopwatch;
use bytes::Bytes;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::Bench;
use crate::process::{Running, bytes_written, cpu, installed, output, wait_for};
use crate::report::Row;

/// Client port of the first etcd; each has two ports.
const ETCD_PORT: u16 = 12379;
/// API port of every server.
const API_PORT: u16 = 16543;
/// Servers that agree, in the second half.
const SEVERAL: usize = 3;
const CLIENTS: [usize; 2] = [1, 64];
/// Connections that clients share.
const CONNECTIONS_MAX: usize = 8;
const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 256;
const PUT_FOR: Duration = Duration::from_secs(5);
const START_LIMIT: Duration = Duration::from_secs(20);

/// etcdserverpb.PutRequest, the two fields that matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// etcdserverpb.PutResponse; nothing in it matters here.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

/// etcdserverpb.MemberListRequest.
#[derive(Clone, PartialEq, prost::Message)]
struct MemberListRequest {}

/// etcdserverpb.Member.
#[derive(Clone, PartialEq, prost::Message)]
struct Member {
    #[prost(bool, tag = "5")]
    is_learner: bool,
}

/// etcdserverpb.MemberListResponse.
#[derive(Clone, PartialEq, prost::Message)]
struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

/// Where a server answers in gRPC.
#[derive(Clone)]
enum Place {
    Port(u16),
    Socket(PathBuf),
}

impl Place {
    async fn connect(&self) -> Result<Channel> {
        Ok(match self {
            Place::Port(port) => {
                let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
                endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(2)).connect().await?
            }
            Place::Socket(path) => {
                let path = path.clone();
                let dial = tower::service_fn(move |_| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                Endpoint::from_static("http://localhost").connect_with_connector(dial).await?
            }
        })
    }
}

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> Result<A>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?.into_inner())
}

async fn put(channel: &Channel, rng: &Rng) -> Result<()> {
    let mut value = vec![0; VALUE_BYTES];
    rng.fill(&mut value);
    let put = PutRequest { key: format!("/bench/{}", rng.below(KEYS)).into(), value: value.into() };
    call::<_, PutResponse>(channel, "/etcdserverpb.KV/Put", put).await.map(drop)
}

/// One server process.
struct Server {
    process: Running,
    place: Place,
}

impl Server {
    fn start(program: &Path, args: &[String], place: Place, log: &Path) -> Result<Server> {
        Ok(Server { process: Running::start(program, args, log)?, place })
    }

    /// Waits until a put through it is durable.
    async fn answers(&mut self, log: &Path) -> Result<()> {
        let (process, place) = (&mut self.process, &self.place);
        let first = wait_for("a first put", START_LIMIT, Duration::from_millis(5), async || {
            let ended = process.check().is_err();
            let answers = match place.connect().await {
                Ok(channel) => put(&channel, &Rng::from_seed(0)).await.is_ok(),
                Err(_) => false,
            };
            (ended || answers).then_some(())
        });
        first.await.with_context(|| format!("see {}", log.display()))?;
        self.process.check().with_context(|| format!("see {}", log.display()))
    }
}

/// The cost of a put.
struct Cost {
    per_sec: f64,
    cpu_micros: f64,
    disk_bytes: f64,
}

/// Servers under one load.
struct Peer {
    name: String,
    servers: Vec<Server>,
}

impl Peer {
    fn used(&self) -> (Duration, u64) {
        let pids = || self.servers.iter().map(|server| server.process.pid);
        (pids().map(cpu).sum(), pids().map(bytes_written).sum())
    }

    async fn load(&mut self, n_clients: usize) -> Result<Cost> {
        let mut channels = Vec::new();
        for idx in 0..n_clients.min(CONNECTIONS_MAX).max(self.servers.len().min(n_clients)) {
            channels.push(self.servers[idx % self.servers.len()].place.connect().await?);
        }
        let done = Arc::<AtomicU64>::default();
        let ((cpu_before, disk_before), clock) = (self.used(), Stopwatch::start());
        let mut clients = JoinSet::new();
        for client in 0..n_clients {
            let (channel, done, rng) =
                (channels[client % channels.len()].clone(), Arc::clone(&done), Rng::from_seed(client as u64));
            clients.spawn(async move {
                while clock.elapsed() < PUT_FOR {
                    put(&channel, &rng).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended?.with_context(|| self.name.clone())?;
        }
        let (n, took) = (done.load(Ordering::Relaxed) as f64, clock.elapsed().as_secs_f64());
        let (cpu_after, disk_after) = self.used();
        Ok(Cost {
            per_sec: n / took,
            cpu_micros: (cpu_after - cpu_before).as_secs_f64() * 1e6 / n,
            disk_bytes: (disk_after - disk_before) as f64 / n,
        })
    }

    async fn stop(self) -> Result<()> {
        for server in self.servers {
            server.process.stop().await?;
        }
        Ok(())
    }
}

fn text_args<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags.into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}

async fn start_etcd(bench: &Bench, n: usize) -> Result<Peer> {
    let program = installed("etcd").context("etcd is not installed (Debian: apt-get install etcd-server)")?;
    let version = output(&program, &["--version"])?;
    let version = version.lines().next().unwrap_or_default().replace("etcd Version: ", "etcd ");
    let port = |idx: usize| ETCD_PORT + 2 * idx as u16;
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let all: Vec<String> = (0..n).map(|idx| format!("m{idx}={}", url(port(idx) + 1))).collect();
    let mut peer = Peer { name: if n == 1 { version } else { format!("{n} × {version}") }, servers: Vec::new() };
    for idx in 0..n {
        let name = format!("etcd-{n}-{idx}");
        let args = text_args([
            ("name", format!("m{idx}")),
            ("data-dir", bench.dir.join(&name).display().to_string()),
            ("listen-client-urls", url(port(idx))),
            ("advertise-client-urls", url(port(idx))),
            ("listen-peer-urls", url(port(idx) + 1)),
            ("initial-advertise-peer-urls", url(port(idx) + 1)),
            ("initial-cluster", all.join(",")),
        ]);
        let log = bench.dir.join(format!("{name}.log"));
        peer.servers.push(Server::start(Path::new(&program), &args, Place::Port(port(idx)), &log)?);
    }
    for (idx, server) in peer.servers.iter_mut().enumerate() {
        server.answers(&bench.dir.join(format!("etcd-{n}-{idx}.log"))).await?;
    }
    Ok(peer)
}

fn data_dir(bench: &Bench, idx: usize) -> PathBuf {
    bench.dir.join(format!("store{idx}"))
}

/// Starts one server more, without a node. Each has an address of its own. Says how long it took until a put through it
/// was durable.
async fn start_kedge(bench: &Bench, peer: &mut Peer) -> Result<Duration> {
    let idx = peer.servers.len();
    let ip = |idx: usize| format!("10.99.0.{}", 11 + idx);
    output("ip", &["address", "add", &format!("{}/24", ip(idx)), "dev", "eth0"])?;
    let (dir, config) = (data_dir(bench, idx), bench.dir.join("config.yaml"));
    std::fs::write(&config, "")?;
    let mut args = vec!["server".to_owned(), "--disable-agent".to_owned(), "--disable=coredns".to_owned()];
    args.extend(text_args([
        ("config", config.display().to_string()),
        ("data-dir", dir.display().to_string()),
        ("write-kubeconfig", bench.dir.join(format!("store{idx}.kubeconfig")).display().to_string()),
        ("node-name", format!("store{idx}")),
        ("node-ip", ip(idx)),
        ("bind-address", ip(idx)),
        ("advertise-address", ip(idx)),
        ("https-listen-port", API_PORT.to_string()),
    ]));
    if idx > 0 {
        let token = data_dir(bench, 0).join("server/token");
        args.extend(text_args([
            ("server", format!("https://{}:{API_PORT}", ip(0))),
            ("token-file", token.display().to_string()),
        ]));
    }
    let log = bench.dir.join(format!("store{idx}.log"));
    let clock = Stopwatch::start();
    let mut server = Server::start(&bench.kedge, &args, Place::Socket(dir.join("server/db/etcd.sock")), &log)?;
    server.answers(&log).await?;
    peer.servers.push(server);
    Ok(clock.elapsed())
}

/// Waits until all servers vote.
async fn all_vote(peer: &Peer) -> Result<()> {
    let channel = peer.servers[0].place.connect().await?;
    wait_for("all servers to vote", START_LIMIT, Duration::from_millis(50), async || {
        let listed = call::<_, MemberListResponse>(&channel, "/etcdserverpb.Cluster/MemberList", MemberListRequest {})
            .await
            .ok()?;
        let voters = listed.members.iter().filter(|member| !member.is_learner).count();
        (voters == peer.servers.len()).then_some(())
    })
    .await
}

/// Puts of both at 1 and 64 clients, in turns on the same disk.
async fn compare(bench: &mut Bench, ours: &mut Peer) -> Result<()> {
    let n = ours.servers.len();
    let mut etcd = start_etcd(bench, n).await;
    let of = if n == 1 { String::new() } else { format!(", {n} servers") };
    for n_clients in CLIENTS {
        let clients = format!("{n_clients} {}{of}", if n_clients == 1 { "client" } else { "clients" });
        let beside = match &mut etcd {
            Ok(etcd) => Ok((etcd.load(n_clients).await?, etcd.name.clone())),
            Err(err) => Err(format!("not measured: {err:#}")),
        };
        let our = ours.load(n_clients).await?;
        let rows = [
            (format!("durable puts of {VALUE_BYTES} B by etcd's API, {clients}"), our.per_sec, "/s"),
            (format!("server CPU a put, {clients}"), our.cpu_micros, " µs"),
            (format!("bytes written a put, {clients}"), our.disk_bytes, " B"),
        ];
        let theirs = beside.map(|(cost, peer)| ([cost.per_sec, cost.cpu_micros, cost.disk_bytes], peer));
        for (nth, (name, figure, unit)) in rows.into_iter().enumerate() {
            let row = Row::of(name, format!("{figure:.0}{unit}"));
            bench.report.add(match &theirs {
                Ok((costs, peer)) => {
                    let ratio = figure / costs[nth];
                    let (text, met) =
                        [("≥ 1.5 × etcd", ratio >= 1.5), ("≤ 0.5 × etcd", ratio <= 0.5), ("≤ etcd", ratio <= 1.0)][nth];
                    row.beside(format!("{peer}: {:.0}{unit}", costs[nth]), ratio).budget(text, met)
                }
                Err(why) => row.beside(why.clone(), f64::NAN),
            });
        }
    }
    if let Ok(etcd) = etcd {
        etcd.stop().await?;
    }
    Ok(())
}

/// One server, then three.
pub(crate) async fn measure(bench: &mut Bench) -> Result<()> {
    let mut ours = Peer { name: "kedge".to_owned(), servers: Vec::new() };
    start_kedge(bench, &mut ours).await?;
    compare(bench, &mut ours).await?;
    let mut joins = Vec::new();
    while ours.servers.len() < SEVERAL {
        joins.push(format!("{:.2} s", start_kedge(bench, &mut ours).await?.as_secs_f64()));
        all_vote(&ours).await?;
    }
    bench.report.add(Row::of("a server joins: start → a durable put through it, second and third", joins.join(", ")));
    compare(bench, &mut ours).await?;
    ours.stop().await
}
