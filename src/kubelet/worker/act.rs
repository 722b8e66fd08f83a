//! Doing what was decided: sandboxes and containers made, started, ended, forgotten.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::confined::Dir;
use base::task::Group;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Container;
use tracing::{info, warn};

use super::Worker;
use super::plan::{Command, Grace};
use crate::container::error::ConfigError;
use crate::container::making::{HostFacts, Making};
use crate::container::{self, Role, env};
use crate::devices::allocations::PodContainer;
use crate::events::Kind;
use crate::pods::desired::Cause;
use crate::runtime::cri::CriError;
use crate::volumes::image::ImageVolume;
use crate::volumes::plugin::Plugin;
use crate::volumes::{self, mounts};
use crate::{devices, hosts, images, resolv, sandbox};

/// Bytes of a host name, as the kernel takes it.
const HOSTNAME_BYTES_MAX: usize = 64;

/// An event about a container.
struct Said {
    kind: Kind,
    reason: &'static str,
    text: &'static str,
}

const CREATED: Said = Said { kind: Kind::Normal, reason: "Created", text: "Container created" };
const STARTED: Said = Said { kind: Kind::Normal, reason: "Started", text: "Container started" };
const POST_START_FAILED: Said =
    Said { kind: Kind::Warning, reason: "FailedPostStartHook", text: "PostStartHook failed" };
const KILLING_AFTER_HOOK: Said = Said { kind: Kind::Normal, reason: "Killing", text: "FailedPostStartHook" };

impl Worker {
    /// Does one command. Returns whether it worked; a failure is in an event or in the container's waiting state
    /// already.
    pub(super) async fn act(&mut self, command: Command) -> bool {
        match command {
            Command::MakeSandbox { attempt } => self.make_sandbox(attempt).await,
            Command::Start { name, attempt, ended } => Box::pin(self.start_container(&name, attempt, ended)).await,
            Command::Kill { id, name: _, why, grace } => {
                let Some(seen) = self.observed.containers.iter().find(|c| c.id == id).cloned() else { return true };
                let grace = match grace {
                    Grace::None => return self.kill_now(&seen, &why).await,
                    // A pod that is deleted ends as its deletion says.
                    Grace::Probe(Some(secs)) if self.pod.metadata.deletion_grace_period_seconds.is_none() => {
                        Duration::from_secs(u64::try_from(secs).unwrap_or(0)).min(super::kill::GRACE_MAX)
                    }
                    Grace::Pod | Grace::Probe(_) => self.grace(),
                };
                self.stop(&seen, grace, &why, std::future::ready(())).await
            }
            Command::Prune { id } => {
                if let Some(seen) = self.observed.containers.iter().find(|c| c.id == id) {
                    self.forget_log(seen);
                }
                self.pods.unindex(&id);
                self.node.runtime.cri.remove_container(&id).await.is_ok()
            }
            Command::Finish => {
                let grace = self.grace();
                self.kill_all(grace, "").await
            }
        }
    }

    /// Ends what is left of earlier sandboxes; false if something of it still runs.
    async fn clear_sandboxes(&mut self) -> bool {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        self.node.events.pod(&self.pod, None, Kind::Normal, "SandboxChanged", text);
        let grace = self.grace();
        if !self.kill_all(grace, "").await {
            return false;
        }
        // A sandbox that died by itself still holds its address.
        for dead in self.observed.sandboxes.clone().iter().skip(1) {
            // The runtime takes its containers with it: their logs and links are ours.
            for seen in self.observed.containers.iter().filter(|c| c.sandbox_id == dead.id) {
                self.forget_log(seen);
            }
            let _retried_at_the_end = self.node.runtime.cri.remove_sandbox(&dead.id).await;
        }
        for dead in self.observed.sandboxes.iter().filter(|s| !s.ready) {
            let _retried_at_the_end = self.node.runtime.cri.stop_sandbox(&dead.id).await;
        }
        true
    }

