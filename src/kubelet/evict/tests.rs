//! Signals, ranks and texts of evictions.

use super::local::local_breach;
use super::*;
use crate::pods::desired::Notice;

// In the virtual machine a pod that had filled the disk was gone, its layer was not, and the next pod went for it.
#[tokio::test]
async fn a_layer_is_given_time_to_go_before_another_pod_has_to() {
    let after = |lows: u32, removed: u64| async move {
        let mut n = 0;
        let is_low = || {
            n += 1;
            n <= lows
        };
        is_enough(is_low, looks(removed), Duration::ZERO).await
    };
    assert!(after(20, 1).await, "the runtime took five seconds");
    assert!(!after(1000, 1).await, "it was not enough");
    assert!(!after(1, 0).await && after(0, 0).await, "nothing was removed: there is nothing to wait for");
}

#[test]
fn a_volume_over_its_limit_is_named() {
    let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
        "containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "2Mi"}}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]}}))
    .unwrap();
    let none = BTreeMap::new();
    assert_eq!(local_breach(&pod, &[("v".to_owned(), 1 << 20)], &none), None);
    assert_eq!(
        local_breach(&pod, &[("v".to_owned(), 2 << 20)], &none).unwrap(),
        "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
    );
    let layers = BTreeMap::from([("c".to_owned(), 3 << 20)]);
    assert_eq!(
        local_breach(&pod, &[], &layers).unwrap(),
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
    );
    // node.md M4: one container without a limit took the pod's away.
    let mut half = pod.clone();
    half.spec
        .as_mut()
        .unwrap()
        .containers
        .push(k8s_openapi::api::core::v1::Container { name: "d".to_owned(), ..Default::default() });
    let layers = BTreeMap::from([("d".to_owned(), 3 << 20)]);
    assert!(local_breach(&half, &[], &layers).unwrap().contains("total limit of containers 2Mi"));
}

// node.md M4: a disk of images of their own was ranked by volumes.
#[test]
fn pods_are_ranked_by_what_lies_on_the_disk_that_is_full() {
    let told = |signal, layout| (parts(signal, layout).layers, parts(signal, layout).volumes_and_logs);
    assert_eq!(told("nodefs.available", Layout::Together), (true, true));
    assert_eq!(told("nodefs.inodesFree", Layout::Apart), (false, true));
    assert_eq!(told("imagefs.available", Layout::Apart), (true, false));
    assert_eq!(told("imagefs.available", Layout::Together), (true, true));
}

// node.md N7: an evicted pod's layers stayed, so the next pod was evicted for them, and the next.
#[test]
fn containers_of_an_ended_pod_and_older_ones_of_a_name_may_go() {
    let seen =
        |id: &str, name: &str, state| Seen { id: id.to_owned(), name: name.to_owned(), state, ..Seen::default() };
    let mut snapshot = Snapshot::default();
    snapshot.observed.containers = vec![
        seen("3", "a", State::Running),
        seen("2", "a", State::Exited),
        seen("1", "a", State::Exited),
        seen("9", "b", State::Exited),
    ];
    snapshot.status.phase = Some("Running".to_owned());
    assert_eq!(unused(&snapshot), ["2", "1"]);
    snapshot.observed.containers[0].state = State::Exited;
    assert_eq!(unused(&snapshot), ["2", "1"], "the last of a name is what the status tells of");
    snapshot.status.phase = Some("Failed".to_owned());
    assert_eq!(unused(&snapshot), ["3", "2", "1", "9"]);
}

#[test]
fn a_signal_has_upstreams_condition_resource_and_amounts() {
    for (signal, condition, resource, amount) in [
        ("memory.available", "MemoryPressure", "memory", ("1Mi", "1024Ki")),
        (OF_PODS, "MemoryPressure", "memory", ("1Mi", "1024Ki")),
        ("nodefs.available", "DiskPressure", "ephemeral-storage", ("1Mi", "1024Ki")),
        ("imagefs.available", "DiskPressure", "ephemeral-storage", ("1Mi", "1024Ki")),
        ("nodefs.inodesFree", "DiskPressure", "inodes", ("1048576", "1048576")),
        ("pid.available", "PIDPressure", "pids", ("1048576", "1048576")),
    ] {
        assert_eq!((condition_of(signal), resource_of(signal)), (condition, resource), "{signal}");
        assert_eq!((threshold_text(signal, 1 << 20).as_str(), kibibytes(signal, 1 << 20).as_str()), amount);
    }
}

