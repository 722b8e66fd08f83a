//! Why a command on bundles failed, in words that name the file and the remedy.

use std::io;
use std::path::PathBuf;

use super::archive::ArchiveError;
use super::images::ImageError;
use super::keys::{KeyError, SignatureError};
use super::manifest::{Arch, ManifestError};
use super::source::SourceError;
use super::trailer::TrailerError;

/// Why a bundle was not made, taken or put in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{path} is no regular file", path = path.display())]
    NoFile { path: PathBuf },
    #[error("{path} is refused", path = path.display())]
    Trailer { path: PathBuf, source: TrailerError },
    #[error("{path} is refused: its manifest is not one that kedge takes", path = path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{path} is refused", path = path.display())]
    Signature { path: PathBuf, source: SignatureError },
    #[error("{path} is refused: its {part} is not what its manifest says; copy it again", path = path.display())]
    Part { path: PathBuf, part: &'static str },
    #[error("{path} is refused", path = path.display())]
    Archive { path: PathBuf, source: ArchiveError },
    #[error("this kedge carries no bundle: name its file")]
    NoBundle,
    #[error("{path} is for {theirs}, and this machine is {ours}: take the bundle for {ours}", path = path.display())]
    Arch { path: PathBuf, theirs: Arch, ours: &'static str },
    #[error("{path} cannot be used here: {program} in it asks for {interpreter}, which this machine does not have; \
        build the bundle from static programs (--from-source)", path = path.display())]
    Interpreter { path: PathBuf, program: String, interpreter: String },
    #[error("{path} needs {needs} MiB, and {folder} has {has} MiB free: make room, or name another --data-dir",
        path = path.display(), folder = folder.display())]
    NoRoom { path: PathBuf, folder: PathBuf, needs: u64, has: u64 },
    #[error("{folder} belongs to the user {owner} or can be written by others: whoever can change it chooses the \
        programs of this node; see what is in it, then chown it to root and chmod 755", folder = folder.display())]
    Owner { folder: PathBuf, owner: u32 },
    #[error("another 'kedge bundle' works in {folder}: wait for it", folder = folder.display())]
    Busy { folder: PathBuf },
    #[error("there is no bundle in {folder} to go back to", folder = folder.display())]
    NoPrevious { folder: PathBuf },
    #[error("the bundle {digest} in {folder} is damaged ({name}): apply its file again", folder = folder.display())]
    Damaged { digest: String, folder: PathBuf, name: String },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{flag} {path}: {why}", path = path.display())]
    PartRefused { flag: &'static str, path: PathBuf, why: &'static str },
    #[error("{flag} {path}: it is for another processor, and --arch is {arch}", path = path.display())]
    PartArch { flag: &'static str, path: PathBuf, arch: Arch },
    #[error("{flag}: there is no {program} in {path}", path = path.display())]
    PartMissing { flag: &'static str, program: &'static str, path: PathBuf },
    #[error("--from-path: {program} was not found on PATH: install it, or name its file with {flag}")]
    NotOnPath { program: &'static str, flag: &'static str },
    #[error("--kedge: the program that runs is for {ours}, and --arch is {arch}: name the kedge for {arch}")]
    NoKedge { ours: &'static str, arch: Arch },
    #[error("{what} is named twice as {name}: give each file a name of its own", what = what)]
    Twice { what: &'static str, name: String },
    #[error("--image {name}")]
    Image { name: String, source: ImageError },
    #[error("--from-source")]
    Source(#[from] SourceError),
    #[error("cannot print the list")]
    Print(#[from] serde_json::Error),
}

impl BundleError {
    /// For `map_err`.
    pub(super) fn read(path: &std::path::Path) -> impl FnOnce(io::Error) -> BundleError {
        let path = path.to_owned();
        move |source| BundleError::Read { path, source }
    }

    /// For `map_err`.
    pub(super) fn write(path: &std::path::Path) -> impl FnOnce(io::Error) -> BundleError {
        let path = path.to_owned();
        move |source| BundleError::Write { path, source }
    }
}
