//! One member on a disk that fails at seeded points: power cuts, EIO, ENOSPC, short and torn writes, lost flushes, bit
//! rot. Each seed is one life: a fault, perhaps a new start of the process, a power cut, and a look at what is there.
//!
//! `KEDGE_SEEDS=100000 cargo test -p store --lib power` runs more of them (`make simulate`); a failure prints its seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::fuzz::setting;
use base::rng::Rng;
use base::task::{Fatal, Group};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::bounds::Bounds;
use crate::config::Config;
use crate::disk::{Disk, SystemDisk};
use crate::error::Error;
use crate::faults::{Fault, FaultyDisk};
use crate::member::Bootstrap;
use crate::storage::Storage as _;
use crate::store::Store;
use crate::txn::{RangeRequest, Txn};

/// Writes of one life: they fill several segments of a test.
const WRITES: u64 = 45;
/// Steps that a life takes at most, roughly: faults come before.
const STEPS: u64 = 400;

fn n_seeds() -> u64 {
    setting("KEDGE_SEEDS").unwrap_or(500)
}

/// Seeds that differ from run to run, or those from `KEDGE_SEED` on.
fn seeds() -> std::ops::Range<u64> {
    let first = setting("KEDGE_SEED").unwrap_or_else(|| Rng::from_os().below(u64::MAX / 2));
    println!("seeds {first}..{}", first + n_seeds());
    first..first + n_seeds()
}

struct Open {
    store: Arc<Store>,
    group: Group,
    fatal: mpsc::Receiver<Fatal>,
}

async fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Open, Error> {
    let (group, fatal) = Group::root("power");
    let config = Config {
        dir: dir.to_owned(),
        bootstrap: Bootstrap::First,
        network: None,
        rng: Rng::from_seed(1),
        bounds: Bounds::TESTS,
    };
    // A disk that fails while it opens leaves a Raft that nobody answers: the process would have ended.
    let opened = tokio::time::timeout(std::time::Duration::from_secs(60), Store::open_on(disk, config, &group)).await;
    let store = opened.unwrap_or(Err(Error::TimedOut));
    match store {
        Ok(store) => Ok(Open { store, group, fatal }),
        Err(err) => {
            group.shutdown().await;
            Err(err)
        }
    }
}

/// The write that makes revision `n + 2`.
fn write(n: u64) -> Txn {
    let value = vec![u8::try_from(n % 251).unwrap(); usize::try_from(n * 37 % 3000).unwrap()];
    let op = |key: String, value: Vec<u8>| crate::txn::Op::Put {
        key: Bytes::from(key),
        value: value.into(),
        lease: 0,
        prev_kv: false,
    };
    Txn {
        success: vec![op(format!("/k/{}", n % 7), value), op("/n".to_owned(), n.to_string().into_bytes())],
        ..Txn::default()
    }
}

/// Writes until the disk fails the store. Answers with the last revision that was acknowledged, and whether the store
/// still lives.
async fn work(open: &mut Open, n_writes: u64) -> (u64, bool) {
    let mut acknowledged = open.store.current_revision().0;
    let mut tries = 0;
    while tries < n_writes {
        tries += 1;
        let next = open.store.current_revision().0 - 1;
        let answer = tokio::select! {
            answer = open.store.txn(write(next)) => answer,
            _fatal = open.fatal.recv() => return (acknowledged, false),
        };
        match answer {
            Ok(reply) => acknowledged = reply.revision.0,
            // A full disk is the caller's error: nothing happened, and the store lives.
            Err(Error::NoSpace { .. }) => assert_eq!(open.store.current_revision().0, next + 1),
            Err(_) => return (acknowledged, false),
        }
    }
    (acknowledged, true)
}

