//! `kedge snapshot` (and k3s's `etcd-snapshot`), and the schedule by which a server takes snapshots.

use std::path::PathBuf;
use std::time::Duration;

use base::chain::Chain;
use base::cron::Schedule;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use clap::{Args, Subcommand, ValueEnum};
use cluster::snapshot::{self, Listed, Places, SnapshotError};
use jiff::tz::TimeZone;
use tracing::{error, info};

use crate::cli::{CONFIG_FILE, StateArgs, VERSION};
use crate::host::{self, HostError};

/// The longest sleep before a look at the clock, which may have been set.
const LOOK: Duration = Duration::from_secs(1800);

/// Flags of `kedge snapshot`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    state: StateArgs,
    /// Configuration file to put into the snapshot, or to restore to.
    #[arg(short, long, global = true, value_name = "FILE", default_value = CONFIG_FILE)]
    config: PathBuf,
    /// Folder of snapshots (default: server/db/snapshots in the data folder).
    #[arg(long, global = true, alias = "snapshot-dir", alias = "etcd-snapshot-dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Name of this node in snapshots' names (default: the host's name).
    #[arg(long, global = true, value_name = "NAME")]
    node_name: Option<String>,
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
        /// The archive.
        #[arg(value_name = "FILE")]
        file: PathBuf,
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
    #[error("cannot print the list")]
    Print(#[from] serde_json::Error),
}

/// Runs the command and prints what it did.
pub(crate) fn main(args: SnapshotArgs) -> Result<(), SnapshotsError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(SnapshotsError::NotRoot);
    }
    // Before the first snapshot its folder is not there; one that a person names is.
    let named = args.dir.clone().unwrap_or_else(|| args.state.data_dir.clone());
    if !matches!(args.action, Action::Save { .. } | Action::Restore { .. }) && !named.is_dir() {
        return Err(SnapshotsError::NoFolder(named));
    }
    let dir = args.dir.unwrap_or_else(|| args.state.data_dir.join("server/db/snapshots"));
    let places = Places { data_dir: args.state.data_dir, config: args.config, dir };
    let node = args.node_name.map_or_else(host::node_name, Ok)?;
    let clock = Clock::system();
    match args.action {
        Action::Save { name } => {
            let saved = snapshot::save(&places, &name, &node, VERSION, &clock)?;
            println!(
                "Snapshot {} saved: {} bytes, revision {}. It holds every key of the cluster: keep it safe.",
                saved.location.display(),
                saved.size,
                saved.manifest.revision
            );
        }
        Action::Ls { output: Output::Json } => println!("{}", serde_json::to_string_pretty(&snapshot::list(&places.dir)?)?),
        Action::Ls { output: Output::Text } => print_list(&snapshot::list(&places.dir)?),
        Action::Delete { names } => {
            for name in names {
                println!("Snapshot {} deleted.", snapshot::delete(&places.dir, &name)?.display());
            }
        }
        Action::Prune { name, snapshot_retention } => {
            for gone in snapshot::prune(&places.dir, &name, &node, snapshot_retention)? {
                println!("Snapshot {gone} deleted.");
            }
        }
        Action::Restore { file } => {
            let restored = snapshot::restore(&places, &file, &clock, &Rng::from_os())?;
            println!(
                "Restored the state of {} made on {} (revision {}).",
                restored.manifest.created, restored.manifest.node, restored.manifest.revision
            );
            if let Some(kept) = restored.kept {
                println!("What was here before is in {}.", kept.display());
            }
            println!("Start the server. Servers that were members delete their folder server/db and join anew.");
        }
    }
    Ok(())
}

fn print_list(all: &[Listed]) {
    println!("{:<48} {:>12} {:>10} CREATED", "NAME", "SIZE", "REVISION");
    for one in all {
        println!("{:<48} {:>12} {:>10} {}", one.name, one.size, one.manifest.revision, one.manifest.created);
    }
}

/// What a server takes snapshots by.
pub(crate) struct Plan {
    /// When.
    pub(crate) schedule: Schedule,
    /// From where to where.
    pub(crate) places: Places,
    /// First part of the names.
    pub(crate) prefix: String,
    /// This node.
    pub(crate) node: String,
    /// How many to keep.
    pub(crate) keep: usize,
}

/// Takes snapshots by the plan until the group stops. One that fails is logged; the next is tried in its time.
pub(crate) fn keep(plan: Plan, clock: Clock, group: &Group) {
    group.spawn("snapshots", async move {
        let zone = TimeZone::system();
        let plan = std::sync::Arc::new(plan);
        while let Some(next) = plan.schedule.next(clock.now(), &zone) {
            loop {
                let left = Duration::try_from(next.duration_since(clock.now())).unwrap_or_default();
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(LOOK)).await;
            }
            let (now, taking) = (clock.clone(), plan.clone());
            let taken = Group::blocking(move || {
                let saved = snapshot::save(&taking.places, &taking.prefix, &taking.node, VERSION, &now)?;
                snapshot::prune(&taking.places.dir, &taking.prefix, &taking.node, taking.keep).map(|gone| (saved, gone.len()))
            });
            match taken.await {
                Ok(Ok((saved, n_gone))) => {
                    info!(name = %saved.name, rev = saved.manifest.revision, bytes = saved.size, n_gone, "snapshot taken")
                }
                Ok(Err(err)) => error!(err = %Chain(&err), "snapshot not taken"),
                Err(err) => error!(err = %Chain(&err), "snapshot not taken"),
            }
        }
        // A schedule without a next time: nothing more to do.
        std::future::pending::<()>().await;
    });
}
