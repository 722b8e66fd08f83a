//! Snapshots: one archive with the store, the authorities and keys, the token and the configuration of a server.
//!
//! A `.tar.zst` of mode 0600. Authorities, keys, tokens and configuration are sealed in it with the servers' token, for
//! archives leave the machine: whoever reads a bucket gets none of them. Restored on another machine it needs that
//! token and nothing else.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use base::files::{self, FileError, create_private_dir};
use base::layout::{Layout, ServerFolder};
use base::rng::Rng;
use base::secret::Secret;
use base::time::{Clock, rfc3339_secs};
use pki::error::PkiError;
use pki::seal::{Cipher, key_from_password};
use pki::token::{Credential, JoinToken};
use serde::{Deserialize, Serialize};

/// Files of this ending are snapshots.
const ENDING: &str = ".tar.zst";
/// Its first entry.
const MANIFEST: &str = "kedge-snapshot.json";
/// All parts but the store, as an archive of their own, sealed: a salt, then what [`CIPHER`] makes of it.
const SEALED: &str = "sealed";
const CIPHER: Cipher = Cipher::AesGcm;
const KEY_NAME: &str = "snapshot";
const CONTEXT: &[u8] = b"kedge snapshot";
const SALT: usize = 16;
/// Bytes of the sealed parts, packed and not: nobody's certificates and manifests are larger.
const SEALED_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of a manifest.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;
/// The configuration in it.
const CONFIG: &str = "config.yaml";
const ZSTD_LEVEL: i32 = 3;
/// Characters that make a name safe as a file's.
const NAME_CHARS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/// Why a snapshot was not made, found or restored.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store could not be copied or opened.
    #[error("the store")]
    Store(#[from] store::error::Error),
    /// The archive is not one of kedge's, or broken.
    #[error("{path} is not a snapshot of kedge, or is damaged: {why}", path = path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// The damage that was seen.
        why: String,
    },
    /// It is sealed with a token that was not given.
    #[error(
        "the keys in {path} are sealed with the servers' token of its time: give it with --token-file (the file \
         server/token of that cluster)",
        path = path.display()
    )]
    Sealed {
        /// The file.
        path: PathBuf,
    },
    /// The servers' token cannot be read.
    #[error("the servers' token in {path}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PkiError,
    },
    /// There are keys, and nothing to seal them with.
    #[error(
        "the keys of this server cannot be sealed in a snapshot, for {path} is missing or holds no servers' \
         password: put the servers' token of this cluster there",
        path = path.display()
    )]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// There is none of that name.
    #[error("no snapshot {name} in {dir}; 'kedge snapshot ls' lists them", dir = dir.display())]
    NotFound {
        /// The name asked for.
        name: String,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// A name that could leave the folder.
    #[error("'{0}' cannot be part of a snapshot's name: letters, digits, '-', '_' and '.' can")]
    Name(String),
}

/// An archive's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// When it was made.
    pub created: String,
    /// The node it was made on.
    pub node: String,
    /// The kedge that made it.
    pub version: String,
    /// The cluster's number.
    pub cluster_id: u64,
    /// The newest revision in it.
    pub revision: u64,
    /// Whether its parts but the store are sealed. Without it there are none, or an earlier kedge made it: those are
    /// open.
    #[serde(default)]
    pub sealed: bool,
}

/// A snapshot in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name of the file.
    pub name: String,
    /// Where it is.
    pub location: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// Its manifest.
    pub manifest: Manifest,
}

/// Where things are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The data folder.
    pub layout: Layout,
    /// The server's configuration file.
    pub config: PathBuf,
    /// The folder of snapshots.
    pub dir: PathBuf,
}

/// The store in an archive.
fn database() -> PathBuf {
    store::folder::database(&Layout::relative().server().db())
}

/// Other parts of the server's folder that are in an archive, where they exist.
fn parts() -> [PathBuf; 6] {
    let server = Layout::relative().server();
    [server.tls(), server.token(), server.agent_token(), server.cred(), server.early_encryption(), server.manifests()]
}

/// The snapshots of one prefix and node: the older ones of a series make room for the newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// First part of their names.
    pub prefix: String,
    /// The node they are made on.
    pub node: String,
}

