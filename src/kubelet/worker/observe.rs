//! What the runtime has of one pod: its sandboxes and containers, newest first.

use jiff::Timestamp;
use k8s_cri::v1 as cri;

use crate::runtime::cri::{Cri, CriError};
use crate::runtime::labels;

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) ready: bool,
    pub(crate) attempt: u32,
    pub(crate) created_at: i64,
    pub(crate) ips: Vec<String>,
}

/// Where a container stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Created,
    Running,
    Exited,
    Unknown,
}

/// A container that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) sandbox_id: String,
    pub(crate) attempt: u32,
    pub(crate) state: State,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) finished_at: Timestamp,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) hash: String,
    pub(crate) log_path: String,
    pub(crate) pre_stop: Option<String>,
}

/// A pod's sandboxes and containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Newest first.
    pub(crate) sandboxes: Vec<Sandbox>,
    /// Newest first.
    pub(crate) containers: Vec<Seen>,
}

impl Observed {
    /// The newest container of a name.
    pub(crate) fn latest(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The one before it.
    pub(crate) fn previous(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().filter(|c| c.name == name).nth(1)
    }

    /// The sandbox that containers run in now.
    pub(crate) fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Seen> {
        self.containers.iter().filter(|c| c.state == State::Running)
    }
}

/// Asks the runtime. Ended containers that `before` knows already are not asked for again: they cannot change.
pub(crate) async fn observe(cri: &Cri, uid: &str, before: &Observed) -> Result<Observed, CriError> {
    let mut sandboxes = Vec::new();
    for item in cri.sandboxes(Some(uid)).await? {
        let ready = item.state == cri::PodSandboxState::SandboxReady as i32;
        let known = before.sandboxes.iter().find(|s| s.id == item.id && s.ready == ready && (!ready || !s.ips.is_empty()));
        let ips = match known {
            Some(known) => known.ips.clone(),
            None => match cri.sandbox(&item.id).await {
                Ok(status) => status.map(|s| addresses(&s)).unwrap_or_default(),
                Err(err) if err.is_not_found() => continue,
                Err(err) => return Err(err),
            },
        };
        let attempt = item.metadata.map_or(0, |m| m.attempt);
        sandboxes.push(Sandbox { id: item.id, ready, attempt, created_at: item.created_at, ips });
    }
    sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
    let mut containers = Vec::new();
    for item in cri.containers(Some(uid)).await? {
        let exited = item.state == cri::ContainerState::ContainerExited as i32;
        if let Some(known) = before.containers.iter().find(|c| c.id == item.id && c.state == State::Exited && exited) {
            containers.push(known.clone());
            continue;
        }
        match cri.container(&item.id).await {
            Ok(Some(status)) => containers.push(seen(status, &item)),
            Ok(None) => {}
            Err(err) if err.is_not_found() => {}
            Err(err) => return Err(err),
        }
    }
    containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.attempt)));
    Ok(Observed { sandboxes, containers })
}

fn addresses(status: &cri::PodSandboxStatus) -> Vec<String> {
    let Some(network) = &status.network else { return Vec::new() };
    let more = network.additional_ips.iter().map(|ip| ip.ip.clone());
    std::iter::once(network.ip.clone()).chain(more).filter(|ip| !ip.is_empty()).collect()
}

fn seen(status: cri::ContainerStatus, item: &cri::Container) -> Seen {
    let time = |nanos: i64| Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH);
    let note = |key: &str| status.annotations.get(key).cloned();
    let state = match status.state() {
        cri::ContainerState::ContainerCreated => State::Created,
        cri::ContainerState::ContainerRunning => State::Running,
        cri::ContainerState::ContainerExited => State::Exited,
        cri::ContainerState::ContainerUnknown => State::Unknown,
    };
    Seen {
        state,
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        sandbox_id: item.pod_sandbox_id.clone(),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        created_at: time(status.created_at),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        message: termination_message(&status),
        image: status.image.as_ref().map(|i| if i.user_specified_image.is_empty() { i.image.clone() } else { i.user_specified_image.clone() }).unwrap_or_default(),
        image_id: status.image_ref.clone(),
        hash: note(labels::HASH).unwrap_or_default(),
        pre_stop: note(labels::PRE_STOP),
        reason: status.reason,
        log_path: status.log_path,
        id: status.id,
    }
}

/// Bytes of a termination message, and of the log that stands in for it; upstream's limits.
const MESSAGE_BYTES_MAX: usize = 4096;
const LOG_BYTES_MAX: usize = 2048;
const LOG_LINES_MAX: usize = 80;

fn termination_message(status: &cri::ContainerStatus) -> String {
    let note = |key: &str| status.annotations.get(key).map(String::as_str).unwrap_or_default();
    if status.state() != cri::ContainerState::ContainerExited {
        return status.message.clone();
    }
    let file = std::fs::read(note(labels::TERMINATION_FILE)).unwrap_or_default();
    let tail = |bytes: &[u8], max: usize| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(max)..]).into_owned();
    let mut text = String::from_utf8_lossy(&file[..file.len().min(MESSAGE_BYTES_MAX)]).into_owned();
    if text.is_empty() && note(labels::TERMINATION_POLICY) == "FallbackToLogsOnError" && status.exit_code != 0 {
        let lines = crate::logs::last_lines(std::path::Path::new(&status.log_path), LOG_LINES_MAX).unwrap_or_default();
        text = tail(&lines, LOG_BYTES_MAX);
    }
    if text.is_empty() { status.message.clone() } else { text }
}
