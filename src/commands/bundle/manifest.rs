//! The manifest of a bundle: each file in it with its size and sum, and the rules that names and sizes keep.
//!
//! It is all that a signature covers, and it bounds all that is unpacked: what it does not list is not taken.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The form of manifests that this program writes and reads.
pub(super) const FORMAT: u32 = 1;
/// Bytes of a manifest.
pub(super) const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Files in a bundle.
const FILES_MAX: usize = 1024;
/// Bytes of one file: eight digits of octal and three more are what a plain tar header holds.
const FILE_BYTES_MAX: u64 = (1 << 33) - 1;
/// Bytes of all files.
const ALL_BYTES_MAX: u64 = 1 << 36;
/// Characters of a file's name, its folder not counted.
const NAME_MAX: usize = 90;
/// The folders of a bundle, and the mode of what is in them.
pub(super) const FOLDERS: [(&str, u32); 2] = [(BIN, 0o755), (IMAGES, 0o644)];
/// Programs.
pub(super) const BIN: &str = "bin";
/// Archives of images.
pub(super) const IMAGES: &str = "images";
/// The program of kedge itself, which is the head of the bundle and in no archive.
pub(super) const KEDGE: &str = "kedge";

/// A manifest that no bundle may have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("it cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("it is of form {0}, and this kedge knows form {FORMAT}: use the kedge that made it")]
    Format(u64),
    #[error(
        "it names the file {0:?}: a name is bin/ or images/ and at most {NAME_MAX} letters, digits, '.', '_', '+' or \
         '-', and begins with a letter, a digit or '_'"
    )]
    Name(String),
    #[error("its files are not sorted, or {0:?} is there twice")]
    Order(String),
    #[error("it gives {name} the mode {mode}, and files of that folder have {want}")]
    Mode { name: String, mode: String, want: String },
    #[error("it names a sum that is none of SHA-256: {0:?}")]
    Sum(String),
    #[error("it names {0} files, and {FILES_MAX} is the most")]
    Many(usize),
    #[error("its file {name} has {size} bytes, and {FILE_BYTES_MAX} is the most")]
    Large { name: String, size: u64 },
    #[error("its files have more than {ALL_BYTES_MAX} bytes in all")]
    AllLarge,
    #[error("its image {0:?} is no file of it")]
    Image(String),
    #[error("its version {0:?} is none")]
    Version(String),
}

/// Processors, as Go and OCI name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arch {
    #[value(alias = "x86_64")]
    Amd64,
    #[value(alias = "aarch64")]
    Arm64,
    /// 32-bit ARM, version 7.
    #[value(alias = "armv7", alias = "armhf", alias = "armv7l")]
    Arm,
    Riscv64,
}

impl Arch {
    /// The processor for which this program was built; `None` for one that has no bundles.
    pub(super) fn own() -> Option<Arch> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Arch::Amd64),
            "aarch64" => Some(Arch::Arm64),
            "arm" => Some(Arch::Arm),
            "riscv64" => Some(Arch::Riscv64),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
            Arch::Arm => "arm",
            Arch::Riscv64 => "riscv64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Size and sum of a part of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Blob {
    pub(super) size: u64,
    /// SHA-256 in lower-case hexadecimal digits.
    pub(super) sha256: String,
}

/// Where a file of a bundle came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Origin {
    /// A file that was named.
    File,
    /// The PATH of the machine on which the bundle was built.
    Path,
    /// Built from source.
    Source,
    /// This node's containerd.
    Containerd,
}

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// `bin/NAME` or `images/NAME`.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) sha256: String,
    /// Permission bits in octal digits.
    pub(super) mode: String,
    pub(super) origin: Origin,
    /// Go module and version of what was built from source.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) module: Option<String>,
    /// The dynamic linker that the program asks for: it and its libraries must be on the machine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) interpreter: Option<String>,
}

/// The images of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Image {
    /// The file in which it is.
    pub(super) file: String,
    /// Its names.
    pub(super) references: Vec<String>,
    /// Digest of its manifest, or of its configuration where the archive is docker's.
    pub(super) digest: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// Version of the kedge in it.
    pub(super) version: String,
    pub(super) arch: Arch,
    /// The kedge at its head.
    pub(super) program: Blob,
    /// The packed archive.
    pub(super) archive: Blob,
    /// Sorted by name.
    pub(super) files: Vec<Entry>,
    pub(super) images: Vec<Image>,
    /// Shortcomings that a user must know of.
    pub(super) notes: Vec<String>,
}

impl Manifest {
    /// Reads and judges the bytes of a manifest.
    pub(super) fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let any: serde_json::Value = serde_json::from_slice(bytes)?;
        match any["format"].as_u64() {
            Some(format) if format != u64::from(FORMAT) => return Err(ManifestError::Format(format)),
            _ => {}
        }
        let manifest: Manifest = serde_json::from_slice(bytes)?;
        manifest.judge()?;
        Ok(manifest)
    }

    pub(super) fn judge(&self) -> Result<(), ManifestError> {
        if numbers(&self.version).is_none() {
            return Err(ManifestError::Version(self.version.clone()));
        }
        if self.files.len() > FILES_MAX {
            return Err(ManifestError::Many(self.files.len()));
        }
        let sums = self.files.iter().map(|file| &file.sha256);
        if let Some(bad) = sums.chain([&self.program.sha256, &self.archive.sha256]).find(|sum| !is_sum(sum)) {
            return Err(ManifestError::Sum(bad.clone()));
        }
        for file in &self.files {
            file.judge()?;
        }
        if let Some(pair) = self.files.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            return Err(ManifestError::Order(pair[1].name.clone()));
        }
        if self.total().is_none_or(|total| total > ALL_BYTES_MAX) {
            return Err(ManifestError::AllLarge);
        }
        let of_file =
            |image: &&Image| image.file.starts_with("images/") && self.files.iter().any(|file| file.name == image.file);
        match self.images.iter().find(|image| !of_file(image)) {
            Some(image) => Err(ManifestError::Image(image.file.clone())),
            None => Ok(()),
        }
    }

    /// Bytes of all that is unpacked.
    pub(super) fn total(&self) -> Option<u64> {
        let sizes = self.files.iter().map(|file| file.size).chain([self.program.size]);
        sizes.into_iter().try_fold(0_u64, u64::checked_add)
    }

    /// Whether it has a program of this name.
    pub(super) fn has(&self, program: &str) -> bool {
        self.files.iter().any(|file| file.name.strip_prefix("bin/") == Some(program))
    }
}

