//! Durable puts of our store beside Debian's etcd: both are a server process spoken to in etcd's gRPC by the same client.
//!
//! Kedge has no etcd face yet, so `bench store-server` puts the least of one, KV/Put, before the store's public trait.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::rng::Rng;
use base::task::Group;
use base::time::Stopwatch;
use bytes::Bytes;
use http::uri::PathAndQuery;
use store::store::Store;
use store::{Config, Op, Storage as _, Txn};
use tokio::task::JoinSet;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Bench;
use crate::process::{Running, bytes_written, cpu, installed, output, wait_for};
use crate::report::Row;

const ETCD_PORT: u16 = 12379;
const STORE_PORT: u16 = 12479;
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

/// etcdserverpb.ResponseHeader.
#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

/// etcdserverpb.PutResponse.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The gRPC service etcdserverpb.KV with Put alone.
#[derive(Clone)]
struct Kv(Arc<Store>);

impl NamedService for Kv {
    const NAME: &'static str = "etcdserverpb.KV";
}

impl UnaryService<PutRequest> for Kv {
    type Response = PutResponse;
    type Future = BoxFuture<Result<Response<PutResponse>, Status>>;

    fn call(&mut self, request: Request<PutRequest>) -> Self::Future {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            let PutRequest { key, value } = request.into_inner();
            let put = Op::Put { key, value, lease: 0, prev_kv: false };
            let reply = store.txn(Txn { success: vec![put], ..Txn::default() }).await.map_err(|err| Status::internal(err.to_string()))?;
            let revision = i64::try_from(reply.revision.0).map_err(|err| Status::internal(err.to_string()))?;
            Ok(Response::new(PutResponse { header: Some(ResponseHeader { revision }) }))
        })
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for Kv {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _ctx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let kv = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<PutResponse, PutRequest>::default());
            Ok(grpc.unary(kv, request).await)
        })
    }
}

/// The role `bench store-server DIR`: our store behind KV/Put until it is told to stop.
pub(crate) async fn serve(dir: PathBuf) -> Result<()> {
    let (group, _reports) = Group::root("store");
    let store = Store::open(Config { dir, birth: store::member::Birth::First, network: None, rng: Rng::from_os() }, &group).await?;
    let addr = SocketAddr::from(([127, 0, 0, 1], STORE_PORT));
    Server::builder().tcp_nodelay(true).add_service(Kv(store)).serve(addr).await?;
    Ok(())
}

async fn put(channel: &Channel, rng: &Rng) -> Result<()> {
    let mut value = vec![0; VALUE_BYTES];
    rng.fill(&mut value);
    let put = PutRequest { key: format!("/bench/{}", rng.below(KEYS)).into(), value: value.into() };
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    grpc.unary(Request::new(put), PathAndQuery::from_static("/etcdserverpb.KV/Put"), codec).await?;
    Ok(())
}

/// One server under load.
struct Peer {
    name: String,
    process: Running,
    port: u16,
}

/// What a put cost.
struct Cost {
    per_sec: f64,
    cpu_micros: f64,
    disk_bytes: f64,
}

impl Peer {
    async fn start(name: String, program: &Path, args: &[String], port: u16, log: &Path) -> Result<Peer> {
        let mut process = Running::start(program, args, log)?;
        let ready = wait_for(&name, START_LIMIT, Duration::from_millis(50), async || {
            let ended = process.check().is_err();
            let channel = endpoint(port).ok()?.connect().await;
            let answers = match &channel {
                Ok(channel) => put(channel, &Rng::from_seed(0)).await.is_ok(),
                Err(_) => false,
            };
            (ended || answers).then_some(())
        });
        ready.await?;
        process.check().with_context(|| format!("{name}; see {}", log.display()))?;
        Ok(Peer { name, process, port })
    }

