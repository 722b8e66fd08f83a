//! The images that kedge itself needs, made from this very binary: a cluster that never saw the internet has its pause and DNS images.
//!
//! Both images share one layer with the binary under several names; containerd stores and unpacks it once.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// `ctr` unpacks some 25 MB; a slow SD card, or an emulated machine, needs a while.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(900);
/// Names of the binary in the layer; each is a role (main.rs).
const NAMES: [&str; 2] = ["pause", "coredns"];
/// Spec: POSIX pax, "ustar Interchange Format".
const TAR_BLOCK: usize = 512;
/// Enough of an ELF file to hold its program headers.
const PROGRAM_HEADERS: u64 = 4096;
/// Further roles that the images can run.
const ROLES: [&str; 1] = ["local-path"];

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
#[derive(Debug)]
pub(crate) struct SystemImages {
    layer: Layer,
    /// The sandbox image.
    pub(crate) pause: String,
    /// The CoreDNS-compatible DNS server.
    pub(crate) dns: String,
}

/// The one layer of both images, as a tar file that is never whole in memory: `head`, the binary, `tail`.
#[derive(Debug)]
struct Layer {
    binary: File,
    binary_len: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// SHA-256 of the three.
    digest: String,
}

impl SystemImages {
    /// Reads the running program. `ReadSelf` or `NotStatic` if it cannot serve as an image.
    pub(crate) fn of_this_program() -> Result<SystemImages, ImageError> {
        // Not current_exe(): after an upgrade in place that path names the new file, /proc/self/exe is what runs.
        let path = Path::new("/proc/self/exe");
        let unreadable = |source| ImageError::ReadSelf { path: path.to_owned(), source };
        let mut binary = File::open(path).map_err(unreadable)?;
        let mut start = Vec::new();
        Read::take(&mut binary, PROGRAM_HEADERS).read_to_end(&mut start).map_err(unreadable)?;
        if has_interpreter(&start) {
            return Err(ImageError::NotStatic);
        }
        SystemImages::of(binary).map_err(unreadable)
    }

    fn of(mut binary: File) -> io::Result<SystemImages> {
        let binary_len = binary.seek(SeekFrom::End(0))?;
        let (head, tail) = (file_header("kedge", 0o755, binary_len)?, layer_tail(binary_len)?);
        let (mut of_binary, mut of_layer) = (Sha256::new(), Sha256::new_with_prefix(&head));
        binary.rewind()?;
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let read = binary.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            of_binary.update(&chunk[..read]);
            of_layer.update(&chunk[..read]);
        }
        of_layer.update(&tail);
        let tag = hex(&of_binary.finalize())[..12].to_owned();
        let [pause, dns] = NAMES.map(|name| format!("kedge.local/{name}:{tag}"));
        Ok(SystemImages { layer: Layer { binary, binary_len, head, tail, digest: hex(&of_layer.finalize()) }, pause, dns })
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
        let (before, after) = self.around_the_binary().map_err(ImageError::Pack)?;
        let mut binary = self.layer.binary;
        binary.rewind().map_err(ImageError::Pack)?;
        let binary = tokio::fs::File::from_std(binary).take(self.layer.binary_len);
        let archive = AsyncReadExt::chain(before, binary).chain(after);
        run(ctr().args(["import", "-"]), archive).await?;
        // The label keeps image garbage collectors away (containerd 1.7 and later read it).
        for image in [pause, dns] {
            run(ctr().args(["label", &image, "io.cri-containerd.pinned=pinned"]), io::Cursor::new(Vec::new())).await?;
        }
        Ok(())
    }

    /// What stands before and after the binary in a docker archive (image spec v1.2): a configuration per image, the head of the
    /// one layer; its tail, the manifest.
    fn around_the_binary(&self) -> io::Result<(io::Cursor<Vec<u8>>, io::Cursor<Vec<u8>>)> {
        let (mut before, mut manifest) = (Vec::new(), Vec::new());
        for (name, tag) in NAMES.iter().zip([&self.pause, &self.dns]) {
            let config = json!({
                "architecture": oci_architecture(),
                "os": "linux",
                "config": {"Entrypoint": [format!("/{name}")], "WorkingDir": "/", "Env": ["PATH=/"]},
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", self.layer.digest)]},
                "history": [{"created_by": "kedge"}],
            });
            let config = serde_json::to_vec(&config)?;
            let file = format!("{}.json", hex(&Sha256::digest(&config)));
            append(&mut before, &file, &config)?;
            manifest.push(json!({"Config": file, "RepoTags": [tag], "Layers": ["layer.tar"]}));
        }
        let layer = &self.layer;
        let layer_len = len(&layer.head)? + layer.binary_len + len(&layer.tail)?;
        before.extend(file_header("layer.tar", 0o644, layer_len)?);
        before.extend(&layer.head);
        // A layer is whole tar blocks, so nothing fills up between it and the next entry.
        let mut after = layer.tail.clone();
        append(&mut after, "manifest.json", &serde_json::to_vec(&manifest)?)?;
        after.extend([0; 2 * TAR_BLOCK]);
        Ok((io::Cursor::new(before), io::Cursor::new(after)))
    }
}

