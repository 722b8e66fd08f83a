//! `kedge images`, `kedge ps`, `kedge logs`: this node's containerd over the CRI, for when there is no API to ask and
//! no crictl.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::files::FileError;
use base::time::Clock;
use clap::Args;
use k8s_cri::v1 as cri;
use kubelet::runtime::cri::{Cri, CriError};
use serde_json::{Value, json};

use crate::commands::columns::columns;
use crate::flags::shared::StateArgs;
use crate::process::life::{self, LifeError};

/// Where the runtime is.
#[derive(Clone, Debug, Args)]
struct RuntimeArgs {
    #[command(flatten)]
    state: StateArgs,
    /// CRI socket (default: that of kedge's containerd).
    #[arg(long, value_name = "SOCKET")]
    container_runtime_endpoint: Option<String>,
}

impl RuntimeArgs {
    fn socket(&self) -> PathBuf {
        match &self.container_runtime_endpoint {
            Some(endpoint) => endpoint.strip_prefix("unix://").unwrap_or(endpoint).into(),
            None => self.state.layout.run().containerd_socket(),
        }
    }
}

/// Flags of `kedge images`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImagesArgs {
    #[command(flatten)]
    runtime: RuntimeArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `kedge ps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    runtime: RuntimeArgs,
    /// Those that have ended, too.
    #[arg(short, long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `kedge logs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    runtime: RuntimeArgs,
    /// A container's id or its beginning, or NAMESPACE/POD, or NAMESPACE/POD/CONTAINER.
    container: String,
    /// Go on as the container writes.
    #[arg(short, long)]
    follow: bool,
    /// Only this many last lines.
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
}

/// Why a look at this node's containers failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainersError {
    #[error("there is no socket {path}: is kedge running here? See 'kedge status'", path = path.display())]
    NoSocket { path: PathBuf },
    #[error("{path}", path = path.display())]
    Cri { path: PathBuf, source: CriError },
    #[error("there is no container {asked} on this node: see 'kedge ps -a'")]
    NoContainer { asked: String },
    #[error("{asked} is both {one} and {other}: name one")]
    Several { asked: String, one: String, other: String },
    #[error("the container has no log")]
    NoLog,
    #[error("cannot run tail")]
    Tail(#[source] io::Error),
    #[error("tail has no output")]
    Silent,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

fn asked<T>(runtime: &RuntimeArgs, call: impl AsyncFnOnce(Cri) -> Result<T, CriError>) -> Result<T, ContainersError> {
    let socket = runtime.socket();
    if !socket.exists() {
        return Err(ContainersError::NoSocket { path: socket });
    }
    life::ask(async { call(Cri::connect(&socket)).await })?
        .map_err(|source| ContainersError::Cri { path: socket, source })
}

fn short(id: &str) -> &str {
    let bare = id.strip_prefix("sha256:").unwrap_or(id);
    bare.get(..13).unwrap_or(bare)
}

fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n}B"),
        1_000..1_000_000 => format!("{}.{}kB", n / 1_000, n % 1_000 / 100),
        1_000_000..1_000_000_000 => format!("{}.{}MB", n / 1_000_000, n % 1_000_000 / 100_000),
        _ => format!("{}.{}GB", n / 1_000_000_000, n % 1_000_000_000 / 100_000_000),
    }
}

/// Lists images.
pub(crate) fn images(args: &ImagesArgs) -> Result<(), ContainersError> {
    let mut all = asked(&args.runtime, async |cri| cri.images().await)?;
    all.sort_by(|a, b| a.repo_tags.cmp(&b.repo_tags));
    if args.json {
        let one = |i: &cri::Image| {
            json!({ "id": i.id, "repoTags": i.repo_tags, "repoDigests": i.repo_digests,
            "size": i.size, "pinned": i.pinned })
        };
        println!("{}", Value::Array(all.iter().map(one).collect()));
        return Ok(());
    }
    let mut rows = vec![["IMAGE", "ID", "SIZE"].map(str::to_owned)];
    for image in &all {
        let names = if image.repo_tags.is_empty() { &image.repo_digests } else { &image.repo_tags };
        for name in names {
            rows.push([name.clone(), short(&image.id).to_owned(), bytes(image.size)]);
        }
    }
    print!("{}", columns(rows));
    Ok(())
}

