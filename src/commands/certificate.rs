//! `kedge certificate`: shows when certificates end, and has them made anew.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::files::{self, FileError};
use base::layout::Layout;
use base::time::Clock;
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use pki::error::PkiError;
use pki::folder;
use serde_json::{Value, json};

use crate::commands::rotate_ca::{self, RotateCaError};
use crate::commands::status;
use crate::flags::shared::StateArgs;
use crate::server::certificates::{AUTHORITY_WARNING_DAYS, DAY_SECS, LEAF_WARNING_DAYS, left};

/// Between two looks whether a running kedge has made its certificates anew, and how many there are.
const RENEWAL_LOOK: Duration = Duration::from_millis(50);
const RENEWAL_LOOKS: u32 = 400;

/// Flags of `kedge certificate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertificateArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    state: StateArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Print every certificate of this machine, whose it is and when it ends. Fails if one has ended.
    Check {
        /// How to print.
        #[arg(short, long, default_value = "table")]
        output: Form,
    },
    /// Have certificates made anew, with new keys. A running kedge does it at once and goes on; a stopped one at its
    /// next start.
    Rotate {
        /// Only these. May be repeated.
        #[arg(short, long, value_delimiter = ',')]
        service: Vec<Service>,
    },
    /// Replace the cluster's authorities, on every server. Old ones stay trusted until they are dropped; nothing that
    /// runs is cut off.
    RotateCa(rotate_ca::RotateArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    Json,
}

/// Groups of certificates, which k3s calls services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Service {
    Admin,
    ApiServer,
    ControllerManager,
    Scheduler,
    Supervisor,
    AuthProxy,
    Etcd,
    Kubelet,
    KubeProxy,
}

impl Service {
    fn owns(self, stem: &str) -> bool {
        let stems: &[&str] = match self {
            Service::Admin => &["client-admin"],
            Service::ApiServer => &["client-kube-apiserver", "serving-kube-apiserver"],
            Service::ControllerManager => &["client-controller"],
            Service::Scheduler => &["client-scheduler"],
            Service::Supervisor => &["client-supervisor"],
            Service::AuthProxy => &["client-auth-proxy"],
            Service::Etcd => return stem.starts_with("etcd/") && !stem.ends_with("-ca"),
            Service::Kubelet => &["client-kubelet", "serving-kubelet"],
            Service::KubeProxy => &["client-kube-proxy"],
        };
        stems.contains(&stem)
    }
}

/// Why a certificate command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("{0} certificate(s) have ended")]
    Ended(usize),
    #[error("there are no certificates below {path}: has kedge run here?", path = path.display())]
    None { path: PathBuf },
    #[error("cannot list {path}", path = path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("{path}", path = path.display())]
    Read { path: PathBuf, source: PkiError },
    #[error("there is nothing to rotate below {path}", path = path.display())]
    Nothing { path: PathBuf },
    #[error("cannot put {path} aside", path = path.display())]
    Aside { path: PathBuf, source: io::Error },
    #[error(
        "the running kedge (process {pid}) has not made {} anew within {} s; its log says why",
        files.join(", "),
        (RENEWAL_LOOK * RENEWAL_LOOKS).as_secs()
    )]
    NotRenewed { pid: u32, files: Vec<String> },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Authorities(#[from] RotateCaError),
}

/// Runs the command.
pub(crate) fn main(args: &CertificateArgs) -> Result<(), CertificateError> {
    match &args.what {
        What::Check { output } => {
            let now = Clock::system().now();
            let found = look(&args.state.layout)?;
            match output {
                Form::Table => print!("{}", table(&found, now)),
                Form::Json => println!("{}", Value::Array(found.iter().map(|seen| seen.to_json(now)).collect())),
            }
            let ended = found.iter().filter(|seen| seen.ends <= now).count();
            if ended > 0 { Err(CertificateError::Ended(ended)) } else { Ok(()) }
        }
        What::Rotate { service } => rotate(&args.state.layout, service),
        What::RotateCa(rotate) => Ok(rotate_ca::rotate(&args.state.layout.server(), rotate)?),
    }
}

/// One certificate as its file has it.
pub(crate) struct Seen {
    /// `server/tls/client-admin.crt`
    pub(crate) file: String,
    subject: String,
    usages: Vec<&'static str>,
    pub(crate) ends: Timestamp,
    authority: bool,
}

impl Seen {
    pub(crate) fn status(&self, now: Timestamp) -> &'static str {
        let days = (self.ends.as_second() - now.as_second()) / DAY_SECS;
        match () {
            () if self.ends <= now => "EXPIRED",
            () if days < if self.authority { AUTHORITY_WARNING_DAYS } else { LEAF_WARNING_DAYS } => "WARNING",
            () => "OK",
        }
    }

    fn to_json(&self, now: Timestamp) -> Value {
        json!({
            "filename": self.file, "subject": self.subject, "usages": self.usages, "expires": self.ends.to_string(),
            "residualSeconds": self.ends.as_second() - now.as_second(), "authority": self.authority,
                "status": self.status(now),
        })
    }
}