    async fn load(&mut self, n_clients: usize) -> Result<Cost> {
        let mut channels = Vec::new();
        for _ in 0..n_clients.min(CONNECTIONS_MAX) {
            channels.push(endpoint(self.port)?.connect().await?);
        }
        let done = Arc::<AtomicU64>::default();
        let (cpu_before, disk_before, clock) = (cpu(self.process.pid), bytes_written(self.process.pid), Stopwatch::start());
        let mut clients = JoinSet::new();
        for client in 0..n_clients {
            let (channel, done, rng) = (channels[client % channels.len()].clone(), Arc::clone(&done), Rng::from_seed(client as u64));
            clients.spawn(async move {
                while clock.elapsed() < PUT_FOR {
                    put(&channel, &rng).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        let (n, took) = (done.load(Ordering::Relaxed) as f64, clock.elapsed().as_secs_f64());
        self.process.check().with_context(|| self.name.clone())?;
        Ok(Cost {
            per_sec: n / took,
            cpu_micros: (cpu(self.process.pid) - cpu_before).as_secs_f64() * 1e6 / n,
            disk_bytes: (bytes_written(self.process.pid) - disk_before) as f64 / n,
        })
    }
}

fn endpoint(port: u16) -> Result<Endpoint> {
    Ok(Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.tcp_nodelay(true).connect_timeout(Duration::from_secs(2)))
}

async fn start_etcd(bench: &Bench) -> Result<Peer> {
    let program = installed("etcd").context("etcd is not installed (Debian: apt-get install etcd-server)")?;
    let version = output(&program, &["--version"])?;
    let version = version.lines().next().unwrap_or_default().replace("etcd Version: ", "etcd ");
    let (client, peer) = (format!("http://127.0.0.1:{ETCD_PORT}"), format!("http://127.0.0.1:{}", ETCD_PORT + 1));
    let flags = [
        ("name", "bench".to_owned()),
        ("data-dir", bench.dir.join("etcd").display().to_string()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("bench={peer}")),
    ];
    let args: Vec<String> = flags.map(|(flag, value)| format!("--{flag}={value}")).into();
    Peer::start(version, Path::new(&program), &args, ETCD_PORT, &bench.dir.join("etcd.log")).await
}

/// Puts at 1 and 64 clients, both servers in turns on the same disk.
pub(crate) async fn measure(bench: &mut Bench) -> Result<()> {
    let args = ["store-server".to_owned(), bench.dir.join("store").display().to_string()];
    let mut ours = Peer::start("store".to_owned(), &std::env::current_exe()?, &args, STORE_PORT, &bench.dir.join("store.log")).await?;
    let mut etcd = start_etcd(bench).await;
    for n_clients in CLIENTS {
        let clients = format!("{n_clients} {}", if n_clients == 1 { "client" } else { "clients" });
        let by = format!("tonic, HTTP/2 connections: {}; our store behind KV/Put", n_clients.min(CONNECTIONS_MAX));
        let beside = match &mut etcd {
            Ok(etcd) => Ok((etcd.load(n_clients).await?, etcd.name.clone())),
            Err(err) => Err(format!("not measured: {err:#}")),
        };
        let our = ours.load(n_clients).await?;
        let rows = [
            (format!("durable puts of {VALUE_BYTES} B, {clients} ({by})"), our.per_sec, "/s"),
            (format!("server CPU a put, {clients}"), our.cpu_micros, " µs"),
            (format!("bytes written a put, {clients}"), our.disk_bytes, " B"),
        ];
        let theirs = beside.map(|(cost, peer)| ([cost.per_sec, cost.cpu_micros, cost.disk_bytes], peer));
        for (nth, (name, figure, unit)) in rows.into_iter().enumerate() {
            let row = Row::of(name, format!("{figure:.0}{unit}"));
            bench.report.add(match &theirs {
                Ok((costs, peer)) => {
                    let ratio = figure / costs[nth];
                    let (text, met) = [("≥ 1.5 × etcd", ratio >= 1.5), ("≤ 0.5 × etcd", ratio <= 0.5), ("≤ etcd", ratio <= 1.0)][nth];
                    row.beside(format!("{peer}: {:.0}{unit}", costs[nth]), ratio).budget(text, met)
                }
                Err(why) => row.beside(why.clone(), f64::NAN),
            });
        }
    }
    ours.process.stop().await?;
    if let Ok(etcd) = etcd {
        etcd.process.stop().await?;
    }
    Ok(())
}
