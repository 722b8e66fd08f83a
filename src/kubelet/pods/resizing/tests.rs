//! Wishes, grants, and the steps to what was granted.

use serde_json::json;

use super::*;
use crate::settings::Settings;

fn pod(cpu: &str) -> Pod {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [container]}})).unwrap()
}

#[test]
fn a_wish_is_granted_deferred_or_infeasible() {
    let settings = Settings::default();
    let host = Host::with(&[("cpu", 2000), ("memory", 1 << 30)], &settings);
    let others = [Arc::new(pod("1"))];
    assert_eq!(grant(&host, &pod("1"), &others).refusal(), None);
    for (cpu, expected) in [
        ("1500m", ("Deferred", "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000")),
        ("3", ("Infeasible", "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000")),
    ] {
        assert_eq!(grant(&host, &pod(cpu), &others).refusal(), Some(expected));
    }
    let mut of_file = pod("1");
    of_file.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let refused = grant(&host, &of_file, &others);
    assert_eq!(refused.refusal(), Some(("Infeasible", "In-place resize of static-pods is not supported")));
}

#[test]
fn what_was_granted_stands_in_for_the_wish_and_equal_amounts_are_no_change() {
    let mut resizing = Resizing::default();
    resizing.admit(&pod("1"), &PodStatus::default());
    let asked = Arc::new(pod("2"));
    assert_eq!(requests(&resizing.effective(&asked), "cpu"), 1000);
    let whole = |cpu: &str| {
        let mut pod = pod("1");
        let own = json!({"requests": {"cpu": cpu}});
        pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(own).unwrap());
        Arc::new(pod)
    };
    let mut resizing = Resizing::default();
    resizing.admit(&whole("2"), &PodStatus::default());
    assert_eq!(
        requests(&resizing.effective(&whole("3")), "cpu"),
        2000,
        "a wish of the pod as a whole waits for its grant, too"
    );
    let with_init = |cpu: &str| {
        let init = json!([{"name": "i", "resources": {"requests": {"cpu": cpu}}}]);
        let mut pod = pod("1");
        pod.spec.as_mut().unwrap().init_containers = Some(serde_json::from_value(init).unwrap());
        Arc::new(pod)
    };
    let mut resizing = Resizing::default();
    resizing.admit(&with_init("2"), &PodStatus::default());
    assert_eq!(
        requests(&resizing.effective(&with_init("3")), "cpu"),
        2000,
        "so does one of a container that goes before"
    );
    let of = |cpu: &str| wishes(&pod(cpu)).remove("c").unwrap();
    assert!(same(&of("1"), &of("1000m")));
    assert_eq!(changed(&of("1"), &of("2")), ["cpu"].into());
}

// a resize of the pod as a whole changed the limits of such containers under their feet
#[test]
fn a_container_with_its_pods_limit_starts_again_where_its_policy_says_so_and_only_once() {
    let pod = |memory: &str, cpu: &str| -> Pod {
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        serde_json::from_value(json!({"spec": {"resources": {"limits": {"memory": memory, "cpu": cpu}}, "containers": [
            {"name": "taker", "resizePolicy": policy},
            {"name": "own", "resizePolicy": policy, "resources": {"limits": {"memory": "1Gi"}}}]}}))
        .unwrap()
    };
    let (old, new) = (pod("2Gi", "1"), pod("3Gi", "1"));
    let restarts = |resizing: &Resizing, pod: &Pod| -> Vec<String> {
        let must = |c: &&Container| {
            let own = c.resources.clone().unwrap_or_default();
            must_restart(c, &resizing.held(&c.name, &own), &held(whole(pod), &own))
        };
        pod.spec.as_ref().unwrap().containers.iter().filter(must).map(|c| c.name.clone()).collect()
    };
    let mut resizing = Resizing::default();
    resizing.admit(&old, &PodStatus::default());
    assert!(restarts(&resizing, &old).is_empty(), "an earlier kubelet's containers have what it granted");
    assert_eq!(restarts(&resizing, &new), ["taker"], "what has its own limit is not concerned");
    assert!(restarts(&resizing, &pod("2Gi", "2")).is_empty(), "the policy is about memory");
    resizing.made("taker", &new, None);
    assert!(restarts(&resizing, &new).is_empty(), "the pod's group may be changed later");
}

#[test]
fn limits_that_a_pods_group_does_not_take_are_not_told() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "without-a-group"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "64Mi"}}}]}}))
    .unwrap();
    let mut resizing = Resizing::default();
    resizing.admit(&pod, &PodStatus::default());
    let (had, before) = (resizing.of_pod(&pod, Run::Running), resizing.in_force(&pod));
    let more = Limits { shares: 4096, quota: Some(400_000), memory: Some(1 << 30) };
    resizing.group_took(crate::cgroups::Cgroups::of_tests().limit(more, before, &pod, Some(64)));
    assert_eq!(resizing.of_pod(&pod, Run::Running), had, "the pod has no group on this machine");
    resizing.group_took(more);
    assert_ne!(resizing.of_pod(&pod, Run::Running), had);
}