fn label<'a>(container: &'a cri::Container, name: &str) -> &'a str {
    container.labels.get(name).map(String::as_str).unwrap_or_default()
}

/// Namespace, pod and container.
fn names(container: &cri::Container) -> [&str; 3] {
    ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"]
        .map(|name| label(container, name))
}

fn state(container: &cri::Container) -> &'static str {
    match container.state() {
        cri::ContainerState::ContainerCreated => "Created",
        cri::ContainerState::ContainerRunning => "Running",
        cri::ContainerState::ContainerExited => "Exited",
        cri::ContainerState::ContainerUnknown => "Unknown",
    }
}

fn age(created_nanos: i64) -> String {
    let secs = Clock::system().now().as_second() - created_nanos / 1_000_000_000;
    match secs {
        ..120 => format!("{}s", secs.max(0)),
        120..7200 => format!("{}m", secs / 60),
        7200..172_800 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// Lists containers.
pub(crate) fn ps(args: &PsArgs) -> Result<(), ContainersError> {
    let mut all = asked(&args.runtime, async |cri| cri.containers(None).await)?;
    all.retain(|c| args.all || c.state() == cri::ContainerState::ContainerRunning);
    all.sort_by_key(|c| (names(c).map(str::to_owned), std::cmp::Reverse(c.created_at)));
    if args.json {
        let one = |c: &cri::Container| {
            let [namespace, pod, name] = names(c);
            json!({ "id": c.id, "namespace": namespace, "pod": pod, "name": name,
                "image": c.image.as_ref().map(|i| &i.image), "state": state(c), "createdAt": c.created_at })
        };
        println!("{}", Value::Array(all.iter().map(one).collect()));
        return Ok(());
    }
    let mut rows = vec![["CONTAINER", "NAMESPACE", "POD", "NAME", "STATE", "AGE"].map(str::to_owned)];
    for container in &all {
        let [namespace, pod, name] = names(container).map(str::to_owned);
        rows.push([
            short(&container.id).to_owned(),
            namespace,
            pod,
            name,
            state(container).to_owned(),
            age(container.created_at),
        ]);
    }
    print!("{}", columns(rows));
    Ok(())
}

/// The container meant: by its id's beginning, or by its pod; of several of a name the newest.
fn pick<'a>(all: &'a [cri::Container], asked: &str) -> Result<&'a cri::Container, ContainersError> {
    let parts: Vec<&str> = asked.split('/').collect();
    let fits = |c: &&cri::Container| match parts.as_slice() {
        [id] => !id.is_empty() && c.id.starts_with(id),
        [namespace, pod] => names(c)[..2] == [*namespace, *pod],
        [namespace, pod, name] => names(c) == [*namespace, *pod, *name],
        _ => false,
    };
    let mut found: Vec<&cri::Container> = all.iter().filter(fits).collect();
    found.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    let first = found.first().ok_or_else(|| ContainersError::NoContainer { asked: asked.to_owned() })?;
    let other = found.iter().find(|c| names(c) != names(first));
    match other {
        Some(other) => {
            let (one, other) = (names(first).join("/"), names(other).join("/"));
            Err(ContainersError::Several { asked: asked.to_owned(), one, other })
        }
        None => Ok(first),
    }
}

