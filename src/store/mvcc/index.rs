//! Which versions of which keys exist: in memory, without the values.
//!
//! Versions newer than the applied revision may be in it while their transaction is not durable yet. Nobody sees them:
//! every reader asks for the versions as of a revision that is applied.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::error::Error;
use crate::kv::{KeyValue, Revision};

/// Bits of a row id that count the changes inside one revision: `id = revision << 20 | position`.
pub const POSITION_BITS: u32 = 20;

/// Changes that one transaction may make at most.
pub const CHANGES_MAX: u64 = (1 << POSITION_BITS) - 1;

/// One version of a key; 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Row of `history`.
    pub id: u64,
    /// Revision of the generation's creation.
    pub create: u64,
    /// Changes since then; 0 marks the deletion.
    pub version: u64,
    /// Lease, 0 for none.
    pub lease: u64,
}

impl Version {
    /// The revision that wrote it.
    pub fn revision(&self) -> u64 {
        self.id >> POSITION_BITS
    }

    /// Whether the key was there after it.
    pub fn is_live(&self) -> bool {
        self.version > 0
    }

    /// The key with this version's numbers around `value`.
    pub fn with(&self, key: &Bytes, value: Bytes) -> KeyValue {
        KeyValue {
            key: key.clone(),
            value,
            create_revision: Revision(self.create),
            mod_revision: Revision(self.revision()),
            version: self.version,
            lease: self.lease,
        }
    }
}

/// All keys with their versions, oldest first.
#[derive(Debug, Default)]
pub struct Index {
    keys: BTreeMap<Bytes, Vec<Version>>,
    /// The oldest revision that can be read.
    pub floor: u64,
}

/// The keys that a request's `key` and `range_end` mean.
pub fn bounds<'a>(key: &'a [u8], range_end: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    match range_end {
        [] => (Bound::Included(key), Bound::Included(key)),
        [0] => (Bound::Included(key), Bound::Unbounded),
        end if end <= key => (Bound::Excluded(key), Bound::Included(key)),
        end => (Bound::Included(key), Bound::Excluded(end)),
    }
}

/// Whether `candidate` is among the keys that `key` and `range_end` mean.
pub fn covers(key: &[u8], range_end: &[u8], candidate: &[u8]) -> bool {
    match range_end {
        [] => candidate == key,
        [0] => candidate >= key,
        end => candidate >= key && candidate < end,
    }
}

fn at(versions: &[Version], revision: u64) -> Option<Version> {
    let n_until = versions.partition_point(|v| v.revision() <= revision);
    n_until.checked_sub(1).map(|i| versions[i]).filter(Version::is_live)
}

impl Index {
    /// Empty, with the floor at `floor`.
    pub fn at_floor(floor: u64) -> Index {
        Index { keys: BTreeMap::new(), floor }
    }

    /// Adds the newest version of a key.
    pub fn push(&mut self, key: &Bytes, version: Version) {
        match self.keys.get_mut(key) {
            Some(versions) => versions.push(version),
            // The copy frees the request's buffer, of which `key` may be a slice.
            None => drop(self.keys.insert(Bytes::copy_from_slice(key), vec![version])),
        }
    }

    /// The key as it stands after everything pushed.
    pub fn newest(&self, key: &[u8]) -> Option<Version> {
        self.keys.get(key).and_then(|versions| versions.last()).copied().filter(Version::is_live)
    }

    /// The newest version of a key, be it its deletion.
    pub fn last(&self, key: &[u8]) -> Option<Version> {
        self.keys.get(key).and_then(|versions| versions.last()).copied()
    }

    /// The version of a key before the row `id`, be it its deletion.
    pub fn before(&self, key: &[u8], id: u64) -> Option<Version> {
        let versions = self.keys.get(key)?;
        versions[..versions.partition_point(|v| v.id < id)].last().copied()
    }

