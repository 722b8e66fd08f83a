//! For tests: a disk that fails where a seed says, and loses its power.
//!
//! The files in the folder are what the kernel's page cache would show; beside them stands, per file, what the platter
//! holds and what is on its way. A sync brings it there; one that fails drops it and says so once, as Linux does; a
//! power cut keeps, loses or tears it sector by sector, and a truncation is done or not. Names are as loose: what was
//! created, renamed or removed in a folder is so for certain after a sync of that folder, and a power cut keeps a
//! beginning of such changes or any of them. SQLite comes by way of the VFS in `vfs`, the log by [`Disk`].

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rng::Rng;
use base::sync::{Mutex, MutexGuard};

use crate::disk::{Disk, LogFile, SystemDisk};

mod vfs;

const SECTOR: usize = 512;

/// Fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// A sync fails once, and what was to be synced is lost in part; the next one succeeds.
    SyncFails,
    /// A write fails, having written some of it.
    WriteFails,
    /// A read fails.
    ReadFails,
    /// There is no space for so many writes.
    Full(u64),
    /// From here on syncs say that they are done and are not.
    SyncsLie,
    /// The power goes: whatever is done from here on does not happen.
    PowerCut,
    /// A bit turns while the machine is off; the test does that.
    BitRots,
}

/// Change of a file that is not on the platter.
#[derive(Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Debug, Default)]
struct Image {
    /// Bytes on the platter.
    platter: Vec<u8>,
    /// Changes since, in their order.
    pending: Vec<Pending>,
}

/// Change of a name that is not on the platter.
#[derive(Clone, Debug)]
enum Naming {
    /// A file was created.
    Made(PathBuf, usize),
    Renamed(PathBuf, PathBuf, usize),
    Removed(PathBuf),
    /// A folder was made.
    Folder(PathBuf),
}

impl Naming {
    /// The folder whose sync brings it to the platter.
    fn folder(&self) -> Option<&Path> {
        let (Naming::Made(path, _) | Naming::Renamed(path, _, _) | Naming::Removed(path) | Naming::Folder(path)) = self;
        path.parent()
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Naming::Made(path, file) => drop(names.insert(path.clone(), *file)),
            Naming::Renamed(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Naming::Removed(path) => drop(names.remove(path)),
            Naming::Folder(_) => {}
        }
    }
}

#[derive(Debug)]
struct State {
    rng: Rng,
    fault: Fault,
    /// Steps until the fault.
    left: u64,
    full_for: u64,
    /// Whether the fault happened.
    hit: bool,
    is_dead: bool,
    lies: bool,
    files: Vec<Image>,
    names: BTreeMap<PathBuf, usize>,
    /// The names on the platter, and what was done since, in its order.
    durable: BTreeMap<PathBuf, usize>,
    naming: Vec<Naming>,
    free_bytes: u64,
}

/// The disk.
#[derive(Debug)]
pub(crate) struct FaultyDisk {
    takes_direct: bool,
    vfs: String,
    state: Mutex<State>,
}

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write,
    Sync,
    Read,
    Name,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn enospc() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

