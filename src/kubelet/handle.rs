//! The kubelet as the HTTPS server on 10250 needs it: logs, streaming addresses, pods, statistics.

use std::sync::Arc;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;
use model::reference::NamespacedName;

use crate::container;
use crate::error::Error;
use crate::logs::{self, LogOptions, LogStream};
use crate::node::Node;
use crate::pods::map::Pods;
use crate::pods::observed::{Seen, State};
use crate::pods::snapshot::Snapshot;
use crate::stats::{self, Scope, metrics};

/// A running kubelet; clones are the same one.
#[derive(Clone)]
pub struct Handle {
    node: Arc<Node>,
    pods: Pods,
    /// Logs that somebody follows.
    log_watches: logs::watch::Watches,
}

/// How an exec or attach is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamOptions {
    /// The command of an exec; an attach ignores it.
    pub(crate) command: Vec<String>,
    /// Give it our input.
    pub(crate) stdin: bool,
    /// Take its output.
    pub(crate) stdout: bool,
    /// Take its error output; with a terminal it is the same as stdout.
    pub(crate) stderr: bool,
    /// Allocate a terminal.
    pub(crate) tty: bool,
}

/// The container that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRef<'a> {
    pub(crate) pod: NamespacedName<'a>,
    /// Its name; empty for the first of the pod.
    pub(crate) container: &'a str,
}

impl Handle {
    pub(crate) fn new(node: Arc<Node>, pods: Pods, log_watches: logs::watch::Watches) -> Handle {
        Handle { node, pods, log_watches }
    }

    /// The pods of this node with their latest status, for `/pods`.
    pub(crate) fn pods(&self) -> Vec<Pod> {
        let with_status = |(pod, snapshot): (Arc<Pod>, Snapshot)| {
            let mut pod = Pod::clone(&pod);
            pod.status = Some(snapshot.status);
            pod
        };
        self.pods.all().into_iter().map(with_status).collect()
    }

    /// The log of a container.
    ///
    /// Errors: `PodNotFound`, `ContainerNotFound` (also when it has not run yet), `Log`.
    pub(crate) async fn logs(&self, of: ContainerRef<'_>, options: LogOptions) -> Result<LogStream, Error> {
        let (spec, snapshot) = self.find(of.pod)?;
        let name = self.container_name(&spec, of.container)?;
        let seen = if options.previous { previous(&snapshot, &name) } else { snapshot.observed.latest(&name) };
        let Some(seen) = seen.cloned() else {
            let what = match options.previous {
                true => "not available: previous terminated container not found".to_owned(),
                false => format!("waiting to start: {}", waiting_reason(&snapshot, &name)),
            };
            return Err(Error::ContainerNotFound { pod: of.pod.name.to_owned(), container: name, what });
        };
        // As the pod's task sees it: the runtime tells it of every end.
        let (pods, id) = (self.pods.clone(), seen.id.clone());
        let still_runs = move || pods.may_write(&id);
        let path = std::path::PathBuf::from(&seen.log_path);
        let stream = logs::stream(&path, options, &self.node.clock, &self.log_watches, Box::new(still_runs)).await;
        stream.map_err(|source| Error::Log { path, source })
    }

    /// The runtime's address for an exec, on loopback: connect there with the client's own upgrade headers and copy
    /// bytes.
    pub(crate) async fn exec_url(&self, of: ContainerRef<'_>, options: StreamOptions) -> Result<String, Error> {
        let seen = self.running(of)?;
        let StreamOptions { command, stdin, stdout, stderr, tty } = options;
        Ok(self
            .node
            .runtime
            .cri
            .exec(cri::ExecRequest { container_id: seen.id, cmd: command, tty, stdin, stdout, stderr: stderr && !tty })
            .await?)
    }

    /// The runtime's address for an attach.
    pub(crate) async fn attach_url(&self, of: ContainerRef<'_>, options: StreamOptions) -> Result<String, Error> {
        let seen = self.running(of)?;
        let StreamOptions { stdin, stdout, stderr, tty, .. } = options;
        Ok(self
            .node
            .runtime
            .cri
            .attach(cri::AttachRequest { container_id: seen.id, stdin, tty, stdout, stderr: stderr && !tty })
            .await?)
    }

    /// The runtime's address for forwarded ports.
    pub(crate) async fn port_forward_url(&self, pod: NamespacedName<'_>, ports: Vec<i32>) -> Result<String, Error> {
        let (_, snapshot) = self.find(pod)?;
        let missing = || Error::ContainerNotFound {
            pod: pod.name.to_owned(),
            container: String::new(),
            what: "not running".to_owned(),
        };
        let sandbox = snapshot.observed.sandbox().ok_or_else(missing)?;
        Ok(self.node.runtime.cri.port_forward(&sandbox.id, ports).await?)
    }