/// The state on the disk must be one that once was, whole. `None` if the disk refuses to be read.
async fn check(store: &Store, seed: u64) -> Option<u64> {
    let revision = store.current_revision();
    let read =
        store.range(RangeRequest { range_end: Bytes::from_static(&[0]), ..RangeRequest::default() }).await.ok()?;
    // Revision 2 is write 0, and so on.
    let n_writes = revision.0 - 1;
    for kv in &read.kvs {
        let last = if kv.key == "/n" {
            n_writes - 1
        } else {
            (0..n_writes).rev().find(|n| kv.key == format!("/k/{}", n % 7)).unwrap()
        };
        let crate::txn::Op::Put { value, .. } = &write(last).success[usize::from(kv.key == "/n")] else {
            unreachable!()
        };
        assert_eq!(&kv.value, value, "seed {seed}: {:?}", kv.key);
    }
    assert_eq!(read.kvs.len() as u64, if n_writes == 0 { 0 } else { n_writes.min(7) + 1 }, "seed {seed}");
    Some(revision.0)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// A store with some writes, as a power cut left it.
async fn begun(root: &Path) -> PathBuf {
    let dir = root.join("begun");
    let disk = FaultyDisk::new(&dir, 1, Fault::None, 0);
    let mut opened = open(disk.clone(), &dir).await.unwrap();
    work(&mut opened, 20).await;
    disk.cut();
    opened.group.shutdown().await;
    disk.lose_power(&dir);
    dir
}

const FAULTS: [Fault; 7] = [
    Fault::PowerCut,
    Fault::SyncFails,
    Fault::WriteFails,
    Fault::ReadFails,
    Fault::Full(9),
    Fault::SyncsLie,
    Fault::BitRots,
];

/// Turns a bit of the log or of the database's WAL.
fn rot(rng: &Rng, dir: &Path) {
    let mut files = vec![dir.join("state.db-wal")];
    files.extend(fs::read_dir(dir.join("log")).into_iter().flatten().map(|file| file.unwrap().path()));
    files.sort();
    let path = &files[usize::try_from(rng.below(files.len() as u64)).unwrap()];
    let mut bytes = fs::read(path).unwrap_or_default();
    if !bytes.is_empty() {
        let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
        bytes[at] ^= 1 << rng.below(8);
        fs::write(path, bytes).unwrap();
    }
}

/// Outcomes of the lives with one fault.
#[derive(Default)]
struct Tally {
    lives: u64,
    /// In which the fault happened.
    hit: u64,
    /// Starts of the process.
    starts: u64,
    acknowledged: u64,
    /// In which the last start refused to open the store, and said why.
    refused: u64,
}

/// One life, noted under its fault.
async fn live(seed: u64, begun: &Path, dir: &Path, tallies: &mut BTreeMap<String, Tally>) {
    let rng = Rng::from_seed(seed);
    // Some begin with their first start: its names are not on the disk yet.
    if rng.below(4) > 0 {
        copy(begun, dir);
    } else {
        fs::create_dir(dir).unwrap();
    }
    let fault = FAULTS[usize::try_from(rng.below(FAULTS.len() as u64)).unwrap()];
    let reach = if matches!(fault, Fault::PowerCut | Fault::SyncsLie) { STEPS } else { STEPS / 4 };
    let disk = FaultyDisk::new(dir, seed, fault, rng.below(reach));
    let tally = tallies.entry(format!("{fault:?}")).or_default();
    tally.lives += 1;
    let mut acknowledged = 0;
    // The process starts anew some times: after an end by the fault, a kill or an ordered stop, on the same disk.
    for _ in 0..=rng.below(3) {
        tally.starts += 1;
        if let Ok(mut opened) = open(disk.clone(), dir).await {
            let lied = disk.was_hit() && fault == Fault::SyncsLie;
            match check(&opened.store, seed).await {
                Some(at) => assert!(
                    lied || at >= acknowledged,
                    "seed {seed}, {fault:?}: {acknowledged} is lost, it stands at {at}"
                ),
                None => assert!(disk.was_hit(), "seed {seed}: it cannot be read"),
            }
            let before = opened.store.current_revision().0;
            let (last, lives) = work(&mut opened, WRITES).await;
            tally.acknowledged += last - before;
            if !(disk.was_hit() && fault == Fault::SyncsLie) {
                acknowledged = acknowledged.max(last);
            }
            assert!(lives || disk.was_hit(), "seed {seed}: the store ended without a fault");
            assert!(lives || !matches!(fault, Fault::Full(_)), "seed {seed}: a full disk ended the store");
            if rng.below(2) == 0 {
                disk.cut();
            }
            opened.group.shutdown().await;
            if fault == Fault::PowerCut && disk.was_hit() {
                break;
            }
        } else {
            assert!(disk.was_hit() || disk.is_cut(), "seed {seed}: the store does not open");
        }
    }
    disk.lose_power(dir);
    if fault == Fault::BitRots {
        rot(&rng, dir);
    }
    let lied = disk.was_hit() && fault == Fault::SyncsLie;
    match open(Arc::new(SystemDisk), dir).await {
        Ok(opened) => {
            let revision = check(&opened.store, seed).await.expect("this disk is in order");
            assert!(
                lied || revision >= acknowledged,
                "seed {seed}, {fault:?}: {acknowledged} is lost, it stands at {revision}"
            );
            let after = opened.store.txn(write(revision - 1)).await.unwrap().revision;
            assert_eq!(after.0, revision + 1, "seed {seed}");
            opened.group.shutdown().await;
        }
        Err(Error::Corrupt { .. }) if fault == Fault::BitRots => tally.refused += 1,
        // A disk that lies may leave what contradicts itself: the store says so, and shows nothing wrong.
        Err(err) => {
            assert!(lied, "seed {seed}, {fault:?}: {err}");
            tally.refused += 1;
        }
    }
    tally.hit += u64::from(disk.was_hit() || fault == Fault::BitRots);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_one_disk_does_no_acknowledged_write_is_lost_and_none_is_there_in_part() {
    let root = tempfile::tempdir().unwrap();
    let begun = begun(root.path()).await;
    let (mut tallies, seeds) = (BTreeMap::new(), seeds());
    let n = seeds.end - seeds.start;
    for seed in seeds {
        let dir = root.path().join("life");
        live(seed, &begun, &dir, &mut tallies).await;
        fs::remove_dir_all(&dir).unwrap();
    }
    for (fault, Tally { lives, hit, starts, acknowledged, refused }) in &tallies {
        println!(
            "{fault}: {lives} lives, in {hit} it happened, {starts} starts, {acknowledged} acknowledged \
             writes, {refused} refused to open"
        );
    }
    let n_hit: u64 = tallies.values().map(|tally| tally.hit).sum();
    assert!(n_hit * 2 > n, "only {n_hit} of {n} faults happened");
}
