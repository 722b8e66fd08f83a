//! The machine's `helm`, run as a child in a private folder, with nothing of this process's environment but where to
//! find the network, and as a user that owns nothing else: a chart's author chooses what it reads.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base::files::FileError;
use pki::error::PkiError;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::chart::Layout;

/// Helm ends by itself after its own limit; one that does not is killed after this much more.
const GRACE: Duration = Duration::from_secs(60);
/// For a question that concerns one release.
const QUESTION: Duration = Duration::from_secs(60);
/// Of what it said last, in a condition.
const SAID_LINES: usize = 6;
const SAID_CHARS: usize = 1024;
/// Others may pass through, to their own folders.
const PASSAGE: u32 = 0o711;
/// Bytes of what it says that are kept, the last ones: a chart's notes may be of any length.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Why helm did not do it.
#[derive(Debug, thiserror::Error)]
pub enum HelmError {
    /// There is none.
    #[error("{0}")]
    None(String),
    /// It could not be run.
    #[error(
        "cannot run {path}{as_user}",
        path = path.display(),
        as_user = user.map(|id| format!(" as user {id}")).unwrap_or_default()
    )]
    Run {
        /// The program.
        path: PathBuf,
        /// Whom it was to run as.
        user: Option<u32>,
        /// Why not.
        source: io::Error,
    },
    /// It ended with a failure.
    #[error("helm {verb} failed: {said}")]
    Failed {
        /// `upgrade`, …
        verb: String,
        /// The last it said.
        said: String,
    },
    /// It had to be killed.
    #[error("helm {verb} did not end within {secs} s")]
    Late {
        /// `upgrade`, …
        verb: String,
        /// The limit.
        secs: u64,
    },
    /// Its folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no credential for it.
    #[error("no credential for helm")]
    Credential(#[source] PkiError),
}

/// Where helm is.
#[derive(Clone, Debug)]
pub struct Program {
    /// Named by a flag.
    pub named: Option<PathBuf>,
    /// Else it is looked for here.
    pub search_path: OsString,
    /// Variables that it is given: proxies.
    pub environment: Vec<(String, String)>,
    /// User and group that it runs as; `None`: those of this process, which is not root.
    pub user: Option<u32>,
}

/// The name and namespace of a release.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Its name.
    pub release: &'a str,
    /// The namespace of its objects.
    pub namespace: &'a str,
}

/// How a release stands, by helm's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// `deployed`, `failed`, `pending-upgrade`, …
    pub status: String,
    /// Of its history.
    pub revision: u64,
}

impl Program {
    fn find(&self) -> Result<PathBuf, HelmError> {
        let runs =
            |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if let Some(named) = &self.named {
            let none =
                || HelmError::None(format!("there is no program {} (--helm-binary) on this server", named.display()));
            return Some(named.clone()).filter(|path| runs(path)).ok_or_else(none);
        }
        let none =
            || "there is no program helm on this server's PATH: install helm, or name it with --helm-binary".to_owned();
        std::env::split_paths(&self.search_path)
            .map(|dir| dir.join("helm"))
            .find(|path| runs(path))
            .ok_or_else(|| HelmError::None(none()))
    }
}

/// A folder with all that one call after another needs; it goes with this.
pub struct Session {
    program: PathBuf,
    environment: Vec<(String, String)>,
    user: Option<u32>,
    folder: TempDir,
    release: String,
    namespace: String,
}

