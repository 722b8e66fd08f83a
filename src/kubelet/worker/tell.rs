//! Telling the API server how a pod is, also while the pod's task is busy with pulls, hooks or an end that takes its
//! time: whether it is ready is asked all the while, and must be known at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::node::Node;
use crate::pods::desired::{Cause, Desired};
use crate::pods::map::Pods;
use crate::pods::resizing::Resizing;
use crate::pods::snapshot::Snapshot;
use crate::probes;
use crate::status;
use crate::status::facts::Facts;
use crate::status::publish::Published;

/// The status that was told, and how much of it the API server has.
#[derive(Clone, Default)]
pub(super) struct Told {
    /// The newest status.
    pub(super) status: PodStatus,
    /// The status that the API server has, as far as we know.
    pub(super) published: Option<PodStatus>,
    /// The object's resource version since our last write.
    pub(super) version: Option<u64>,
}

/// All that a status is made of, as the task saw it last; runs beside the task's work.
pub(super) struct Telling {
    node: Arc<Node>,
    pods: Pods,
    pod: Arc<Pod>,
    shared: Arc<Mutex<Snapshot>>,
    health: probes::health::Shared,
    waiting: BTreeMap<String, Cause>,
    failure: Option<Cause>,
    is_terminal: bool,
    resizing: Resizing,
    told: Told,
    /// Whether the API server has the newest status.
    reached: bool,
}

impl Worker {
    /// Computes the status and publishes it if it changed. Returns whether the API server has it.
    pub(super) async fn report(&mut self) -> bool {
        let mut telling = self.telling();
        telling.tell().await;
        self.heard(telling)
    }

    /// The telling of what is known now.
    pub(super) fn telling(&mut self) -> Telling {
        {
            let mut shared = self.shared.lock();
            (shared.observed, shared.volumes) = (self.observed.clone(), self.mounted.paths.clone());
        }
        let mut telling = Telling {
            node: Arc::clone(&self.node),
            pods: self.pods.clone(),
            pod: Arc::clone(&self.pod),
            shared: Arc::clone(&self.shared),
            health: self.probes.shared(),
            waiting: self.waiting.clone(),
            failure: self.failure.clone(),
            is_terminal: self.is_terminal,
            resizing: self.resizing.clone(),
            told: self.told.clone(),
            reached: true,
        };
        telling.compute();
        self.told.status = telling.told.status.clone();
        telling
    }

    /// Takes in what became of the telling. Returns whether the API server has the status.
    pub(super) fn heard(&mut self, telling: Telling) -> bool {
        self.told = telling.told;
        telling.reached
    }
}

impl Telling {
    /// Tells now, and again whenever something of it changes, until `done`. What is being written then is written to
    /// its end.
    pub(super) async fn until(mut self, mut rx: watch::Receiver<Desired>, done: CancellationToken) -> Telling {
        self.tell().await;
        loop {
            let wake = async { rx.changed().await.is_ok() };
            tokio::select! {
                () = done.cancelled() => return self,
                again = wake => if !again {
                    done.cancelled().await;
                    return self;
                },
            }
            self.compute();
            if self.told.published.as_ref() != Some(&self.told.status) {
                self.tell().await;
            }
        }
    }

    fn compute(&mut self) {
        let health = self.health.lock().clone();
        let observed = self.shared.lock().observed.clone();
        let facts = Facts {
            pod: &self.pod,
            observed: &observed,
            health: &health,
            waiting: &self.waiting,
            failure: self.failure.as_ref(),
            is_terminal: self.is_terminal,
            before: &self.told.status,
            resizing: &self.resizing,
            host_ips: self.node.config.internal_ips(),
            runtime_name: &self.node.runtime.name,
            recursive_read_only: self.node.runtime.handler("").recursive_read_only_mounts,
            now: self.node.clock.now(),
        };
        let status = status::compute(&facts);
        let mut shared = self.shared.lock();
        shared.status = status.clone();
        let ended = status.phase.as_deref().is_some_and(model::phase::is_terminal) && !observed.may_run();
        if ended {
            shared.holds = false;
        }
        drop(shared);
        self.told.status = status;
        if ended {
            // The scheduler gives the pod's share away as soon as it reads the phase, long before the pod's folders are
            // tidied.
            self.node.devices.release(self.pod.metadata.uid.as_deref().unwrap_or_default());
        }
    }

    /// Publishes the status if it is new, or if somebody wrote over it.
    async fn tell(&mut self) {
        if self.told.published.as_ref() == Some(&self.told.status) && !self.is_overwritten() {
            self.reached = true;
            return;
        }
        let Some(target) = self.pods.api_pod(&self.node.own, &self.pod) else {
            self.reached = true;
            return;
        };
        let published =
            status::publish::publish(&self.node.client, &target, &self.told.status, self.told.published.as_ref()).await;
        self.reached = published != Published::Failed;
        if let Published::Yes(version) = published {
            self.told.version = version;
        }
        if self.reached {
            self.told.published = Some(self.told.status.clone());
        }
    }

    /// Whether somebody wrote over what we said, after we said it.
    fn is_overwritten(&self) -> bool {
        let mirror = if crate::sources::annotations::is_static(&self.pod) {
            self.pods.api_pod(&self.node.own, &self.pod)
        } else {
            None
        };
        let shown = mirror.as_ref().unwrap_or(&self.pod);
        let later =
            matches!((status::publish::version(shown), self.told.version), (Some(shown), Some(ours)) if shown > ours);
        later && shown.status.as_ref().is_some_and(|shown| status::publish::differs(shown, &self.told.status))
    }
}
