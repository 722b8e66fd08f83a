//! The log of entries: plain files that are only written forward, each block once. Here a write becomes durable.
//!
//! A record holds the entries that became durable together, and costs one write of whole blocks, direct to the disk.
//! Records lie in *segments*: files whose blocks exist before they are used, and which get a new name when nobody needs
//! what is in them. `record` knows the form, `segment` the file, `map` which entries are where, `recover` what is found
//! after a power cut.

pub mod frame;
pub mod map;
pub mod record;
pub mod recover;
pub mod segment;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bounds::Bounds;
use crate::disk::{Disk, SystemDisk};
use crate::error::Error;
use crate::journal::frame::{EntryId, Frame};
use crate::journal::map::{Map, RecordLocation};
use crate::journal::record::{Head, Mark};
use crate::journal::recover::{Found, Full};
use crate::journal::segment::{Buffer, Segment};

/// Files that are kept to be written again.
const SPARES_MAX: usize = 2;

/// The log in its folder. One thread has it.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    salt: u64,
    /// Bytes of a segment, unless a record is larger.
    segment_bytes: usize,
    map: Map,
    full: VecDeque<Full>,
    tail: Option<Segment>,
    /// The last entry in the tail.
    tail_last: Option<u64>,
    spares: Vec<PathBuf>,
    number: u64,
    newest: u64,
    buffer: Buffer,
}