fn of(available: u64, capacity: u64) -> Observation {
    Observation { available, capacity }
}

#[test]
fn only_signals_below_their_thresholds_are_met() {
    let settings = Settings::parse(["eviction-hard=memory.available<100Mi,nodefs.inodesFree<5%"]).unwrap();
    let met = |signal: &'static str, seen| !Tracker::default().met(&settings, &[(signal, seen)].into()).is_empty();
    assert!(met("memory.available", of(99 << 20, 1 << 30)));
    assert!(!met("memory.available", of(100 << 20, 1 << 30)));
    assert!(met(OF_PODS, of(99 << 20, 1 << 30)), "it has the threshold of the machine's memory");
    assert!(met("nodefs.inodesFree", of(4, 100)) && !met("nodefs.inodesFree", of(5, 100)));
    assert!(!met("nodefs.inodesFree", of(0, 0)), "btrfs tells no inodes");
    assert!(!met("pid.available", of(0, 100)), "nobody asked for it");
}

// TestThresholdsMet, TestMinReclaim and TestNodeReclaimFuncs, pkg/kubelet/eviction/eviction_manager_test.go v1.36.2.
#[test]
fn what_was_acted_on_is_met_until_the_minimum_is_reclaimed_too() {
    let settings =
        Settings::parse(["eviction-hard=memory.available<1Gi", "eviction-minimum-reclaim=memory.available=500Mi"]);
    let (settings, mut tracker) = (settings.unwrap(), Tracker::default());
    let mut look = |mib: u64| {
        let met = tracker.met(&settings, &[("memory.available", of(mib << 20, 8 << 30))].into());
        tracker.due(&settings, &met).is_some()
    };
    assert!(!look(1200), "nothing is reclaimed where nothing was short");
    assert!(look(1000) && look(1200), "not enough yet");
    assert!(!look(1524) && !look(1200), "enough, and from then on it is as before");
}

#[test]
fn a_soft_threshold_is_acted_on_after_its_grace_and_told_at_once() {
    let of_grace = |grace: &str| {
        let grace = format!("eviction-soft-grace-period=memory.available={grace}");
        let words = ["eviction-soft=memory.available<2Gi", &grace, "eviction-max-pod-grace-period=7"];
        Settings::parse(words).unwrap()
    };
    let seen = |mib: u64| [("memory.available", of(mib << 20, 8 << 30))].into();
    let (long, none, mut tracker) = (of_grace("1h"), of_grace("0s"), Tracker::default());
    let met = tracker.met(&long, &seen(1500));
    assert_eq!(met, [Met { signal: "memory.available", kind: Threshold::Soft }], "the condition is told of it");
    assert_eq!(tracker.due(&long, &met), None, "not yet");
    let due = tracker.due(&none, &met).unwrap();
    assert_eq!((due.kind, due.notice(&none)), (Threshold::Soft, Notice::Soft(7)));
    let met = tracker.met(&none, &seen(50));
    let hard = tracker.due(&none, &met).unwrap();
    assert_eq!((hard.kind, hard.notice(&none)), (Threshold::Hard, Notice::Hard), "the hard one counts first");
    assert!(tracker.met(&none, &seen(4000)).is_empty());
}

#[test]
fn a_pod_that_goes_is_told_what_was_short_and_who_took_it() {
    let settings = Settings::parse(["eviction-hard=memory.available<100Mi"]).unwrap();
    let pod = Arc::new(
        serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "greedy", "resources": {"requests": {"memory": "1Mi"}}}, {"name": "small"}]}}))
        .unwrap(),
    );
    let by_container = vec![("greedy".to_owned(), 3 << 20), ("small".to_owned(), 0)];
    let chosen = Use { pod, bytes: 3 << 20, by_container };
    let seen = [("memory.available", Observation { available: 50 << 20, capacity: 1 << 30 })].into();
    assert_eq!(
        reason(&settings, &chosen, Met { signal: "memory.available", kind: Threshold::Hard }, &seen),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51200Ki. Container greedy \
         was using 3072Ki, request is 1Mi, has larger consumption of memory. "
    );
}
