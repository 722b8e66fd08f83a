//! A look at the sandboxes and containers that the runtime has of one pod, newest first.

use base::confined::Dir;
use jiff::Timestamp;
use k8s_cri::v1 as cri;

use k8s_openapi::api::core::v1::{ContainerUser, LinuxContainerUser};

use crate::pods::observed::{Observed, Sandbox, Seen, State};
use crate::runtime::cri::{Cri, CriError};
use crate::runtime::labels;

/// Asks the runtime. Ended containers that `before` knows already are not asked for again: they cannot change.
pub(crate) async fn observe(cri: &Cri, uid: &str, before: &Observed) -> Result<Observed, CriError> {
    let mut sandboxes = Vec::new();
    for item in cri.sandboxes(Some(uid)).await? {
        let ready = item.state == cri::PodSandboxState::SandboxReady as i32;
        let known =
            before.sandboxes.iter().find(|s| s.id == item.id && s.ready == ready && (!ready || !s.ips.is_empty()));
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
    Ok(Observed::newest_first(sandboxes, containers))
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
        image: status
            .image
            .as_ref()
            .map(|i| if i.user_specified_image.is_empty() { i.image.clone() } else { i.user_specified_image.clone() })
            .unwrap_or_default(),
        image_id: status.image_ref.clone(),
        hash: note(labels::HASH).unwrap_or_default(),
        pre_stop: note(labels::PRE_STOP),
        user: status.user.clone().and_then(|u| u.linux).map(|u| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: u.uid,
                gid: u.gid,
                supplemental_groups: Some(u.supplemental_groups),
            }),
        }),
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
    // The container may have made it as large as it likes.
    let head = Dir::of_file(std::path::Path::new(note(labels::TERMINATION_FILE)))
        .and_then(|(dir, name)| dir.head(&name, MESSAGE_BYTES_MAX));
    let tail =
        |bytes: &[u8], max: usize| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(max)..]).into_owned();
    let mut text = String::from_utf8_lossy(&head.unwrap_or_default()).into_owned();
    if text.is_empty() && note(labels::TERMINATION_POLICY) == "FallbackToLogsOnError" && status.exit_code != 0 {
        let lines = crate::logs::last_lines(std::path::Path::new(&status.log_path), LOG_LINES_MAX).unwrap_or_default();
        text = tail(&lines, LOG_BYTES_MAX);
    }
    if text.is_empty() { status.message.clone() } else { text }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodStatus;

    use super::*;

    // review node.md M1: a sandbox whose end was told before the CRI showed it was looked at 5 minutes later
    #[test]
    fn a_sandbox_may_be_behind_its_own_end_too() {
        let sandbox = |ready| Sandbox { id: "s".to_owned(), ready, attempt: 0, created_at: 0, ips: Vec::new() };
        let observed = |ready| Observed { sandboxes: vec![sandbox(ready)], containers: Vec::new() };
        assert!(
            observed(true).shows_alive("s")
                && !observed(false).shows_alive("s")
                && !observed(true).shows_alive("other")
        );
    }

    // review node.md S5: a clock that was an hour behind at boot made the dead sandbox the newest one, again and again
    #[test]
    fn what_came_later_is_newer_whatever_the_clock_said() {
        let sandbox = |id: &str, attempt, created_at| Sandbox {
            id: id.to_owned(),
            ready: attempt > 0,
            attempt,
            created_at,
            ips: Vec::new(),
        };
        let seen = |id: &str, attempt, at| Seen {
            id: id.to_owned(),
            name: "c".to_owned(),
            attempt,
            created_at: Timestamp::from_second(at).unwrap(),
            ..Seen::default()
        };
        let observed = Observed::newest_first(
            vec![sandbox("dead", 0, 7_200), sandbox("new", 1, 3_600)],
            vec![seen("before", 0, 7_200), seen("after", 1, 3_600)],
        );
        assert_eq!(observed.sandbox().map(|s| s.id.as_str()), Some("new"));
        assert_eq!(observed.latest("c").map(|c| c.id.as_str()), Some("after"));
    }

    // node.md N1: read whole, a sparse file of the size of the memory ended the server, and again at each start.
    #[test]
    fn last_words_are_cut_before_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        std::fs::write(&path, "bye").unwrap();
        let annotations =
            std::collections::HashMap::from([(labels::TERMINATION_FILE.to_owned(), path.display().to_string())]);
        let state = cri::ContainerState::ContainerExited.into();
        let status = cri::ContainerStatus { annotations, state, ..Default::default() };
        assert_eq!(termination_message(&status), "bye");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(termination_message(&status).len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn a_container_that_the_runtime_lost_is_recalled_as_ended() {
        let status: PodStatus = serde_json::from_value(serde_json::json!({"containerStatuses": [
            {"name": "done", "containerID": "containerd://a", "image": "i", "imageID": "", "ready": false,
             "restartCount": 2,
             "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "ran", "containerID": "containerd://b", "image": "i", "imageID": "", "ready": true,
             "restartCount": 0, "state": {"running": {}}},
            {"name": "never", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {}}}]}))
        .unwrap();
        let mut observed = Observed::default();
        observed.recall(&status);
        observed.recall(&status);
        let told: Vec<_> =
            observed.containers.iter().map(|c| (c.name.as_str(), c.attempt, c.exit_code, c.reason.as_str())).collect();
        assert_eq!(told, [("done", 2, 0, "Completed"), ("ran", 0, 137, "ContainerStatusUnknown")]);
    }
}
