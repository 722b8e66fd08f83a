//! Images that go into a bundle: archives that a user names, and images of this node's containerd.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::manifest::Arch;
use crate::flags::environment::search_path;

/// Endings of archives that the node imports.
pub(super) const ENDINGS: [&str; 5] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"];
/// Bytes of a file of JSON in an archive.
const JSON_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Entries of an archive.
const ENTRIES_MAX: usize = 100_000;
/// Exporting some gigabytes takes its time.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(1800);

/// An image that cannot go into a bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("it cannot be read as an archive of images (.tar, .tar.gz or .tar.zst)")]
    Read(#[from] io::Error),
    #[error("there is no such file")]
    NoFile,
    #[error("its name must end in .tar, .tar.gz, .tgz, .tar.zst or .tzst: the node takes no others")]
    Ending,
    #[error("it holds no named image: save it by its name, as 'docker save NAME:TAG' does")]
    Unnamed,
    #[error("its image is for {0}, and --arch is {1}: save the one for {1}")]
    Arch(String, Arch),
    #[error(
        "this node's containerd does not export it: {said}; pull it first (kedge ctr images pull), or name an \
        archive"
    )]
    Export { said: String },
    #[error("cannot run ctr to export it: name an archive instead")]
    Ctr(#[source] io::Error),
}

/// Names and digest of what an archive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) references: Vec<String>,
    pub(super) digest: String,
}

/// The name that an archive has in a bundle.
pub(super) fn file_name(path: &Path) -> Result<String, ImageError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if ENDINGS.iter().any(|ending| name.ends_with(ending)) { Ok(name) } else { Err(ImageError::Ending) }
}

/// Whether a word of the command line is meant as a file.
pub(super) fn is_file(word: &str) -> bool {
    Path::new(word).exists() || word.starts_with(['/', '.']) || ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// Reads an archive, docker's or OCI's.
pub(super) fn look(path: &Path, arch: Arch) -> Result<Contents, ImageError> {
    let wants = |name: &str| matches!(name, "manifest.json" | "index.json");
    let found = jsons(path, &wants)?;
    let of = |name: &str| found.iter().find(|(found, _)| found == name).map(|(_, value)| value);
    let texts = |value: &Value| value.as_str().map(str::to_owned);
    let mut references: Vec<String> = Vec::new();
    let mut digest = None;
    if let Some(index) = of("index.json") {
        for manifest in index["manifests"].as_array().into_iter().flatten() {
            let notes = &manifest["annotations"];
            let name = texts(&notes["io.containerd.image.name"]).or_else(|| {
                texts(&notes["org.opencontainers.image.ref.name"]).filter(|name| name.contains(['/', ':']))
            });
            references.extend(name);
            digest = digest.or_else(|| texts(&manifest["digest"]));
            of_arch(manifest["platform"]["architecture"].as_str(), arch)?;
        }
    }
    if let Some(Value::Array(images)) = of("manifest.json") {
        references.extend(images.iter().flat_map(|image| image["RepoTags"].as_array()).flatten().filter_map(texts));
        let configs: Vec<String> = images.iter().filter_map(|image| texts(&image["Config"])).collect();
        for (_, config) in jsons(path, &|name| configs.iter().any(|config| config == name))? {
            of_arch(config["architecture"].as_str(), arch)?;
        }
        let sum = configs.first().map(|name| name.trim_start_matches("blobs/sha256/").trim_end_matches(".json"));
        digest = digest.or_else(|| sum.map(|sum| format!("sha256:{sum}")));
    }
    references.sort();
    references.dedup();
    match digest {
        Some(digest) if !references.is_empty() => Ok(Contents { references, digest }),
        _ => Err(ImageError::Unnamed),
    }
}

fn of_arch(found: Option<&str>, arch: Arch) -> Result<(), ImageError> {
    match found {
        Some(found) if found != arch.name() => Err(ImageError::Arch(found.to_owned(), arch)),
        _ => Ok(()),
    }
}

/// The files of an archive that `wants` names, as JSON.
fn jsons(path: &Path, wants: &dyn Fn(&str) -> bool) -> Result<Vec<(String, Value)>, ImageError> {
    let mut archive = tar::Archive::new(opened(path)?);
    let mut found = Vec::new();
    for entry in archive.entries()?.take(ENTRIES_MAX) {
        let entry = entry?;
        let name = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        if entry.header().entry_type().is_file() && wants(&name) {
            let mut bytes = Vec::new();
            entry.take(JSON_BYTES_MAX).read_to_end(&mut bytes)?;
            found.push((name, serde_json::from_slice(&bytes).map_err(io::Error::other)?));
        }
    }
    Ok(found)
}

/// The tar of a file, by what the file is, not by what it is called.
pub(super) fn opened(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    (&mut file).take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(match start[..] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(file)?),
        _ => Box::new(file),
    })
}

/// Has containerd at `socket` write an image into a file of `work`.
pub(super) fn export(reference: &str, arch: Arch, socket: &Path, work: &Path) -> Result<PathBuf, ImageError> {
    let plain: String =
        reference.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let to = work.join(format!("{}.tar", plain.trim_start_matches(['.', '-'])));
    let platform = match arch {
        Arch::Arm => "linux/arm/v7".to_owned(),
        arch => format!("linux/{arch}"),
    };
    let mut ctr = Command::new("ctr");
    ctr.env("PATH", search_path()).arg("--address").arg(socket);
    ctr.args(["--namespace", "k8s.io", "images", "export", "--platform", &platform]).arg(&to).arg(reference);
    let output = base::program::output(&mut ctr, b"", EXPORT_TIMEOUT).map_err(ImageError::Ctr)?;
    if output.status.success() {
        return Ok(to);
    }
    Err(ImageError::Export { said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An archive of these files.
    pub(in super::super) fn archive(path: &Path, files: &[(&str, &str)]) {
        let mut tar = tar::Builder::new(File::create(path).unwrap());
        for (name, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        tar.finish().unwrap();
    }

    #[test]
    fn archives_of_docker_and_oci_tell_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        let config = r#"{"architecture":"amd64"}"#;
        archive(&path, &[("manifest.json", r#"[{"Config":"c.json","RepoTags":["a:1","b:2"]}]"#), ("c.json", config)]);
        let found = look(&path, Arch::Amd64).unwrap();
        assert_eq!((found.references, found.digest.as_str()), (vec!["a:1".to_owned(), "b:2".to_owned()], "sha256:c"));
        assert!(matches!(look(&path, Arch::Arm64), Err(ImageError::Arch(found, _)) if found == "amd64"));
        let index = r#"{"manifests":[{"digest":"sha256:d","annotations":{"io.containerd.image.name":"c:3"}}]}"#;
        archive(&path, &[("./index.json", index)]);
        let found = look(&path, Arch::Arm64).unwrap();
        assert_eq!((found.references, found.digest.as_str()), (vec!["c:3".to_owned()], "sha256:d"));
    }

    #[test]
    fn what_is_no_named_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        archive(&path, &[("manifest.json", r#"[{"Config":"c.json","RepoTags":null}]"#)]);
        assert!(matches!(look(&path, Arch::Amd64), Err(ImageError::Unnamed)));
        for text in ["", "no archive", "\u{1f}\u{fffd}"] {
            std::fs::write(&path, text).unwrap();
            assert!(look(&path, Arch::Amd64).is_err(), "{text}");
        }
        assert!(matches!(file_name(Path::new("/x/a.zip")), Err(ImageError::Ending)));
        assert!(is_file("a.tar") && is_file("./a") && !is_file("docker.io/library/nginx:1"));
    }
}
