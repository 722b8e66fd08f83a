//! Bundles that were unpacked on this machine: `DATA/bundle/SUM/{bin,images}`, and which of them is in force.
//!
//! `current` is a link to the one in force and `previous` to the one before. A link is replaced in one step, and only
//! when all of the new bundle is on the disk: a power cut leaves the old one or the new one in force.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::confined::{Dir, Meta};
use base::layout::Layout;
use rustix::fs::{FlockOperation, RenameFlags};
use rustix::io::Errno;

use super::error::BundleError;
use super::manifest::{BIN, KEDGE, MANIFEST_BYTES_MAX, Manifest};
use super::trailer::{copy_summed, sum_of};

/// The manifest of an unpacked bundle.
pub(super) const MANIFEST: &str = "manifest.json";
/// The signature of that manifest.
pub(super) const SIGNATURE: &str = "manifest.json.minisig";
/// The links of the folder.
#[derive(Clone, Copy, Debug)]
enum Link {
    Current,
    Previous,
}

impl Link {
    fn name(self) -> &'static str {
        match self {
            Link::Current => "current",
            Link::Previous => "previous",
        }
    }
}

/// How folders begin that are not whole.
const UNFINISHED: &str = ".new-";
/// Entries of the folder.
const ENTRIES_MAX: usize = 10_000;

/// The folder of bundles, held against other commands.
pub(super) struct Bundles {
    pub(super) dir: Dir,
}

/// One of them.
pub(super) struct Listed {
    pub(super) digest: String,
    pub(super) manifest: Manifest,
    pub(super) signed: bool,
}

impl Bundles {
    /// Opens the folder; `None` if nothing was ever applied.
    ///
    /// Errors: somebody else owns it or can write in it, or another command works there.
    pub(super) fn open(layout: &Layout) -> Result<Option<Bundles>, BundleError> {
        let path = layout.bundle();
        match fs::symlink_metadata(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(BundleError::read(&path)(err)),
            Ok(_) => Bundles::lock(layout).map(Some),
        }
    }