impl Series {
    fn stem(&self) -> String {
        format!("{}-{}-", self.prefix, self.node)
    }

    /// `<prefix>-<node>-<seconds>`, as k3s names them.
    fn file_name(&self, clock: &Clock) -> Result<String, SnapshotError> {
        for part in [&self.prefix, &self.node] {
            if !is_part_of_name(part) {
                return Err(SnapshotError::Name(part.clone()));
            }
        }
        Ok(format!("{}{}{ENDING}", self.stem(), clock.now().as_second()))
    }

    /// Its files among these names but the newest `keep`, oldest first.
    pub fn surplus<'a>(&self, names: impl IntoIterator<Item = &'a str>, keep: usize) -> Vec<&'a str> {
        let stem = self.stem();
        let number = |name: &str| {
            let digits = name.strip_prefix(&stem)?.strip_suffix(ENDING)?;
            digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut ours: Vec<(u64, &str)> = names.into_iter().filter_map(|name| Some((number(name)?, name))).collect();
        ours.sort_unstable();
        ours.truncate(ours.len().saturating_sub(keep));
        ours.into_iter().map(|(_, name)| name).collect()
    }
}

/// Whether a text can be part of a file's name and leads out of no folder.
fn is_part_of_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.chars().all(|c| NAME_CHARS.contains(c))
}

/// Makes a snapshot, whether the server runs or not. Blocks.
///
/// Errors: see [`SnapshotError`]. A snapshot is there whole or not at all.
pub fn save(
    places: &Places,
    series: &Series,
    version: &str,
    clock: &Clock,
    rng: &Rng,
) -> Result<Listed, SnapshotError> {
    let name = series.file_name(clock)?;
    let password = own_password(places)?;
    if password.is_none() && has_parts(places)? {
        return Err(SnapshotError::NoToken { path: places.layout.server().token() });
    }
    create_private_dir(&places.dir)?;
    let work = tempfile::Builder::new()
        .prefix(".saving-")
        .tempdir_in(&places.dir)
        .map_err(FileError::at("cannot make a folder in", &places.dir))?;
    let copy = store::folder::database(work.path());
    let contents = store::backup::copy_to(&places.layout.server().db(), &copy, rng)?;
    let manifest = Manifest {
        created: rfc3339_secs(clock.now()),
        node: series.node.clone(),
        version: version.to_owned(),
        cluster_id: contents.cluster_id,
        revision: contents.revision,
        sealed: password.is_some(),
    };
    let (unfinished, location) = (work.path().join("archive"), places.dir.join(&name));
    pack(places, &manifest, &copy, password.as_ref().map(|password| (password, rng)), &unfinished)
        .map_err(FileError::at("cannot write", &location))?;
    fs::rename(&unfinished, &location)
        .and_then(|()| File::open(&places.dir)?.sync_all())
        .map_err(FileError::at("cannot write", &location))?;
    let size = fs::metadata(&location).map_err(FileError::at("cannot read", &location))?.len();
    Ok(Listed { name, location, size, manifest })
}

/// The servers' password as this machine has it.
fn own_password(places: &Places) -> Result<Option<Secret<String>>, SnapshotError> {
    // All but the store is sealed with it.
    let path = places.layout.server().token();
    let Some(text) = files::read_if_exists(&path)? else { return Ok(None) };
    match JoinToken::parse(&String::from_utf8_lossy(&text)) {
        Ok(JoinToken { credential: Credential::Password { password, .. }, .. }) => Ok(Some(password)),
        Ok(_) => Ok(None),
        Err(source) => Err(SnapshotError::Token { path, source }),
    }
}

