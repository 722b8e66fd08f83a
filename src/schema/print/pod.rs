//! Pods: the status column tells the whole story in one word.

use jiff::Timestamp;
use model::meta;
use model::phase::is_terminal;
use serde_json::{Value, json};

use super::cells::{age, containers, labels_text, name, or_none};
use super::duration;
use crate::read;

pub(crate) fn pod_template(object: &Value, _now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "template.spec");
    vec![name(object), names, images, json!(labels_text(read::map(object, "template.metadata.labels")))]
}

pub(crate) fn pod(object: &Value, now: Timestamp) -> Vec<Value> {
    let story = Story::of(object);
    let restarts = match &story.last_restart {
        Some(at) if story.restarts != 0 => format!("{} ({} ago)", story.restarts, duration::since(Some(at), now)),
        _ => story.restarts.to_string(),
    };
    let gates = read::list(object, "spec.readinessGates");
    let met = gates.iter().filter(|g| read::condition_is_true(object, read::text(g, "conditionType"))).count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{met}/{}", gates.len()) };
    let ip = read::list(object, "status.podIPs").first().and_then(|ip| read::some_text(ip, "ip"));
    vec![
        name(object),
        json!(format!("{}/{}", story.ready, story.total)),
        json!(story.reason),
        json!(restarts),
        age(object, now),
        json!(ip.or(read::some_text(object, "status.podIP")).unwrap_or("<none>")),
        or_none(object, "spec.nodeName"),
        or_none(object, "status.nominatedNodeName"),
        json!(gates),
    ]
}

#[derive(Default)]
struct Story {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<String>,
}

impl Story {
    fn of(pod: &Value) -> Story {
        let inits = read::list(pod, "spec.initContainers");
        let sidecars = inits.iter().filter(|c| is_sidecar(c)).count();
        let reason = read::some_text(pod, "status.reason").unwrap_or(read::text(pod, "status.phase"));
        let mut story = Story {
            reason: reason.to_owned(),
            total: read::list(pod, "spec.containers").len() + sidecars,
            ..Story::default()
        };
        let scheduled = read::typed(read::list(pod, "status.conditions"), "PodScheduled");
        if scheduled.is_some_and(|c| read::text(c, "reason") == "SchedulingGated") {
            story.reason = "SchedulingGated".to_owned();
        }
        let mut of_sidecars = Story::default();
        let initializing = story.read_inits(pod, inits, &mut of_sidecars);
        if !initializing || read::condition_is_true(pod, "Initialized") {
            story.restarts = of_sidecars.restarts;
            story.last_restart = of_sidecars.last_restart;
            story.read_containers(pod);
        }
        let phase = read::text(pod, "status.phase");
        if meta::deletion_timestamp(pod).is_some() {
            if read::text(pod, "status.reason") == "NodeLost" {
                story.reason = "Unknown".to_owned();
            } else if !is_terminal(phase) {
                story.reason = "Terminating".to_owned();
            }
        }
        story
    }

    fn count_restarts(&mut self, status: &Value) {
        self.restarts += read::number(status, "restartCount");
        let finished = read::some_text(status, "lastState.terminated.finishedAt").map(str::to_owned);
        self.last_restart = self.last_restart.take().max(finished);
    }

    /// True if the pod is still initializing; then the reason says how far it is.
    fn read_inits(&mut self, pod: &Value, inits: &[Value], of_sidecars: &mut Story) -> bool {
        for (idx, status) in read::list(pod, "status.initContainerStatuses").iter().enumerate() {
            self.count_restarts(status);
            let sidecar = read::named(inits, read::text(status, "name")).is_some_and(is_sidecar);
            if sidecar {
                of_sidecars.count_restarts(status);
            }
            let terminated = read::at(status, "state.terminated");
            if terminated.is_some_and(|t| read::number(t, "exitCode") == 0) {
                continue;
            }
            if sidecar && read::flag(status, "started") {
                self.ready += usize::from(read::flag(status, "ready"));
                continue;
            }
            self.reason = match (terminated, read::some_text(status, "state.waiting.reason")) {
                (Some(terminated), _) => format!("Init:{}", end_reason(terminated)),
                (None, Some(waiting)) if waiting != "PodInitializing" => format!("Init:{waiting}"),
                _ => format!("Init:{idx}/{}", inits.len()),
            };
            return true;
        }
        false
    }

    fn read_containers(&mut self, pod: &Value) {
        let mut running = false;
        for status in read::list(pod, "status.containerStatuses").iter().rev() {
            self.count_restarts(status);
            if let Some(waiting) = read::some_text(status, "state.waiting.reason") {
                self.reason = waiting.to_owned();
            } else if let Some(terminated) = read::at(status, "state.terminated") {
                self.reason = end_reason(terminated);
            } else if read::flag(status, "ready") && read::at(status, "state.running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            let ready = read::condition_is_true(pod, "Ready");
            self.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

fn is_sidecar(container: &Value) -> bool {
    read::text(container, "restartPolicy") == "Always"
}

fn end_reason(terminated: &Value) -> String {
    match (read::some_text(terminated, "reason"), read::number(terminated, "signal")) {
        (Some(reason), _) => reason.to_owned(),
        (None, 0) => format!("ExitCode:{}", read::number(terminated, "exitCode")),
        (None, signal) => format!("Signal:{signal}"),
    }
}
