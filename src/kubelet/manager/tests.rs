//! The sync loop's pods, and what it makes of the runtime's lists.

use super::*;
use crate::pods::desired::Desired;
use crate::pods::map::Pods;
use crate::pods::observed::{Observed, State};
use crate::pods::snapshot::Snapshot;

// review node.md E5
#[test]
fn only_pods_that_changed_are_looked_at() {
    let labels = std::collections::HashMap::from([(crate::runtime::labels::POD_UID.to_owned(), "u".to_owned())]);
    let sandbox = cri::PodSandbox { id: "s".to_owned(), labels: labels.clone(), ..Default::default() };
    let container =
        |state| cri::Container { id: "m-0".to_owned(), labels: labels.clone(), state, ..Default::default() };
    let of = |state: cri::ContainerState| shown(std::slice::from_ref(&sandbox), &[container(state as i32)]);
    let observed = Observed {
        sandboxes: vec![crate::pods::observed::Sandbox {
            id: "s".to_owned(),
            ready: true,
            attempt: 0,
            created_at: 0,
            ips: Vec::new(),
        }],
        containers: vec![crate::worker::plan::tests::seen("m", State::Running, 0)],
    };
    assert_eq!(of(cri::ContainerState::ContainerRunning).get("u"), Some(&seen(&observed)));
    assert_ne!(of(cri::ContainerState::ContainerExited).get("u"), Some(&seen(&observed)));
    assert!(seen(&Observed::default()).is_empty());
}

// review node.md M8
#[test]
fn a_pod_that_nobody_knows_any_more_keeps_its_grace() {
    let of = |uid: &str, secs: &str| cri::Container {
        labels: [(crate::runtime::labels::POD_UID.to_owned(), uid.to_owned())].into(),
        annotations: [(crate::runtime::labels::POD_GRACE.to_owned(), secs.to_owned())].into(),
        ..Default::default()
    };
    let graces = graces(&[of("a", "5"), of("b", "600"), of("b", "30"), of("c", "x")]);
    assert_eq!((graces.get("a"), graces.get("b"), graces.get("c")), (Some(&5), Some(&600), None));
}

// review node.md E5: each quiet `logs -f` asked the runtime every second
#[test]
fn whether_a_log_goes_on_the_pods_task_knows() {
    let pods = Pods::default();
    let seen = |name: &str, state| crate::worker::plan::tests::seen(name, state, 0);
    let observed = Observed {
        containers: vec![seen("runs", State::Running), seen("ended", State::Exited)],
        ..Observed::default()
    };
    let pod = Arc::new(serde_json::from_value(serde_json::json!({"metadata": {"uid": "u"}})).unwrap());
    let shared = Arc::new(Mutex::new(Snapshot { observed, ..Snapshot::default() }));
    pods.begin(watch::channel(Desired::new(pod)).0, shared);
    pods.index("u", ["runs-0", "ended-0"].map(str::to_owned).iter());
    let of = |id: &str| pods.may_write(id);
    assert!(of("runs-0") && !of("ended-0") && !of("removed-0"));
    pods.end("u");
    assert!(!of("runs-0"), "its pod is gone");
}

// review node.md N12: the class of burstable pods had the kernel's weight, whatever they asked for
#[test]
fn burstable_pods_weigh_what_those_that_were_admitted_ask_for() {
    let pods = Pods::default();
    let add = |uid: &str, resources: serde_json::Value, holds: bool| {
        let spec = serde_json::json!({"containers": [{"name": "c", "resources": resources}]});
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": uid}, "spec": spec})).unwrap();
        let (tx, _) = watch::channel(Desired::new(Arc::new(pod)));
        let shared = Arc::new(Mutex::new(Snapshot { holds, ..Snapshot::default() }));
        pods.begin(tx, shared);
    };
    add("a", serde_json::json!({"requests": {"cpu": "200m"}}), true);
    add("b", serde_json::json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), true);
    add("waits", serde_json::json!({"requests": {"cpu": "4"}}), false);
    add("guaranteed", serde_json::json!({"limits": {"cpu": "8", "memory": "1Mi"}}), true);
    add("besteffort", serde_json::json!({}), true);
    assert_eq!(pods.burstable_milli(), 1200);
}

// review node.md N15
#[tokio::test]
async fn a_pods_task_that_panics_is_begun_anew() {
    let begun = std::cell::Cell::new(0);
    let work = || {
        begun.set(begun.get() + 1);
        let n = begun.get();
        async move { assert!(n > 2, "not yet") }
    };
    to_the_end(work, Backoff::new(Duration::ZERO, Duration::ZERO), &base::rng::Rng::from_os(), "u").await;
    assert_eq!(begun.get(), 3);
}

// seen in upstream's preemption with the async preemption: a pod was refused for good while those whose objects were
// deleted still ended
#[test]
fn room_of_pods_whose_objects_are_gone_is_waited_for() {
    let pods = Pods::default();
    let add = |uid: &str, gone: bool| {
        let pod = Arc::new(
            serde_json::from_value(serde_json::json!({"metadata": {"uid": uid}, "spec": {"containers": []}})).unwrap(),
        );
        let (tx, _) = watch::channel(Desired { gone, ..Desired::new(pod) });
        let shared = Arc::new(Mutex::new(Snapshot { holds: true, ..Snapshot::default() }));
        pods.begin(tx, shared);
    };
    add("stays", false);
    add("leaves", true);
    let own = serde_json::from_value(serde_json::json!({"metadata": {"uid": "new"}})).unwrap();
    assert_eq!(pods.holders_beside(&own).len(), 2, "it has its share until it has ended");
    let staying = pods.staying_beside(&own);
    assert_eq!(staying.iter().map(|pod| pod.metadata.uid.as_deref().unwrap()).collect::<Vec<_>>(), ["stays"]);
}
