//! The images that kedge itself needs, made from this very binary: a cluster that never saw the internet has its pause and DNS images.
//!
//! Both images share one layer with the binary under several names; containerd stores and unpacks it once.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base::task::Group;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// `ctr` unpacks some 25 MB; a slow SD card needs a while.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);
/// Names of the binary in the layer; each is a role (main.rs).
const NAMES: [&str; 2] = ["pause", "coredns"];

/// Why the system images could not be made or imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("cannot read this program's own file {path}", path = path.display())]
    ReadSelf { path: PathBuf, source: io::Error },
    #[error("this kedge is dynamically linked, so no image can be made of it; use the static build (make release)")]
    NotStatic,
    #[error("cannot pack the system images")]
    Pack(#[source] io::Error),
    #[error("cannot run {tool}; is containerd's client installed (Debian: apt-get install containerd)?")]
    Run { tool: &'static str, source: io::Error },
    #[error("{tool} refused the system images: {said}")]
    Refused { tool: &'static str, said: String },
    #[error("{tool} did not finish importing the system images within {} s", IMPORT_TIMEOUT.as_secs())]
    Slow { tool: &'static str },
}

/// References of the two images; the tag is the binary's digest, so that a new binary brings new images.
#[derive(Clone, Debug)]
pub(crate) struct SystemImages {
    binary: Vec<u8>,
    /// The sandbox image.
    pub(crate) pause: String,
    /// The CoreDNS-compatible DNS server.
    pub(crate) dns: String,
}

impl SystemImages {
    /// Reads the running program. `ReadSelf` or `NotStatic` if it cannot serve as an image.
    pub(crate) fn of_this_program() -> Result<SystemImages, ImageError> {
        // Not current_exe(): after an upgrade in place that path names the new file, /proc/self/exe is what runs.
        let path = Path::new("/proc/self/exe");
        let mut binary = Vec::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_end(&mut binary))
            .map_err(|source| ImageError::ReadSelf { path: path.to_owned(), source })?;
        if has_interpreter(&binary) {
            return Err(ImageError::NotStatic);
        }
        let tag = hex(&Sha256::digest(&binary))[..12].to_owned();
        let [pause, dns] = NAMES.map(|name| format!("kedge.local/{name}:{tag}"));
        Ok(SystemImages { binary, pause, dns })
    }

    /// Imports both images into containerd unless it has them.
    pub(crate) async fn import(self, socket: &Path) -> Result<(), ImageError> {
        let ctr = || {
            let mut ctr = Command::new("ctr");
            ctr.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images"]).kill_on_drop(true);
            ctr
        };
        let listed = ctr().args(["ls", "-q"]).output().await.map_err(|source| ImageError::Run { tool: "ctr", source })?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        if [&self.pause, &self.dns].iter().all(|image| listed.lines().any(|line| line == *image)) {
            return Ok(());
        }
        let (pause, dns) = (self.pause.clone(), self.dns.clone());
        let archive = Group::blocking(move || self.archive())
            .await
            .map_err(|fatal| ImageError::Pack(io::Error::other(fatal)))?
            .map_err(ImageError::Pack)?;
        run(ctr().args(["import", "-"]), &archive).await?;
        // The label keeps image garbage collectors away (containerd 1.7 and later read it).
        for image in [pause, dns] {
            run(ctr().args(["label", &image, "io.cri-containerd.pinned=pinned"]), &[]).await?;
        }
        Ok(())
    }

    /// A docker archive (image spec v1.2): the manifest, a configuration per image, the one layer.
    fn archive(&self) -> io::Result<Vec<u8>> {
        let layer = layer(&self.binary)?;
        let diff_id = format!("sha256:{}", hex(&Sha256::digest(&layer)));
        let mut archive = tar::Builder::new(Vec::with_capacity(layer.len() + 16 * 1024));
        let mut manifest = Vec::new();
        for (name, tag) in NAMES.iter().zip([&self.pause, &self.dns]) {
            let config = json!({
                "architecture": oci_architecture(),
                "os": "linux",
                "config": {"Entrypoint": [format!("/{name}")], "WorkingDir": "/", "Env": ["PATH=/"]},
                "rootfs": {"type": "layers", "diff_ids": [diff_id]},
                "history": [{"created_by": "kedge"}],
            });
            let config = serde_json::to_vec(&config)?;
            let file = format!("{}.json", hex(&Sha256::digest(&config)));
            append(&mut archive, &file, 0o644, &config)?;
            manifest.push(json!({"Config": file, "RepoTags": [tag], "Layers": ["layer.tar"]}));
        }
        append(&mut archive, "layer.tar", 0o644, &layer)?;
        append(&mut archive, "manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
        archive.into_inner()
    }
}

async fn run(command: &mut Command, input: &[u8]) -> Result<(), ImageError> {
    let tool = "ctr";
    let failed = |source| ImageError::Run { tool, source };
    let work = async {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that ends early says why on its standard error, which is the better message.
            let _broken_pipe = stdin.write_all(input).await;
        }
        child.wait_with_output().await.map_err(failed)
    };
    let output = tokio::time::timeout(IMPORT_TIMEOUT, work).await.map_err(|_| ImageError::Slow { tool })??;
    if output.status.success() {
        return Ok(());
    }
    Err(ImageError::Refused { tool, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

/// The layer: the binary once, its roles as links.
fn layer(binary: &[u8]) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::with_capacity(binary.len() + 4096));
    append(&mut layer, "kedge", 0o755, binary)?;
    for name in NAMES {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer.append_link(&mut header, name, "kedge")?;
    }
    let mut tmp = tar::Header::new_gnu();
    tmp.set_entry_type(tar::EntryType::Directory);
    tmp.set_size(0);
    tmp.set_mode(0o1777);
    layer.append_data(&mut tmp, "tmp/", io::empty())?;
    layer.into_inner()
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(u64::try_from(content.len()).map_err(io::Error::other)?);
    header.set_mode(mode);
    archive.append_data(&mut header, name, content)
}

/// Whether an ELF file asks for a dynamic linker (program header PT_INTERP, 3). Spec: elf(5).
fn has_interpreter(elf: &[u8]) -> bool {
    let u16_at = |at: usize| elf.get(at..at + 2).map_or(0, |b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let phoff = elf.get(32..40).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let phoff = usize::try_from(phoff).unwrap_or(usize::MAX);
    let (entry_len, entries) = (u16_at(54), u16_at(56));
    (0..entries).any(|i| {
        let at = phoff.saturating_add(i * entry_len);
        elf.get(at..at.saturating_add(4)) == Some(&[3, 0, 0, 0])
    })
}

fn oci_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_names_both_images_and_one_layer() {
        let images = SystemImages { binary: b"binary".to_vec(), pause: "p:1".into(), dns: "d:1".into() };
        let bytes = images.archive().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut names = Vec::new();
        let mut manifest = String::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            names.push(entry.path().unwrap().display().to_string());
            if names.last().unwrap() == "manifest.json" {
                entry.read_to_string(&mut manifest).unwrap();
            }
        }
        assert_eq!(names.iter().filter(|name| *name == "layer.tar").count(), 1);
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "p:1");
        assert_eq!(manifest[1]["RepoTags"][0], "d:1");
    }

    #[test]
    fn a_test_program_of_the_gnu_target_is_seen_as_dynamic() {
        let this = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(has_interpreter(&this), cfg!(target_env = "gnu"));
        assert!(!has_interpreter(b"\x7fELF"));
    }
}