/// Prints a log.
pub(crate) fn logs(args: &LogsArgs) -> Result<(), ContainersError> {
    let path = asked(&args.runtime, async |cri| {
        let all = cri.containers(None).await?;
        let picked = match pick(&all, &args.container) {
            Ok(picked) => picked,
            Err(why) => return Ok(Err(why)),
        };
        let status = cri.container(&picked.id).await?;
        Ok(status.map(|status| status.log_path).filter(|path| !path.is_empty()).ok_or(ContainersError::NoLog))
    })??;
    if args.follow {
        return follow(args, &path);
    }
    let content = std::fs::read(&path).map_err(FileError::at("cannot read", Path::new(&path)))?;
    let lines: Vec<&[u8]> = content.split_inclusive(|b| *b == b'\n').collect();
    let from = args.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    let mut out = std::io::stdout().lock();
    for line in &lines[from..] {
        // A reader that went away has seen enough.
        if out.write_all(bare(line)).is_err() {
            break;
        }
    }
    Ok(())
}

/// The text of a line of the CRI's form; a partial one has no line break of its own.
fn bare(line: &[u8]) -> &[u8] {
    let mut at = line.splitn(4, |b| *b == b' ');
    match (at.next(), at.next(), at.next(), at.next()) {
        (Some(_), Some(b"stdout" | b"stderr"), Some(tag), Some(text)) if tag.starts_with(b"P") => {
            text.strip_suffix(b"\n").unwrap_or(text)
        }
        (Some(_), Some(b"stdout" | b"stderr"), Some(_), Some(text)) => text,
        _ => line,
    }
}

/// `tail -F` follows files over their rotation; it is on every system that kedge runs on.
fn follow(args: &LogsArgs, path: &str) -> Result<(), ContainersError> {
    use std::io::{BufRead as _, BufReader};
    let lines = args.tail.map_or_else(|| "+1".to_owned(), |tail| tail.to_string());
    let mut tail = Command::new("tail");
    let mut child = tail
        .args(["-n", &lines, "-F"])
        .arg(Path::new(path))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .map_err(ContainersError::Tail)?;
    let mut reader = BufReader::new(child.stdout.take().ok_or(ContainersError::Silent)?);
    let mut line = Vec::new();
    let mut out = std::io::stdout().lock();
    while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        if out.write_all(bare(&line)).and_then(|()| out.flush()).is_err() {
            break;
        }
        line.clear();
    }
    let _ended_already = child.kill();
    child.wait().map(drop).map_err(ContainersError::Tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, pod: &str, name: &str, created_at: i64) -> cri::Container {
        let labels = [
            ("io.kubernetes.pod.namespace", "ns"),
            ("io.kubernetes.pod.name", pod),
            ("io.kubernetes.container.name", name),
        ];
        let labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        cri::Container { id: id.to_owned(), labels, created_at, ..Default::default() }
    }

    #[test]
    fn a_container_is_named_by_id_or_by_its_pod_and_the_newest_counts() {
        let all = [
            container("aa1", "p", "c", 1),
            container("ab2", "p", "c", 2),
            container("cc", "q", "a", 1),
            container("cd", "q", "b", 1),
        ];
        let picked = |asked: &str| {
            pick(&all, asked).map(|c| c.id.clone()).map_err(|err| matches!(err, ContainersError::Several { .. }))
        };
        assert_eq!(
            (picked("aa"), picked("ns/p"), picked("ns/q/b")),
            (Ok("aa1".to_owned()), Ok("ab2".to_owned()), Ok("cd".to_owned()))
        );
        assert_eq!((picked("ns/q"), picked("zz")), (Err(true), Err(false)));
    }

    #[test]
    fn lines_lose_what_the_runtime_put_before_them() {
        assert_eq!(bare(b"2026-11-21T00:00:00Z stdout F hello world\n"), b"hello world\n");
        assert_eq!(bare(b"2026-11-21T00:00:00Z stderr P half\n"), b"half");
        assert_eq!((bytes(999), bytes(1_234_567)), ("999B".to_owned(), "1.2MB".to_owned()));
    }
}
