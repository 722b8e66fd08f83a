//! Power cuts, simulated: what was synced stays, what was written after it is kept, lost or torn sector by sector,
//! in the files of the log and in the database's each for itself. Each seed is one cut.
//!
//! `KEDGE_SEEDS=100000 cargo test -p store --lib power` runs more of them (`make simulate`); a failure prints its seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base::rng::Rng;
use base::task::Group;
use bytes::Bytes;

use crate::journal;
use crate::journal::trace::{self, Op, Step};
use crate::member::Birth;
use crate::store::Store;
use crate::{Config, RangeRequest, Revision, Storage as _, Txn};

const WRITES: u64 = 60;
const SECTOR: usize = 512;

fn n_seeds() -> u64 {
    option_env!("KEDGE_SEEDS").and_then(|n| n.parse().ok()).unwrap_or(1000)
}

async fn open(dir: &Path) -> (std::sync::Arc<Store>, Group) {
    let (group, _reports) = Group::root("power");
    let config = Config { dir: dir.to_owned(), birth: Birth::First, network: None, rng: Rng::from_seed(1) };
    (Store::open(config, &group).await.unwrap(), group)
}

fn write(n: u64) -> Txn {
    let value = vec![u8::try_from(n).unwrap(); usize::try_from(n * 37 % 3000).unwrap()];
    let op = |key: String, value: Vec<u8>| crate::Op::Put { key: Bytes::from(key), value: value.into(), lease: 0, prev_kv: false };
    Txn { success: vec![op(format!("/k/{}", n % 7), value), op("/n".to_owned(), n.to_string().into_bytes())], ..Txn::default() }
}

/// A run of the store: its database as it was opened, the whole of the database's own log, and what was done to the files of ours.
struct Recorded {
    database: Vec<u8>,
    wal: Vec<u8>,
    steps: Vec<Step>,
}

async fn record(dir: &Path) -> Recorded {
    let log = journal::dir_in(dir);
    trace::follow(&log);
    let (store, group) = open(dir).await;
    let database = fs::read(dir.join("state.db")).unwrap();
    trace::note(&log, || Op::Acknowledged(store.current_revision().0));
    for n in 0..WRITES {
        let revision = store.txn(write(n)).await.unwrap().revision;
        trace::note(&log, || Op::Acknowledged(revision.0));
    }
    let (wal, steps) = (fs::read(dir.join("state.db-wal")).unwrap(), trace::followed(&log));
    assert!(fs::read(dir.join("state.db")).unwrap() == database, "a checkpoint in between: its cut is not simulated");
    let count = |wanted: fn(&Op) -> bool| steps.iter().filter(|(op, _)| wanted(op)).count();
    assert!(count(|op| matches!(op, Op::Rename { .. })) > count(|op| matches!(op, Op::Make { .. })), "no segment was written again");
    assert!(count(|op| matches!(op, Op::Synced)) > 1, "the database was never on the disk");
    group.shutdown().await;
    Recorded { database, wal, steps }
}

/// The folder of our log on a disk that loses its power.
#[derive(Default)]
struct Disk {
    files: Vec<Vec<u8>>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    in_flight: Option<(usize, usize, Vec<u8>)>,
    wal_synced: usize,
    acknowledged: u64,
}

impl Disk {
    fn play(&mut self, (op, wal): &Step) {
        match op {
            Op::Make { path, bytes } => {
                self.files.push(vec![0; *bytes]);
                self.names.insert(path.clone(), self.files.len() - 1);
            }
            Op::Rename { from, to } => {
                let file = self.names.remove(from).unwrap();
                self.names.insert(to.clone(), file);
            }
            Op::Remove { path } => drop(self.names.remove(path)),
            Op::SyncDir => self.durable_names = self.names.clone(),
            Op::Begin { path, at, bytes } => self.in_flight = Some((self.names[path], *at, bytes.clone())),
            Op::End => {
                let (file, at, bytes) = self.in_flight.take().unwrap();
                self.files[file][at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Op::Synced => self.wal_synced = usize::try_from(*wal).unwrap(),
            Op::Acknowledged(revision) => self.acknowledged = *revision,
        }
    }

    /// What was on its way is there, not there or garbage, sector by sector; names that are not durable are the old or the new ones.
    fn lose_power(mut self, rng: &Rng) -> BTreeMap<PathBuf, Vec<u8>> {
        if let Some((file, at, bytes)) = self.in_flight {
            for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                let there = &mut self.files[file][at + n * SECTOR..at + n * SECTOR + sector.len()];
                match rng.below(4) {
                    0 => {}
                    1 => rng.fill(there),
                    _ => there.copy_from_slice(sector),
                }
            }
        }
        let names = if rng.below(2) == 0 { self.durable_names } else { self.names };
        names.into_iter().map(|(path, file)| (path, self.files[file].clone())).collect()
    }
}

/// The files after a cut: of each what was synced, and behind it whatever the disk made of the rest. Says what was acknowledged.
fn cut(recorded: &Recorded, rng: &Rng, dir: &Path) -> Revision {
    let opened = recorded.steps.iter().position(|(op, _)| matches!(op, Op::Acknowledged(_))).unwrap() + 1;
    let n_steps = opened + usize::try_from(rng.below((recorded.steps.len() - opened) as u64 + 1)).unwrap();
    let mut disk = Disk::default();
    recorded.steps[..n_steps].iter().for_each(|step| disk.play(step));
    // What was done between two steps may have been done already.
    let written = recorded.steps.get(n_steps).map_or(recorded.wal.len(), |(_, wal)| usize::try_from(*wal).unwrap());
    let (acknowledged, kept) = (Revision(disk.acknowledged), disk.wal_synced);
    let mut wal = recorded.wal[..written].to_vec();
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
    let log = journal::dir_in(dir);
    fs::create_dir_all(&log).unwrap();
    fs::write(dir.join("state.db"), &recorded.database).unwrap();
    fs::write(dir.join("state.db-wal"), wal).unwrap();
    for (path, bytes) in disk.lose_power(rng) {
        fs::write(log.join(path.file_name().unwrap()), bytes).unwrap();
    }
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
            let crate::Op::Put { value, .. } = &write(last).success[usize::from(kv.key == "/n")] else { unreachable!() };
            assert_eq!(&kv.value, value, "seed {seed}: {:?}", kv.key);
        }
        assert_eq!(read.kvs.len() as u64, if n_writes == 0 { 0 } else { n_writes.min(7) + 1 }, "seed {seed}");
        let after = store.txn(write(1)).await.unwrap().revision;
        assert_eq!(after.0, revision.0 + 1, "seed {seed}");
        group.shutdown().await;
        fs::remove_dir_all(&dir).unwrap();
    }
}
