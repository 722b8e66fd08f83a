//! Archives of the enemy: each is refused, and none makes the reader hold or write more than its manifest lists.

use super::super::manifest::{Arch, Blob, FORMAT, Origin};
use super::super::trailer::sum_of;
use super::*;

fn entry(name: &str, content: &[u8]) -> Entry {
    Entry {
        name: name.to_owned(),
        size: content.len() as u64,
        sha256: sum_of(&[content]),
        mode: "0755".to_owned(),
        origin: Origin::File,
        module: None,
        interpreter: None,
    }
}

fn manifest(files: Vec<Entry>) -> Manifest {
    let blob = || Blob { size: 0, sha256: String::new() };
    Manifest {
        format: FORMAT,
        version: "1.0.0".to_owned(),
        arch: Arch::Amd64,
        program: blob(),
        archive: blob(),
        files,
        images: Vec::new(),
        notes: Vec::new(),
    }
}

fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<Entry> = files.iter().map(|(name, content)| entry(name, content)).collect();
    let contents = entries.iter().zip(files).map(|(entry, (_, content))| (entry, Box::new(*content) as Box<dyn Read>));
    let mut bytes = Vec::new();
    pack(contents, &mut bytes, 3, &mut |_| {}).unwrap();
    bytes
}

fn tar_of(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    zstd::encode_all(builder.into_inner().unwrap().as_slice(), 3).unwrap()
}

fn read(bytes: &[u8], files: Vec<Entry>) -> Result<(), ArchiveError> {
    unpack(bytes, &manifest(files), &mut Nowhere, &mut |_| {})
}

fn sample() -> Vec<Entry> {
    vec![entry("bin/a", b"one"), entry("bin/b", &[7; 5000])]
}

#[test]
fn an_archive_is_read_as_it_was_packed_and_packed_alike() {
    let files: &[(&str, &[u8])] = &[("bin/a", b"one"), ("bin/b", &[7; 5000])];
    let bytes = packed(files);
    read(&bytes, sample()).unwrap();
    assert_eq!(bytes, packed(files));
    // Any tar reads it.
    let plain = zstd::decode_all(bytes.as_slice()).unwrap();
    let names: Vec<String> = tar::Archive::new(plain.as_slice())
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names, ["bin/a", "bin/b"]);
}

#[test]
fn a_list_that_is_longer_or_shorter_than_the_archive_is_refused() {
    let bytes = packed(&[("bin/a", b"one"), ("bin/b", &[7; 5000])]);
    assert!(matches!(read(&bytes, sample()[..1].to_vec()), Err(ArchiveError::More)));
    let longer = [sample(), vec![entry("bin/c", b"")]].concat();
    assert!(matches!(read(&bytes, longer), Err(ArchiveError::Other { found, .. }) if found == "its end"));
    let twice = zstd::decode_all(bytes.as_slice()).unwrap();
    let twice = zstd::encode_all([twice.clone(), twice].concat().as_slice(), 3).unwrap();
    assert!(matches!(read(&twice, sample()), Err(ArchiveError::More)));
    assert!(matches!(read(&[bytes.clone(), bytes].concat(), sample()), Err(ArchiveError::More)));
}

#[test]
fn entries_that_are_no_plain_files_are_refused_by_what_they_are() {
    use tar::EntryType::{Block, Char, Directory, Fifo, GNULongName, Link, Symlink, XHeader};
    for kind in [Block, Char, Directory, Fifo, GNULongName, Link, Symlink, XHeader] {
        let bytes = tar_of(|tar| {
            let mut header = tar::Header::new_ustar();
            header.set_path("bin/a").unwrap();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(3);
            header.set_cksum();
            tar.append(&header, &b"one"[..]).unwrap();
        });
        assert!(matches!(read(&bytes, sample()), Err(ArchiveError::Other { .. })), "{kind:?}");
    }
    let setuid = tar_of(|tar| {
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        header.set_mode(0o4755);
        tar.append_data(&mut header, "bin/a", &b"one"[..]).unwrap();
    });
    assert!(matches!(read(&setuid, sample()), Err(ArchiveError::Other { .. })));
    // A name of 4 kB, and one that leads out.
    for name in ["a".repeat(4096), "bin/../../etc/passwd".to_owned(), "/etc/passwd".to_owned()] {
        let bytes = tar_of(|tar| {
            let mut header = tar::Header::new_gnu();
            header.set_size(3);
            header.set_mode(0o755);
            let bytes = name.as_bytes();
            let n = bytes.len().min(100);
            header.as_mut_bytes()[..n].copy_from_slice(&bytes[..n]);
            header.set_cksum();
            tar.append(&header, &b"one"[..]).unwrap();
        });
        assert!(matches!(read(&bytes, sample()), Err(ArchiveError::Other { .. })), "{name}");
    }
}