async fn run(command: &mut Command, mut input: impl AsyncRead + Unpin) -> Result<(), ImageError> {
    let tool = "ctr";
    let failed = |source| ImageError::Run { tool, source };
    let work = async {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that ends early says why on its standard error, which is the better message.
            let _broken_pipe = tokio::io::copy(&mut input, &mut stdin).await;
        }
        child.wait_with_output().await.map_err(failed)
    };
    let output = tokio::time::timeout(IMPORT_TIMEOUT, work).await.map_err(|_| ImageError::Slow { tool })??;
    if output.status.success() {
        return Ok(());
    }
    Err(ImageError::Refused { tool, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

/// The layer after the binary: padding, the roles as links, /tmp, the end of the archive.
fn layer_tail(binary_len: u64) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(padding(binary_len));
    for name in NAMES.into_iter().chain(ROLES) {
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

fn file_header(name: &str, mode: u32, len: u64) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name)?;
    header.set_size(len);
    header.set_mode(mode);
    header.set_cksum();
    Ok(header.as_bytes().to_vec())
}

fn append(archive: &mut Vec<u8>, name: &str, content: &[u8]) -> io::Result<()> {
    archive.extend(file_header(name, 0o644, len(content)?)?);
    archive.extend(content);
    archive.extend(padding(len(content)?));
    Ok(())
}

/// What fills an entry's last block.
fn padding(len: u64) -> Vec<u8> {
    let block = TAR_BLOCK as u64;
    vec![0; usize::try_from(len.next_multiple_of(block) - len).unwrap_or_default()]
}

fn len(bytes: &[u8]) -> io::Result<u64> {
    u64::try_from(bytes.len()).map_err(io::Error::other)
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
    fn the_archive_names_both_images_and_holds_the_binary_once_in_their_layer() {
        let mut binary = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut binary, &[7; 1000]).unwrap();
        let images = SystemImages::of(binary).unwrap();
        let (before, after) = images.around_the_binary().unwrap();
        let bytes = [before.get_ref(), &vec![7; 1000], after.get_ref()].map(Vec::as_slice).concat();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!([&manifest[0]["RepoTags"][0], &manifest[1]["RepoTags"][0]], [&images.pause, &images.dns]);
        let layer = &files["layer.tar"];
        let config: serde_json::Value = serde_json::from_slice(&files[manifest[1]["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", hex(&Sha256::digest(layer))));
        let mut layer = tar::Archive::new(layer.as_slice());
        let names: Vec<_> =
            layer.entries().unwrap().map(|e| (e.as_ref().unwrap().path().unwrap().display().to_string(), e.unwrap().size())).collect();
        assert_eq!(
            names,
            [
                ("kedge".to_owned(), 1000),
                ("pause".to_owned(), 0),
                ("coredns".to_owned(), 0),
                ("local-path".to_owned(), 0),
                ("tmp/".to_owned(), 0)
            ]
        );
    }

    #[test]
    fn a_test_program_of_the_gnu_target_is_seen_as_dynamic() {
        let this = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(has_interpreter(&this), cfg!(target_env = "gnu"));
        assert!(!has_interpreter(b"\x7fELF"));
    }
}
