//! One file of the log. Its blocks are written before it is used, so that a record changes bytes and nothing else: the
//! file system has no size, no extent and no journal of its own to write.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, LogFile};
use crate::error::Error;
use crate::journal::record::STEP_BYTES;

/// Where buffers begin, and the largest block that a disk asks for.
const PAGE_BYTES: usize = 4096;

/// A new segment until it is whole.
pub const UNFINISHED: &str = "unfinished";

/// The file of a segment.
pub fn path_of(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{segment:016x}.log"))
}

/// The segment whose file this is.
pub fn segment_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(".log")?;
    if name.len() == 16 { u64::from_str_radix(name, 16).ok() } else { None }
}

/// Converts an error of the system.
pub fn failed(path: &Path, err: &io::Error) -> Error {
    match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path: path.to_owned() },
        _ => Error::Io { doing: "cannot write the log", why: format!("{}: {err}", path.display()) },
    }
}

/// Makes the file of a segment, all of it zeros. After a power cut it is whole or not there.
pub fn make(disk: &dyn Disk, dir: &Path, segment: u64, bytes: usize) -> Result<(), Error> {
    let (unfinished, path) = (dir.join(UNFINISHED), path_of(dir, segment));
    disk.make(&unfinished, bytes).and_then(|()| rename(disk, dir, &unfinished, &path)).map_err(|err| {
        // It would only take space that lacks already.
        let _best_effort = disk.remove(&unfinished);
        failed(&path, &err)
    })
}

/// Makes the file of a segment of one that is needed no more.
pub fn reuse(disk: &dyn Disk, dir: &Path, spare: &Path, segment: u64) -> Result<(), Error> {
    let path = path_of(dir, segment);
    rename(disk, dir, spare, &path).map_err(|err| failed(&path, &err))
}

fn rename(disk: &dyn Disk, dir: &Path, from: &Path, to: &Path) -> io::Result<()> {
    disk.rename(from, to)?;
    disk.sync_dir(dir)
}

/// Bytes that a disk can be given as they lie in memory.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// So many bytes, of no meaning yet.
    pub fn take(&mut self, n_bytes: usize) -> &mut [u8] {
        if self.bytes.len() < n_bytes + PAGE_BYTES {
            self.bytes = vec![0; n_bytes + PAGE_BYTES];
        }
        let from = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        &mut self.bytes[from..from + n_bytes]
    }

    /// Gives memory back after a large record.
    pub fn shrink(&mut self) {
        if self.bytes.len() > 64 * PAGE_BYTES {
            self.bytes = Vec::new();
        }
    }
}

/// The segment that is written to.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub segment: u64,
    /// Where the next record begins.
    pub at: usize,
    bytes_max: usize,
    /// Records take whole blocks: what was acknowledged is never written again, not even with the same bytes.
    block: usize,
    disk: Arc<dyn Disk>,
    file: LogFile,
}

impl Segment {
    /// Opens a segment to go on at `at`; `None` if that is in the middle of a block of this disk.
    ///
    /// A file system that takes no direct writes, or a disk of blocks of another size, shows at the first write: it is
    /// zeros.
    pub fn open(disk: &Arc<dyn Disk>, dir: &Path, segment: u64, at: usize) -> Result<Option<Segment>, Error> {
        let path = path_of(dir, segment);
        Segment::try_open(disk, &path, segment, at).map_err(|err| failed(&path, &err))
    }

    fn try_open(disk: &Arc<dyn Disk>, path: &Path, segment: u64, at: usize) -> io::Result<Option<Segment>> {
        let bytes_max = usize::try_from(disk.len(path)?).unwrap_or(0) / PAGE_BYTES * PAGE_BYTES;
        let of = |file, block| Segment { segment, at, bytes_max, block, disk: Arc::clone(disk), file };
        if at + STEP_BYTES > bytes_max {
            return Ok(None);
        }
        if let Ok(file) = disk.open(path, true) {
            let mut zeros = Buffer::default();
            for block in [STEP_BYTES, PAGE_BYTES] {
                if !at.is_multiple_of(block) || at + block > bytes_max {
                    return Ok(None);
                }
                let zeros = zeros.take(block);
                zeros.fill(0);
                match disk.write(&file, zeros, at as u64) {
                    Ok(()) => return Ok(Some(of(file, block))),
                    Err(err) if err.kind() == io::ErrorKind::InvalidInput => {}
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(Some(of(disk.open(path, false)?, STEP_BYTES)))
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The bytes that a record of so many takes here.
    pub fn span(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.block)
    }

    /// Whether a record of so many bytes has room.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.at + self.span(bytes) <= self.bytes_max
    }

    /// Writes a record. It is on the disk when this returns; after an error the next one is written over it.
    pub fn write(&mut self, record: &[u8]) -> Result<(), Error> {
        let written = self.disk.write(&self.file, record, self.at as u64);
        let written = if self.file.is_direct { written } else { written.and_then(|()| self.disk.sync(&self.file)) };
        written.map_err(|err| failed(&self.file.path, &err))?;
        self.at += record.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_segments_and_sort_as_they_do() {
        let dir = Path::new("/x");
        assert_eq!(segment_of(&path_of(dir, 0xab)), Some(0xab));
        assert!(path_of(dir, 9) < path_of(dir, 16));
        assert_eq!(segment_of(Path::new("/x/unfinished")), None);
    }

    #[test]
    fn a_buffer_begins_where_a_disk_wants_it() {
        let mut buffer = Buffer::default();
        for n in [512, 4096, 70_000, 512] {
            let bytes = buffer.take(n);
            assert_eq!((bytes.len(), bytes.as_ptr().align_offset(PAGE_BYTES)), (n, 0));
        }
    }

    #[test]
    fn a_segment_is_filled_block_by_block_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(crate::disk::SystemDisk);
        let bytes = crate::bounds::Bounds::TESTS.segment_bytes;
        make(&*disk, dir.path(), 1, bytes).unwrap();
        let mut segment = Segment::open(&disk, dir.path(), 1, 0).unwrap().unwrap();
        let (mut buffer, mut n) = (Buffer::default(), 0);
        while segment.has_room(700) {
            let span = segment.span(700);
            segment.write(buffer.take(span)).unwrap();
            n += 1;
        }
        assert!(n >= bytes / 4096 && segment.at <= bytes);
        assert_eq!(std::fs::metadata(segment.path()).unwrap().len(), bytes as u64);
        assert!(Segment::open(&disk, dir.path(), 1, bytes).unwrap().is_none());
    }
}