    /// The live keys of a range as of `revision`, in order.
    pub fn range<'a>(
        &'a self,
        key: &'a [u8],
        range_end: &'a [u8],
        revision: u64,
    ) -> impl Iterator<Item = (&'a Bytes, Version)> {
        let (from, to) = bounds(key, range_end);
        // A range that ends before it starts is empty; BTreeMap would panic.
        let empty = matches!(from, Bound::Excluded(_));
        let range = if empty { (Bound::Unbounded, Bound::Excluded(&[][..])) } else { (from, to) };
        self.keys.range::<[u8], _>(range).filter_map(move |(key, versions)| at(versions, revision).map(|v| (key, v)))
    }

    /// Whether `revision` can be read when the newest one is `current`.
    pub fn check(&self, asked: u64, current: u64) -> Result<(), Error> {
        if asked > current {
            return Err(Error::Future { asked: Revision(asked), current: Revision(current) });
        }
        if asked < self.floor {
            return Err(Error::Compacted { asked: Revision(asked), floor: Revision(self.floor) });
        }
        Ok(())
    }

    /// Rows that nobody can read any more with the floor at `floor`, of up to `n_keys` keys after `after`; and the last
    /// key looked at, or `None` at the end.
    ///
    /// rev 7 put, rev 9 delete, rev 12 put: floor 10 frees {7, 9}; floor 9 frees {7}, as a watch from 9 must see the
    /// delete; floor 8 frees nothing, as 7 is still readable at 8.
    pub fn superseded(&self, after: Option<&Bytes>, n_keys: usize, floor: u64) -> (Vec<u64>, Option<Bytes>) {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let mut last = None;
        let mut ids = Vec::new();
        for (key, versions) in self.keys.range::<[u8], _>((from, Bound::Unbounded)).take(n_keys) {
            ids.extend(versions[..n_superseded(versions, floor)].iter().map(|v| v.id));
            last = Some(key.clone());
        }
        (ids, last)
    }

    /// Forgets what [`Index::superseded`] named, in `after..=until`.
    pub fn forget(&mut self, after: Option<&Bytes>, until: &Bytes, floor: u64) {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let mut gone = Vec::new();
        for (key, versions) in self.keys.range_mut::<[u8], _>((from, Bound::Included(&until[..]))) {
            versions.drain(..n_superseded(versions, floor));
            versions.shrink_to_fit();
            if versions.is_empty() {
                gone.push(key.clone());
            }
        }
        for key in gone {
            self.keys.remove(&key);
        }
    }
}

