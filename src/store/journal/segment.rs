//! One file of the log. Its blocks are written before it is used, so that a record changes bytes and nothing else: the file system
//! has no size, no extent and no journal of its own to write.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::journal::record::STEP_BYTES;
#[cfg(test)]
use crate::journal::trace::{self, Op};

/// Bytes of a segment, unless a record is larger. Tests have many segments.
pub const SEGMENT_BYTES: usize = if cfg!(test) { 16 * 1024 } else { 2 * 1024 * 1024 };

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

/// What the system's error means here.
pub fn failed(path: &Path, err: &io::Error) -> Error {
    match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path: path.to_owned() },
        _ => Error::Io { doing: "cannot write the log", why: format!("{}: {err}", path.display()) },
    }
}

/// Makes the names in a folder durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()?;
    #[cfg(test)]
    trace::note(dir, || Op::SyncDir);
    Ok(())
}

/// Makes the file of a segment, all of it zeros. After a power cut it is whole or not there.
pub fn make(dir: &Path, segment: u64, bytes: usize) -> Result<(), Error> {
    let (unfinished, path) = (dir.join(UNFINISHED), path_of(dir, segment));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        let zeros = vec![0; bytes.min(64 * 1024)];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(zeros.len());
            file.write_all(&zeros[..n])?;
            left -= n;
        }
        file.sync_all()?;
        #[cfg(test)]
        trace::note(dir, || Op::Make { path: unfinished.clone(), bytes });
        rename(dir, &unfinished, &path)
    };
    write().map_err(|err| {
        // It would only take space that lacks already.
        let _best_effort = std::fs::remove_file(&unfinished);
        failed(&path, &err)
    })
}

/// Makes the file of a segment of one that is needed no more.
pub fn reuse(dir: &Path, spare: &Path, segment: u64) -> Result<(), Error> {
    let path = path_of(dir, segment);
    rename(dir, spare, &path).map_err(|err| failed(&path, &err))
}

fn rename(dir: &Path, from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    #[cfg(test)]
    trace::note(dir, || Op::Rename { from: from.to_owned(), to: to.to_owned() });
    sync_dir(dir)
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
    /// Its file.
    pub path: PathBuf,
    /// Where the next record begins.
    pub at: usize,
    bytes_max: usize,
    /// Records take whole blocks: what was acknowledged is never written again, not even with the same bytes.
    block: usize,
    file: File,
    /// Whether a write is on the disk when it returns.
    is_direct: bool,
}

impl Segment {
    /// Opens a segment to go on at `at`; `None` if that is in the middle of a block of this disk.
    ///
    /// A file system that takes no direct writes, or a disk of blocks of another size, shows at the first write: it is zeros.
    pub fn open(dir: &Path, segment: u64, at: usize) -> Result<Option<Segment>, Error> {
        let path = path_of(dir, segment);
        Segment::try_open(&path, segment, at).map_err(|err| failed(&path, &err))
    }

    fn try_open(path: &Path, segment: u64, at: usize) -> io::Result<Option<Segment>> {
        let bytes_max = usize::try_from(std::fs::metadata(path)?.len()).unwrap_or(0) / PAGE_BYTES * PAGE_BYTES;
        let of = |file, block, is_direct| Segment { segment, path: path.to_owned(), at, bytes_max, block, file, is_direct };
        if at + STEP_BYTES > bytes_max {
            return Ok(None);
        }
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(path);
        if let Ok(file) = direct {
            let mut zeros = Buffer::default();
            for block in [STEP_BYTES, PAGE_BYTES] {
                if !at.is_multiple_of(block) || at + block > bytes_max {
                    return Ok(None);
                }
                let zeros = zeros.take(block);
                zeros.fill(0);
                match file.write_all_at(zeros, at as u64) {
                    Ok(()) => return Ok(Some(of(file, block, true))),
                    Err(err) if err.kind() == io::ErrorKind::InvalidInput => {}
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(Some(of(OpenOptions::new().write(true).open(path)?, STEP_BYTES, false)))
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
        #[cfg(test)]
        trace::begin(&self.path, self.at, record);
        let written = self.file.write_all_at(record, self.at as u64);
        let written = if self.is_direct { written } else { written.and_then(|()| self.file.sync_data()) };
        written.map_err(|err| failed(&self.path, &err))?;
        #[cfg(test)]
        trace::end(&self.path);
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
        make(dir.path(), 1, SEGMENT_BYTES).unwrap();
        let mut segment = Segment::open(dir.path(), 1, 0).unwrap().unwrap();
        let (mut buffer, mut n) = (Buffer::default(), 0);
        while segment.has_room(700) {
            let span = segment.span(700);
            segment.write(buffer.take(span)).unwrap();
            n += 1;
        }
        assert!(n >= SEGMENT_BYTES / 4096 && segment.at <= SEGMENT_BYTES);
        assert_eq!(std::fs::metadata(&segment.path).unwrap().len(), SEGMENT_BYTES as u64);
        assert!(Segment::open(dir.path(), 1, SEGMENT_BYTES).unwrap().is_none());
    }
}
