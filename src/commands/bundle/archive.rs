//! The archive of a bundle: a tar of plain files in the order of the manifest, packed with zstd.
//!
//! There is one tar for a manifest: its headers follow from it, byte for byte. So reading one is comparing it, and a
//! link, a device, a second name or a file that the manifest does not list is a header that differs. No header is
//! believed, and nothing is read that the manifest does not bound.

use std::io::{self, Read, Write};

use super::manifest::{Entry, Manifest};
use super::trailer::copy_summed;

/// Bytes of a header, and what files are filled up to.
const BLOCK: usize = 512;
/// The end of a tar: two blocks of zeros.
const END: usize = 2 * BLOCK;
/// The decoder holds so much in memory, in powers of two: an encoder of level 19 wants no more.
const WINDOW_LOG_MAX: u32 = 23;

/// An archive that is not the one of its manifest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    #[error("its archive cannot be unpacked")]
    Unpack(#[source] io::Error),
    #[error("its archive ends within {0}")]
    Short(String),
    #[error("its archive has {found} where its manifest lists {wanted}")]
    Other { found: String, wanted: String },
    #[error("its archive holds more than its manifest lists")]
    More,
    #[error("the content of {0} is not what its manifest says")]
    Content(String),
    #[error("cannot write {name}")]
    Write { name: String, source: io::Error },
}

/// Files that an archive is unpacked into.
pub(super) trait Sink {
    /// Opens the file for an entry.
    fn open(&mut self, entry: &Entry) -> io::Result<Box<dyn Write>>;
    /// The file is whole: its size and sum are right.
    fn done(&mut self, entry: &Entry) -> io::Result<()>;
}

/// Reads only.
pub(super) struct Nowhere;

impl Sink for Nowhere {
    fn open(&mut self, _entry: &Entry) -> io::Result<Box<dyn Write>> {
        Ok(Box::new(io::sink()))
    }

    fn done(&mut self, _entry: &Entry) -> io::Result<()> {
        Ok(())
    }
}

/// Unpacks `packed`, which must be exactly the archive of `manifest`.
///
/// Errors: see [`ArchiveError`]; files that were opened are then not whole.
pub(super) fn unpack(
    packed: impl Read,
    manifest: &Manifest,
    sink: &mut dyn Sink,
    step: &mut dyn FnMut(u64),
) -> Result<(), ArchiveError> {
    let mut tar = zstd::Decoder::new(packed).map_err(ArchiveError::Unpack)?;
    tar.window_log_max(WINDOW_LOG_MAX).map_err(ArchiveError::Unpack)?;
    for entry in &manifest.files {
        let mut block = [0; BLOCK];
        exact(&mut tar, &mut block, &entry.name)?;
        let wanted = header(entry).map_err(ArchiveError::Unpack)?;
        if block != wanted {
            return Err(ArchiveError::Other { found: described(&block), wanted: entry.name.clone() });
        }
        let write = |source| ArchiveError::Write { name: entry.name.clone(), source };
        let mut file = Guarded { file: sink.open(entry).map_err(write)?, failed: None };
        let (size, sum) = match copy_summed(&mut (&mut tar).take(entry.size), &mut file, step) {
            Ok(found) => found,
            Err(_) if file.failed.is_some() => {
                return Err(write(file.failed.unwrap_or_else(|| io::ErrorKind::Other.into())));
            }
            Err(err) => return Err(unpacking(err, &entry.name)),
        };
        if size < entry.size {
            return Err(ArchiveError::Short(entry.name.clone()));
        }
        if sum != entry.sha256 {
            return Err(ArchiveError::Content(entry.name.clone()));
        }
        drop(file);
        sink.done(entry).map_err(write)?;
        let mut fill = vec![0; padding(entry.size)];
        exact(&mut tar, &mut fill, &entry.name)?;
        if fill.iter().any(|byte| *byte != 0) {
            return Err(ArchiveError::Content(entry.name.clone()));
        }
    }
    let mut end = [0; END];
    exact(&mut tar, &mut end, "its end")?;
    let more = tar.read(&mut [0; 1]).map_err(ArchiveError::Unpack)?;
    if more > 0 || end.iter().any(|byte| *byte != 0) {
        return Err(ArchiveError::More);
    }
    Ok(())
}

/// Remembers that writing failed, to tell it from reading.
struct Guarded {
    file: Box<dyn Write>,
    failed: Option<io::Error>,
}

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        if let Err(err) = &written
            && err.kind() != io::ErrorKind::Interrupted
        {
            self.failed = Some(err.raw_os_error().map_or_else(|| err.kind().into(), io::Error::from_raw_os_error));
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn exact(from: &mut impl Read, bytes: &mut [u8], within: &str) -> Result<(), ArchiveError> {
    from.read_exact(bytes).map_err(|err| unpacking(err, within))
}

fn unpacking(err: io::Error, within: &str) -> ArchiveError {
    match err.kind() {
        io::ErrorKind::UnexpectedEof => ArchiveError::Short(within.to_owned()),
        _ => ArchiveError::Unpack(err),
    }
}

/// The kind and name that a header claims, for a message.
fn described(block: &[u8; BLOCK]) -> String {
    if block.iter().all(|byte| *byte == 0) {
        return "its end".to_owned();
    }
    let header = tar::Header::from_byte_slice(block);
    let name: String = header.path_bytes().iter().map(|byte| char::from(*byte)).take(100).collect();
    let kind = match header.entry_type() {
        tar::EntryType::Regular => "another header of the file",
        tar::EntryType::Directory => "the folder",
        tar::EntryType::Symlink | tar::EntryType::Link => "the link",
        tar::EntryType::Char | tar::EntryType::Block | tar::EntryType::Fifo => "the device",
        _ => "an entry of a kind that no bundle has,",
    };
    format!("{kind} {name:?}")
}

/// The one header of an entry.
fn header(entry: &Entry) -> io::Result<[u8; BLOCK]> {
    let mut header = tar::Header::new_ustar();
    header.set_path(&entry.name)?;
    header.set_size(entry.size);
    header.set_mode(entry.bits());
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    Ok(*header.as_bytes())
}

fn padding(size: u64) -> usize {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or_default();
    (BLOCK - over) % BLOCK
}

/// Writes the archive of `entries`, each with where its content comes from.
///
/// Errors: a file has changed since it was summed, or cannot be read; the archive cannot be written.
pub(super) fn pack<'a>(
    entries: impl Iterator<Item = (&'a Entry, Box<dyn Read + 'a>)>,
    to: &mut dyn Write,
    level: i32,
    step: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut packed = zstd::Encoder::new(to, level)?;
    packed.include_checksum(true)?;
    for (entry, mut content) in entries {
        packed.write_all(&header(entry)?)?;
        let (size, sum) = copy_summed(&mut content, &mut packed, step)?;
        if (size, &sum) != (entry.size, &entry.sha256) {
            return Err(io::Error::other(format!("{} was changed while it was read", entry.name)));
        }
        packed.write_all(&vec![0; padding(size)])?;
    }
    packed.write_all(&[0; END])?;
    packed.finish()?.flush()
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