impl Entry {
    fn judge(&self) -> Result<(), ManifestError> {
        let want = mode_of(&self.name).ok_or_else(|| ManifestError::Name(self.name.clone()))?;
        let want = format!("{want:04o}");
        if self.mode != want {
            return Err(ManifestError::Mode { name: self.name.clone(), mode: self.mode.clone(), want });
        }
        if self.size > FILE_BYTES_MAX {
            return Err(ManifestError::Large { name: self.name.clone(), size: self.size });
        }
        Ok(())
    }

    /// Permission bits.
    pub(super) fn bits(&self) -> u32 {
        mode_of(&self.name).unwrap_or(0o600)
    }
}

/// The mode of a file by its name; `None` for a name that may not be.
pub(super) fn mode_of(name: &str) -> Option<u32> {
    let (folder, name) = name.split_once('/')?;
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte));
    // The head of the bundle is unpacked under this name.
    let is_head = folder == BIN && name == KEDGE;
    let known = FOLDERS.iter().find(|(known, _)| *known == folder)?;
    (begins && is_plain && name.len() <= NAME_MAX && !is_head).then_some(known.1)
}

fn is_sum(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The numbers of a version such as `1.2.3`, with what may follow them left out.
pub(super) fn numbers(version: &str) -> Option<[u64; 3]> {
    if version.len() > 64 || !version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte)) {
        return None;
    }
    let mut parts = version.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in super::super) fn sample() -> Manifest {
        let blob = || Blob { size: 1, sha256: "0".repeat(64) };
        let entry = |name: &str, mode: &str| Entry {
            name: name.to_owned(),
            size: 3,
            sha256: "a".repeat(64),
            mode: mode.to_owned(),
            origin: Origin::File,
            module: None,
            interpreter: None,
        };
        Manifest {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            arch: Arch::Amd64,
            program: blob(),
            archive: blob(),
            files: vec![entry("bin/runc", "0755"), entry("images/a.tar", "0644")],
            images: vec![Image {
                file: "images/a.tar".to_owned(),
                references: vec!["a:1".to_owned()],
                digest: String::new(),
            }],
            notes: Vec::new(),
        }
    }

    fn refused(change: impl FnOnce(&mut Manifest)) -> String {
        let mut manifest = sample();
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        base::chain::Chain(&Manifest::parse(&bytes).unwrap_err()).to_string()
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let bytes = serde_json::to_vec(&sample()).unwrap();
        assert_eq!(Manifest::parse(&bytes).unwrap(), sample());
        assert!(sample().has("runc") && !sample().has("a.tar"));
    }

    #[test]
    fn no_name_leads_out_of_its_folder() {
        let long = format!("bin/{}", "a".repeat(4096));
        for name in [
            "bin/../x",
            "../x",
            "/bin/x",
            "bin//x",
            "bin/a/b",
            "bin/",
            "bin",
            "etc/x",
            "bin/.x",
            "bin/-x",
            "bin/a b",
            "bin/a\nb",
            "bin/kedge",
            "bin/\u{fc}",
            "",
            "images/..",
            &long,
        ] {
            assert!(
                refused(|manifest| manifest.files[0].name = name.to_owned()).contains("it names the file"),
                "{name}"
            );
        }
        assert_eq!((mode_of("bin/ctr"), mode_of("images/a_1.2+3.tar.gz")), (Some(0o755), Some(0o644)));
    }

    #[test]
    fn sizes_modes_sums_and_order_are_bounded() {
        assert!(refused(|m| m.files[0].mode = "4755".to_owned()).contains("the mode 4755"));
        assert!(refused(|m| m.files[1].name = "bin/runc".to_owned()).contains("mode 0644"));
        assert!(refused(|m| m.files.swap(0, 1)).contains("not sorted"));
        assert!(refused(|m| m.files[1] = m.files[0].clone()).contains("twice"));
        assert!(refused(|m| m.files[0].size = u64::MAX).contains("bytes, and"));
        assert!(refused(|m| m.program.size = u64::MAX).contains("in all"));
        assert!(refused(|m| m.archive.sha256 = "A".repeat(64)).contains("SHA-256"));
        assert!(refused(|m| m.images[0].file = "bin/runc".to_owned()).contains("is no file of it"));
        assert!(refused(|m| m.version = "../1".to_owned()).contains("version"));
        assert!(refused(|m| m.format = 2).contains("form 2"));
        let many = |m: &mut Manifest| m.files = vec![m.files[0].clone(); FILES_MAX + 1];
        assert!(refused(many).contains("is the most"));
        assert!(Manifest::parse(b"{\"format\":1,\"more\":1}").is_err() && Manifest::parse(b"").is_err());
    }

    #[test]
    fn versions_are_told_apart_by_their_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.9-rc1"));
        for bad in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "1.2.3/../"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
    }
}