    async fn make_sandbox(&mut self, attempt: u32) -> bool {
        if !self.observed.sandboxes.is_empty() && !self.clear_sandboxes().await {
            return false;
        }
        let failed = |err: &dyn std::fmt::Display| {
            self.node.events.pod(
                &self.pod,
                None,
                Kind::Warning,
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {err}"),
            );
        };
        let pids_max = self.node.config.settings.pod_max_pids;
        if let Err(err) = self.node.cgroups.create(&self.pod, pids_max) {
            failed(&err);
            return false;
        }
        let (handler, userns) = match self.isolation().await {
            Ok(found) => found,
            Err(err) => {
                failed(&Chain(&err));
                return false;
            }
        };
        self.userns = userns;
        let config = self.sandbox_config(attempt);
        let (fqdn, n) = (&config.hostname, config.hostname.len());
        if n > HOSTNAME_BYTES_MAX {
            failed(&format!(
                "Failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
                 ({HOSTNAME_BYTES_MAX} characters is the max, {n} characters requested)"
            ));
            return false;
        }
        // Readable for those who collect logs, as upstream.
        let made = Dir::of_file(Path::new(&config.log_directory))
            .and_then(|(dir, name)| dir.make_dir(&name, 0o755)?.chmod(Path::new(""), 0o755));
        if let Err(err) = made {
            failed(&err);
            return false;
        }
        match self.node.runtime.cri.run_sandbox(config, &handler).await {
            Ok(id) => {
                let (cgroups, pod) = (self.node.cgroups.clone(), Arc::clone(&self.pod));
                if let Err(err) = Group::blocking(move || cgroups.settle(&pod, pids_max)).await {
                    warn!(pod = %self.name(), err = %Chain(&err), "cannot set a pod's limits");
                }
                self.resizing.made_group();
                info!(pod = %self.name(), uid = %self.uid, sandbox = %id, "made a sandbox");
                self.pods.index(&self.uid, [&id]);
                true
            }
            Err(err) => {
                failed(&err);
                warn!(pod = %self.name(), err = %Chain(&err), "cannot make a sandbox");
                false
            }
        }
    }

    fn sandbox_config(&self, attempt: u32) -> cri::PodSandboxConfig {
        let dns = resolv::for_pod(&self.node.config, &self.pod);
        let mut config = sandbox::config(&self.node.config, &self.node.cgroups, &self.pod, attempt, dns);
        let security = config.linux.as_mut().and_then(|l| l.security_context.as_mut());
        if let Some(namespaces) = security.and_then(|s| s.namespace_options.as_mut()) {
            namespaces.userns_options = self.userns.clone();
        }
        config
    }

    async fn start_container(&mut self, name: &str, attempt: u32, ended: Option<Timestamp>) -> bool {
        let pod = self.pod.clone();
        let Some((spec, role)) = container::find(&pod, name) else { return true };
        if let Some(ended) = ended {
            self.backoffs.next(&container::crash_loop(&spec), ended, self.node.clock.now());
        }
        match Box::pin(self.try_start(&spec, role, attempt)).await {
            Ok(()) => {
                self.waiting.remove(name);
                true
            }
            Err(problem) => {
                if problem.event {
                    self.node.events.pod(
                        &self.pod,
                        self.field(name),
                        Kind::Warning,
                        "Failed",
                        format!("Error: {}", problem.message),
                    );
                }
                self.wake(problem.retry_at);
                self.waiting.insert(name.to_owned(), Cause::new(problem.reason, problem.message));
                false
            }
        }
    }

