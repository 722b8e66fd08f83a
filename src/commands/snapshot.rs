//! `kedge snapshot` (and k3s's `etcd-snapshot`), and the schedule by which a server takes snapshots.

use std::path::{Path, PathBuf};

use base::chain::Chain;
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;
use clap::{Args, Subcommand, ValueEnum};
use cluster::s3::bucket::Bucket;
use cluster::s3::xml::Entry;
use cluster::snapshot::{self, Listed, Places, Series, SnapshotError};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agent::host::{self, HostError};
use crate::commands::admin::{Admin, AdminError};
use crate::flags::s3::S3Flags;
use crate::flags::shared::{AdminArgs, StateArgs};
use crate::flags::token::{FrontError, Given};
use crate::process::life::LifeError;
use crate::process::version::VERSION;
use crate::server::away::{self, AwayError, Got};

/// Flags of `kedge snapshot`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    state: StateArgs,
    /// Configuration file to put into the snapshot, or to restore to.
    #[arg(short, long, global = true, value_name = "FILE", default_value = base::layout::CONFIG_FILE)]
    config: PathBuf,
    /// Folder of snapshots (default: server/db/snapshots in the data folder).
    #[arg(long, global = true, alias = "snapshot-dir", alias = "etcd-snapshot-dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Name of this node in snapshots' names (default: the host's name).
    #[arg(long, global = true, value_name = "NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    s3: S3Flags,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Take a snapshot now, whether the server runs or not.
    Save {
        /// First part of its name.
        #[arg(long, default_value = "on-demand", value_name = "NAME")]
        name: String,
    },
    /// List the snapshots.
    #[command(visible_alias = "list", alias = "l")]
    Ls {
        /// How to print them.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Delete snapshots by their names.
    Delete {
        /// Names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Delete all but the newest snapshots of one name.
    Prune {
        /// First part of their names.
        #[arg(long, default_value = "on-demand", value_name = "NAME")]
        name: String,
        /// How many to keep.
        #[arg(long, alias = "etcd-snapshot-retention", alias = "retention", default_value_t = 5, value_name = "N")]
        snapshot_retention: usize,
    },
    /// Put the state of a snapshot in the place of this machine's. The server must not run.
    Restore {
        /// The archive, or a snapshot's name in the bucket of --etcd-s3.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Servers' token with which it was sealed (default: that of this machine's server/token). Rather as a file:
        /// everybody sees a command line.
        #[arg(long, short, value_name = "TOKEN")]
        token: Option<String>,
        /// File with that token.
        #[arg(long, value_name = "FILE", conflicts_with = "token")]
        token_file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotsError {
    #[error("kedge snapshot must run as root: run it with sudo")]
    NotRoot,
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("there is no folder {path}", path = .0.display())]
    NoFolder(PathBuf),
    #[error(transparent)]
    Away(#[from] AwayError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Life(#[from] LifeError),
    #[error("the snapshot {kept} is kept on this machine, but not in S3", kept = kept.display())]
    NotUploaded { kept: PathBuf, source: AwayError },
    #[error(transparent)]
    Token(#[from] FrontError),
    #[error("cannot print the list")]
    Print(#[from] serde_json::Error),
}

/// Runs the command and prints what it did.
pub(crate) fn main(args: SnapshotArgs) -> Result<(), SnapshotsError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(SnapshotsError::NotRoot);
    }
    // Before the first snapshot its folder is not there; one that a person names is. A folder of data that is not there
    // is not made for a snapshot of nothing.
    let data = args.state.layout.data_dir().to_owned();
    let wanted = match args.action {
        Action::Save { .. } => Some(data),
        Action::Restore { .. } => None,
        _ if args.s3.etcd_s3 => None,
        _ => Some(args.dir.clone().unwrap_or(data)),
    };
    if let Some(folder) = wanted.filter(|folder| !folder.is_dir()) {
        return Err(SnapshotsError::NoFolder(folder));
    }
    let dir = args.dir.clone().unwrap_or_else(|| args.state.layout.server().snapshots());
    let places = Places { layout: args.state.layout.clone(), config: args.config.clone(), dir };
    let node = args.node_name.clone().map_or_else(host::node_name, Ok)?;
    crate::process::life::block_on(run(args, places, node))
}

async fn run(args: SnapshotArgs, places: Places, node: String) -> Result<(), SnapshotsError> {
    let (group, _reports) = Group::root("snapshot");
    let clock = Clock::system();
    // A restore names a file of this machine, or else what is in the bucket.
    let local = matches!(&args.action, Action::Restore { file, .. } if file.exists());
    let bucket = if args.s3.etcd_s3 && !local { Some(open(&args, &group).await?) } else { None };
    let bucket = bucket.as_ref();
    match args.action {
        Action::Save { name } => {
            let saved = snapshot::save(&places, &Series { prefix: name, node }, VERSION, &clock, &Rng::from_os())?;
            let holds = match saved.manifest.sealed {
                true => {
                    "the cluster; its keys are sealed with the servers' token (server/token): keep both, and not in \
                     one place"
                }
                false => "the store alone: there are no keys, token or configuration here",
            };
            let (at, size, revision) = (saved.location.display(), saved.size, saved.manifest.revision);
            println!("Snapshot {at} saved: {size} bytes, revision {revision}. It holds {holds}.");
            if let Some(bucket) = bucket {
                let put = bucket.put(&saved.name, &saved.location).await;
                put.map_err(|err| SnapshotsError::NotUploaded { kept: saved.location.clone(), source: err.into() })?;
                println!("Snapshot {} saved.", bucket.location(&saved.name));
            }
        }
        Action::Ls { output } => {
            let (here, away) = (
                snapshot::list(&places.dir)?,
                match bucket {
                    Some(bucket) => away::list(bucket).await.map_err(AwayError::S3)?,
                    None => Vec::new(),
                },
            );
            print(&rows(&here, &away, bucket), output)?;
            for (path, why) in snapshot::damaged(&places.dir)? {
                eprintln!("warning: {}: {}", path.display(), Chain(&why));
            }
        }
        Action::Delete { names } => {
            for name in names {
                delete(&places.dir, &name, bucket).await?;
            }
        }
        Action::Prune { name, snapshot_retention } => {
            let series = Series { prefix: name, node };
            for gone in snapshot::prune(&places.dir, &series, snapshot_retention)? {
                println!("Snapshot {gone} deleted.");
            }
            if let Some(bucket) = bucket {
                for gone in away::prune(bucket, &series, args.s3.etcd_s3_retention).await.map_err(AwayError::S3)? {
                    println!("Snapshot {} deleted.", bucket.location(&gone));
                }
            }
        }
        Action::Restore { file, token, token_file } => {
            let given = Given { flag: "token", text: token.as_deref(), file: token_file.as_deref(), own: false };
            restore(&places, &file, given.seal()?.as_ref(), bucket, &clock).await?;
        }
    }
    group.shutdown().await;
    Ok(())
}

/// The bucket that the flags name. For a restore no server runs, and no Secret can be read.
async fn open(args: &SnapshotArgs, group: &Group) -> Result<Bucket, SnapshotsError> {
    args.s3.check()?;
    let asks = args.s3.etcd_s3_config_secret.is_some() && !matches!(args.action, Action::Restore { .. });
    let admin = if asks { Some(Admin::open(&args.admin.kubeconfig)?) } else { None };
    Ok(args.s3.bucket(admin.as_ref().map(|admin| &admin.client), group).await?)
}

/// Deletes a snapshot wherever it is.
async fn delete(dir: &Path, name: &str, bucket: Option<&Bucket>) -> Result<(), SnapshotsError> {
    let file = snapshot::file_of(name)?;
    let away = match bucket {
        Some(bucket) if away::list(bucket).await.map_err(AwayError::S3)?.iter().any(|entry| entry.key == file) => {
            Some(bucket)
        }
        _ => None,
    };
    match snapshot::delete(dir, name) {
        Ok(path) => println!("Snapshot {} deleted.", path.display()),
        Err(SnapshotError::NotFound { .. }) if away.is_some() => {}
        Err(err) => return Err(err.into()),
    }
    if let Some(bucket) = away {
        bucket.delete(&file).await.map_err(AwayError::S3)?;
        println!("Snapshot {} deleted.", bucket.location(&file));
    }
    Ok(())
}

async fn restore(
    places: &Places,
    file: &Path,
    token: Option<&Secret<String>>,
    bucket: Option<&Bucket>,
    clock: &Clock,
) -> Result<(), SnapshotsError> {
    let got = match bucket {
        Some(bucket) => Some(Got::new(bucket, &file.to_string_lossy(), &places.layout).await?),
        None => None,
    };
    let restored = snapshot::restore(places, got.as_ref().map_or(file, Got::path), token, clock, &Rng::from_os())?;
    println!(
        "Restored the state of {} made on {} (revision {}).",
        restored.manifest.created, restored.manifest.node, restored.manifest.revision
    );
    if let Some(kept) = restored.kept {
        println!("What was here before is in {}.", kept.display());
    }
    println!("Start the server. Servers that were members delete their folder server/db and join anew.");
    Ok(())
}

/// A line of the list, here or in the bucket.
fn rows(here: &[Listed], away: &[Entry], bucket: Option<&Bucket>) -> Vec<Value> {
    let here = here.iter().map(|one| {
        let Listed { name, location, size, manifest } = one;
        json!({"name": name, "location": location, "size": size, "created": manifest.created, "manifest": manifest})
    });
    let away = away.iter().map(|entry| {
        let made = snapshot::made_at(&entry.key).and_then(|secs| Timestamp::from_second(secs).ok());
        let location = bucket.map(|bucket| bucket.location(&entry.key));
        json!({"name": entry.key, "location": location, "size": entry.size,
            "created": made.map(base::time::rfc3339_secs)})
    });
    here.chain(away).collect()
}

fn print(rows: &[Value], output: Output) -> Result<(), SnapshotsError> {
    if let Output::Json = output {
        println!("{}", serde_json::to_string_pretty(rows)?);
        return Ok(());
    }
    println!("{:<48} {:>12} {:>10} {:<20} LOCATION", "NAME", "SIZE", "REVISION", "CREATED");
    for row in rows {
        let text = |field: &str| row[field].as_str().unwrap_or("-").to_owned();
        // What is in a bucket is not opened for its revision.
        let revision = row["manifest"]["revision"].as_u64().map_or("-".to_owned(), |revision| revision.to_string());
        println!(
            "{:<48} {:>12} {revision:>10} {:<20} {}",
            text("name"),
            row["size"].to_string(),
            text("created"),
            text("location")
        );
    }
    Ok(())
}
