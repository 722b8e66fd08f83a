//! Kubernetes Events about files of the configuration that cannot be used. They stand on the ConfigMap that the file
//! comes from: the folder that it is mounted at has the ConfigMap's name.
//!
//! The pod may do two things only: create Events in its namespace, and get this one ConfigMap, whose uid
//! `kubectl describe` looks for.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::fnv;
use base::task::Group;
use k8s_openapi::api::core::v1::{ConfigMap, Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, PostParams};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::apiserver;
use crate::load::Fault;

/// A fault that lasts is told again after this: Events live for an hour.
const AGAIN: Duration = Duration::from_secs(1800);
/// Faults that are remembered as told; the files of one ConfigMap are far fewer.
const FAULTS_MAX: usize = 256;
/// Tries to write one Event while the API server does not answer.
const TRIES_MAX: u32 = 12;
/// Letters of a message; the API takes 1024 bytes.
const MESSAGE_BYTES_MAX: usize = 1000;

/// Tells of faults, each once as long as it lasts.
pub(crate) struct Faults {
    group: Group,
    told: BTreeMap<Fault, Instant>,
}

/// The fate of a file that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The file is not used, the rest is.
    LeftOut,
    /// The Corefile that ran before goes on.
    Kept,
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Outcome::LeftOut => {
                "it is left out and the rest of the Corefile is served; mend the line, it is read again"
            }
            Outcome::Kept => "the last usable Corefile stays in force; mend the line, it is read again",
        }
    }
}

impl Faults {
    pub(crate) fn new(group: &Group) -> Faults {
        Faults { group: group.clone(), told: BTreeMap::new() }
    }

    /// Logs and reports each of the faults that is new; others that were told before are over.
    pub(crate) fn tell(&mut self, faults: &[Fault], outcome: Outcome) {
        self.told.retain(|fault, at| faults.contains(fault) && at.elapsed() < AGAIN);
        for fault in faults.iter().take(FAULTS_MAX) {
            if self.told.contains_key(fault) {
                continue;
            }
            self.told.insert(fault.clone(), Instant::now());
            warn!(file = %fault.file.display(), err = %fault.why, "the file cannot be used: {}", outcome.text());
            let report = Report::new(fault, outcome);
            self.group.spawn_short("event", write(report, self.group.clone()));
        }
    }
}

/// One Event before it is written.
struct Report {
    config_map: String,
    message: String,
}

impl Report {
    fn new(fault: &Fault, outcome: Outcome) -> Report {
        let file = fault.file.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let mut message = format!("{file} cannot be used: {}: {}", fault.why, outcome.text());
        while message.len() > MESSAGE_BYTES_MAX {
            message.pop();
        }
        Report { config_map: config_map(&fault.file), message }
    }
}

/// `/etc/coredns-custom/log.override` comes from the ConfigMap `coredns-custom`.
fn config_map(file: &Path) -> String {
    let dir = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    dir.unwrap_or("coredns").to_ascii_lowercase()
}

/// Writes the Event; not in a pod there is nobody to write it to.
async fn write(report: Report, group: Group) {
    let Some(namespace) = apiserver::namespace() else { return };
    let client = match apiserver::of_pod() {
        Ok(client) => client,
        Err(err) => return warn!(err = %Chain(&err), "cannot write an event"),
    };
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    while backoff.failures() < TRIES_MAX {
        match create(&client, &namespace, &report, group.clock().now()).await {
            Ok(()) => return,
            // 4xx: asking again changes nothing. That it is there already is as good as writing it.
            Err(kube::Error::Api(status)) if status.code == 409 => return,
            Err(err @ kube::Error::Api(_)) if !is_overload(&err) => {
                return warn!(err = %Chain(&err), "cannot write an event");
            }
            Err(err) => debug!(err = %Chain(&err), "cannot write an event yet"),
        }
        tokio::time::sleep(backoff.next(group.rng())).await;
    }
}

fn is_overload(err: &kube::Error) -> bool {
    matches!(err, kube::Error::Api(status) if status.code == 429 || status.code >= 500)
}

async fn create(
    client: &kube::Client,
    namespace: &str,
    report: &Report,
    now: jiff::Timestamp,
) -> Result<(), kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // Without the uid the Event is still among the namespace's.
    let uid = maps.get(&report.config_map).await.ok().and_then(|map| map.metadata.uid);
    let now = Time(now);
    let event = Event {
        metadata: ObjectMeta {
            // The same fault has the same name: a pod that starts again writes nothing twice.
            name: Some(format!("{}.{:016x}", report.config_map, fnv::sum(report.message.as_bytes()))),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(report.config_map.clone()),
            namespace: Some(namespace.to_owned()),
            uid,
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some("CorefileInvalid".to_owned()),
        message: Some(report.message.clone()),
        source: Some(EventSource { component: Some("coredns".to_owned()), host: None }),
        reporting_component: Some("coredns".to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    events.create(&PostParams::default(), &event).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stands_on_the_config_map_that_the_file_comes_from() {
        for (file, wanted) in [
            ("/etc/coredns-custom/log.override", "coredns-custom"),
            ("/etc/coredns/Corefile", "coredns"),
            ("Corefile", "coredns"),
        ] {
            assert_eq!(config_map(Path::new(file)), wanted, "{file}");
        }
        let why = "é".repeat(2000);
        let fault = Fault { file: "/etc/coredns-custom/a.server".into(), why };
        let report = Report::new(&fault, Outcome::LeftOut);
        assert!(report.message.len() <= MESSAGE_BYTES_MAX && report.message.starts_with("a.server cannot be used: é"));
    }

    #[tokio::test]
    async fn a_fault_is_told_once_as_long_as_it_lasts() {
        let (group, _reports) = Group::root("test");
        let mut faults = Faults::new(&group);
        let fault = |why: &str| Fault { file: "a.server".into(), why: why.to_owned() };
        faults.tell(&[fault("one"), fault("two")], Outcome::LeftOut);
        let first = faults.told[&fault("one")];
        faults.tell(&[fault("one")], Outcome::LeftOut);
        assert_eq!((faults.told.len(), faults.told[&fault("one")]), (1, first));
        faults.tell(&[], Outcome::LeftOut);
        assert!(faults.told.is_empty(), "a fault that comes again is told again");
        group.shutdown().await;
    }
}
