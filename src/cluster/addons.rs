//! Add-ons: manifests in a folder of the server that are applied as they are, followed as they change, and taken back
//! when they go.
//!
//! [`files`] reads the folder, [`plan`] decides what is to be done, [`apply`] does it, [`record`] keeps an AddOn object
//! a file: what it holds of the cluster, so that what leaves a file leaves the cluster, whichever server is asked and
//! however often it restarts.

pub mod apply;
pub mod files;
pub mod plan;
pub mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::files::{FileError, create_private_dir};
use base::folder::FolderWatch;
use base::rng::Rng;
use base::task::Group;
use client::events::{Recorder, Severity};
use store::member::Leadership;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use self::apply::Cluster;
use self::files::{Found, Manifest};
use self::plan::Step;
use self::record::AddOn;

/// The user in managedFields, and who reports events.
pub const MANAGER: &str = "kedge-addons";
/// A failed file is tried again after this, twice as long each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A manifest that comes with this program.
#[derive(Clone, Debug)]
pub struct Packaged {
    /// File name without `.yaml`; what `--disable` takes.
    pub name: &'static str,
    /// YAML, its variables filled in.
    pub text: String,
}

/// Settings given at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder.
    pub dir: PathBuf,
    /// This server.
    pub server: String,
    /// The wanted ones of the manifests that come with this program.
    pub packaged: Vec<Packaged>,
    /// Names of `--disable`, packaged or not.
    pub disabled: BTreeSet<String>,
}

/// Follows the folder until the group stops. Every server looks after the files of its own; the leader after what comes
/// with the program, too, and after what is disabled.
///
/// Errors: the folder cannot be made or written.
pub fn keep(
    config: Config,
    client: kube::Client,
    leadership: watch::Receiver<Leadership>,
    group: &Group,
) -> Result<(), FileError> {
    create_private_dir(&config.dir)?;
    files::write_packaged(&config)?;
    let recorder = Recorder::new(client.clone(), MANAGER, "", group);
    let keeper = Keeper {
        cluster: Cluster::new(client),
        recorder,
        config,
        leads: false,
        rng: group.rng().clone(),
        seen: BTreeMap::new(),
        retries: BTreeMap::new(),
    };
    group.spawn("addons", keeper.run(leadership));
    Ok(())
}

struct Keeper {
    cluster: Cluster,
    recorder: Recorder,
    config: Config,
    /// Whether this server leads.
    leads: bool,
    rng: Rng,
    /// Checksum of each file as it was judged last by this process.
    seen: BTreeMap<String, String>,
    /// Files that failed, and when each is tried again.
    retries: BTreeMap<String, (Instant, Backoff)>,
}