impl FaultyDisk {
    /// A disk on which `fault` happens at step `at`. What is in `dir` is on the platter.
    pub(crate) fn new(dir: &Path, seed: u64, fault: Fault, at: u64) -> Arc<FaultyDisk> {
        let rng = Rng::from_seed(seed);
        let takes_direct = rng.below(2) == 0;
        let state = State {
            rng,
            fault,
            left: at,
            full_for: 0,
            hit: false,
            is_dead: false,
            lies: false,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            naming: Vec::new(),
            free_bytes: u64::MAX,
        };
        let mut disk = FaultyDisk { takes_direct, vfs: String::new(), state: Mutex::new(state) };
        disk.state().adopt(dir);
        disk.vfs = vfs::name();
        let disk = Arc::new(disk);
        vfs::register(&disk);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the fault has happened.
    pub(crate) fn was_hit(&self) -> bool {
        self.state().hit
    }

    /// The power goes now: nothing that is done later happens.
    pub(crate) fn cut(&self) {
        self.state().is_dead = true;
    }

    /// From now on there is no space for anything, or there is again.
    pub(crate) fn fill(&self, is_full: bool) {
        self.state().full_for = if is_full { u64::MAX } else { 0 };
    }

    /// Says from now on that so much is free.
    pub(crate) fn leave_free(&self, bytes: u64) {
        self.state().free_bytes = bytes;
    }

    /// Whether the power is gone.
    pub(crate) fn is_cut(&self) -> bool {
        self.state().is_dead
    }

    /// Puts the files into `dir` as they are after the power came back. The store must not be open.
    pub(crate) fn lose_power(&self, dir: &Path) {
        let mut state = self.state();
        state.is_dead = true;
        let names = state.names_after_the_cut();
        let _old = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).unwrap();
        for (path, file) in names {
            let pending = std::mem::take(&mut state.files[file].pending);
            for pending in pending {
                state.tear(file, pending);
            }
            if path.extension().is_none_or(|end| end != "db-shm") {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &state.files[file].platter).unwrap();
            }
        }
        // SQLite keeps the VFS, and so this disk, for as long as the process lives.
        (state.files, state.names, state.durable, state.naming) =
            (Vec::new(), BTreeMap::new(), BTreeMap::new(), Vec::new());
    }

    /// Asks whether a step takes place; counts it.
    fn step(&self, step: Step) -> Result<(), Fault> {
        let mut state = self.state();
        if state.is_dead {
            return Err(Fault::PowerCut);
        }
        if state.full_for > 0 && matches!(step, Step::Write) {
            state.full_for -= 1;
            return Err(Fault::Full(0));
        }
        let fits = match state.fault {
            Fault::None | Fault::BitRots => false,
            Fault::SyncFails => step == Step::Sync,
            Fault::WriteFails | Fault::Full(_) => step == Step::Write,
            Fault::ReadFails => step == Step::Read,
            Fault::SyncsLie | Fault::PowerCut => true,
        };
        if state.hit || !fits {
            return Ok(());
        }
        if state.left > 0 {
            state.left -= 1;
            return Ok(());
        }
        state.hit = true;
        match state.fault {
            Fault::SyncsLie => {
                state.lies = true;
                return Ok(());
            }
            Fault::Full(n) => state.full_for = n,
            Fault::PowerCut => state.is_dead = true,
            _ => {}
        }
        Err(state.fault)
    }

    /// A write to a file, through the page cache.
    fn note_write(&self, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
        let was_dead = self.state().is_dead;
        let refused = self.step(Step::Write).err();
        let mut state = self.state();
        let file = state.file(path);
        let at = usize::try_from(at).unwrap();
        match refused {
            None => state.files[file].pending.push(Pending::Write(at, bytes.to_vec())),
            Some(Fault::Full(_)) => return Err(enospc()),
            Some(_) if was_dead => return Err(eio()),
            Some(Fault::PowerCut) => {
                // What is on its way when the power goes may arrive.
                state.files[file].pending.push(Pending::Write(at, bytes.to_vec()));
                return Err(eio());
            }
            Some(_) => {
                let n = usize::try_from(state.rng.below(bytes.len() as u64)).unwrap();
                state.files[file].pending.push(Pending::Write(at, bytes[..n].to_vec()));
                return Err(eio());
            }
        }
        Ok(())
    }

    fn note_sync(&self, path: &Path) -> io::Result<()> {
        let refused = self.step(Step::Sync).err();
        let mut state = self.state();
        let file = state.file(path);
        match refused {
            None if state.lies => Ok(()),
            None => {
                state.settle(file);
                // SQLite syncs the folder with the first sync of a journal that it made, and with nothing else.
                let name = path.to_string_lossy();
                if (name.ends_with("-wal") || name.ends_with("-journal")) && !state.durable.contains_key(path) {
                    state.settle_names(path.parent().unwrap());
                }
                Ok(())
            }
            Some(Fault::SyncFails) => {
                // Linux: each page is written or not, all of them are clean now, and the next sync has nothing to do.
                let pending = std::mem::take(&mut state.files[file].pending);
                for pending in pending {
                    if state.rng.below(2) == 0 {
                        state.tear(file, pending);
                    }
                }
                Err(eio())
            }
            Some(_) => Err(eio()),
        }
    }

    fn note_truncate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.step(Step::Name).map_err(|_| eio())?;
        let mut state = self.state();
        let file = state.file(path);
        state.files[file].pending.push(Pending::Truncate(usize::try_from(bytes).unwrap()));
        Ok(())
    }

    fn note_remove(&self, path: &Path) -> io::Result<()> {
        self.step(Step::Name).map_err(|_| eio())?;
        self.state().rename(Naming::Removed(path.to_owned()));
        Ok(())
    }

    fn note_sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step(Step::Sync).map_err(|_| eio())?;
        let mut state = self.state();
        if !state.lies {
            state.settle_names(dir);
        }
        Ok(())
    }

    fn note_read(&self) -> io::Result<()> {
        self.step(Step::Read).map_err(|_| eio())
    }
}