/// The folder of the log beside its database.
pub fn dir_in(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Reads the entries from `from` on, as many of them as are still there, of a log that another process may work on.
///
/// Errors: `Corrupt`, also if it was written where it was read; `Io`.
pub fn look(dir: &Path, salt: u64, from: u64) -> Result<Vec<Frame>, Error> {
    let disk = SystemDisk;
    let found = recover::scan(&disk, dir, salt)?;
    let mut all = Vec::new();
    for location in found.map.covering(from, u64::MAX >> 1) {
        all.extend(recover::entries(&disk, dir, location)?.into_iter().filter(|entry| entry.id.index >= from));
    }
    Ok(all)
}

impl Journal {
    /// Opens the log in `dir`, makes it if there is none. What it holds is durable when this returns.
    ///
    /// Errors: `Corrupt`, `NoSpace`, `Io`.
    pub fn open(disk: &Arc<dyn Disk>, dir: &Path, salt: u64, bounds: &Bounds) -> Result<Journal, Error> {
        let failed = |err| segment::failed(dir, &err);
        // Also if another process made it: that one may have ended before its name was on the disk.
        disk.make_dir(dir)
            .and_then(|_is_new| dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent)))
            .map_err(failed)?;
        match disk.remove(&dir.join(segment::UNFINISHED)) {
            Err(err) if err.kind() != ErrorKind::NotFound => return Err(failed(err)),
            _left_by_a_cut => {}
        }
        // What the process before wrote may be in memory only, also if it reads as whole: it counts when it is on the
        // disk.
        for path in recover::segments(&**disk, dir)?.iter().map(|segment| segment::path_of(dir, *segment)) {
            disk.settle(&path).map_err(|err| segment::failed(&path, &err))?;
        }
        disk.sync_dir(dir).map_err(failed)?;
        let Found { map, mut full, tail, spares, number, newest } = recover::scan(&**disk, dir, salt)?;
        let (mut segment, mut tail_last) = (None, None);
        if let Some((last, at)) = tail {
            segment = Segment::open(disk, dir, last.segment, at)?;
            match segment {
                Some(_) => tail_last = last.last,
                None => full.push_back(last),
            }
        }
        let mut journal = Journal {
            disk: Arc::clone(disk),
            dir: dir.to_owned(),
            salt,
            segment_bytes: bounds.segment_bytes,
            map,
            full,
            tail: segment,
            tail_last,
            spares: Vec::new(),
            number,
            newest,
            buffer: Buffer::default(),
        };
        for spare in spares {
            journal.let_go(spare)?;
        }
        Ok(journal)
    }

    /// The folder that it is in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last entry.
    pub fn last(&self) -> Option<EntryId> {
        self.map.last()
    }

    /// The last entry that is not there any more.
    pub fn purged(&self) -> Option<EntryId> {
        self.map.purged()
    }

    /// Makes entries that follow `prev` durable, all of them or none: one write.
    ///
    /// Errors: `NoSpace`: nothing is changed, it can be tried again. `Io`: what is on the disk must be found out anew.
    pub fn append(&mut self, prev: Option<EntryId>, entries: &[Frame]) -> Result<(), Error> {
        let Some(last) = entries.last().map(|entry| entry.id) else { return Ok(()) };
        let (at, span) = self.write(&Head::Entries { prev, last }, entries)?;
        self.tail_last = self.tail_last.max(Some(last.index));
        let (disk, dir, segment) = (Arc::clone(&self.disk), self.dir.clone(), self.newest_begun());
        self.map.push(RecordLocation { segment, at, span, prev, last }, |location, index| {
            recover::id_of(&*disk, &dir, location, index)
        })
    }

    /// Takes back the entries from `since` on; they do not come back.
    ///
    /// Errors: as [`Journal::append`].
    pub fn truncate(&mut self, since: u64) -> Result<(), Error> {
        if self.last().is_none_or(|last| last.index < since) {
            return Ok(());
        }
        self.write(&Head::Truncate { since }, &[])?;
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        self.map.cut(since, |location, index| recover::id_of(&*disk, &dir, location, index))
    }

    /// The entries `from..to`, fewer if they have more than `bytes_max` bytes.
    ///
    /// Errors: `Corrupt`, `Io`.
    pub fn entries(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Frame>, Error> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for location in self.map.covering(from, to) {
            if bytes >= bytes_max {
                break;
            }
            bytes += location.span;
            let entries = recover::entries(&*self.disk, &self.dir, location)?;
            all.extend(entries.into_iter().filter(|entry| (from..to).contains(&entry.id.index)));
        }
        Ok(all)
    }

    /// Forgets the entries up to `upto`. Their files are let go by [`Journal::retire`].
    pub fn purge(&mut self, upto: EntryId) {
        self.map.purge(upto);
    }

    /// Whether a segment is full of entries up to `upto`.
    pub fn can_retire(&self, upto: Option<u64>) -> bool {
        self.full.front().is_some_and(|oldest| oldest.last <= upto)
    }

    /// Lets segments go whose entries are up to `upto` and all durable elsewhere.
    ///
    /// Errors: `Io`.
    pub fn retire(&mut self, upto: Option<u64>) -> Result<(), Error> {
        while self.can_retire(upto)
            && let Some(oldest) = self.full.pop_front()
        {
            self.map.forget(oldest.segment);
            self.let_go(segment::path_of(&self.dir, oldest.segment))?;
        }
        Ok(())
    }

    /// Forgets everything, with all files.
    ///
    /// Errors: `Io`.
    pub fn clear(&mut self) -> Result<(), Error> {
        let tail = self.tail.take().map(|tail| tail.path().to_owned());
        let full = self.full.drain(..).map(|full| segment::path_of(&self.dir, full.segment)).collect::<Vec<_>>();
        for path in full.into_iter().chain(tail).chain(self.spares.drain(..)) {
            self.disk.remove(&path).map_err(|err| segment::failed(&path, &err))?;
        }
        (self.map, self.tail_last) = (Map::default(), None);
        self.disk.sync_dir(&self.dir).map_err(|err| segment::failed(&self.dir, &err))
    }

    /// Keeps a file to be written again, or removes it.
    fn let_go(&mut self, path: PathBuf) -> Result<(), Error> {
        let bytes = self.disk.len(&path).map_err(|err| segment::failed(&path, &err))?;
        if self.spares.len() < SPARES_MAX && bytes == self.segment_bytes as u64 {
            self.spares.push(path);
            return Ok(());
        }
        self.disk.remove(&path).map_err(|err| segment::failed(&path, &err))?;
        Ok(())
    }

    fn newest_begun(&self) -> u64 {
        self.tail.as_ref().map_or(self.newest, |tail| tail.segment)
    }

    /// Writes one record. Answers where it is, and its bytes.
    fn write(&mut self, head: &Head, entries: &[Frame]) -> Result<(usize, usize), Error> {
        let body = record::body(head, entries)?;
        let bytes = record::bytes(body.len());
        if !self.tail.as_ref().is_some_and(|tail| tail.has_room(bytes)) {
            self.begin_segment(bytes)?;
        }
        let Some(tail) = &mut self.tail else { return Err(Error::Closed) };
        let (at, span) = (tail.at, tail.span(bytes));
        let record = self.buffer.take(span);
        record::seal(record, Mark { salt: self.salt, segment: tail.segment, number: self.number }, &body)?;
        tail.write(record)?;
        self.buffer.shrink();
        self.number += 1;
        Ok((at, span))
    }

    /// Goes on in a new segment with room for `bytes`. After an error the old one is still the last.
    fn begin_segment(&mut self, bytes: usize) -> Result<(), Error> {
        // Room for the largest blocks, whatever this disk's are.
        let bytes = bytes.next_multiple_of(4096).max(self.segment_bytes);
        let segment = self.newest + 1;
        match self.spares.last() {
            Some(spare) if bytes == self.segment_bytes => {
                segment::reuse(&*self.disk, &self.dir, spare, segment)?;
                self.spares.pop();
            }
            _ => segment::make(&*self.disk, &self.dir, segment, bytes)?,
        }
        self.newest = segment;
        let Some(next) = Segment::open(&self.disk, &self.dir, segment, 0)? else { return Err(Error::Closed) };
        if let Some(before) = self.tail.replace(next) {
            self.full.push_back(Full { segment: before.segment, last: self.tail_last.take() });
        }
        Ok(())
    }
}
