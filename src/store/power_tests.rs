//! Power cuts, simulated: what was synced stays, what was written after it is kept, lost or torn sector by sector. Each seed is one cut.
//!
//! `KEDGE_SEEDS=100000 cargo test -p store --lib power` runs more of them (`make simulate`); a failure prints its seed.

use std::fs;
use std::path::Path;

use base::rng::Rng;
use base::task::Group;
use bytes::Bytes;

use crate::member::Birth;
use crate::store::Store;
use crate::{Config, Op, RangeRequest, Revision, Storage as _, Txn};

const WRITES: u64 = 60;
const SECTOR: usize = 512;

fn n_seeds() -> u64 {
    option_env!("KEDGE_SEEDS").and_then(|n| n.parse().ok()).unwrap_or(200)
}

async fn open(dir: &Path) -> (std::sync::Arc<Store>, Group) {
    let (group, _reports) = Group::root("power");
    let config = Config { dir: dir.to_owned(), birth: Birth::First, network: None, rng: Rng::from_seed(1) };
    (Store::open(config, &group).await.unwrap(), group)
}

fn write(n: u64) -> Txn {
    let value = vec![u8::try_from(n).unwrap(); usize::try_from(n * 37 % 3000).unwrap()];
    let op = |key: String, value: Vec<u8>| Op::Put { key: Bytes::from(key), value: value.into(), lease: 0, prev_kv: false };
    Txn { success: vec![op(format!("/k/{}", n % 7), value), op("/n".to_owned(), n.to_string().into_bytes())], ..Txn::default() }
}

/// A run of the store: its database file, the whole write-ahead log, and how long that was when each write was acknowledged.
struct Recorded {
    database: Vec<u8>,
    wal: Vec<u8>,
    synced: Vec<(Revision, usize)>,
}

async fn record(dir: &Path) -> Recorded {
    let (store, group) = open(dir).await;
    let wal_path = dir.join("state.db-wal");
    let mut synced = vec![(store.current_revision(), usize::try_from(fs::metadata(&wal_path).unwrap().len()).unwrap())];
    for n in 0..WRITES {
        let revision = store.txn(write(n)).await.unwrap().revision;
        synced.push((revision, usize::try_from(fs::metadata(&wal_path).unwrap().len()).unwrap()));
    }
    let recorded = Recorded { database: fs::read(dir.join("state.db")).unwrap(), wal: fs::read(&wal_path).unwrap(), synced };
    group.shutdown().await;
    recorded
}

/// The files after a cut: the log whole up to what was synced, and behind it whatever the disk made of the rest.
fn cut(recorded: &Recorded, rng: &Rng, dir: &Path) -> Revision {
    let idx = usize::try_from(rng.below(recorded.synced.len() as u64)).unwrap();
    let (acknowledged, kept) = recorded.synced[idx];
    let mut wal = recorded.wal.clone();
    for sector in wal[kept..].chunks_mut(SECTOR) {
        match rng.below(4) {
            0 => sector.fill(0),
            1 => rng.fill(sector),
            _ => {}
        }
    }
    if rng.below(2) == 0 {
        wal.truncate(kept + usize::try_from(rng.below((wal.len() - kept) as u64 + 1)).unwrap());
    }
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("state.db"), &recorded.database).unwrap();
    fs::write(dir.join("state.db-wal"), wal).unwrap();
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_power_cut_every_acknowledged_write_is_there_and_no_write_is_there_in_part() {
    let root = tempfile::tempdir().unwrap();
    let recorded = record(&root.path().join("run")).await;
    let first = Rng::from_os().below(u64::MAX / 2);
    println!("seeds {first}..{}", first + n_seeds());
    for seed in first..first + n_seeds() {
        let (rng, dir) = (Rng::from_seed(seed), root.path().join("cut"));
        let acknowledged = cut(&recorded, &rng, &dir);
        let (store, group) = open(&dir).await;
        let revision = store.current_revision();
        assert!(revision >= acknowledged, "seed {seed}: revision {} is lost, the store is at {}", acknowledged.0, revision.0);
        let read = store.range(RangeRequest { range_end: Bytes::from_static(&[0]), ..RangeRequest::default() }).await.unwrap();
        // Revision 2 is write 0, and so on.
        let n_writes = revision.0 - 1;
        for kv in &read.kvs {
            let last = if kv.key == "/n" { n_writes - 1 } else { (0..n_writes).rev().find(|n| kv.key == format!("/k/{}", n % 7)).unwrap() };
            let Op::Put { value, .. } = &write(last).success[usize::from(kv.key == "/n")] else { unreachable!() };
            assert_eq!(&kv.value, value, "seed {seed}: {:?}", kv.key);
        }
        assert_eq!(read.kvs.len() as u64, if n_writes == 0 { 0 } else { n_writes.min(7) + 1 }, "seed {seed}");
        let after = store.txn(write(1)).await.unwrap().revision;
        assert_eq!(after.0, revision.0 + 1, "seed {seed}");
        group.shutdown().await;
        fs::remove_dir_all(&dir).unwrap();
    }
}