    async fn try_start(&mut self, spec: &Container, role: Role, attempt: u32) -> Result<(), Problem> {
        let Some(sandbox) = self.observed.sandbox().cloned() else {
            return Err(Problem::new("ContainerCreating", "no sandbox"));
        };
        let sandbox_config = self.sandbox_config(sandbox.attempt);
        let image = images::ensure(&self.node, &self.pod, spec, &role.field(&spec.name), &sandbox_config).await?;
        Box::pin(self.image_volumes(spec, &role.field(&spec.name), &sandbox_config)).await?;
        let mut config = Box::pin(self.configure(spec, attempt, &image)).await.map_err(Problem::from)?;
        devices::allocate::apply(
            &self.node.devices.of_container(PodContainer { uid: &self.uid, name: &spec.name }),
            &mut config,
        );
        let told = Box::pin(self.node.devices.before_start(PodContainer { uid: &self.uid, name: &spec.name })).await;
        told.map_err(|err| Problem::new("PreStartHookError", Chain(&err).to_string()))?;
        let cri = self.node.runtime.cri.clone();
        let id = Box::pin(cri.create_container(&sandbox.id, config, sandbox_config))
            .await
            .map_err(|err| Problem::of_call("CreateContainerError", &err))?;
        self.resizing.made(&id, &self.pod, spec.resources.as_ref());
        self.pods.index(&self.uid, [&id]);
        self.say(spec, CREATED);
        let uncut = Arc::clone(&self.uncut);
        let whole = uncut.lock().await;
        let started = cri.start_container(&id).await;
        drop(whole);
        if let Err(err) = started {
            return Err(Problem::of_call("RunContainerError", &err));
        }
        self.say(spec, STARTED);
        self.link_log(spec, attempt, &id);
        self.post_start(spec, &id).await
    }

    /// Fetches and mounts the images that the container shows as volumes.
    async fn image_volumes(
        &mut self,
        spec: &Container,
        field: &str,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<(), Problem> {
        let wanted: Vec<&str> = spec.volume_mounts.iter().flatten().map(|m| m.name.as_str()).collect();
        let pod = self.pod.clone();
        for volume in
            pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(|v| wanted.contains(&v.name.as_str()))
        {
            let Some(source) = &volume.image else { continue };
            let target = volumes::plugin_dir(&self.node.config, &self.pod, Plugin::Image, &volume.name);
            let stand_in = Container {
                image: source.reference.clone(),
                image_pull_policy: source.pull_policy.clone(),
                ..Container::default()
            };
            let image = images::ensure(&self.node, &self.pod, &stand_in, field, sandbox).await?;
            let made = volumes::image::mount_image(
                &self.node.clock,
                &self.node.runtime,
                ImageVolume { uid: &self.uid, name: &volume.name },
                &image.id,
                &target,
            )
            .await;
            made.map_err(|err| {
                let text = format!("failed to mount image volume {}: {}", volume.name, Chain(&err));
                Problem::new("ImageVolumeMountFailed", &text)
            })?;
            self.mounted.paths.insert(volume.name.clone(), target);
        }
        Ok(())
    }

    /// Tells of a container by an event.
    fn say(&self, spec: &Container, event: Said) {
        let Said { kind, reason, text } = event;
        self.node.events.pod(&self.pod, self.field(&spec.name), kind, reason, text);
    }

    async fn post_start(&mut self, spec: &Container, id: &str) -> Result<(), Problem> {
        let Some(hook) = spec.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        if let Err(err) = self.hook(hook, spec, id, None).await {
            let why = Chain(&err).to_string();
            warn!(pod = %self.name(), container = %spec.name, err = %why, "postStart hook failed");
            self.say(spec, POST_START_FAILED);
            self.say(spec, KILLING_AFTER_HOOK);
            let grace = self.grace();
            self.node
                .runtime
                .cri
                .stop_container(id, grace)
                .await
                .map_err(|err| Problem::of_call("PostStartHookError", &err))?;
            return Err(Problem { event: false, ..Problem::new("PostStartHookError", why) });
        }
        Ok(())
    }

    /// The running container whose processes an ephemeral one wants to see.
    fn target(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let wanted =
            container::ephemeral(&self.pod).into_iter().find(|(c, _)| c.name == name).and_then(|(_, target)| target);
        let Some(wanted) = wanted else { return Ok(None) };
        let found = self.observed.running().find(|seen| seen.name == wanted);
        let missing = || ConfigError {
            reason: "CreateContainerError",
            message: format!("unable to find target container \"{wanted}\""),
        };
        found.map(|seen| Some(seen.id.clone())).ok_or_else(missing)
    }

    async fn configure(
        &mut self,
        spec: &Container,
        attempt: u32,
        image: &cri::Image,
    ) -> Result<cri::ContainerConfig, ConfigError> {
        let sources = self.env_sources(spec).await?;
        let around = self.node.surroundings(self.ips());
        let envs = env::build(&self.pod, spec, &sources, &around)?;
        let mut mounts =
            mounts::of_container(&self.node, &self.pod, spec, &self.mounted, &envs, self.userns.as_ref()).await?;
        let dir = volumes::pod_dir(&self.node.config, &self.uid);
        let file_failed =
            |path: &Path, err: std::io::Error| ConfigError::new(format!("cannot prepare {}: {err}", path.display()));
        let taken = |path: &str, mounts: &[cri::Mount]| mounts.iter().any(|m| m.container_path == path);
        if !taken("/etc/hosts", &mounts) {
            let path = dir.join("etc-hosts");
            let of_node = || fs::read_to_string("/etc/hosts").unwrap_or_default();
            let text = hosts::render(&self.pod, &self.ips(), &self.node.config.cluster_domain, of_node);
            write_open(&path, text.as_bytes(), 0o644).map_err(|err| file_failed(&path, err))?;
            mounts.push(cri::Mount {
                container_path: "/etc/hosts".to_owned(),
                host_path: path.display().to_string(),
                ..Default::default()
            });
        }
        let message_path = spec.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned());
        let message_file = dir.join("containers").join(&spec.name).join(self.node.rng.hex(4));
        // Any user of the container may write its last words.
        write_open(&message_file, b"", 0o666).map_err(|err| file_failed(&message_file, err))?;
        mounts.push(cri::Mount {
            container_path: message_path,
            host_path: message_file.display().to_string(),
            ..Default::default()
        });
        let target = self.target(&spec.name)?;
        container::config(Making {
            pod: &self.pod,
            container: spec,
            attempt,
            image,
            envs,
            mounts,
            termination_file: &message_file,
            target,
            host: HostFacts::of(&self.node.machine, &self.node.runtime, &self.node.cgroups, &self.node.config.settings),
            userns: self.userns.clone(),
            devices: mounts::devices(spec, &self.mounted)?,
            seccomp_root: &self.node.config.root_dir.join("seccomp"),
        })
    }

