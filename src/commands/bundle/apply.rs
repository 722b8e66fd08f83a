//! Putting a bundle in force.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use base::confined::Dir;
use base::layout::Layout;

use super::applied::{Bundles, MANIFEST, SIGNATURE};
use super::archive::{ArchiveError, Sink};
use super::error::BundleError;
use super::manifest::{Arch, BIN, Entry, FOLDERS, IMAGES, KEDGE, Manifest, numbers};
use super::opened::Opened;
use super::trailer::copy_summed;

/// Beginning of the names under which the node finds a bundle's images in its folder of images.
const LINK: &str = "bundle-";
/// Room that is left on the disk.
const SPARE_BYTES: u64 = 64 * 1024 * 1024;
const MIB: u64 = 1024 * 1024;

/// The outcome of an application.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// It was in force already.
    pub(super) was_there: bool,
    /// There was none before.
    pub(super) is_first: bool,
    /// Version of the one before, if that is newer.
    pub(super) newer_before: Option<String>,
    /// Older ones whose programs still run.
    pub(super) still_run: Vec<String>,
    /// Older ones that were removed.
    pub(super) removed: Vec<String>,
}

/// Puts a bundle, of which everything was checked, in force.
///
/// Errors: it is not for this machine, there is no room, the folder is somebody else's. What was in force stays so.
pub(super) fn apply(bundle: &Opened, layout: &Layout, step: &mut dyn FnMut(u64)) -> Result<Done, BundleError> {
    fits(bundle)?;
    let bundles = Bundles::open_or_make(layout)?;
    let digest = bundle.digest();
    let before = bundles.current();
    let written = || BundleError::write(bundles.dir.path());
    let mut done = Done { is_first: before.is_none(), ..Done::default() };
    if let Some(manifest) = before.as_ref().and_then(|before| bundles.listed(before).ok()).map(|listed| listed.manifest)
    {
        let is_newer = numbers(&manifest.version) > numbers(&bundle.manifest.version);
        done.newer_before = is_newer.then_some(manifest.version);
    }
    match bundles.intact(&digest) {
        Ok(_) => done.was_there = before.as_deref() == Some(&digest),
        Err(_) => {
            bundles.sweep().map_err(written())?;
            has_room(bundle, bundles.dir.path())?;
            unpack(bundle, &bundles, step)?;
        }
    }
    if !done.was_there {
        bundles.switch(&digest).map_err(written())?;
    }
    link_images(layout, &digest, &bundle.manifest)?;
    (done.still_run, done.removed) = bundles.sweep().map_err(written())?;
    Ok(done)
}

/// Puts the bundle before in force again. Answers with its manifest.
pub(super) fn rollback(layout: &Layout) -> Result<Manifest, BundleError> {
    let none = || BundleError::NoPrevious { folder: layout.bundle() };
    let bundles = Bundles::open(layout)?.ok_or_else(none)?;
    let previous = bundles.previous().filter(|previous| bundles.current().as_ref() != Some(previous));
    let previous = previous.ok_or_else(none)?;
    let manifest = bundles.intact(&previous)?;
    bundles.switch(&previous).map_err(BundleError::write(bundles.dir.path()))?;
    link_images(layout, &previous, &manifest)?;
    Ok(manifest)
}

/// Whether this machine can run what is in it.
fn fits(bundle: &Opened) -> Result<(), BundleError> {
    if Arch::own() != Some(bundle.manifest.arch) {
        let path = bundle.path().to_owned();
        let ours = Arch::own().map_or(std::env::consts::ARCH, Arch::name);
        return Err(BundleError::Arch { path, theirs: bundle.manifest.arch, ours });
    }
    for file in &bundle.manifest.files {
        if let Some(interpreter) = file.interpreter.as_ref().filter(|path| !Path::new(path).exists()) {
            let (path, interpreter) = (bundle.path().to_owned(), interpreter.clone());
            return Err(BundleError::Interpreter { path, program: file.name.clone(), interpreter });
        }
    }
    Ok(())
}

fn has_room(bundle: &Opened, folder: &Path) -> Result<(), BundleError> {
    let needs = bundle.manifest.total().unwrap_or(u64::MAX).saturating_add(SPARE_BYTES);
    let disk = rustix::fs::statvfs(folder).map_err(|err| BundleError::read(folder)(err.into()))?;
    let has = disk.f_bavail.saturating_mul(disk.f_frsize);
    if has >= needs {
        return Ok(());
    }
    let (path, folder) = (bundle.path().to_owned(), folder.to_owned());
    Err(BundleError::NoRoom { path, folder, needs: needs.div_ceil(MIB), has: has / MIB })
}