/// Every certificate of this machine. Errors: there is none, or one cannot be read.
pub(crate) fn look(layout: &Layout) -> Result<Vec<Seen>, CertificateError> {
    let mut found = Vec::new();
    let (server, agent) = (layout.server().tls(), layout.agent());
    for path in [server.clone(), folder::etcd(&server), agent.path().to_owned()] {
        let list = match std::fs::read_dir(&path) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => continue,
            list => list.map_err(|source| CertificateError::List { path, source })?,
        };
        let mut paths: Vec<PathBuf> = list
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "crt"))
            .collect();
        paths.sort();
        for path in paths {
            found.push(read(&path, below(layout, &path)).map_err(|source| CertificateError::Read { path, source })?);
        }
    }
    if found.is_empty() { Err(CertificateError::None { path: layout.data_dir().to_owned() }) } else { Ok(found) }
}

fn read(path: &Path, file: String) -> Result<Seen, PkiError> {
    let text = std::fs::read(path).map_err(FileError::at("cannot read", path))?;
    let chain = pki::pem::certificates(&text)?;
    let who = pki::identity::parse(&chain[0])?;
    let groups: String = who.organizations.iter().map(|group| format!(",O={group}")).collect();
    Ok(Seen {
        file,
        subject: format!("CN={}{groups}", who.common_name),
        usages: who.usages,
        ends: who.not_after,
        authority: who.is_ca,
    })
}

fn table(found: &[Seen], now: Timestamp) -> String {
    let head = ["FILENAME", "SUBJECT", "USAGES", "EXPIRES", "RESIDUAL TIME", "STATUS"].map(str::to_owned);
    let rows = found.iter().map(|seen| {
        let expires = seen.ends.strftime("%b %d, %Y %H:%M UTC").to_string();
        [
            seen.file.clone(),
            seen.subject.clone(),
            seen.usages.join(","),
            expires,
            left(seen.ends.as_second() - now.as_second()),
            seen.status(now).to_owned(),
        ]
    });
    crate::commands::columns::columns(std::iter::once(head).chain(rows))
}

/// A path of the data folder as people read it, `server/tls/client-admin.crt`.
fn below(layout: &Layout, path: &Path) -> String {
    path.strip_prefix(layout.data_dir()).unwrap_or(path).display().to_string()
}

/// Puts the files of leaves aside: who shows them has them made anew.
fn rotate(layout: &Layout, services: &[Service]) -> Result<(), CertificateError> {
    let at = Clock::system().now().as_second();
    let mut moved: BTreeMap<String, PathBuf> = BTreeMap::new();
    let (server, agent) = (layout.server(), layout.agent());
    let (of_server, of_agent) = (server.tls_aside(at), agent.tls_aside(at));
    for (dir, prefix, aside) in [
        (server.tls(), "", &of_server),
        (folder::etcd(&server.tls()), "etcd/", &of_server),
        (agent.path().to_owned(), "", &of_agent),
    ] {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((stem, "crt" | "key")) = name.rsplit_once('.') else { continue };
            let stem = format!("{prefix}{stem}");
            let leaf = !stem.ends_with("-ca") && stem != folder::SERVICE;
            if !leaf || !(services.is_empty() || services.iter().any(|service| service.owns(&stem))) {
                continue;
            }
            let to = aside.join(prefix).join(&name);
            files::create_private_dir(&aside.join(prefix))?;
            std::fs::rename(entry.path(), &to)
                .map_err(|source| CertificateError::Aside { path: entry.path(), source })?;
            moved.insert(below(layout, &dir.join(&name)), aside.clone());
        }
    }
    if moved.is_empty() {
        return Err(CertificateError::Nothing { path: layout.data_dir().to_owned() });
    }
    for (name, aside) in &moved {
        println!("{name} -> {}", aside.display());
    }
    let Some(pid) = status::running(layout) else {
        println!("kedge does not run here: it makes them anew at its next start.");
        return Ok(());
    };
    // What comes next may want one of them, so this ends when they are there.
    let absent = || moved.keys().filter(|name| !layout.data_dir().join(name).exists()).cloned().collect::<Vec<_>>();
    for _ in 0..RENEWAL_LOOKS {
        if absent().is_empty() {
            println!("The running kedge has made them anew.");
            return Ok(());
        }
        std::thread::sleep(RENEWAL_LOOK);
    }
    Err(CertificateError::NotRenewed { pid, files: absent() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotating_one_service_leaves_the_others_and_the_authorities() {
        let dir = tempfile::tempdir().unwrap();
        let tls = dir.path().join("server/tls/etcd");
        std::fs::create_dir_all(&tls).unwrap();
        for name in [
            "../client-admin.crt",
            "../client-admin.key",
            "../server-ca.crt",
            "../service.key",
            "server.crt",
            "../client-scheduler.crt",
        ] {
            std::fs::write(tls.join(name), "x").unwrap();
        }
        rotate(&Layout::new(dir.path()), &[Service::Admin, Service::Etcd]).unwrap();
        let left = |name: &str| tls.join(name).exists();
        assert!(!left("../client-admin.crt") && !left("../client-admin.key") && !left("server.crt"));
        assert!(left("../server-ca.crt") && left("../service.key") && left("../client-scheduler.crt"));
        assert!(rotate(&Layout::new(dir.path()), &[Service::Admin]).is_err());
    }

    #[test]
    fn what_is_left_is_said_in_a_fitting_unit() {
        assert_eq!(
            [0, 90, 7200, 3 * DAY_SECS, 800 * DAY_SECS].map(left),
            ["none", "90 s", "2 hours", "3 days", "2 years"]
        );
    }
}