/// Whether there is anything beside the store. A folder in which no server ever started has neither a token nor keys.
fn has_parts(places: &Places) -> Result<bool, SnapshotError> {
    for path in parts().iter().map(|part| places.layout.data_dir().join(part)).chain([places.config.clone()]) {
        if path.try_exists().map_err(FileError::at("cannot look for", &path))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn pack(
    places: &Places,
    manifest: &Manifest,
    copy: &Path,
    seal: Option<(&Secret<String>, &Rng)>,
    to: &Path,
) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut archive = tar::Builder::new(zstd::Encoder::new(BufWriter::new(file), ZSTD_LEVEL)?);
    archive.follow_symlinks(false);
    append(&mut archive, MANIFEST, &serde_json::to_vec_pretty(manifest)?)?;
    archive.append_path_with_name(copy, database())?;
    match seal {
        None => append_parts(places, &mut archive)?,
        Some((password, rng)) => {
            let mut parts = tar::Builder::new(zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?);
            parts.follow_symlinks(false);
            append_parts(places, &mut parts)?;
            append(&mut archive, SEALED, &sealed(&parts.into_inner()?.finish()?, password, rng)?)?;
        }
    }
    let file = archive.into_inner()?.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

fn append(archive: &mut tar::Builder<impl io::Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    archive.append_data(&mut header, name, bytes)
}

fn append_parts(places: &Places, archive: &mut tar::Builder<impl io::Write>) -> io::Result<()> {
    for part in parts() {
        let path = places.layout.data_dir().join(&part);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => archive.append_dir_all(&part, &path)?,
            Ok(_) => archive.append_path_with_name(&path, &part)?,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    if places.config.is_file() {
        archive.append_path_with_name(&places.config, CONFIG)?;
    }
    Ok(())
}

fn sealed(parts: &[u8], password: &Secret<String>, rng: &Rng) -> io::Result<Vec<u8>> {
    let mut salt = [0; SALT];
    rng.fill(&mut salt);
    let text = CIPHER.seal(&key_from_password(KEY_NAME, password, &salt), CONTEXT, parts, rng);
    Ok([&salt[..], &text.ok_or_else(|| io::Error::other("it cannot be sealed"))?].concat())
}

/// The reverse; `None`: another password, or not whole.
fn unsealed(bytes: &[u8], password: &Secret<String>) -> Option<Vec<u8>> {
    let (salt, text) = bytes.split_at_checked(SALT)?;
    CIPHER.open(
        &key_from_password(KEY_NAME, password, salt),
        CONTEXT,
        text.strip_prefix(CIPHER.prefix(KEY_NAME).as_bytes())?,
    )
}

fn open(path: &Path) -> Result<tar::Archive<zstd::Decoder<'static, BufReader<File>>>, SnapshotError> {
    let file = File::open(path).map_err(FileError::at("cannot open", path))?;
    Ok(tar::Archive::new(zstd::Decoder::new(file).map_err(|err| broken(path)(err))?))
}

fn broken<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> SnapshotError {
    let path = path.to_owned();
    move |err| SnapshotError::Archive { path: path.clone(), why: err.to_string() }
}

/// Reads an archive's manifest.
pub fn read_manifest(path: &Path) -> Result<Manifest, SnapshotError> {
    let mut archive = open(path)?;
    let mut entries = archive.entries().map_err(broken(path))?;
    let first = entries.next().ok_or_else(|| broken(path)("it is empty"))?.map_err(broken(path))?;
    if first.path().map_err(broken(path))? != Path::new(MANIFEST) {
        return Err(broken(path)("it does not begin with a manifest"));
    }
    let mut text = String::new();
    first.take(MANIFEST_BYTES_MAX).read_to_string(&mut text).map_err(broken(path))?;
    serde_json::from_str(&text).map_err(broken(path))
}

/// Files in the folder that are named as snapshots and are none, or are damaged: each with the reason.
pub fn damaged(dir: &Path) -> Result<Vec<(PathBuf, SnapshotError)>, SnapshotError> {
    let unreadable = |path: PathBuf| read_manifest(&path).err().map(|err| (path, err));
    Ok(named(dir)?.into_iter().filter_map(unreadable).collect())
}

/// The files that are named as snapshots, by name.
fn named(dir: &Path) -> Result<Vec<PathBuf>, SnapshotError> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(FileError::at("cannot read", dir))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(FileError::at("cannot read", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(ENDING) && !name.starts_with('.') {
            all.push(entry.path());
        }
    }
    all.sort();
    Ok(all)
}

/// The snapshots in the folder, oldest first; see [`damaged`] for files that cannot be read.
pub fn list(dir: &Path) -> Result<Vec<Listed>, SnapshotError> {
    let mut all = Vec::new();
    for location in named(dir)? {
        let Ok(manifest) = read_manifest(&location) else { continue };
        let size = fs::metadata(&location).map_err(FileError::at("cannot read", &location))?.len();
        let name = location.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push(Listed { name, location, size, manifest });
    }
    all.sort_by(|a, b| (&a.manifest.created, &a.name).cmp(&(&b.manifest.created, &b.name)));
    Ok(all)
}

/// Deletes a snapshot by its name.
pub fn delete(dir: &Path, name: &str) -> Result<PathBuf, SnapshotError> {
    let wanted = name.strip_suffix(ENDING).unwrap_or(name);
    let found = list(dir)?.into_iter().find(|snapshot| snapshot.name.strip_suffix(ENDING) == Some(wanted));
    let found = found.ok_or_else(|| SnapshotError::NotFound { name: name.to_owned(), dir: dir.to_owned() })?;
    fs::remove_file(&found.location).map_err(FileError::at("cannot delete", &found.location))?;
    Ok(found.location)
}

/// A snapshot's file name, with or without its ending.
///
/// Errors: `Name`, where it could lead out of a folder.
pub fn file_of(name: &str) -> Result<String, SnapshotError> {
    let stem = name.strip_suffix(ENDING).unwrap_or(name);
    if !is_part_of_name(stem) {
        return Err(SnapshotError::Name(name.to_owned()));
    }
    Ok(format!("{stem}{ENDING}"))
}

/// When a snapshot was made, as its file name says; `None` if it is no snapshot's.
pub fn made_at(file_name: &str) -> Option<i64> {
    file_name.strip_suffix(ENDING)?.rsplit_once('-')?.1.parse().ok()
}

/// Deletes all but the newest `keep` snapshots of a series; says which.
pub fn prune(dir: &Path, series: &Series, keep: usize) -> Result<Vec<String>, SnapshotError> {
    let all = list(dir)?;
    let mut gone = Vec::new();
    for name in series.surplus(all.iter().map(|snapshot| snapshot.name.as_str()), keep) {
        let path = dir.join(name);
        fs::remove_file(&path).map_err(FileError::at("cannot delete", &path))?;
        gone.push(name.to_owned());
    }
    Ok(gone)
}

/// Result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The archive's manifest.
    pub manifest: Manifest,
    /// Where the state that was there before is now, if there was any.
    pub kept: Option<PathBuf>,
    /// Whether the configuration of the archive was put in its place; one that was there is left alone.
    pub config: bool,
}

/// Puts the server's state of an archive in the place of what is there, as a cluster of this one server. Blocks.
///
/// `token` is the servers' password with which it was sealed; without it this machine's own is tried.
/// What was there before is kept beside it. Errors: `Store(InUse)` while a server runs; then and on any other error
/// before the last step nothing is changed.
pub fn restore(
    places: &Places,
    archive: &Path,
    token: Option<&Secret<String>>,
    clock: &Clock,
    rng: &Rng,
) -> Result<Restored, SnapshotError> {
    let manifest = read_manifest(archive)?;
    let passwords: Vec<Secret<String>> =
        token.cloned().into_iter().chain(own_password(places).ok().flatten()).collect();
    let data_dir = places.layout.data_dir();
    create_private_dir(data_dir)?;
    let work = tempfile::Builder::new()
        .prefix(".restoring-")
        .tempdir_in(data_dir)
        .map_err(FileError::at("cannot make a folder in", data_dir))?;
    unpack(archive, work.path(), &passwords)?;
    let new = Layout::new(work.path()).server();
    store::backup::look(&store::folder::database(&new.db()))?;
    store::backup::reset(&new.db(), rng)?;
    let server = places.layout.server();
    let (db, place) = (server.db(), server.path());
    let lock = if db.is_dir() { Some(store::backup::lock(&db)?) } else { None };
    let kept = if place.exists() {
        let kept = places.layout.server_before(clock.now().as_second());
        exchange(new.path(), place, &kept).map_err(FileError::at("cannot move", place))?;
        Some(kept)
    } else {
        fs::rename(new.path(), place).map_err(FileError::at("cannot move", place))?;
        None
    };
    drop(lock);
    // Snapshots stay where people look for them.
    let snapshots = kept.as_ref().map(|kept| ServerFolder::new(kept).snapshots()).filter(|dir| dir.is_dir());
    if let Some(snapshots) = snapshots {
        fs::rename(&snapshots, server.snapshots()).map_err(FileError::at("cannot move", &snapshots))?;
    }
    File::open(data_dir).and_then(|dir| dir.sync_all()).map_err(FileError::at("cannot sync", data_dir))?;
    let config = work.path().join(CONFIG);
    let put_config = config.is_file() && !places.config.exists();
    if put_config {
        let text = fs::read(&config).map_err(FileError::at("cannot read", &config))?;
        if let Some(parent) = places.config.parent() {
            create_private_dir(parent)?;
        }
        files::write_atomic(&places.config, &text, 0o600)?;
    }
    Ok(Restored { manifest, kept, config: put_config })
}

/// Puts `new` in the place of `old`, which is in `kept` then. A power cut leaves one of the two in its place, never
/// none: an empty place would begin a new cluster at the next start.
fn exchange(new: &Path, old: &Path, kept: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => fs::rename(new, kept),
        // A file system that cannot: then with a moment in between.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::rename(old, kept).and_then(|()| fs::rename(new, old))
        }
        Err(err) => Err(err.into()),
    }
}