    /// Opens the folder and makes it where it is missing.
    pub(super) fn open_or_make(layout: &Layout) -> Result<Bundles, BundleError> {
        let data_dir = layout.data_dir();
        let made = base::files::create_private_dir(data_dir).and_then(|()| layout.mark());
        made.map_err(|err| BundleError::Write { path: data_dir.to_owned(), source: err.source })?;
        let path = layout.bundle();
        match Dir::open(data_dir).and_then(|dir| dir.make_new_dir(Path::new(base::layout::BUNDLE), 0o755)) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(BundleError::write(&path)(err)),
            _ => {}
        }
        Bundles::lock(layout)
    }

    fn lock(layout: &Layout) -> Result<Bundles, BundleError> {
        let path = layout.bundle();
        let data_dir = Dir::open(layout.data_dir()).map_err(BundleError::read(layout.data_dir()))?;
        owned(&data_dir)?;
        // No link leads elsewhere.
        let dir = data_dir.dir(Path::new(base::layout::BUNDLE)).map_err(BundleError::read(&path))?;
        owned(&dir)?;
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Bundles { dir }),
            Err(Errno::WOULDBLOCK) => Err(BundleError::Busy { folder: path }),
            Err(err) => Err(BundleError::read(&path)(err.into())),
        }
    }

    /// The bundle in force.
    pub(super) fn current(&self) -> Option<String> {
        self.link(Link::Current)
    }

    /// The one before.
    pub(super) fn previous(&self) -> Option<String> {
        self.link(Link::Previous)
    }

    fn link(&self, link: Link) -> Option<String> {
        let target = self.dir.read_link(Path::new(link.name())).ok()?;
        target.to_str().filter(|target| is_digest(target)).map(str::to_owned)
    }

    /// Puts a bundle that is whole in force. The one before stays, to go back to.
    pub(super) fn switch(&self, to: &str) -> io::Result<()> {
        if let Some(before) = self.current().filter(|before| before != to) {
            self.point(Link::Previous, &before)?;
        }
        self.point(Link::Current, to)
    }

    fn point(&self, link: Link, to: &str) -> io::Result<()> {
        let name = link.name();
        let unfinished = PathBuf::from(format!("{UNFINISHED}{name}"));
        self.dir.remove_file(&unfinished)?;
        self.dir.symlink(Path::new(to), &unfinished)?;
        self.dir.rename(&unfinished, Path::new(name))?;
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// Puts a finished folder under its name; one that is damaged makes room in the same step.
    pub(super) fn finish(&self, unfinished: &Path, digest: &str) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.dir, unfinished, &self.dir, digest, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {
                rustix::fs::renameat_with(&self.dir, unfinished, &self.dir, digest, RenameFlags::EXCHANGE)?;
                // What was under the name is removed with all that is unfinished.
            }
            renamed => renamed?,
        }
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// A new folder for what is not whole yet.
    pub(super) fn unfinished(&self) -> io::Result<(PathBuf, Dir)> {
        let name = PathBuf::from(format!("{UNFINISHED}{}", std::process::id()));
        let dir = self.dir.make_new_dir(&name, 0o755)?;
        Ok((name, dir))
    }

    /// Removes what commands that died have left, and bundles that are neither in force nor the one before. One whose
    /// programs still run stays: a shim lives as long as its pod. Answers with what stays and what went.
    pub(super) fn sweep(&self) -> io::Result<(Vec<String>, Vec<String>)> {
        let kept: BTreeSet<String> = [self.current(), self.previous()].into_iter().flatten().collect();
        let running = running();
        let (mut stay, mut went) = (Vec::new(), Vec::new());
        for (name, _) in self.dir.entries(ENTRIES_MAX)? {
            let Some(text) = name.to_str() else { continue };
            let is_old = is_digest(text) && !kept.contains(text);
            if is_old && self.runs(text, &running) {
                stay.push(text.to_owned());
            } else if is_old || text.starts_with(UNFINISHED) {
                self.dir.remove_tree(&name).as_error()?;
                went.extend(is_old.then(|| text.to_owned()));
            }
        }
        Ok((stay, went))
    }

    /// Whether a program of a bundle runs.
    pub(super) fn runs(&self, digest: &str, running: &BTreeSet<(u64, u64)>) -> bool {
        let Ok(bin) = self.dir.dir(&Path::new(digest).join(BIN)) else { return false };
        let names = bin.entries(ENTRIES_MAX).unwrap_or_default();
        names
            .iter()
            .filter_map(|(name, _)| bin.meta(Path::new(name)).ok())
            .any(|meta| running.contains(&(meta.dev, meta.ino)))
    }

    /// Every bundle that is unpacked; damaged ones with the reason are left to [`Bundles::intact`].
    pub(super) fn all(&self) -> Result<Vec<Listed>, BundleError> {
        let names = self.dir.entries(ENTRIES_MAX).map_err(BundleError::read(self.dir.path()))?;
        let names = names.into_iter().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_digest(name));
        names.map(|digest| self.listed(&digest)).collect()
    }

    pub(super) fn listed(&self, digest: &str) -> Result<Listed, BundleError> {
        let text = self.manifest_of(digest)?;
        let damaged = || self.damaged(digest, Path::new(MANIFEST));
        let manifest = Manifest::parse(&text).map_err(|_| damaged())?;
        let signed = self.dir.meta(&Path::new(digest).join(SIGNATURE)).is_ok_and(|meta| meta.size > 0);
        Ok(Listed { digest: digest.to_owned(), manifest, signed })
    }

    fn manifest_of(&self, digest: &str) -> Result<Vec<u8>, BundleError> {
        let most = usize::try_from(MANIFEST_BYTES_MAX).unwrap_or(usize::MAX);
        let read = self.dir.read(&Path::new(digest).join(MANIFEST), most);
        let text = read.map_err(|_| self.damaged(digest, Path::new(MANIFEST)))?;
        // Its name is its sum.
        if sum_of(&[&text]) == digest { Ok(text) } else { Err(self.damaged(digest, Path::new(MANIFEST))) }
    }

    fn damaged(&self, digest: &str, file: &Path) -> BundleError {
        BundleError::Damaged {
            digest: digest.to_owned(),
            folder: self.dir.path().to_owned(),
            name: file.display().to_string(),
        }
    }

    /// Reads all of an unpacked bundle.
    ///
    /// Errors: [`BundleError::Damaged`] if a file of it is not what its manifest says.
    pub(super) fn intact(&self, digest: &str) -> Result<Manifest, BundleError> {
        let manifest = self.listed(digest)?.manifest;
        let dir = self.dir.dir(Path::new(digest)).map_err(|_| self.damaged(digest, Path::new("")))?;
        let head = (format!("{BIN}/{KEDGE}"), 0o755, &manifest.program.size, &manifest.program.sha256);
        let files = manifest.files.iter().map(|file| (file.name.clone(), file.bits(), &file.size, &file.sha256));
        for (name, mode, size, sha256) in files.chain([head]) {
            let found = || -> io::Result<bool> {
                let mut file = dir.open_file(Path::new(&name))?;
                let is_wrong = Meta::of_fd(file.as_fd())?.mode != mode;
                let (has, sum) = copy_summed(&mut file, &mut io::sink(), &mut |_| {})?;
                Ok(!is_wrong && (has, &sum) == (*size, sha256))
            };
            if !found().unwrap_or(false) {
                return Err(self.damaged(digest, Path::new(&name)));
            }
        }
        Ok(manifest)
    }
}

/// Refuses a folder that others own or can write in: they would choose what root runs.
fn owned(dir: &Dir) -> Result<(), BundleError> {
    let meta = Meta::of_fd(dir).map_err(BundleError::read(dir.path()))?;
    let own = rustix::process::geteuid().as_raw();
    if (meta.uid != own && meta.uid != 0) || meta.mode & 0o022 != 0 {
        return Err(BundleError::Owner { folder: dir.path().to_owned(), owner: meta.uid });
    }
    Ok(())
}

/// The files that processes of this machine execute.
pub(super) fn running() -> BTreeSet<(u64, u64)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let programs = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    programs
        .filter_map(|entry| fs::metadata(entry.path().join("exe")).ok())
        .map(|meta| (meta.dev(), meta.ino()))
        .collect()
}

/// Whether a name is that of a bundle: the sum of its manifest.
fn is_digest(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
