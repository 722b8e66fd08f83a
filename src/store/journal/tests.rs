//! The log as a whole: what was made durable is found again, whatever happened in between.

use std::fs;

use base::rng::Rng;
use bytes::Bytes;

use super::*;
use crate::command::{Batch, Command};
use crate::mvcc::entry::{Entry, Payload};
use crate::txn::{Op as Step, Txn};

const SALT: u64 = 4711;

fn system() -> Arc<dyn Disk> {
    Arc::new(SystemDisk)
}

fn log(term: u64, index: u64) -> EntryId {
    EntryId::new(term, 1, index)
}

fn entry(log_id: EntryId, n_bytes: usize) -> Frame {
    let put = Step::Put { key: Bytes::from_static(b"k"), value: vec![9; n_bytes].into(), lease: 0, prev_kv: false };
    let commands = vec![Command::Txn(Txn { success: vec![put], ..Txn::default() })];
    let payload = Payload::Normal(Batch { commands: commands.into(), ..Batch::default() });
    Entry { log_id, payload }.frame().unwrap()
}

fn fill(journal: &mut Journal, indexes: std::ops::Range<u64>, n_bytes: usize) {
    for index in indexes {
        let prev = index.checked_sub(1).map(|before| log(1, before));
        journal.append(prev, &[entry(log(1, index), n_bytes)]).unwrap();
    }
}

fn ids(journal: &Journal, from: u64) -> Vec<EntryId> {
    journal.entries(from, u64::MAX >> 1, usize::MAX).unwrap().iter().map(|entry| entry.id).collect()
}

/// Where the last record that was written begins and ends.
fn last_record(journal: &Journal) -> (PathBuf, usize, usize) {
    let location = *journal.map.covering(journal.last().unwrap().index, u64::MAX >> 1).last().unwrap();
    (segment::path_of(&journal.dir, location.segment), location.at, location.at + location.span)
}

#[test]
fn entries_are_found_again_over_many_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), &dir.path().join("log"), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..40, 1500);
    let all: Vec<_> = (0..40).map(|index| log(1, index)).collect();
    for _ in 0..2 {
        assert_eq!((journal.last(), journal.purged(), ids(&journal, 0)), (Some(log(1, 39)), None, all.clone()));
        assert_eq!(journal.entries(7, 9, usize::MAX).unwrap().len(), 2);
        assert_eq!(journal.entries(7, 30, 2000).unwrap().len(), 1, "it stops after so many bytes");
        journal = Journal::open(&system(), &dir.path().join("log"), SALT, &Bounds::TESTS).unwrap();
    }
}

#[test]
fn a_record_larger_than_a_segment_has_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..2, 10);
    fill(&mut journal, 2..3, Bounds::TESTS.segment_bytes * 2);
    fill(&mut journal, 3..20, 1500);
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    assert_eq!(ids(&journal, 0).len(), 20);
    journal.retire(Some(12)).unwrap();
    assert!(
        fs::read_dir(dir.path())
            .unwrap()
            .all(|file| file.unwrap().metadata().unwrap().len() <= Bounds::TESTS.segment_bytes as u64)
    );
}

#[test]
fn truncated_entries_do_not_come_back_and_others_take_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    let batch: Vec<_> = (0..10).map(|index| entry(log(1, index), 10)).collect();
    journal.append(None, &batch).unwrap();
    journal.truncate(6).unwrap();
    assert_eq!(journal.last(), Some(log(1, 5)));
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    assert_eq!(ids(&journal, 4), [log(1, 4), log(1, 5)]);
    journal.append(Some(log(1, 5)), &[entry(log(2, 6), 10)]).unwrap();
    let journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    assert_eq!(ids(&journal, 5), [log(1, 5), log(2, 6)]);
}

#[test]
fn segments_that_are_let_go_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    for index in 0..500 {
        fill(&mut journal, index..index + 1, 1500);
        journal.retire(Some(index)).unwrap();
        assert!(fs::read_dir(dir.path()).unwrap().count() <= 2 + SPARES_MAX);
    }
    let journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    assert_eq!(journal.last(), Some(log(1, 499)));
    let found = ids(&journal, 0);
    assert_eq!(found.first().map(|log| log.index), journal.purged().map(|log| log.index + 1));
    assert!(found.windows(2).all(|pair| pair[0].index + 1 == pair[1].index), "{found:?}");
}

#[test]
fn a_torn_last_record_ends_the_log_and_the_next_is_written_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..3, 100);
    fill(&mut journal, 3..4, 1900);
    let (path, from, to) = last_record(&journal);
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for sector in 0..(to - from) / 512 {
        let mut torn = whole.clone();
        torn[from + sector * 512..from + (sector + 1) * 512].fill(0);
        fs::write(&path, torn).unwrap();
        let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
        assert_eq!(journal.last(), Some(log(1, 2)));
        fill(&mut journal, 3..5, 10);
        let journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
        assert_eq!(ids(&journal, 3), [log(1, 3), log(1, 4)]);
    }
}

#[test]
fn a_broken_record_with_whole_ones_behind_it_is_no_end_but_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..2, 100);
    let (path, from, _) = last_record(&journal);
    fill(&mut journal, 2..3, 100);
    drop(journal);
    for at in [from, 0] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[at + 60] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let Err(Error::Corrupt { path: named, why }) = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS)
        else {
            panic!("opened")
        };
        assert!(named == path && why.contains(&format!("byte {at} is broken")), "{why}");
    }
    // Also if the whole ones are in the next segment.
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..40, 1500);
    let first = segment::path_of(dir.path(), 1);
    let mut bytes = fs::read(&first).unwrap();
    let last = (0..bytes.len()).step_by(512).rfind(|at| record::read(&bytes[*at..]).is_some()).unwrap();
    bytes[last + 60] ^= 1;
    fs::write(&first, &bytes).unwrap();
    let Err(Error::Corrupt { path: named, .. }) = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS) else {
        panic!("opened")
    };
    assert_eq!(named, first);
}

