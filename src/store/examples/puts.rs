//! Prints puts/s and bytes written per put at 1 and 64 clients: `cargo run --release -p store --example puts -- DIR
//! [SECONDS]`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::rng::Rng;
use base::task::Group;
use base::time::Stopwatch;
use bytes::Bytes;
use store::store::Store;
use store::{Config, Op, Storage as _, Txn};

/// `write_bytes` of this process so far, as the kernel accounts them.
fn bytes_written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|l| l.strip_prefix("write_bytes: ")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

async fn client(store: Arc<Store>, rng: Rng, done: Arc<AtomicU64>, until: Duration) {
    let clock = Stopwatch::start();
    while clock.elapsed() < until {
        let (key, mut value) = (format!("/bench/{}", rng.below(10_000)), vec![0; 256]);
        rng.fill(&mut value);
        let put = Op::Put { key: Bytes::from(key), value: Bytes::from(value), lease: 0, prev_kv: false };
        match store.txn(Txn { success: vec![put], ..Txn::default() }).await {
            Ok(_) => done.fetch_add(1, Ordering::Relaxed),
            Err(err) => return println!("put failed: {err}"),
        };
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).ok_or("usage: puts DIR [SECONDS]")?;
    let until = Duration::from_secs(args.get(2).map_or(Ok(5), |s| s.parse())?);
    for n_clients in [1_u64, 64] {
        let (group, _reports) = Group::root("bench");
        let config = Config {
            dir: dir.into(),
            bootstrap: store::member::Bootstrap::First,
            network: None,
            rng: Rng::from_os(),
            bounds: store::bounds::Bounds::SHIPPED,
        };
        let store = Store::open(config, &group).await?;
        let (done, clients, before) = (Arc::<AtomicU64>::default(), group.child("clients"), bytes_written());
        let mut tasks = Vec::new();
        for n in 0..n_clients {
            tasks.push(client(store.clone(), Rng::from_seed(n), done.clone(), until));
        }
        let (ended, mut all) = tokio::sync::mpsc::channel::<()>(1);
        for task in tasks {
            let ended = ended.clone();
            clients.spawn_short("client", async move {
                task.await;
                drop(ended);
            });
        }
        drop(ended);
        let _all_dropped = all.recv().await;
        let n = done.load(Ordering::Relaxed);
        let per_put = bytes_written().saturating_sub(before) / n.max(1);
        println!("{n_clients} clients: {:.0} puts/s, {per_put} bytes written per put", n as f64 / until.as_secs_f64());
        group.shutdown().await;
    }
    Ok(())
}