/// Unpacks the parts that are known, and nothing that leads out of `to`.
fn unpack(archive: &Path, to: &Path, passwords: &[Secret<String>]) -> Result<(), SnapshotError> {
    let mut found = false;
    for entry in open(archive)?.entries().map_err(broken(archive))? {
        let mut entry = entry.map_err(broken(archive))?;
        let path = inner_path(&entry, archive)?;
        if path == Path::new(SEALED) {
            let mut bytes = Vec::new();
            entry.take(SEALED_BYTES_MAX).read_to_end(&mut bytes).map_err(broken(archive))?;
            let parts = passwords.iter().find_map(|password| unsealed(&bytes, password));
            let parts = parts.ok_or_else(|| SnapshotError::Sealed { path: archive.to_owned() })?;
            let plain = zstd::Decoder::new(&parts[..]).map_err(broken(archive))?.take(SEALED_BYTES_MAX);
            for part in tar::Archive::new(plain).entries().map_err(broken(archive))? {
                let mut part = part.map_err(broken(archive))?;
                let path = inner_path(&part, archive)?;
                unpack_one(&mut part, &path, to, archive)?;
            }
            continue;
        }
        found |= path == database();
        unpack_one(&mut entry, &path, to, archive)?;
    }
    sync_tree(to).map_err(FileError::at("cannot sync", to))?;
    if found { Ok(()) } else { Err(broken(archive)("it holds no store")) }
}