    async fn env_sources(&self, spec: &Container) -> Result<env::Sources, ConfigError> {
        let (node, pod) = (&self.node, &*self.pod);
        let mut sources = env::Sources::default();
        sources.read_files(spec, &self.mounted.paths).await;
        let (maps, secrets) = env::references(spec);
        let failed = |err: kube::Error| {
            ConfigError::new(format!("failed to fetch what the environment refers to: {}", Chain(&err)))
        };
        for name in maps {
            let found = node.known.config_map(pod, &name).await.map_err(failed)?;
            sources.config_maps.insert(name, found);
        }
        for name in secrets {
            let found = node.known.secret(pod, &name).await.map_err(failed)?;
            sources.secrets.insert(name, found);
        }
        if self.is_static() {
            // A static pod must start without an API server: it may be the one that runs it.
            return Ok(sources);
        }
        let links = self.pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
        if links {
            sources.services = node.known.services(pod).await.map_err(failed)?;
        }
        if !links || pod.metadata.namespace.as_deref() != Some("default") {
            sources.services.extend(node.known.master_service(pod).await.map_err(failed)?);
        }
        Ok(sources)
    }

    fn is_static(&self) -> bool {
        self.rx.borrow().is_static
    }
}

fn write_open(path: &PathBuf, content: &[u8], mode: u32) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Why a container does not start: its waiting state.
struct Problem {
    reason: &'static str,
    message: String,
    /// Whether nobody told of it yet.
    event: bool,
    retry_at: Option<Timestamp>,
}

impl Problem {
    fn new(reason: &'static str, message: impl Into<String>) -> Problem {
        Problem { reason, message: message.into(), event: true, retry_at: None }
    }

    /// The runtime's own words, without the gRPC shell, as upstream shows them.
    fn of_call(reason: &'static str, err: &CriError) -> Problem {
        Problem::new(reason, err.status.message())
    }
}

impl From<ConfigError> for Problem {
    fn from(err: ConfigError) -> Problem {
        Problem::new(err.reason, err.message)
    }
}

impl From<images::NoImage> for Problem {
    fn from(missing: images::NoImage) -> Problem {
        Problem {
            reason: missing.reason,
            message: missing.message,
            event: missing.reason == "ErrImageNeverPull",
            retry_at: missing.retry_at,
        }
    }
}