impl Session {
    /// Finds helm and makes its folder in `dir`.
    pub fn begin(program: &Program, dir: &Path, kubeconfig: &str, named: Named<'_>) -> Result<Session, HelmError> {
        let found = program.find()?;
        let failed = || FileError::at("cannot make a folder in", dir);
        std::fs::DirBuilder::new().recursive(true).mode(PASSAGE).create(dir).map_err(failed())?;
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(dir).map_err(failed())?;
        if program.user.is_some() {
            chown(folder.path(), program.user, program.user).map_err(failed())?;
        }
        let session = Session {
            program: found,
            environment: program.environment.clone(),
            user: program.user,
            folder,
            release: named.release.to_owned(),
            namespace: named.namespace.to_owned(),
        };
        session.write("kubeconfig", kubeconfig.as_bytes())?;
        Ok(session)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), HelmError> {
        let path = self.folder.path().join(name);
        let failed = || FileError::at("cannot write", &path);
        // New, never through what lies there: the folder is helm's, and this process may write where helm may not.
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed())?;
        if self.user.is_some() {
            fchown(&file, self.user, self.user).map_err(failed())?;
        }
        Ok(io::Write::write_all(&mut file, content).map_err(failed())?)
    }

    /// Puts a chart's files into the folder.
    pub fn lay(&self, layout: &Layout) -> Result<(), HelmError> {
        layout.files.iter().try_for_each(|(name, content)| self.write(name, content))
    }

    /// How the release stands; `None` if there is none.
    pub async fn release(&self) -> Result<Option<Release>, HelmError> {
        let args = ["--max=1", "--output=json", "--", &self.release];
        match self.run("history", &args, QUESTION).await {
            Ok(text) => Ok(newest(&text)),
            Err(HelmError::Failed { said, .. }) if said.contains("not found") => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Fetches the index of the repository.
    pub async fn update_repository(&self, limit: Duration) -> Result<(), HelmError> {
        self.run("repo", &["update"], limit).await.map(drop)
    }

    /// Installs the chart, or upgrades what is there.
    pub async fn upgrade(&self, layout: &Layout) -> Result<(), HelmError> {
        let mut args = vec!["--install".to_owned(), timeout(layout.timeout)];
        args.extend(layout.create_namespace.then(|| "--create-namespace".to_owned()));
        args.extend(layout.options.iter().chain(&layout.values).cloned());
        args.extend(["--".to_owned(), self.release.clone(), layout.chart.clone()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.run("upgrade", &args, layout.timeout).await.map(drop)
    }

    /// Goes back to the last revision that was deployed, after an upgrade that was cut off.
    pub async fn rollback(&self, limit: Duration) -> Result<(), HelmError> {
        self.run("rollback", &[&timeout(limit), "--", &self.release], limit).await.map(drop)
    }

    /// Takes the release away and waits until its objects are gone. None is fine, too.
    pub async fn uninstall(&self, limit: Duration) -> Result<(), HelmError> {
        match self.run("uninstall", &["--wait", &timeout(limit), "--", &self.release], limit).await {
            Err(HelmError::Failed { said, .. }) if said.contains("release: not found") => Ok(()),
            done => done.map(drop),
        }
    }

    async fn run(&self, verb: &str, args: &[&str], limit: Duration) -> Result<String, HelmError> {
        let here = self.folder.path();
        let failed = |source| HelmError::Run { path: self.program.clone(), user: self.user, source };
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(format!("--namespace={}", self.namespace)).args(args);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .env("HOME", here)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("KUBECONFIG", here.join("kubeconfig"));
        for (name, file) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
            ("HELM_REPOSITORY_CONFIG", "repositories.yaml"),
            ("HELM_REGISTRY_CONFIG", "registry.json"),
        ] {
            command.env(name, here.join(file));
        }
        command.current_dir(here).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // The groups of this process go with it.
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().map_err(failed)?;
        let limit = limit + GRACE;
        let late = |_| HelmError::Late { verb: verb.to_owned(), secs: limit.as_secs() };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ended =
            async { tokio::join!(child.wait(), last_bytes(out, OUTPUT_BYTES_MAX), last_bytes(err, OUTPUT_BYTES_MAX)) };
        let (status, out, err) = tokio::time::timeout(limit, ended).await.map_err(late)?;
        let (status, out, err) = (status.map_err(failed)?, out.map_err(failed)?, err.map_err(failed)?);
        if status.success() {
            return Ok(String::from_utf8_lossy(&out).into_owned());
        }
        let said = last_lines(&String::from_utf8_lossy(&err), here);
        let said = if said.is_empty() { status.to_string() } else { said };
        Err(HelmError::Failed { verb: verb.to_owned(), said })
    }
}

/// Reads to the end and keeps the last `max` bytes.
async fn last_bytes(from: Option<impl AsyncRead + Unpin>, max: usize) -> io::Result<Vec<u8>> {
    let (Some(mut from), mut kept, mut chunk) = (from, Vec::new(), vec![0; 16 * 1024]) else { return Ok(Vec::new()) };
    loop {
        let n = from.read(&mut chunk).await?;
        if n == 0 {
            kept.drain(..kept.len().saturating_sub(max));
            return Ok(kept);
        }
        kept.extend_from_slice(&chunk[..n]);
        if kept.len() > 2 * max {
            kept.drain(..kept.len() - max);
        }
    }
}

fn timeout(limit: Duration) -> String {
    format!("--timeout={}s", limit.as_secs().max(1))
}

fn newest(history: &str) -> Option<Release> {
    let history: Value = serde_json::from_str(history).ok()?;
    let last = history.as_array()?.last()?;
    Some(Release { status: last["status"].as_str()?.to_owned(), revision: last["revision"].as_u64()? })
}

/// The end of what it said, for a condition; its folder is nobody's matter.
fn last_lines(text: &str, folder: &Path) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said =
        lines[lines.len().saturating_sub(SAID_LINES)..].join("; ").replace(&format!("{}/", folder.display()), "");
    let skip = said.chars().count().saturating_sub(SAID_CHARS);
    said.chars().skip(skip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: Named<'_> = Named { release: "web", namespace: "shop" };

    #[test]
    fn the_last_lines_say_why_and_a_history_how_it_stands() {
        let text = "one\n\n".to_owned() + &"line\n".repeat(5) + "Error: /tmp/x/set-1: no\n";
        assert_eq!(last_lines(&text, Path::new("/tmp/x")), "line; line; line; line; line; Error: set-1: no");
        assert_eq!(last_lines(&"ä".repeat(3000), Path::new("/tmp/x")).chars().count(), SAID_CHARS);
        let history = r#"[{"revision":2,"status":"pending-upgrade","chart":"x-1"}]"#;
        assert_eq!(newest(history), Some(Release { status: "pending-upgrade".to_owned(), revision: 2 }));
        assert_eq!(newest("[]"), None);
    }

    #[tokio::test]
    async fn what_it_says_is_kept_to_a_bound() {
        let long = [vec![b'a'; 500], b"end".to_vec()].concat();
        assert_eq!(last_bytes(Some(&long[..]), 5).await.unwrap(), b"aaend");
        assert_eq!(last_bytes(Some(&b"ab"[..]), 5).await.unwrap(), b"ab");
        assert_eq!(last_bytes(None::<&[u8]>, 5).await.unwrap(), b"");
    }

    #[test]
    fn a_file_is_never_written_through_what_lies_there() {
        let dir = tempfile::tempdir().unwrap();
        let program =
            Program { named: Some("/bin/true".into()), search_path: "".into(), environment: Vec::new(), user: None };
        let session = Session::begin(&program, &dir.path().join("helm"), "kubeconfig", WEB).unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "mine").unwrap();
        std::os::unix::fs::symlink(&outside, session.folder.path().join("set-0")).unwrap();
        assert!(session.write("set-0", b"theirs").is_err());
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "mine");
    }

    #[test]
    fn a_machine_without_helm_says_what_to_do() {
        let program = |named: Option<&str>| Program {
            named: named.map(PathBuf::from),
            search_path: "/no/such".into(),
            environment: Vec::new(),
            user: None,
        };
        assert!(program(None).find().unwrap_err().to_string().contains("--helm-binary"));
        assert!(program(Some("/etc/passwd")).find().unwrap_err().to_string().contains("/etc/passwd"));
    }
}
