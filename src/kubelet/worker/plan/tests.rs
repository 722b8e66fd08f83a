//! Steps of pods: what is there, what was asked for, and what is to be done.

use super::*;
use crate::pods::observed::Sandbox;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).unwrap()
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}))
        .unwrap()
}

pub(crate) fn seen(name: &str, state: State, exit_code: i32) -> Seen {
    Seen {
        id: format!("{name}-0"),
        name: name.to_owned(),
        sandbox_id: "s0".to_owned(),
        attempt: 0,
        state,
        created_at: at(1),
        started_at: at(1),
        finished_at: at(2),
        exit_code,
        reason: String::new(),
        message: String::new(),
        image: String::new(),
        image_id: String::new(),
        hash: String::new(),
        log_path: String::new(),
        pre_stop: None,
        user: None,
    }
}

fn ready() -> Vec<Sandbox> {
    vec![Sandbox { id: "s0".to_owned(), ready: true, attempt: 0, created_at: 0, ips: Vec::new() }]
}

fn decide(pod: &Pod, sandboxes: Vec<Sandbox>, containers: Vec<Seen>, backoffs: &Backoffs) -> Plan {
    let observed = Observed { sandboxes, containers };
    plan(&View { pod, observed: &observed, health: &BTreeMap::new(), backoffs, anew: &BTreeSet::new(), now: at(3) })
}

fn starts(plan: &Plan) -> Vec<&str> {
    let name = |c: &'_ Command| if let Command::Start { name, .. } = c { Some(name.clone()) } else { None };
    plan.commands.iter().filter_map(name).map(|n| &*Box::leak(n.into_boxed_str())).collect()
}