/// Unpacks into a folder without a name, and gives it its name when all of it is on the disk.
fn unpack(bundle: &Opened, bundles: &Bundles, step: &mut dyn FnMut(u64)) -> Result<(), BundleError> {
    let written = || BundleError::write(bundles.dir.path());
    let (name, dir) = bundles.unfinished().map_err(written())?;
    let filled = fill(bundle, &dir, step).and_then(|()| bundles.finish(&name, &bundle.digest()).map_err(written()));
    // What is left under that name is not whole: a damaged one that made room, or all of a failure.
    let removed = bundles.dir.remove_tree(name.as_os_str()).as_error();
    filled.and_then(|()| removed.map_err(written()))
}

fn fill(bundle: &Opened, dir: &Dir, step: &mut dyn FnMut(u64)) -> Result<(), BundleError> {
    let written = || BundleError::write(dir.path());
    let folders = FOLDERS.iter().map(|(name, _)| dir.make_new_dir(Path::new(name), 0o755));
    let folders = folders.collect::<io::Result<Vec<Dir>>>().map_err(written())?;
    let head = format!("{BIN}/{KEDGE}");
    let mut file = dir.create_new(Path::new(&head), 0o755).map_err(written())?;
    let (size, sum) = copy_summed(&mut bundle.program(), &mut file, step).map_err(written())?;
    if (size, &sum) != (bundle.manifest.program.size, &bundle.manifest.program.sha256) {
        return Err(BundleError::Part { path: bundle.path().to_owned(), part: "program" });
    }
    file.sync_all().map_err(written())?;
    match bundle.unpack(&mut Files { dir, open: None }, step) {
        // The disk's fault, not the bundle's.
        Err(BundleError::Archive { source: ArchiveError::Write { name, source }, .. }) => {
            return Err(BundleError::Write { path: dir.path().join(name), source });
        }
        unpacked => unpacked?,
    }
    for (name, text) in [(MANIFEST, &bundle.text), (SIGNATURE, &bundle.signature)] {
        let mut file = dir.create_new(Path::new(name), 0o644).map_err(written())?;
        file.write_all(text).and_then(|()| file.sync_all()).map_err(written())?;
    }
    for folder in folders.iter().chain([dir]) {
        rustix::fs::fsync(folder).map_err(|err| written()(err.into()))?;
    }
    Ok(())
}

/// The files of a bundle, each synced before it counts.
struct Files<'a> {
    dir: &'a Dir,
    open: Option<File>,
}

impl Sink for Files<'_> {
    fn open(&mut self, entry: &Entry) -> io::Result<Box<dyn Write>> {
        let file = self.dir.create_new(Path::new(&entry.name), entry.bits())?;
        let writes = file.try_clone()?;
        self.open = Some(file);
        Ok(Box::new(writes))
    }

    fn done(&mut self, _entry: &Entry) -> io::Result<()> {
        self.open.take().map_or(Ok(()), |file| file.sync_all())
    }
}

/// Links in the node's folder of images to those of a bundle: a node that runs sees the change and imports them. Links
/// to other bundles go.
fn link_images(layout: &Layout, digest: &str, manifest: &Manifest) -> Result<(), BundleError> {
    let folder = layout.agent().images();
    let from = layout.bundle();
    let wanted: Vec<(String, std::path::PathBuf)> = manifest
        .files
        .iter()
        .filter_map(|file| file.name.strip_prefix("images/"))
        .map(|name| (format!("{LINK}{name}"), from.join(digest).join(IMAGES).join(name)))
        .collect();
    let written = || BundleError::write(&folder);
    if !wanted.is_empty() {
        base::files::create_private_dir(&folder).map_err(|err| written()(err.source))?;
    }
    let names = match fs::read_dir(&folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names.map_err(BundleError::read(&folder))?,
    };
    for entry in names.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(&from));
        if is_ours && name.starts_with(LINK) && !wanted.iter().any(|(wanted, _)| *wanted == name) {
            fs::remove_file(entry.path()).map_err(BundleError::write(&entry.path()))?;
        }
    }
    for (name, target) in wanted {
        let link = folder.join(&name);
        if fs::read_link(&link).is_ok_and(|has| has == target) {
            continue;
        }
        let unfinished = folder.join(format!(".{name}.new"));
        let _none_there = fs::remove_file(&unfinished);
        let made = std::os::unix::fs::symlink(&target, &unfinished).and_then(|()| fs::rename(&unfinished, &link));
        made.map_err(BundleError::write(&link))?;
    }
    File::open(&folder).and_then(|folder| folder.sync_all()).map_err(written())
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