impl State {
    fn adopt(&mut self, dir: &Path) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.adopt(&path);
            } else {
                self.files.push(Image { platter: fs::read(&path).unwrap(), pending: Vec::new() });
                self.names.insert(path.clone(), self.files.len() - 1);
                self.durable.insert(path, self.files.len() - 1);
            }
        }
    }

    fn file(&mut self, path: &Path) -> usize {
        if let Some(file) = self.names.get(path) {
            return *file;
        }
        self.files.push(Image::default());
        let file = self.files.len() - 1;
        self.rename(Naming::Made(path.to_owned(), file));
        file
    }

    fn rename(&mut self, what: Naming) {
        what.apply(&mut self.names);
        self.naming.push(what);
    }

    /// The names in a folder are on the platter.
    fn settle_names(&mut self, dir: &Path) {
        let (settled, left): (Vec<_>, _) =
            std::mem::take(&mut self.naming).into_iter().partition(|what| what.folder() == Some(dir));
        self.naming = left;
        settled.iter().for_each(|what| what.apply(&mut self.durable));
    }

    /// A journal of the file system keeps a beginning of what was done to names; one without keeps any of it.
    fn names_after_the_cut(&mut self) -> BTreeMap<PathBuf, usize> {
        let (mut names, naming) = (self.durable.clone(), std::mem::take(&mut self.naming));
        let n_kept = (self.rng.below(2) == 0).then(|| self.rng.below(naming.len() as u64 + 1));
        let mut lost: Vec<&Path> = Vec::new();
        for (what, n) in naming.iter().zip(0..) {
            let is_kept = n_kept.map_or_else(|| self.rng.below(2) == 0, |n_kept| n < n_kept);
            match what {
                _ if is_kept => what.apply(&mut names),
                Naming::Folder(dir) => lost.push(dir),
                _ => {}
            }
        }
        // Without its folder a name is nowhere, synced or not.
        names.retain(|path, _| !lost.iter().any(|dir| path.starts_with(dir)));
        names
    }

    fn settle(&mut self, file: usize) {
        let image = &mut self.files[file];
        for pending in std::mem::take(&mut image.pending) {
            match pending {
                Pending::Write(at, bytes) => put(&mut image.platter, at, &bytes),
                Pending::Truncate(bytes) => image.platter.resize(bytes, 0),
            }
        }
    }

    /// Some sectors of a write arrive, some do not, some are garbage. A truncation is done or not.
    fn tear(&mut self, file: usize, pending: Pending) {
        let (at, bytes) = match pending {
            Pending::Write(at, bytes) => (at, bytes),
            Pending::Truncate(bytes) if self.rng.below(2) == 0 => return self.files[file].platter.resize(bytes, 0),
            Pending::Truncate(_) => return,
        };
        let mut from = 0;
        while from < bytes.len() {
            let to = bytes.len().min((at + from) / SECTOR * SECTOR + SECTOR - at);
            match self.rng.below(4) {
                0 => {}
                1 => {
                    let mut garbage = vec![0; to - from];
                    self.rng.fill(&mut garbage);
                    put(&mut self.files[file].platter, at + from, &garbage);
                }
                _ => put(&mut self.files[file].platter, at + from, &bytes[from..to]),
            }
            from = to;
        }
    }
}

fn put(platter: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if platter.len() < at + bytes.len() {
        platter.resize(at + bytes.len(), 0);
    }
    platter[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Disk for FaultyDisk {
    fn vfs(&self) -> Option<&str> {
        Some(&self.vfs)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.note_read()?;
        SystemDisk.read(path)
    }

    fn read_at(&self, path: &Path, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.note_read()?;
        SystemDisk.read_at(path, bytes, at)
    }

    fn make(&self, path: &Path, bytes: usize) -> io::Result<()> {
        if fs::exists(path)? {
            self.note_truncate(path, 0)?;
        }
        self.note_write(path, &vec![0; bytes], 0)?;
        fs::write(path, vec![0; bytes])?;
        self.note_sync(path)
    }

    fn open(&self, path: &Path, is_direct: bool) -> io::Result<LogFile> {
        if is_direct && !self.takes_direct {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(LogFile { path: path.to_owned(), file, is_direct })
    }

    fn write(&self, file: &LogFile, bytes: &[u8], at: u64) -> io::Result<()> {
        self.note_write(&file.path, bytes, at)?;
        file.file.write_all_at(bytes, at)?;
        if file.is_direct { self.note_sync(&file.path) } else { Ok(()) }
    }

    fn sync(&self, file: &LogFile) -> io::Result<()> {
        self.note_sync(&file.path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(Step::Name).map_err(|_| eio())?;
        fs::rename(from, to)?;
        let mut state = self.state();
        let file = state.file(from);
        state.rename(Naming::Renamed(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::metadata(path)?;
        self.note_remove(path)?;
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.note_sync_dir(dir)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.note_read()?;
        SystemDisk.len(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.note_read()?;
        SystemDisk.list(dir)
    }

    fn make_dir(&self, dir: &Path) -> io::Result<bool> {
        self.step(Step::Name).map_err(|_| eio())?;
        let is_new = SystemDisk.make_dir(dir)?;
        if is_new {
            self.state().rename(Naming::Folder(dir.to_owned()));
        }
        Ok(is_new)
    }

    fn settle(&self, path: &Path) -> io::Result<()> {
        if !path.exists() {
            return Ok(());
        }
        self.note_sync(path)?;
        let mut state = self.state();
        let file = state.file(path);
        // The page cache is read from the platter again.
        let cached = OpenOptions::new().write(true).open(path)?;
        cached.set_len(state.files[file].platter.len() as u64)?;
        cached.write_all_at(&state.files[file].platter, 0)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.state().free_bytes)
    }
}