#[test]
fn init_containers_run_one_by_one_and_sidecars_stay() {
    let pod = pod(serde_json::json!({"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "m"}]}));
    let none = Backoffs::default();
    assert_eq!(decide(&pod, vec![], vec![], &none).commands, [Command::MakeSandbox { attempt: 0 }]);
    assert_eq!(starts(&decide(&pod, ready(), vec![], &none)), ["i"]);
    assert!(starts(&decide(&pod, ready(), vec![seen("i", State::Running, 0)], &none)).is_empty());
    assert_eq!(starts(&decide(&pod, ready(), vec![seen("i", State::Exited, 0)], &none)), ["s"]);
    let both = vec![seen("i", State::Exited, 0), seen("s", State::Running, 0)];
    assert_eq!(starts(&decide(&pod, ready(), both, &none)), ["m"]);
}

#[test]
fn a_crash_loop_waits_and_says_how_long() {
    let pod = pod(serde_json::json!({"containers": [{"name": "m"}]}));
    let mut backoffs = Backoffs::default();
    let dead = || vec![seen("m", State::Exited, 1)];
    assert_eq!(starts(&decide(&pod, ready(), dead(), &backoffs)), ["m"], "the first restart is at once");
    backoffs.next(&crash_loop(&pod.spec.as_ref().unwrap().containers[0]), at(0), at(0));
    let plan = decide(&pod, ready(), dead(), &backoffs);
    assert!(plan.commands.is_empty());
    assert_eq!(plan.crash_loops["m"], "back-off 10s restarting failed container=m pod=p_d(u)");
    assert_eq!(plan.wake_at, Some(at(12)));
}

// Seen with upstream's "should have their auto-restart back-off timer reset on image update": it waited five
// minutes.
#[test]
fn another_image_ends_the_wait_of_a_crash_loop() {
    let of = |image: &str| pod(serde_json::json!({"containers": [{"name": "m", "image": image}]}));
    let old = of("bad");
    let mut backoffs = Backoffs::default();
    backoffs.next(&crash_loop(&old.spec.as_ref().unwrap().containers[0]), at(0), at(0));
    let dead = || vec![seen("m", State::Exited, 1)];
    assert!(starts(&decide(&old, ready(), dead(), &backoffs)).is_empty());
    assert_eq!(starts(&decide(&of("good"), ready(), dead(), &backoffs)), ["m"]);
}

#[test]
fn a_pod_that_never_restarts_finishes_and_ends_its_sidecars() {
    let pod =
        pod(serde_json::json!({"restartPolicy": "Never", "initContainers": [{"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "m"}]}));
    let containers = vec![seen("m", State::Exited, 0), seen("s", State::Running, 0)];
    assert_eq!(decide(&pod, ready(), containers, &Backoffs::default()).commands, [Command::Finish]);
    let dead = vec![Sandbox { ready: false, ..ready().remove(0) }];
    assert!(decide(&pod, dead, vec![seen("m", State::Exited, 0)], &Backoffs::default()).commands.is_empty());
}

#[test]
fn a_container_that_asks_for_it_has_all_of_the_pod_made_again() {
    let rule = serde_json::json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let pod = pod(serde_json::json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}],
        "containers": [{"name": "asks", "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "other"}]}));
    let none = Backoffs::default();
    let asked = || seen("asks", State::Exited, 42);
    let containers = vec![asked(), seen("other", State::Running, 0), seen("i", State::Exited, 0)];
    let plan = decide(&pod, ready(), containers, &none);
    assert!(
        matches!(&plan.commands[..], [Command::Kill { name, grace: Grace::None, .. }] if name == "other"),
        "{plan:?}"
    );
    let all_ended = || vec![asked(), seen("other", State::Exited, 137), seen("i", State::Exited, 0)];
    assert_eq!(starts(&decide(&pod, ready(), all_ended(), &none)), ["i"], "from the first init container on");
    let anew = |name: &str, state, code| Seen { created_at: at(5), attempt: 1, ..seen(name, state, code) };
    let again = |first: Vec<Seen>| first.into_iter().chain(all_ended()).collect::<Vec<_>>();
    let plan = decide(&pod, ready(), again(vec![anew("i", State::Exited, 0)]), &none);
    assert_eq!(starts(&plan), ["asks", "other"], "killed ones too, though the pod never restarts");
    let mut waits = Backoffs::default();
    waits.next(&crash_loop(&pod.spec.as_ref().unwrap().containers[0]), at(0), at(0));
    assert_eq!(
        starts(&decide(&pod, ready(), again(vec![anew("i", State::Exited, 0)]), &waits)),
        ["other"],
        "its crash loop counts"
    );
    let all = again(vec![anew("asks", State::Exited, 0), anew("other", State::Exited, 0), anew("i", State::Exited, 0)]);
    assert_eq!(
        decide(&pod, ready(), all, &none).commands.last(),
        Some(&Command::Finish),
        "and ends when that round ends"
    );
}

fn dead() -> Vec<Sandbox> {
    vec![Sandbox { ready: false, ..ready().remove(0) }]
}

fn dead_and_new() -> Vec<Sandbox> {
    let new = Sandbox { id: "s1".to_owned(), ready: true, attempt: 1, created_at: 9, ips: Vec::new() };
    [vec![new], dead()].concat()
}

// review node.md N16
#[test]
fn what_ended_well_does_not_run_again_in_a_new_sandbox() {
    let two = serde_json::json!([{"name": "migrate"}, {"name": "load"}]);
    let pod =
        pod(serde_json::json!({"restartPolicy": "OnFailure", "initContainers": [{"name": "i"}], "containers": two}));
    let none = Backoffs::default();
    let lost =
        || vec![seen("migrate", State::Exited, 0), seen("load", State::Exited, 137), seen("i", State::Exited, 0)];
    assert_eq!(decide(&pod, dead(), lost(), &none).commands, [Command::MakeSandbox { attempt: 1 }]);
    assert_eq!(
        starts(&decide(&pod, dead_and_new(), lost(), &none)),
        ["i"],
        "what comes before them runs in each sandbox"
    );
    let anew = Seen { sandbox_id: "s1".to_owned(), attempt: 1, ..seen("i", State::Exited, 0) };
    let again = [vec![anew], lost()].concat();
    assert_eq!(
        starts(&decide(&pod, dead_and_new(), again, &none)),
        ["load"],
        "and of them only the one that had not ended well"
    );
}

// review node.md N16
#[test]
fn a_pod_that_never_restarts_gets_no_second_sandbox_once_it_ran() {
    let two = serde_json::json!([{"name": "a"}, {"name": "b"}]);
    let pod = pod(serde_json::json!({"restartPolicy": "Never", "containers": two}));
    let none = Backoffs::default();
    let half = || Observed { sandboxes: dead(), containers: vec![seen("a", State::Exited, 0)] };
    assert!(decide(&pod, dead(), half().containers, &none).commands.is_empty());
    assert!(stranded(&pod, &half()), "so it has failed");
    assert_eq!(
        decide(&pod, dead(), Vec::new(), &none).commands,
        [Command::MakeSandbox { attempt: 1 }],
        "nothing of it ran yet"
    );
    assert_eq!(decide(&pod, dead(), vec![seen("a", State::Running, 0)], &none).commands, [Command::Finish]);
}

// review node.md M13
#[test]
fn each_probe_has_a_grace_of_its_own() {
    let probe = |secs: i64| serde_json::json!({"terminationGracePeriodSeconds": secs});
    let sidecar = serde_json::json!({"name": "s", "restartPolicy": "Always",
        "startupProbe": probe(5), "livenessProbe": probe(7)});
    let pod = pod(serde_json::json!({"initContainers": [sidecar], "containers": [{"name": "m"}]}));
    for (kill, secs) in [("startup", 5), ("liveness", 7)] {
        let observed = Observed { sandboxes: ready(), containers: vec![seen("s", State::Running, 0)] };
        let health = Health { id: "s-0".to_owned(), started: false, ready: false, kill: Some(kill) };
        let (health, backoffs, anew) =
            (BTreeMap::from([("s".to_owned(), health)]), Backoffs::default(), BTreeSet::new());
        let plan = plan(&View {
            pod: &pod,
            observed: &observed,
            health: &health,
            backoffs: &backoffs,
            anew: &anew,
            now: at(2),
        });
        assert!(
            matches!(&plan.commands[..], [Command::Kill { grace: Grace::Probe(Some(own)), .. }] if *own == secs),
            "{plan:?}"
        );
    }
}

// review node.md N17
#[test]
fn a_container_of_which_nobody_knows_is_ended_before_it_is_started_again() {
    let pod = pod(serde_json::json!({"initContainers": [{"name": "i"}], "containers": [{"name": "m"}]}));
    for name in ["i", "m"] {
        let containers = vec![seen(name, State::Unknown, 0), seen("i", State::Exited, 0)];
        let plan = decide(&pod, ready(), containers, &Backoffs::default());
        assert!(matches!(&plan.commands[..], [Command::Kill { name: killed, .. }] if killed == name), "{plan:?}");
    }
}

#[test]
fn a_lost_sandbox_is_made_again_and_all_containers_in_it() {
    let pod = pod(serde_json::json!({"containers": [{"name": "m"}]}));
    let dead = vec![Sandbox { ready: false, ..ready().remove(0) }];
    let plan = decide(&pod, dead.clone(), vec![seen("m", State::Exited, 137)], &Backoffs::default());
    assert_eq!(plan.commands, [Command::MakeSandbox { attempt: 1 }]);
    let mut both = vec![Sandbox { id: "s1".to_owned(), ready: true, attempt: 1, created_at: 9, ips: Vec::new() }];
    both.extend(dead);
    let plan = decide(&pod, both, vec![seen("m", State::Exited, 137)], &Backoffs::default());
    assert_eq!(plan.commands, [Command::Start { name: "m".to_owned(), attempt: 1, ended: None }]);
}
