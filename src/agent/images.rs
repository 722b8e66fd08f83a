//! The images that kedge itself needs, made from this very binary: a cluster that never saw the internet has its pause
//! and DNS images.
//!
//! Both images share one layer with the binary under several names; containerd stores and unpacks it once.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base::hex;
use kubelet::runtime::Runtime;
use ring::digest;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
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
/// Bytes of the binary that are read at a time.
const CHUNK: usize = 256 * 1024;

/// Why the system images could not be made or imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("cannot read this program's own file {path}", path = path.display())]
    ReadSelf { path: PathBuf, source: io::Error },
    #[error("this kedge is dynamically linked, so no image can be made of it; use the static build (make release)")]
    NotStatic,
    #[error("cannot pack the system images")]
    Pack(#[source] io::Error),
    #[error(transparent)]
    Runtime(#[from] kubelet::error::Error),
    #[error("cannot run {tool}; is containerd's client installed (Debian: apt-get install containerd)?")]
    Run { tool: &'static str, source: io::Error },
    #[error("{tool} refused the system images: {said}")]
    Refused { tool: &'static str, said: String },
    #[error("{tool} did not finish importing the system images within {} s", IMPORT_TIMEOUT.as_secs())]
    Slow { tool: &'static str },
}

/// References of the two images; the tag is a fingerprint of the binary, so that a new binary brings new images.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// The sandbox image.
    pub(crate) pause: String,
    /// The CoreDNS-compatible DNS server.
    pub(crate) dns: String,
}

/// The two images, ready to be imported.
#[derive(Debug)]
pub(crate) struct SystemImages {
    layer: Layer,
    names: Names,
}

/// The one layer of both images, as a tar file that is never whole in memory: `head`, the binary, `tail`.
#[derive(Debug)]
struct Layer {
    binary: File,
    binary_len: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
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
        binary.rewind()?;
        let tag = fingerprint(&mut binary)?;
        let [pause, dns] = NAMES.map(|name| format!("kedge.local/{name}:{tag:012x}"));
        Ok(SystemImages { layer: Layer { binary, binary_len, head, tail }, names: Names { pause, dns } })
    }

    /// The images' names.
    pub(crate) fn names(&self) -> Names {
        self.names.clone()
    }

    /// Imports both images into containerd unless it has them. Its client is looked for where containerd was.
    pub(crate) async fn import(self, runtime: &Runtime, search_path: &OsStr) -> Result<(), ImageError> {
        let here = runtime.image_names().await?;
        let images = [self.names.pause, self.names.dns];
        if images.iter().all(|image| here.contains(image)) {
            return Ok(());
        }
        let mut ctr = Command::new("ctr");
        ctr.env("PATH", search_path).arg("--address").arg(&runtime.socket).args([
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "-",
        ]);
        run(ctr.kill_on_drop(true), self.layer, &images).await?;
        // The label keeps image garbage collectors away (containerd 1.7 and later read it).
        for image in &images {
            runtime.pin_image(image).await?;
        }
        Ok(())
    }
}

/// A fast mark of a file's content, 48 bits: it tells binaries apart, and proves nothing. What containerd is given is
/// named by SHA-256.
fn fingerprint(file: &mut File) -> io::Result<u64> {
    let (mut chunk, mut mark) = (vec![0; CHUNK], 0xcbf2_9ce4_8422_2325_u64);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok((mark ^ (mark >> 48)) & 0xffff_ffff_ffff);
        }
        for word in chunk[..read].chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            mark = (mark ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}

/// Writes a docker archive (image spec v1.2): the one layer, a configuration per image, the manifest. The layer comes
/// first, because the configurations name its digest, which is counted as it passes.
async fn write_archive(
    layer: Layer,
    binary: impl AsyncRead + Unpin,
    images: &[String; 2],
    out: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let layer_len = len(&layer.head)? + layer.binary_len + len(&layer.tail)?;
    out.write_all(&file_header("layer.tar", 0o644, layer_len)?).await?;
    let mut sum = digest::Context::new(&digest::SHA256);
    sum.update(&layer.head);
    out.write_all(&layer.head).await?;
    let (mut binary, mut chunk) = (binary.take(layer.binary_len), vec![0; CHUNK]);
    loop {
        let read = binary.read(&mut chunk).await?;
        if read == 0 {
            break;
        }
        out.write_all(&chunk[..read]).await?;
        sum.update(&chunk[..read]);
    }
    sum.update(&layer.tail);
    out.write_all(&layer.tail).await?;
    // A layer is whole tar blocks, so nothing fills up between it and the next entry.
    out.write_all(&archive_end(&hex::encode(sum.finish().as_ref()), images)?).await?;
    out.shutdown().await
}

fn archive_end(layer_digest: &str, images: &[String; 2]) -> io::Result<Vec<u8>> {
    let (mut end, mut manifest) = (Vec::new(), Vec::new());
    for (name, tag) in NAMES.iter().zip(images) {
        let config = json!({
            "architecture": oci_architecture(),
            "os": "linux",
            "config": {"Entrypoint": [format!("/{name}")], "WorkingDir": "/", "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
            "history": [{"created_by": "kedge"}],
        });
        let config = serde_json::to_vec(&config)?;
        let file = format!("{}.json", hex::encode(digest::digest(&digest::SHA256, &config).as_ref()));
        append(&mut end, &file, &config)?;
        manifest.push(json!({"Config": file, "RepoTags": [tag], "Layers": ["layer.tar"]}));
    }
    append(&mut end, "manifest.json", &serde_json::to_vec(&manifest)?)?;
    end.extend([0; 2 * TAR_BLOCK]);
    Ok(end)
}

async fn run(command: &mut Command, mut layer: Layer, images: &[String; 2]) -> Result<(), ImageError> {
    let tool = "ctr";
    let failed = |source| ImageError::Run { tool, source };
    layer.binary.rewind().map_err(ImageError::Pack)?;
    let mut binary = tokio::fs::File::from_std(layer.binary.try_clone().map_err(ImageError::Pack)?);
    binary.set_max_buf_size(CHUNK);
    let work = async {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that ends early says why on its standard error, which is the better message.
            let _broken_pipe = write_archive(layer, binary, images, &mut stdin).await;
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

/// Padding that fills an entry's last block.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn images_of(content: &[u8]) -> SystemImages {
        let mut binary = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut binary, content).unwrap();
        SystemImages::of(binary).unwrap()
    }

    #[tokio::test]
    async fn the_archive_names_both_images_and_holds_the_binary_once_in_their_layer() {
        let images = images_of(&[7; 1000]);
        let names = [images.names.pause, images.names.dns];
        let mut bytes = Vec::new();
        write_archive(images.layer, [7; 1000].as_slice(), &names, &mut bytes).await.unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!([&manifest[0]["RepoTags"][0], &manifest[1]["RepoTags"][0]], [&names[0], &names[1]]);
        let layer = &files["layer.tar"];
        let config: serde_json::Value =
            serde_json::from_slice(&files[manifest[1]["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, layer).as_ref()))
        );
        let mut layer = tar::Archive::new(layer.as_slice());
        let names: Vec<_> = layer
            .entries()
            .unwrap()
            .map(|e| (e.as_ref().unwrap().path().unwrap().display().to_string(), e.unwrap().size()))
            .collect();
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
    fn another_binary_has_another_tag() {
        let tags: std::collections::BTreeSet<_> =
            [&[7; 1000][..], &[7; 1001], &[8; 1000], &[]].map(|content| images_of(content).names.dns).into();
        assert_eq!(tags.len(), 4, "{tags:?}");
    }

    #[test]
    fn a_test_program_of_the_gnu_target_is_seen_as_dynamic() {
        let this = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(has_interpreter(&this), cfg!(target_env = "gnu"));
        assert!(!has_interpreter(b"\x7fELF"));
    }
}