impl Keeper {
    async fn run(mut self, mut leadership: watch::Receiver<Leadership>) {
        let watch = FolderWatch::new(&self.config.dir);
        if let Err(err) = &watch {
            warn!(
                path = %self.config.dir.display(),
                err = %err,
                "cannot watch the folder of manifests: changes are seen at the next start"
            );
        }
        let mut first = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        while let Err(err) = self.cluster.define().await {
            warn!(err = %Chain(&err), "cannot define the kind AddOn, trying again");
            tokio::time::sleep(first.next(&self.rng)).await;
        }
        loop {
            if let Ok(watch) = &watch
                && let Err(err) = watch.renew()
            {
                warn!(path = %self.config.dir.display(), err = %err, "cannot watch the folder of manifests");
            }
            let leads = leadership.borrow_and_update().is_me;
            if leads && !self.leads {
                // What the leader before has done is judged anew.
                self.seen.retain(|name, _| !self.config.packaged.iter().any(|packaged| packaged.name == name));
            }
            self.leads = leads;
            self.round().await;
            let next = self.retries.values().map(|(at, _)| *at).min();
            let changed = FolderWatch::changed_if(&watch);
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let led = async {
                if leadership.wait_for(|now| now.is_me != leads).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            // Cancel safe: all are looked at anew in the next turn.
            tokio::select! {
                () = changed => {}
                () = due => {}
                () = led => {}
            }
        }
    }

    /// Looks at the folder and the cluster, and brings the one into the other.
    async fn round(&mut self) {
        let dir = self.config.dir.clone();
        let read = Group::blocking(move || files::read(&dir)).await;
        let found = match read {
            Ok(Ok(found)) => found,
            Ok(Err(err)) => {
                // A folder that cannot be read is not an empty one: nothing is taken back.
                warn!(err = %Chain(&err), "cannot read the folder of manifests");
                return self.put_off("");
            }
            Err(err) => return warn!(err = %Chain(&err), "cannot read the folder of manifests"),
        };
        let known = match self.cluster.list().await {
            Ok(known) => known,
            Err(err) => {
                warn!(err = %Chain(&err), "cannot list add-ons");
                return self.put_off("");
            }
        };
        self.retries.remove("");
        let now = Instant::now();
        let waiting: BTreeSet<String> =
            self.retries.iter().filter(|(_, (at, _))| *at > now).map(|(name, _)| name.clone()).collect();
        let due: BTreeSet<String> =
            self.retries.iter().filter(|(_, (at, _))| *at <= now).map(|(name, _)| name.clone()).collect();
        let view = plan::View {
            config: &self.config,
            leads: self.leads,
            found: &found,
            known: &known,
            seen: &self.seen,
            waiting: &waiting,
            due: &due,
        };
        for step in plan::plan(&view) {
            self.carry_out(step, &known).await;
        }
        self.seen = found.manifests.iter().map(|(name, manifest)| (name.clone(), manifest.checksum.clone())).collect();
        self.forget_retries(&found);
    }

    fn forget_retries(&mut self, found: &Found) {
        self.retries.retain(|name, _| name.is_empty() || name.starts_with('-') || found.manifests.contains_key(name));
    }

    async fn carry_out(&mut self, step: Step, known: &BTreeMap<String, AddOn>) {
        match step {
            Step::Apply(manifest) => self.apply(&manifest, known).await,
            Step::Remove { name, file } => self.remove(&name, file, known).await,
            Step::Differs { manifest, server } => {
                let path = manifest.path.display().to_string();
                warn!(
                    path,
                    server, "a manifest of the same name and another content is that server's: it is not applied"
                );
                if let Some(addon) = known.get(&manifest.name) {
                    let why = format!(
                        "Manifest {path:?} of {} differs from that of {server}, which is in force",
                        self.config.server
                    );
                    self.recorder.report_ref(addon.reference(), Severity::Warning, "ManifestDiffers", why);
                }
            }
        }
    }

    async fn apply(&mut self, manifest: &Manifest, known: &BTreeMap<String, AddOn>) {
        let before = known.get(&manifest.name);
        let others = plan::held_by_others(known, &manifest.name);
        match self.cluster.bring_in(manifest, before, &others, &self.config.server).await {
            Ok(done) => {
                self.retries.remove(&manifest.name);
                if done.changed {
                    info!(addon = %manifest.name, n = done.objects, "add-on applied");
                    let text = format!("Applied manifest at {:?}", manifest.path);
                    self.recorder.report_ref(done.addon.reference(), Severity::Normal, "AppliedManifest", text);
                }
            }
            Err(failed) => {
                warn!(
                    addon = %manifest.name,
                    path = %manifest.path.display(),
                    why = %failed.why,
                    "cannot apply a manifest"
                );
                if let Some(addon) = failed.addon.as_ref().or(before) {
                    let text = format!("{} at {:?} failed: {}", failed.doing, manifest.path, failed.why);
                    self.recorder.report_ref(addon.reference(), Severity::Warning, failed.reason, text);
                }
                // What cannot be read gets no better by itself.
                match failed.reason {
                    "ParseManifestFailed" => drop(self.retries.remove(&manifest.name)),
                    _ => self.put_off(&manifest.name),
                }
            }
        }
    }

    async fn remove(&mut self, name: &str, file: Option<PathBuf>, known: &BTreeMap<String, AddOn>) {
        if let Some(file) = file
            && let Err(err) = std::fs::remove_file(&file)
            && err.kind() != std::io::ErrorKind::NotFound
        {
            warn!(path = %file.display(), err = %err, "cannot remove the manifest of a disabled add-on");
        }
        let Some(addon) = known.get(name) else { return };
        let others = plan::held_by_others(known, name);
        self.recorder.report_ref(
            addon.reference(),
            Severity::Normal,
            "DeletingManifest",
            format!("Deleting manifest at {:?}", addon.source),
        );
        let key = format!("-{name}");
        match self.cluster.take_out(addon, &others).await {
            Ok(n) => {
                info!(addon = name, n, "add-on removed");
                self.retries.remove(&key);
            }
            Err(err) => {
                warn!(addon = name, err = %Chain(&err), "cannot remove an add-on");
                self.put_off(&key);
            }
        }
    }

    /// Notes when something that failed is tried again.
    fn put_off(&mut self, name: &str) {
        let (_, mut backoff) =
            self.retries.remove(name).unwrap_or_else(|| (Instant::now(), Backoff::new(RETRY.0, RETRY.1)));
        let at = Instant::now() + backoff.next(&self.rng);
        self.retries.insert(name.to_owned(), (at, backoff));
    }
}
