//! A bundle that is open: checked part by part before anything of it is believed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::archive::{Nowhere, Sink, unpack};
use super::error::BundleError;
use super::keys::{KeyId, PublicKey, Signature, SignatureError};
use super::manifest::Manifest;
use super::trailer::{Region, Trailer, TrailerError, copy_summed, sum_of};

/// The program that runs, which may be the head of a bundle.
pub(super) const OWN: &str = "/proc/self/exe";

/// A bundle's file with the parts that are read at once.
pub(super) struct Opened {
    path: PathBuf,
    file: File,
    trailer: Trailer,
    pub(super) manifest: Manifest,
    /// The manifest as it is written, which the signature is over.
    pub(super) text: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

/// The one that vouches for a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Vouched {
    /// The holder of a key that the caller trusts, and the comment that was signed.
    By(KeyId, String),
    /// Nobody: sums alone were compared. The key that it claims.
    Nobody(Option<KeyId>),
}

impl Opened {
    /// Opens a bundle's file. It bears a manifest that is well-formed; nothing else is known of it yet.
    pub(super) fn open(path: &Path) -> Result<Opened, BundleError> {
        let read = || BundleError::read(path);
        // A FIFO would be waited for.
        if !fs::metadata(path).map_err(read())?.is_file() {
            return Err(BundleError::NoFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(read())?;
        let refused = |source| BundleError::Trailer { path: path.to_owned(), source };
        let trailer = Trailer::read(&file).map_err(read())?.map_err(refused)?;
        let text = Region::new(&file, trailer.manifest_at(), trailer.manifest).bytes().map_err(read())?;
        let signature = Region::new(&file, trailer.signature_at(), trailer.signature).bytes().map_err(read())?;
        if sum_of(&[&text, &signature]) != trailer.sha256 {
            return Err(refused(TrailerError::Manifest));
        }
        let manifest =
            Manifest::parse(&text).map_err(|source| BundleError::Manifest { path: path.to_owned(), source })?;
        for (part, says, has) in
            [("program", manifest.program.size, trailer.program), ("archive", manifest.archive.size, trailer.archive)]
        {
            if says != has {
                return Err(BundleError::Part { path: path.to_owned(), part });
            }
        }
        Ok(Opened { path: path.to_owned(), file, trailer, manifest, text, signature })
    }

    /// The bundle whose head this program is; `None` if it is only itself.
    pub(super) fn own() -> Result<Option<Opened>, BundleError> {
        match Opened::open(Path::new(OWN)) {
            Err(BundleError::Trailer { source: TrailerError::NoTrailer, .. }) => Ok(None),
            // In words for people it has the name under which it was started.
            Ok(opened) => Ok(Some(Opened { path: fs::read_link(OWN).unwrap_or_else(|_| OWN.into()), ..opened })),
            Err(err) => Err(err),
        }
    }

    /// The name of what is in it: the sum of its manifest.
    pub(super) fn digest(&self) -> String {
        sum_of(&[&self.text])
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Says who vouches for the manifest.
    ///
    /// Errors: a key is given and its holder does not; or the signature is none.
    pub(super) fn vouched(&self, key: Option<&PublicKey>) -> Result<Vouched, BundleError> {
        let refused = |source| BundleError::Signature { path: self.path.clone(), source };
        if self.signature.is_empty() {
            return if key.is_some() { Err(refused(SignatureError::Missing)) } else { Ok(Vouched::Nobody(None)) };
        }
        let signature = Signature::parse(&self.signature).map_err(refused)?;
        let Some(key) = key else { return Ok(Vouched::Nobody(Some(signature.by))) };
        signature.check(&self.text, key).map_err(refused)?;
        Ok(Vouched::By(signature.by, signature.comment))
    }

    /// Reads all of it and compares it with its manifest; writes nothing.
    pub(super) fn check(&self, step: &mut dyn FnMut(u64)) -> Result<(), BundleError> {
        for (part, blob, from) in
            [("program", &self.manifest.program, self.program()), ("archive", &self.manifest.archive, self.archive())]
        {
            let mut from = from;
            let (size, sum) = copy_summed(&mut from, &mut io::sink(), step).map_err(BundleError::read(&self.path))?;
            if (size, &sum) != (blob.size, &blob.sha256) {
                return Err(BundleError::Part { path: self.path.clone(), part });
            }
        }
        self.unpack(&mut Nowhere, step)
    }

    /// Bytes that [`Opened::check`] steps through.
    pub(super) fn steps(&self) -> u64 {
        let files: u64 = self.manifest.files.iter().map(|file| file.size).sum();
        self.manifest.program.size + self.manifest.archive.size + files
    }

    pub(super) fn program(&self) -> Region<'_> {
        Region::new(&self.file, 0, self.trailer.program)
    }

    fn archive(&self) -> Region<'_> {
        Region::new(&self.file, self.trailer.archive_at(), self.trailer.archive)
    }

    /// Unpacks its archive, and compares it on the way: the file may be another by now.
    pub(super) fn unpack(&self, sink: &mut dyn Sink, step: &mut dyn FnMut(u64)) -> Result<(), BundleError> {
        let refused = |source| BundleError::Archive { path: self.path.clone(), source };
        unpack(self.archive(), &self.manifest, sink, step).map_err(refused)
    }
}
