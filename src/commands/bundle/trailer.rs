//! The form of a bundle: one file, whose head is the kedge program itself and runs.
//!
//! ```text
//! kedge (ELF) | manifest (JSON) | signature (minisign's form, or nothing) | archive (tar.zst) | trailer (129 bytes)
//! ```
//!
//! The trailer is one line of text, so that a shell finds the program with `tail -c 129` and `head -c`: a machine that
//! has nothing but busybox needs neither tar nor zstd. A file beside the program would do the same, but is two things
//! to carry and to mix up. The loader of ELF reads what the headers name and ignores what follows.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use ring::digest::{Context, SHA256};

use super::keys::SIGNATURE_BYTES_MAX;
use super::manifest::MANIFEST_BYTES_MAX;

/// First word of the line, with the form of what is before it.
const MAGIC: &str = "KEDGE-BUNDLE-1";
/// Bytes of the line.
pub(super) const TRAILER: u64 = 129;
/// Bytes of a read.
const CHUNK: usize = 128 * 1024;

/// A file whose end is no trailer that fits it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrailerError {
    #[error("it is no bundle of kedge, or its end is missing: copy it again")]
    NoTrailer,
    #[error("it has {has} bytes, and its last line says {says}: it was cut or changed, copy it again")]
    Length { has: u64, says: u64 },
    #[error("its manifest does not fit its last line: it was changed, copy it again")]
    Manifest,
    #[error("it is a bundle of another form ({0}): use the kedge at its head, or a newer one")]
    Form(String),
    #[error("its {part} is larger than {most} bytes")]
    Large { part: &'static str, most: u64 },
}

/// Bytes of each part, and the sum of manifest and signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) program: u64,
    pub(super) manifest: u64,
    pub(super) signature: u64,
    pub(super) archive: u64,
    /// SHA-256 of manifest and signature.
    pub(super) sha256: String,
}

impl Trailer {
    pub(super) fn line(&self) -> String {
        let Trailer { program, manifest, signature, archive, sha256 } = self;
        format!("{MAGIC} {program:016} {manifest:08} {signature:05} {archive:016} {sha256}\n")
    }

    fn parse(line: &[u8]) -> Result<Trailer, TrailerError> {
        let text = std::str::from_utf8(line).map_err(|_| TrailerError::NoTrailer)?;
        let words: Vec<&str> = text.trim_end_matches('\n').split(' ').collect();
        match words.first() {
            Some(form) if *form != MAGIC && form.starts_with("KEDGE-BUNDLE-") => {
                return Err(TrailerError::Form((*form).to_owned()));
            }
            _ => {}
        }
        let [_, program, manifest, signature, archive, sha256] = words[..] else { return Err(TrailerError::NoTrailer) };
        let number = |text: &str| text.parse().map_err(|_| TrailerError::NoTrailer);
        let trailer = Trailer {
            program: number(program)?,
            manifest: number(manifest)?,
            signature: number(signature)?,
            archive: number(archive)?,
            sha256: sha256.to_owned(),
        };
        // There is one way to write it.
        if trailer.line().as_bytes() != line {
            return Err(TrailerError::NoTrailer);
        }
        Ok(trailer)
    }

    /// Reads the end of a file.
    pub(super) fn read(file: &File) -> io::Result<Result<Trailer, TrailerError>> {
        let has = file.metadata()?.len();
        let Some(at) = has.checked_sub(TRAILER) else { return Ok(Err(TrailerError::NoTrailer)) };
        let mut line = [0; TRAILER as usize];
        file.read_exact_at(&mut line, at)?;
        Ok(Trailer::parse(&line).and_then(|trailer| trailer.fits(has)))
    }

    fn fits(self, has: u64) -> Result<Trailer, TrailerError> {
        let parts = [self.program, self.manifest, self.signature, self.archive, TRAILER];
        let says = parts.into_iter().try_fold(0_u64, u64::checked_add).unwrap_or(u64::MAX);
        if says != has {
            return Err(TrailerError::Length { has, says });
        }
        for (part, size, most) in
            [("manifest", self.manifest, MANIFEST_BYTES_MAX), ("signature", self.signature, SIGNATURE_BYTES_MAX)]
        {
            if size > most {
                return Err(TrailerError::Large { part, most });
            }
        }
        Ok(self)
    }

    pub(super) fn manifest_at(&self) -> u64 {
        self.program
    }

    pub(super) fn signature_at(&self) -> u64 {
        self.program + self.manifest
    }

    pub(super) fn archive_at(&self) -> u64 {
        self.program + self.manifest + self.signature
    }
}

/// A part of a file, read from its start to its end.
pub(super) struct Region<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl<'a> Region<'a> {
    pub(super) fn new(file: &'a File, at: u64, size: u64) -> Region<'a> {
        Region { file, at, left: size }
    }

    /// All of it; its caller has bounded its size.
    pub(super) fn bytes(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let left = self.left;
        self.read_to_end(&mut bytes)?;
        if bytes.len() as u64 == left { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Read for Region<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let n = self.file.read_at(&mut out[..most], self.at)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

/// Copies all of `from` to `to`; answers with its bytes and their sum.
pub(super) fn copy_summed(
    from: &mut dyn Read,
    to: &mut dyn io::Write,
    step: &mut dyn FnMut(u64),
) -> io::Result<(u64, String)> {
    let (mut context, mut size, mut chunk) = (Context::new(&SHA256), 0, vec![0; CHUNK]);
    loop {
        let n = match from.read(&mut chunk) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            n => n?,
        };
        if n == 0 {
            return Ok((size, base::hex::encode(context.finish().as_ref())));
        }
        context.update(&chunk[..n]);
        to.write_all(&chunk[..n])?;
        size += n as u64;
        step(n as u64);
    }
}

/// SHA-256 of bytes in hexadecimal digits.
pub(super) fn sum_of(parts: &[&[u8]]) -> String {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    base::hex::encode(context.finish().as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Trailer {
        Trailer { program: 28_000_000, manifest: 900, signature: 0, archive: 5, sha256: "ab".repeat(32) }
    }

    #[test]
    fn a_line_has_one_form_and_fits_its_file() {
        let line = sample().line();
        assert_eq!(line.len() as u64, TRAILER);
        assert_eq!(Trailer::parse(line.as_bytes()).unwrap(), sample());
        let has = 28_000_000 + 900 + 5 + TRAILER;
        assert_eq!(sample().fits(has).unwrap(), sample());
        assert!(matches!(sample().fits(has - 1), Err(TrailerError::Length { .. })));
        let huge = Trailer { program: 9_999_999_999_999_999, ..sample() };
        assert!(matches!(huge.fits(has), Err(TrailerError::Length { .. })));
        let large = Trailer { manifest: MANIFEST_BYTES_MAX + 1, ..sample() };
        assert!(matches!(large.fits(28_000_005 + TRAILER + MANIFEST_BYTES_MAX + 1), Err(TrailerError::Large { .. })));
    }

    #[test]
    fn no_changed_byte_of_it_reads_as_the_same() {
        let line = sample().line().into_bytes();
        for at in 0..line.len() {
            for bit in [1, 2, 16, 32] {
                let mut other = line.clone();
                other[at] ^= bit;
                let read = Trailer::parse(&other);
                assert!(read.is_err() || read.is_ok_and(|read| read != sample()), "byte {at}, bit {bit}");
            }
        }
        let newer = sample().line().replace("BUNDLE-1", "BUNDLE-2");
        assert!(matches!(Trailer::parse(newer.as_bytes()), Err(TrailerError::Form(_))));
    }
}
