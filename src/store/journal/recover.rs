//! Recovery: reads a log when it is opened, after an ordered stop or a power cut.
//!
//! Only one record is on its way to the disk at any time. So where the last segment has no whole record, the log ends,
//! and nothing that was acknowledged lies behind it. A whole record behind a broken one says something else: the broken
//! one was on the disk once. So does a broken last one of which every sector arrived.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::Error;
use crate::journal::frame::{EntryId, Frame};
use crate::journal::map::{Map, RecordLocation};
use crate::journal::record::{self, Head, Record, STEP_BYTES};
use crate::journal::segment::{path_of, segment_of};

/// A segment that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Its number.
    pub segment: u64,
    /// The last entry in it, counting or not.
    pub last: Option<u64>,
}

/// Content of the files.
#[derive(Debug, Default)]
pub struct Found {
    /// The entries.
    pub map: Map,
    /// The segments before the last one, oldest first.
    pub full: VecDeque<Full>,
    /// The last segment with a record, and where its next one begins.
    pub tail: Option<(Full, usize)>,
    /// Files without a record.
    pub spares: Vec<PathBuf>,
    /// The next record's.
    pub number: u64,
    /// The highest segment with a file.
    pub newest: u64,
}

fn corrupt(path: &Path, why: String) -> Error {
    Error::Corrupt { path: path.to_owned(), why }
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |err| Error::Io { doing: "cannot read the log", why: format!("{}: {err}", path.display()) }
}

/// The segments that have files in `dir`, oldest first; none if there is no folder.
///
/// Errors: `Io`.
pub fn segments(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>, Error> {
    let paths = match disk.list(dir) {
        Ok(paths) => paths,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(unreadable(dir)(err)),
    };
    let mut segments: Vec<u64> = paths.iter().filter_map(|path| segment_of(path)).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// Reads the log in `dir`, if there is one. Changes nothing.
///
/// Errors: `Corrupt`, `Io`.
pub fn scan(disk: &dyn Disk, dir: &Path, salt: u64) -> Result<Found, Error> {
    let mut found = Found::default();
    for segment in segments(disk, dir)? {
        found.newest = segment;
        let path = path_of(dir, segment);
        let bytes = match disk.read(&path) {
            Ok(bytes) => bytes,
            // Removed since, by the server whose log another process reads.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => continue,
            Err(err) => return Err(unreadable(&path)(err)),
        };
        found.segment(disk, dir, segment, salt, &bytes)?;
    }
    Ok(found)
}

impl Found {
    fn segment(&mut self, disk: &dyn Disk, dir: &Path, segment: u64, salt: u64, bytes: &[u8]) -> Result<(), Error> {
        let path = path_of(dir, segment);
        let (mut at, mut full) = (0, Full { segment, last: None });
        while let Some(record) = record::read(&bytes[at..]).filter(|record| record.mark.segment == segment) {
            let number = record.mark.number;
            if record.mark.salt != salt {
                return Err(corrupt(&path, "this log belongs to another database than the one beside it".to_owned()));
            }
            if at == 0 && number > self.number {
                // The segments between were needed no more, nor those before. Whether that is so the database says: the
                // log must reach to what is applied in it.
                let before = self.full.drain(..).chain(self.tail.take().map(|(full, _)| full));
                let spares = before.map(|full| path_of(dir, full.segment)).chain(self.spares.drain(..)).collect();
                *self = Found { number, spares, newest: segment, ..Found::default() };
            }
            if number != self.number {
                return Err(corrupt(
                    &path,
                    format!("record {number} at byte {at} follows record {}", self.number.saturating_sub(1)),
                ));
            }
            full.last = full.last.max(self.take(disk, dir, segment, at, &record)?);
            (at, self.number) = (at + record.span, number + 1);
        }
        let is_whole = |from: usize| {
            record::read(&bytes[from..]).is_some_and(|r| r.mark.segment == segment && r.mark.salt == salt)
        };
        if let Some(whole) = (at + STEP_BYTES..bytes.len()).step_by(STEP_BYTES).find(|from| is_whole(*from)) {
            return Err(corrupt(&path, format!("the record at byte {at} is broken, and one at byte {whole} is whole")));
        }
        if record::is_rotten(bytes.get(at..).unwrap_or_default(), salt, segment) {
            let why = "was on the disk as a whole and is damaged: what it held may have been acknowledged";
            return Err(corrupt(&path, format!("the last record, at byte {at}, {why}")));
        }
        if at == 0 {
            self.spares.push(path);
            return Ok(());
        }
        if let Some((before, _)) = self.tail.replace((full, at)) {
            self.full.push_back(before);
        }
        Ok(())
    }

    /// Takes a record over. Answers with its last entry.
    fn take(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        segment: u64,
        at: usize,
        record: &Record<'_>,
    ) -> Result<Option<u64>, Error> {
        let id_of = |location: &RecordLocation, index: u64| id_of(disk, dir, location, index);
        match record.head()? {
            Head::Entries { prev, last } => {
                self.map.push(RecordLocation { segment, at, span: record.span, prev, last }, id_of)?;
                Ok(Some(last.index))
            }
            Head::Truncate { since } => self.map.cut(since, id_of).map(|()| None),
        }
    }
}

/// The number of an entry of a record.
pub fn id_of(disk: &dyn Disk, dir: &Path, location: &RecordLocation, index: u64) -> Result<EntryId, Error> {
    let entries = entries(disk, dir, location)?;
    let missing = || {
        corrupt(&path_of(dir, location.segment), format!("entry {index} is not in the record at byte {}", location.at))
    };
    entries.iter().find(|entry| entry.id.index == index).map(|entry| entry.id).ok_or_else(missing)
}

/// The entries of a record that count.
pub fn entries(disk: &dyn Disk, dir: &Path, location: &RecordLocation) -> Result<Vec<Frame>, Error> {
    let path = path_of(dir, location.segment);
    let mut bytes = vec![0; location.span];
    disk.read_at(&path, &mut bytes, location.at as u64).map_err(unreadable(&path))?;
    let record = record::read(&bytes).filter(|record| record.mark.segment == location.segment);
    let record = record.ok_or_else(|| corrupt(&path, format!("the record at byte {} is broken", location.at)))?;
    let mut entries = record.entries()?;
    entries.retain(|entry| entry.id.index <= location.last.index);
    Ok(entries)
}