/// How many of a key's oldest versions the floor frees.
fn n_superseded(versions: &[Version], floor: u64) -> usize {
    let n_until = versions.partition_point(|v| v.revision() <= floor);
    match n_until.checked_sub(1).map(|i| versions[i]) {
        None => 0,
        Some(newest) if newest.is_live() || newest.revision() == floor => n_until - 1,
        Some(_) => n_until,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen under `make chaos`: watches that ask for keys as they were read 58 GB of history in three minutes, as they
    // walked back in the table from each row, and all of it for a key that was new.
    #[test]
    fn what_was_before_a_row_is_known_without_the_table() {
        let mut index = Index::at_floor(0);
        let version =
            |revision: u64, version: u64| Version { id: revision << POSITION_BITS, create: 2, version, lease: 0 };
        let key = Bytes::from_static(b"k");
        for (revision, n) in [(2, 1), (5, 2), (7, 0)] {
            index.push(&key, version(revision, n));
        }
        let before = |id: u64| index.before(&key, id << POSITION_BITS).map(|v| v.revision());
        assert_eq!([2, 3, 5, 7, 9].map(before), [None, Some(2), Some(2), Some(5), Some(7)]);
        assert!(!index.before(&key, 9 << POSITION_BITS).unwrap().is_live(), "its deletion");
        assert!(index.before(b"new", 9 << POSITION_BITS).is_none());
    }

    /// A key's versions: revision, and changes since its creation (0 marks the deletion).
    fn index(rows: &[(&'static str, &[(u64, u64)])]) -> Index {
        let mut index = Index::at_floor(0);
        for (key, versions) in rows {
            for (revision, version) in *versions {
                let version = Version { id: revision << POSITION_BITS, create: 2, version: *version, lease: 0 };
                index.push(&Bytes::from_static(key.as_bytes()), version);
            }
        }
        index
    }

    fn keys<'a>(index: &'a Index, (key, end): (&'a str, &'a str), revision: u64) -> String {
        let rows = index.range(key.as_bytes(), end.as_bytes(), revision);
        rows.map(|(key, version)| format!("{}{} ", String::from_utf8_lossy(key), version.revision())).collect()
    }

    #[test]
    fn a_range_means_the_same_keys_to_reads_and_to_watches() {
        let all = index(&[("a", &[(2, 1)]), ("b", &[(3, 1)]), ("c", &[(4, 1)])]);
        for (range, want) in [
            (("b", ""), "b3 "),
            (("x", ""), ""),
            (("a", "c"), "a2 b3 "),
            (("b", "\0"), "b3 c4 "),
            (("", "\0"), "a2 b3 c4 "),
            (("b", "b"), ""),
            (("c", "a"), ""),
            (("aa", "bb"), "b3 "),
        ] {
            assert_eq!(keys(&all, range, 9), want, "{range:?}");
            for key in ["a", "b", "c"] {
                let covered = covers(range.0.as_bytes(), range.1.as_bytes(), key.as_bytes());
                assert_eq!(covered, want.contains(key), "{range:?} {key}");
            }
        }
    }

    #[test]
    fn a_range_is_as_it_stood_at_its_revision() {
        let all = index(&[("a", &[(2, 1), (5, 2), (7, 0)]), ("b", &[(4, 1), (7, 2)]), ("c", &[(8, 1)])]);
        for (revision, want) in [(1, ""), (2, "a2 "), (4, "a2 b4 "), (6, "a5 b4 "), (7, "b7 "), (9, "b7 c8 ")] {
            assert_eq!(keys(&all, ("", "\0"), revision), want, "{revision}");
        }
        assert!(all.newest(b"a").is_none() && all.last(b"a").is_some_and(|v| !v.is_live()), "it is deleted");
        assert_eq!(all.newest(b"b").map(|v| v.version), Some(2));
        assert!(all.last(b"x").is_none());
    }

    #[test]
    fn a_revision_is_readable_from_the_floor_to_the_newest() {
        let index = Index::at_floor(5);
        assert!(matches!(index.check(4, 9), Err(Error::Compacted { asked: Revision(4), floor: Revision(5) })));
        assert!(index.check(5, 9).is_ok() && index.check(9, 9).is_ok());
        assert!(matches!(index.check(10, 9), Err(Error::Future { asked: Revision(10), current: Revision(9) })));
    }

    #[test]
    fn a_floor_frees_what_nobody_can_read_and_keeps_a_delete_at_itself_for_watches() {
        let one = index(&[("k", &[(7, 1), (9, 0), (12, 1)])]);
        for (floor, freed) in [(8, vec![]), (9, vec![7]), (10, vec![7, 9]), (12, vec![7, 9]), (20, vec![7, 9])] {
            let (ids, last) = one.superseded(None, 10, floor);
            assert_eq!(ids.iter().map(|id| id >> POSITION_BITS).collect::<Vec<_>>(), freed, "{floor}");
            assert_eq!(last.as_deref(), Some(&b"k"[..]));
        }
    }

    #[test]
    fn compaction_goes_on_after_the_last_key_and_forgets_what_it_named() {
        let mut all = index(&[("a", &[(2, 1), (5, 2)]), ("b", &[(3, 1), (6, 0)]), ("c", &[(4, 1)])]);
        let (ids, last) = all.superseded(None, 2, 8);
        assert_eq!(ids.iter().map(|id| id >> POSITION_BITS).collect::<Vec<_>>(), [2, 3, 6]);
        let last = last.unwrap();
        all.forget(None, &last, 8);
        assert_eq!((keys(&all, ("", "\0"), 9), all.last(b"b")), ("a5 c4 ".to_owned(), None), "a deleted key is gone");
        assert_eq!(all.superseded(Some(&last), 2, 8), (vec![], Some(Bytes::from_static(b"c"))));
        assert_eq!(all.superseded(Some(&Bytes::from_static(b"c")), 2, 8), (vec![], None));
    }
}