fn inner_path(entry: &tar::Entry<'_, impl Read>, archive: &Path) -> Result<PathBuf, SnapshotError> {
    let path = entry.path().map_err(broken(archive))?.into_owned();
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(path);
    }
    Err(broken(archive)(format!("it holds the path {}", path.display())))
}

fn unpack_one(
    entry: &mut tar::Entry<'_, impl Read>,
    path: &Path,
    to: &Path,
    archive: &Path,
) -> Result<(), SnapshotError> {
    let known = path == database() || path == Path::new(CONFIG) || parts().iter().any(|part| path.starts_with(part));
    if !known {
        return Ok(());
    }
    let target = to.join(path);
    if let Some(parent) = target.parent() {
        create_private_dir(parent)?;
    }
    if entry.header().entry_type().is_dir() {
        create_private_dir(&target)?;
    } else if entry.header().entry_type().is_file() {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&target)
            .map_err(FileError::at("cannot write", &target))?;
        io::copy(entry, &mut file).and_then(|_| file.flush()).map_err(broken(archive))?;
        let mode = entry.header().mode().unwrap_or(0o600) & 0o700;
        fs::set_permissions(&target, Permissions::from_mode(mode)).map_err(FileError::at("cannot write", &target))?;
        file.sync_all().map_err(FileError::at("cannot write", &target))?;
    }
    Ok(())
}

/// Has the names of all files be on the disk before the folder is put in its place; the files themselves are already.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    File::open(dir)?.sync_all()
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
