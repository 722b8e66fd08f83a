//! Making a bundle: the same inputs give the same bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::archive::pack;
use super::error::BundleError;
use super::keys::SigningKey;
use super::manifest::{Arch, Blob, Entry, FORMAT, Image, Manifest, mode_of};
use super::parts::Part;
use super::progress::Progress;
use super::trailer::{Trailer, copy_summed, sum_of};

/// Packs programs to a third, and a hundred megabytes in some ten seconds.
const LEVEL: i32 = 12;

/// All that goes into a bundle.
pub(super) struct Inputs<'a> {
    pub(super) arch: Arch,
    pub(super) version: String,
    /// The kedge program, read from its start to its end.
    pub(super) program: &'a mut dyn Read,
    pub(super) parts: Vec<Part>,
    pub(super) images: Vec<Image>,
    pub(super) notes: Vec<String>,
}

/// Writes the bundle in the place of `output`, which is the old file or the new one and never half of it.
pub(super) fn write(inputs: Inputs<'_>, output: &Path, sign: Option<&SigningKey>) -> Result<Manifest, BundleError> {
    let whole = std::path::absolute(output).map_err(BundleError::write(output))?;
    let dir = whole.parent().unwrap_or(Path::new("/")).to_owned();
    let mut name = std::ffi::OsString::from(".");
    name.push(whole.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let unfinished = Unfinished(dir.join(name));
    let open = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&unfinished.0);
    let file = open.map_err(BundleError::write(output))?;
    let manifest = fill(inputs, &file, &unfinished.0, sign)?;
    file.sync_all()
        .and_then(|()| std::fs::rename(&unfinished.0, &whole))
        .and_then(|()| File::open(&dir)?.sync_all())
        .map_err(BundleError::write(output))?;
    Ok(manifest)
}

/// A file that is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _renamed = std::fs::remove_file(&self.0);
    }
}

fn fill(inputs: Inputs<'_>, file: &File, path: &Path, sign: Option<&SigningKey>) -> Result<Manifest, BundleError> {
    let Inputs { arch, version, program, mut parts, images, notes } = inputs;
    parts.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = parts.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(BundleError::Twice { what: "a file", name: pair[0].name.clone() });
    }
    let written = || BundleError::write(path);
    let (size, sha256) = copy_summed(program, &mut (&*file), &mut |_| {}).map_err(written())?;
    let program = Blob { size, sha256 };
    let mut files = Vec::new();
    for part in &parts {
        files.push(entry(part)?);
    }
    // Manifest and signature stand before the archive and tell its sum: the archive is packed beside first.
    let packed = tempfile::tempfile_in(path.parent().unwrap_or(Path::new("/"))).map_err(written())?;
    let mut progress = Progress::new("packing", files.iter().map(|file| file.size).sum());
    let contents = files.iter().zip(&parts).map(|(entry, part)| {
        let content: Box<dyn Read> = match File::open(&part.path) {
            Ok(file) => Box::new(file),
            Err(err) => Box::new(Failed(Some(err))),
        };
        (entry, content)
    });
    pack(contents, &mut BufWriter::new(&packed), LEVEL, &mut |n| progress.step(n)).map_err(written())?;
    drop(progress);
    let size = packed.metadata().map_err(written())?.len();
    let mut archive = super::trailer::Region::new(&packed, 0, size);
    let (size, sha256) = copy_summed(&mut archive, &mut io::sink(), &mut |_| {}).map_err(written())?;
    let manifest =
        Manifest { format: FORMAT, version, arch, program, archive: Blob { size, sha256 }, files, images, notes };
    manifest.judge().map_err(|source| BundleError::Manifest { path: path.to_owned(), source })?;
    let mut text = serde_json::to_vec_pretty(&manifest)?;
    text.push(b'\n');
    let comment = format!("kedge {} for {arch}", manifest.version);
    let signature = sign.map_or_else(String::new, |key| key.sign(&text, &comment));
    let trailer = Trailer {
        program: manifest.program.size,
        manifest: text.len() as u64,
        signature: signature.len() as u64,
        archive: size,
        sha256: sum_of(&[&text, signature.as_bytes()]),
    };
    let mut out: &File = file;
    let rest = || -> io::Result<()> {
        out.write_all(&text)?;
        out.write_all(signature.as_bytes())?;
        io::copy(&mut super::trailer::Region::new(&packed, 0, size), &mut out)?;
        out.write_all(trailer.line().as_bytes())
    };
    let mut rest = rest;
    rest().map_err(written())?;
    Ok(manifest)
}

/// A file that cannot be opened: the error is told when it is read.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

fn entry(part: &Part) -> Result<Entry, BundleError> {
    let mut file = File::open(&part.path).map_err(BundleError::read(&part.path))?;
    let summed = copy_summed(&mut file, &mut io::sink(), &mut |_| {});
    let (size, sha256) = summed.map_err(BundleError::read(&part.path))?;
    Ok(Entry {
        name: part.name.clone(),
        size,
        sha256,
        mode: format!("{:04o}", mode_of(&part.name).unwrap_or(0)),
        origin: part.origin,
        module: part.module.clone(),
        interpreter: part.interpreter.clone(),
    })
}