/// security.md S3.
#[test]
fn a_rotten_last_record_is_an_error_that_names_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..3, 1900);
    let (path, from, to) = last_record(&journal);
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for at in (from..to).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        match Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS) {
            Err(Error::Corrupt { path: named, why }) => {
                assert!(named == path && why.contains(&format!("byte {from}")), "{why}")
            }
            // What says where a sector belongs may rot without harm.
            Ok(journal) => {
                assert!(journal.last() == Some(log(1, 2)) && (at % 512 >= 500 || at > to - 512), "byte {at}")
            }
            Err(err) => panic!("{err}"),
        }
    }
}

#[test]
fn the_log_of_another_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fill(&mut Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap(), 0..2, 100);
    assert!(matches!(Journal::open(&system(), dir.path(), SALT + 1, &Bounds::TESTS), Err(Error::Corrupt { .. })));
}

/// Appends, truncations, purges, torn writes and new openings in any order, against a list of what was made durable.
#[test]
fn whatever_happened_the_log_holds_what_was_made_durable() {
    let first = Rng::from_os().below(u64::MAX / 2);
    println!("seeds {first}..{}", first + 60);
    for seed in first..first + 60 {
        let (rng, dir) = (Rng::from_seed(seed), tempfile::tempdir().unwrap());
        let (mut model, mut purged) = (Vec::<EntryId>::new(), None::<EntryId>);
        let mut journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
        for step in 0..80 {
            let (next, term) = (frame::next_index(model.last().copied().or(purged)), step / 8 + 1);
            match rng.below(10) {
                0 if !model.is_empty() => {
                    let since = next - rng.below(model.len() as u64) - 1;
                    journal.truncate(since).unwrap();
                    model.retain(|log| log.index < since);
                }
                1 if model.len() > 3 => {
                    let upto = model[usize::try_from(rng.below(model.len() as u64 - 1)).unwrap()];
                    journal.purge(upto);
                    journal.retire(Some(upto.index)).unwrap();
                    model.retain(|log| log.index > upto.index);
                    purged = Some(upto);
                }
                2 => {
                    // The power is cut while a record is on its way.
                    let prev = model.last().copied().or(purged);
                    journal.append(prev, &[entry(log(term, next), usize::try_from(rng.below(4000)).unwrap())]).unwrap();
                    let (path, from, to) = last_record(&journal);
                    drop(journal);
                    let mut bytes = fs::read(&path).unwrap();
                    let torn = from + usize::try_from(rng.below(((to - from) / 512) as u64)).unwrap() * 512;
                    rng.fill(&mut bytes[torn..torn + 512]);
                    fs::write(&path, bytes).unwrap();
                    journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap();
                }
                3 => journal = Journal::open(&system(), dir.path(), SALT, &Bounds::TESTS).unwrap(),
                _ => {
                    let new: Vec<_> = (next..=next + rng.below(4)).map(|index| log(term, index)).collect();
                    let entries: Vec<_> =
                        new.iter().map(|log| entry(*log, usize::try_from(rng.below(2000)).unwrap())).collect();
                    journal.append(model.last().copied().or(purged), &entries).unwrap();
                    model.extend(new);
                }
            }
            let from = frame::next_index(purged);
            assert_eq!(ids(&journal, from), model, "seed {seed}, step {step}");
            assert!(journal.purged() <= purged, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn a_log_that_cannot_be_read_is_an_error_and_never_a_shorter_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut journal = Journal::open(&system(), &path, SALT, &Bounds::TESTS).unwrap();
    fill(&mut journal, 0..60, 900);
    // Some files are spares, some hold entries.
    journal.purge(log(1, 20));
    journal.retire(Some(20)).unwrap();
    let all = ids(&journal, 21);
    drop(journal);
    let mut n_refused = 0;
    for at in 0.. {
        let disk = crate::faults::FaultyDisk::new(dir.path(), at, crate::faults::Fault::ReadFails, at);
        match Journal::open(&(disk.clone() as Arc<dyn Disk>), &path, SALT, &Bounds::TESTS) {
            Ok(journal) if disk.was_hit() => {
                assert_eq!(ids(&journal, 21), all, "read {at} failed and nobody heard of it")
            }
            Ok(_) => break,
            Err(err) => {
                assert!(matches!(err, Error::Io { .. }), "{err}");
                n_refused += 1;
            }
        }
    }
    assert!(n_refused > 5, "{n_refused}");
}

#[test]
fn names_that_were_not_synced_may_be_as_before_after_a_power_cut() {
    use crate::faults::{Fault, FaultyDisk};
    let (mut seen, root) = (std::collections::BTreeSet::new(), tempfile::tempdir().unwrap());
    for seed in 0..200 {
        let dir = root.path().join(seed.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("old"), "old").unwrap();
        fs::write(dir.join("gone"), "gone").unwrap();
        let disk = FaultyDisk::new(&dir, seed, Fault::None, 0);
        disk.make(&dir.join("safe"), 512).unwrap();
        disk.sync_dir(&dir).unwrap();
        disk.make(&dir.join("made"), 512).unwrap();
        disk.rename(&dir.join("old"), &dir.join("new")).unwrap();
        disk.remove(&dir.join("gone")).unwrap();
        disk.lose_power(&dir);
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert!(
            names.contains(&"safe".to_owned())
                && names.contains(&"old".to_owned()) != names.contains(&"new".to_owned()),
            "{names:?}"
        );
        seen.insert(names);
    }
    assert_eq!(seen.len(), 8, "each of three changes is kept or not: {seen:?}");
}