    /// `/stats/summary`.
    pub(crate) async fn summary(&self, scope: Scope) -> Result<serde_json::Value, Error> {
        Ok(stats::summary(&self.node, &self.pods, scope).await?)
    }

    /// A page of metrics in Prometheus's text: `""` is the kubelet's own, the others `cadvisor`, `resource` and
    /// `probes`.
    pub(crate) async fn metrics(&self, page: &str) -> Result<Option<String>, Error> {
        Ok(match page {
            "" => Some(metrics::own(&self.node, &self.pods, crate::register::VERSION).await),
            "cadvisor" => Some(metrics::cadvisor(&self.node, &self.pods).await?),
            "resource" => Some(metrics::resource(&self.node, &self.pods).await?),
            "probes" => Some(metrics::probes(&self.node.stats.probes)),
            _ => None,
        })
    }

    /// Parts of the server that are on.
    pub(crate) fn switches(&self) -> (bool, bool) {
        let settings = &self.node.config.settings;
        (settings.debugging_handlers, settings.log_handler)
    }

    /// `/configz`.
    pub(crate) fn configz(&self) -> serde_json::Value {
        self.node.config.configz(self.node.runtime.cgroup_driver)
    }

    /// Runs a command to its end, for `/run`.
    pub(crate) async fn run(&self, of: ContainerRef<'_>, command: Vec<String>) -> Result<cri::ExecSyncResponse, Error> {
        let seen = self.running(of)?;
        Ok(self.node.runtime.cri.exec_sync(&seen.id, command, std::time::Duration::ZERO).await?)
    }

    /// Whether the runtime answers, for `/healthz`.
    pub(crate) async fn healthy(&self) -> Result<(), Error> {
        self.node.runtime.cri.version().await?;
        Ok(())
    }

    fn find(&self, pod: NamespacedName<'_>) -> Result<(Arc<Pod>, Snapshot), Error> {
        let missing = || Error::PodNotFound { ns: pod.namespace.to_owned(), pod: pod.name.to_owned() };
        self.pods.find(pod).ok_or_else(missing)
    }

    fn container_name(&self, pod: &Pod, wanted: &str) -> Result<String, Error> {
        let main = pod.spec.as_ref().and_then(|s| s.containers.first()).map(|c| c.name.clone()).unwrap_or_default();
        if wanted.is_empty() {
            return Ok(main);
        }
        match container::find(pod, wanted) {
            Some((c, _)) => Ok(c.name),
            None => Err(Error::ContainerNotFound {
                pod: pod.metadata.name.clone().unwrap_or_default(),
                container: wanted.to_owned(),
                what: "not valid for the pod".to_owned(),
            }),
        }
    }

    fn running(&self, of: ContainerRef<'_>) -> Result<Seen, Error> {
        let (spec, snapshot) = self.find(of.pod)?;
        let name = self.container_name(&spec, of.container)?;
        let seen = snapshot.observed.latest(&name).filter(|s| s.state == State::Running).cloned();
        seen.ok_or_else(|| Error::ContainerNotFound {
            pod: of.pod.name.to_owned(),
            container: name,
            what: "not running".to_owned(),
        })
    }
}

fn waiting_reason(snapshot: &Snapshot, name: &str) -> String {
    let status = &snapshot.status;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let statuses = lists.into_iter().flat_map(|list| list.iter().flatten());
    let found = statuses.filter(|s| s.name == name).find_map(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone());
    found.unwrap_or_else(|| "ContainerCreating".to_owned())
}

/// The container that the status calls the last one: while a container waits for its restart, that is the newest.
/// Upstream's `validateContainerLogStatus`.
fn previous<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a Seen> {
    let status = &snapshot.status;
    let all = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let status = all.into_iter().flat_map(|list| list.iter().flatten()).find(|status| status.name == name)?;
    let id = status.last_state.as_ref()?.terminated.as_ref()?.container_id.as_deref()?;
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    snapshot.observed.containers.iter().find(|seen| seen.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    // node.md M5: in a crash loop, the one before the last was shown, or nothing.
    #[test]
    fn the_previous_container_is_the_one_that_the_status_names() {
        let mut snapshot = Snapshot::default();
        let seen = |id: &str| Seen { id: id.to_owned(), name: "c".to_owned(), ..Seen::default() };
        snapshot.observed.containers = vec![seen("new"), seen("old")];
        let status = |id: &str| {
            let last = serde_json::json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{id}")}});
            serde_json::from_value(serde_json::json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "",
                "ready": false, "restartCount": 1, "lastState": last}]}))
            .unwrap()
        };
        snapshot.status = status("new");
        assert_eq!(previous(&snapshot, "c").unwrap().id, "new");
        snapshot.status = status("old");
        assert_eq!(previous(&snapshot, "c").unwrap().id, "old");
        snapshot.status = k8s_openapi::api::core::v1::PodStatus::default();
        assert!(previous(&snapshot, "c").is_none());
    }
}
