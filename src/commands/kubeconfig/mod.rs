//! `kedge kubeconfig`: client certificates for people, each with a short life and a record by which it can be revoked.

mod issue;
mod records;
mod subject;

use std::path::PathBuf;
use std::time::Duration;

use base::files::FileError;
use base::time::Clock;
use clap::{Args, Subcommand, ValueEnum};
use pki::error::PkiError;

use crate::commands::admin::{Admin, AdminError};
use crate::commands::kubeconfig::issue::Wanted;
use crate::commands::kubeconfig::subject::{Life, Subject, SubjectError, parse_life};
use crate::flags::shared::AdminArgs;
use crate::process::life::{self, LifeError};

/// Flags of `kedge kubeconfig`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KubeconfigArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Make a kubeconfig for a person: a certificate that can be revoked, without any rights until a RoleBinding gives
    /// some.
    Create {
        /// The user's name, as RoleBindings will have it.
        #[arg(long, value_name = "NAME")]
        user: String,
        /// A group of the user's. May be repeated.
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// How long it is good for, from 10m to 365d.
        #[arg(long, default_value = "30d", value_parser = parse_life)]
        ttl: Life,
        /// Where the API is (default: an address of a server of this cluster).
        #[arg(long, value_name = "URL")]
        server: Option<String>,
        /// Namespace that kubectl uses where none is named.
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// The file to write, which must not be there yet; - prints it, its key included.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// List the certificates that were given.
    List {
        /// Form of the output.
        #[arg(short, long, default_value = "text")]
        output: Form,
    },
    /// Revoke all certificates of a user, or one of them: they are refused at once, and their connections end.
    Revoke {
        /// The user's name.
        user: String,
        /// Only the certificate whose fingerprint begins like this.
        #[arg(long, value_name = "FINGERPRINT")]
        id: Option<String>,
        /// Why, for the audit log.
        #[arg(long, value_name = "TEXT", default_value = "no reason was given")]
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
    Yaml,
}

/// Why a kubeconfig command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Subject(#[from] SubjectError),
    #[error("{path} is there already: name another file, or remove it", path = path.display())]
    Exists { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the server refused to {doing}")]
    Refused { doing: &'static str, source: kube::Error },
    #[error("no certificate was signed within {within:?}: does a server of the cluster lead? {said}")]
    Unsigned { within: Duration, said: String },
    #[error("the certificate that was signed is not the one that was asked for: {0}")]
    Other(String),
    #[error("cannot tell where people reach the API: give --server=https://HOST:6443")]
    NoServer,
    #[error("--server: '{url}' is no address such as https://kedge.example.com:6443")]
    Url { url: String },
    #[error("no certificate of {user} was given by 'kedge kubeconfig create'{of}")]
    Nobody { user: String, of: String },
    #[error("--reason has more than {0} bytes")]
    LongReason(usize),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Runs the command.
pub(crate) fn main(args: &KubeconfigArgs) -> Result<(), KubeconfigError> {
    life::ask(run(args))?
}

async fn run(args: &KubeconfigArgs) -> Result<(), KubeconfigError> {
    let now = Clock::system().now();
    match &args.verb {
        Verb::Create { user, groups, ttl, server, namespace, output } => {
            let subject = Subject::of(user, groups)?;
            if let Some(namespace) = namespace {
                subject::check_namespace(namespace)?;
            }
            let admin = Admin::open(&args.admin.kubeconfig)?;
            let wanted =
                Wanted { subject: &subject, life: ttl.0, server: server.as_deref(), namespace: namespace.as_deref() };
            issue::create(&admin, wanted, output, now).await
        }
        Verb::List { output } => {
            let all = records::all(&Admin::open(&args.admin.kubeconfig)?).await?;
            records::print(&all, *output, now);
            Ok(())
        }
        Verb::Revoke { user, id, reason } => {
            let admin = Admin::open(&args.admin.kubeconfig)?;
            let asked = records::Revocation { user, id: id.as_deref(), reason };
            for line in records::revoke(&admin, asked, now).await? {
                println!("{line}");
            }
            Ok(())
        }
    }
}