/// Counts what is written.
struct Counted(u64);

impl Sink for Counted {
    fn open(&mut self, entry: &Entry) -> io::Result<Box<dyn Write>> {
        self.0 += entry.size;
        Ok(Box::new(io::sink()))
    }

    fn done(&mut self, _entry: &Entry) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_swells_is_read_up_to_the_bounds_of_its_manifest() {
    // 1 GiB of zeros in some kilobytes.
    let mut bomb = zstd::Encoder::new(Vec::new(), 3).unwrap();
    bomb.write_all(&header(&entry("bin/a", b"one")).unwrap()).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..1024 {
        bomb.write_all(&zeros).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let (mut sink, mut read) = (Counted(0), 0);
    let refused = unpack(bomb.as_slice(), &manifest(sample()), &mut sink, &mut |n| read += n);
    assert!(matches!(refused, Err(ArchiveError::Content(name)) if name == "bin/a"));
    assert_eq!((sink.0, read), (3, 3));
    // A window of 2 GiB is not made for anybody.
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(27).unwrap();
    wide.write_all(&vec![1; 20 << 20]).unwrap();
    assert!(matches!(super::tests::read(&wide.finish().unwrap(), sample()), Err(ArchiveError::Unpack(_))));
}

#[test]
fn an_archive_that_was_cut_or_changed_anywhere_is_refused() {
    let bytes = packed(&[("bin/a", b"one"), ("bin/b", &[7; 5000])]);
    for n in 0..bytes.len() {
        assert!(read(&bytes[..n], sample()).is_err(), "cut at {n}");
        let mut other = bytes.clone();
        other[n] ^= 0x10;
        // A bit that means nothing to zstd is found by the sum of the whole archive.
        if read(&other, sample()).is_ok() {
            assert_eq!(zstd::decode_all(other.as_slice()).unwrap(), zstd::decode_all(bytes.as_slice()).unwrap());
        }
    }
    let plain = zstd::decode_all(bytes.as_slice()).unwrap();
    for at in (0..plain.len()).step_by(37).chain(0..600) {
        let mut other = plain.clone();
        other[at] ^= 1;
        assert!(read(&zstd::encode_all(other.as_slice(), 1).unwrap(), sample()).is_err(), "byte {at}");
    }
    for n in (0..plain.len()).step_by(BLOCK) {
        assert!(read(&zstd::encode_all(&plain[..n], 1).unwrap(), sample()).is_err(), "cut at {n}");
    }
}

/// A disk that is full.
struct Full;

impl Write for Full {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(28))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Full {
    fn open(&mut self, _entry: &Entry) -> io::Result<Box<dyn Write>> {
        Ok(Box::new(Full))
    }

    fn done(&mut self, _entry: &Entry) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_from_a_bad_archive() {
    let bytes = packed(&[("bin/a", b"one"), ("bin/b", &[7; 5000])]);
    let refused = unpack(bytes.as_slice(), &manifest(sample()), &mut Full, &mut |_| {}).unwrap_err();
    let ArchiveError::Write { name, source } = refused else { panic!("{refused}") };
    assert_eq!((name.as_str(), source.raw_os_error()), ("bin/a", Some(28)));
}

#[test]
fn a_file_that_changes_while_it_is_packed_is_refused() {
    let entries = [entry("bin/a", b"one")];
    let contents = entries.iter().map(|entry| (entry, Box::new(&b"two"[..]) as Box<dyn Read>));
    assert!(pack(contents, &mut Vec::new(), 3, &mut |_| {}).unwrap_err().to_string().contains("was changed"));
}
