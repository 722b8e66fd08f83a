//! Which entries the log holds, and where.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::journal::frame::{EntryId, next_index};

/// A record of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// Its segment.
    pub segment: u64,
    /// Where it begins there.
    pub at: usize,
    /// Its bytes with padding.
    pub span: usize,
    /// The entry before its first.
    pub prev: Option<EntryId>,
    /// The last of its entries that counts.
    pub last: EntryId,
}

/// All records of entries by the index of their first.
#[derive(Debug, Default)]
pub struct Map {
    locations: BTreeMap<u64, RecordLocation>,
    purged: Option<EntryId>,
}

impl Map {
    /// The last entry, if there is any.
    pub fn last(&self) -> Option<EntryId> {
        self.locations.values().next_back().map(|location| location.last)
    }

    /// The last entry that is not there any more.
    pub fn purged(&self) -> Option<EntryId> {
        self.purged
    }

    /// Adds a record that follows `prev`. `id_of` reads the number of an entry of a record.
    ///
    /// One that begins before the end takes the place of what is there from its first entry on; one that begins behind
    /// it was written when all before it was in the database already.
    pub fn push(
        &mut self,
        location: RecordLocation,
        id_of: impl Fn(&RecordLocation, u64) -> Result<EntryId, Error>,
    ) -> Result<(), Error> {
        let first = next_index(location.prev);
        self.cut(first, id_of)?;
        if self.last().is_none_or(|last| last.index + 1 != first) {
            self.locations.clear();
            self.purged = location.prev;
        }
        self.locations.insert(first, location);
        Ok(())
    }

    /// Forgets the entries from `since` on.
    pub fn cut(
        &mut self,
        since: u64,
        id_of: impl Fn(&RecordLocation, u64) -> Result<EntryId, Error>,
    ) -> Result<(), Error> {
        self.locations.split_off(&since);
        if let Some(location) = self.locations.values_mut().next_back()
            && location.last.index >= since
        {
            location.last = id_of(location, since - 1)?;
        }
        Ok(())
    }

    /// Forgets the entries up to `upto`.
    pub fn purge(&mut self, upto: EntryId) {
        self.purged = self.purged.max(Some(upto));
        self.locations.retain(|_, location| location.last.index > upto.index);
    }

    /// Forgets the records in this segment and in those before.
    pub fn forget(&mut self, segment: u64) {
        let last = self.last();
        self.locations.retain(|_, location| location.segment > segment);
        let before = self.locations.values().next().map_or(last, |location| location.prev);
        self.purged = self.purged.max(before);
    }

    /// The records that hold entries of `from..to`.
    pub fn covering(&self, from: u64, to: u64) -> impl Iterator<Item = &RecordLocation> {
        let begin = self.locations.range(..=from).next_back().map_or(from, |(first, _)| *first);
        self.locations
            .range(begin..to.max(begin))
            .map(|(_, location)| location)
            .filter(move |location| location.last.index >= from)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn log(term: u64, index: u64) -> EntryId {
        EntryId::new(term, 1, index)
    }

    fn location(segment: u64, prev: Option<EntryId>, last: EntryId) -> RecordLocation {
        RecordLocation { segment, at: 0, span: 512, prev, last }
    }

    fn id_of(_: &RecordLocation, index: u64) -> Result<EntryId, Error> {
        Ok(log(1, index))
    }

    #[test]
    fn records_follow_replace_or_skip() {
        let mut map = Map::default();
        map.push(location(1, None, log(1, 4)), id_of).unwrap();
        map.push(location(1, Some(log(1, 4)), log(1, 9)), id_of).unwrap();
        assert_eq!((map.last(), map.purged()), (Some(log(1, 9)), None));
        map.push(location(2, Some(log(1, 6)), log(2, 7)), id_of).unwrap();
        assert_eq!(map.last(), Some(log(2, 7)));
        assert_eq!(map.covering(5, 8).map(|p| p.last.index).collect::<Vec<_>>(), [6, 7]);
        map.push(location(3, Some(log(3, 20)), log(3, 21)), id_of).unwrap();
        assert_eq!((map.last(), map.purged()), (Some(log(3, 21)), Some(log(3, 20))));
    }

    #[test]
    fn what_is_cut_or_purged_is_not_there() {
        let mut map = Map::default();
        map.push(location(1, None, log(1, 4)), id_of).unwrap();
        map.push(location(2, Some(log(1, 4)), log(1, 9)), id_of).unwrap();
        map.cut(7, id_of).unwrap();
        assert_eq!(map.last(), Some(log(1, 6)));
        map.cut(5, id_of).unwrap();
        assert_eq!(map.last(), Some(log(1, 4)));
        map.push(location(2, Some(log(1, 4)), log(2, 9)), id_of).unwrap();
        map.purge(log(1, 2));
        assert_eq!((map.covering(0, 5).count(), map.purged()), (1, Some(log(1, 2))));
        map.forget(1);
        assert_eq!((map.covering(0, 5).count(), map.purged()), (0, Some(log(1, 4))));
        map.cut(0, id_of).unwrap();
        assert_eq!(map.last(), None);
    }
}
