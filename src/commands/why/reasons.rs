//! Reasons for which an object is not as it should be, by its fields and its events. Pure; one function a kind.

use serde_json::Value;

/// Something that an object waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Of what it is true: `pod web-0, container app`.
    pub(super) about: String,
    /// The fact.
    pub(super) what: String,
    /// The remedy; empty where nothing is to be done but wait.
    pub(super) remedy: String,
}

pub(super) fn finding(about: &str, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about: about.to_owned(), what: what.into(), remedy: remedy.into() }
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, path: &str) -> i64 {
    value.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|condition| condition["type"] == kind)
}

fn newest_first(events: &[Value]) -> Vec<&Value> {
    let mut all: Vec<&Value> = events.iter().collect();
    let time = |event: &Value| {
        let times =
            [text(event, "/lastTimestamp"), text(event, "/eventTime"), text(event, "/metadata/creationTimestamp")];
        times.into_iter().find(|time| !time.is_empty()).unwrap_or_default().to_owned()
    };
    all.sort_by_key(|event| std::cmp::Reverse(time(event)));
    all
}

/// The last warnings, newest first, each reason once.
fn warnings(events: &[Value]) -> Vec<&Value> {
    let mut all = newest_first(events);
    all.retain(|event| event["type"] == "Warning");
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|event| seen.insert(text(event, "/reason").to_owned()));
    all
}

fn last_warning<'a>(events: &'a [Value], reason: &str) -> Option<&'a str> {
    warnings(events).into_iter().find(|event| event["reason"] == reason).map(|event| text(event, "/message"))
}

/// An object that is being deleted and is still there.
pub(super) fn going(about: &str, object: &Value) -> Option<Finding> {
    let since = object.pointer("/metadata/deletionTimestamp").and_then(Value::as_str)?;
    let holders: Vec<&str> = items(object, "/metadata/finalizers").filter_map(Value::as_str).collect();
    if holders.is_empty() {
        return Some(finding(about, format!("it was deleted at {since} and is ending"), ""));
    }
    let what = format!("it was deleted at {since}, and finalizers keep it: {}", holders.join(", "));
    Some(finding(
        about,
        what,
        "see whether the controller that put each of them there runs; it takes it away when it has cleaned up",
    ))
}

/// Of a pod; `previous` gives the last lines of a container's log before it was started again.
pub(super) fn pod(
    about: &str,
    pod: &Value,
    events: &[Value],
    previous: &dyn Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    if let Some(going) = going(about, pod) {
        return vec![going];
    }
    let (phase, ready) = (text(pod, "/status/phase"), condition(pod, "Ready"));
    if phase == "Succeeded" || ready.is_some_and(|ready| ready["status"] == "True") {
        return Vec::new();
    }
    let mut found = Vec::new();
    if phase == "Failed" {
        let why = format!("it failed: {} {}", text(pod, "/status/reason"), text(pod, "/status/message"));
        found.push(finding(
            about,
            why.trim().trim_end_matches(':'),
            "a failed pod is never started again; its controller makes another",
        ));
    }
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|scheduled| scheduled["status"] == "False") {
        found.push(unscheduled(about, scheduled));
    } else if text(pod, "/spec/nodeName").is_empty() && phase != "Failed" {
        found.push(finding(
            about,
            "no scheduler has looked at it yet",
            "see with 'kedge status' whether a server leads; spec.schedulerName names who schedules it",
        ));
    }
    for list in ["/status/initContainerStatuses", "/status/containerStatuses"] {
        found.extend(items(pod, list).filter_map(|status| container(about, status, events, previous)));
    }
    for (reason, remedy) in [
        (
            "FailedMount",
            "what it mounts must be there: ConfigMap, Secret, PersistentVolumeClaim, or the volume's driver on its \
             node",
        ),
        ("FailedAttachVolume", "see VolumeAttachments and the volume's driver"),
        ("FailedCreatePodSandBox", "the network plugin or the runtime of its node refuses: see that node's log"),
    ] {
        if let Some(message) = last_warning(events, reason).filter(|_| text(pod, "/status/phase") == "Pending") {
            found.push(finding(about, format!("{reason}: {message}"), remedy));
        }
    }
    let gates: Vec<&str> = items(pod, "/spec/readinessGates").map(|gate| text(gate, "/conditionType")).collect();
    let closed = gates.iter().filter(|gate| condition(pod, gate).is_none_or(|condition| condition["status"] != "True"));
    found.extend(closed.map(|gate| {
        finding(
            about,
            format!("its readiness gate {gate} is not True"),
            "the controller behind that condition opens it",
        )
    }));
    if found.is_empty() {
        let message = ready
            .map(|ready| text(ready, "/message"))
            .filter(|message| !message.is_empty())
            .unwrap_or("it is starting");
        let last = newest_first(events)
            .first()
            .map(|event| format!("; last heard: {}: {}", text(event, "/reason"), text(event, "/message")));
        found.push(finding(about, format!("{message}{}", last.unwrap_or_default()), ""));
    }
    found
}

fn unscheduled(about: &str, scheduled: &Value) -> Finding {
    let message = text(scheduled, "/message");
    let remedy = match message {
        _ if scheduled["reason"] == "SchedulingGated" => "whoever put spec.schedulingGates there takes them away",
        m if m.contains("Insufficient") => "lower its requests, free a node (kubectl describe nodes), or add one",
        m if m.contains("untolerated taint") => "give it a toleration, or take the taint from a node (kubectl taint)",
        m if m.contains("unschedulable") => "let a node take pods again: kubectl uncordon NODE",
        m if m.contains("persistentvolumeclaim") || m.contains("PersistentVolumeClaim") => {
            "see the claim: kedge why pvc/NAME"
        }
        m if m.contains("affinity") || m.contains("selector") => {
            "compare its nodeSelector and affinity with the labels of nodes (kubectl get nodes --show-labels)"
        }
        _ => "kubectl describe nodes says what they have",
    };
    finding(about, format!("no node takes it: {message}"), remedy)
}

/// How a container ended last, in one line.
fn last_end(status: &Value) -> Option<String> {
    let ended = status.pointer("/lastState/terminated").or_else(|| status.pointer("/state/terminated"))?;
    let (reason, code, message) = (text(ended, "/reason"), number(ended, "/exitCode"), text(ended, "/message"));
    Some(format!("{reason} with exit code {code} {message}").trim().to_owned())
}

/// Why a container waits for its start; `None`: it is only beginning.
fn waits(about: &str, status: &Value, waiting: &Value, with_log: &dyn Fn(String) -> String) -> Option<Finding> {
    let (reason, message) = (text(waiting, "/reason"), text(waiting, "/message"));
    match reason {
        "PodInitializing" | "ContainerCreating" => None,
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
            let remedy = "check the image's name; give credentials with imagePullSecrets or registries.yaml, or put \
                the image into agent/images";
            Some(finding(about, format!("its image {} is not there: {message}", text(status, "/image")), remedy))
        }
        "CrashLoopBackOff" => {
            let ended = last_end(status).unwrap_or_else(|| message.to_owned());
            let what =
                format!("it ended {} times and waits for its next start: {ended}", number(status, "/restartCount"));
            let remedy = if ended.contains("OOMKilled") {
                "raise its memory limit"
            } else {
                "mend what its log says (kubectl logs --previous)"
            };
            Some(finding(about, with_log(what), remedy))
        }
        "CreateContainerConfigError" => {
            Some(finding(about, message, "make the ConfigMap or Secret that it names, with that key"))
        }
        _ => Some(finding(about, format!("{reason}: {message}"), "")),
    }
}

fn container(
    about: &str,
    status: &Value,
    events: &[Value],
    previous: &dyn Fn(&str) -> Option<String>,
) -> Option<Finding> {
    let name = text(status, "/name");
    let about = format!("{about}, container {name}");
    let with_log = |what: String| match previous(name).map(|log| log.trim().to_owned()).filter(|log| !log.is_empty()) {
        Some(log) => format!("{what}; its log ended with:\n{log}"),
        None => what,
    };
    if let Some(waiting) = status.pointer("/state/waiting") {
        return waits(&about, status, waiting, &with_log);
    }
    if let Some(ended) = status.pointer("/state/terminated").filter(|ended| number(ended, "/exitCode") != 0) {
        let what = format!(
            "it ended: {} with exit code {} {}",
            text(ended, "/reason"),
            number(ended, "/exitCode"),
            text(ended, "/message")
        );
        return Some(finding(&about, what.trim(), "mend what its log says (kubectl logs)"));
    }
    if status["ready"] == Value::Bool(true) || status.pointer("/state/running").is_none() {
        return None;
    }
    let said = last_warning(events, "Unhealthy");
    if status["started"] == Value::Bool(false) {
        let what = said.map_or("its startup probe has not succeeded yet".to_owned(), |said| {
            format!("its startup probe has not succeeded yet: {said}")
        });
        return Some(finding(
            &about,
            what,
            "see whether it listens where the probe looks, and whether it has time enough (failureThreshold)",
        ));
    }
    let what = said.map_or("it runs and is not ready".to_owned(), |said| format!("it runs and is not ready: {said}"));
    Some(finding(
        &about,
        what,
        "see whether it listens where the readiness probe looks, and what it waits for itself (kubectl logs)",
    ))
}

/// Of what makes pods: what stops it from making them.
pub(super) fn workload(about: &str, object: &Value, events: &[Value]) -> Vec<Finding> {
    let mut found: Vec<Finding> = going(about, object).into_iter().collect();
    if object.pointer("/spec/paused") == Some(&Value::Bool(true))
        || object.pointer("/spec/suspend") == Some(&Value::Bool(true))
    {
        found.push(finding(about, "it is paused", "kubectl rollout resume, or spec.suspend: false"));
    }
    for (kind, bad) in [("ReplicaFailure", "True"), ("Progressing", "False"), ("Failed", "True")] {
        if let Some(condition) = condition(object, kind).filter(|condition| condition["status"] == bad) {
            found.push(finding(
                about,
                format!("{}: {}", text(condition, "/reason"), text(condition, "/message")),
                refusal(text(condition, "/message")),
            ));
        }
    }
    if let Some(message) = last_warning(events, "FailedCreate")
        .filter(|message| !found.iter().any(|finding| finding.what.contains(message)))
    {
        found.push(finding(about, format!("FailedCreate: {message}"), refusal(message)));
    }
    found
}

/// The remedy where the API refuses a pod.
fn refusal(message: &str) -> &'static str {
    match message {
        m if m.contains("exceeded quota") => "raise the ResourceQuota of the namespace, or ask for less",
        m if m.contains("failed quota") => {
            "the ResourceQuota wants requests and limits on every container; a LimitRange gives defaults"
        }
        m if m.contains("violates PodSecurity") => {
            "change the pod, or the namespace's label pod-security.kubernetes.io/enforce"
        }
        m if m.contains("failed calling webhook") => {
            "see the Service behind that webhook; kubectl get \
             validatingwebhookconfigurations,mutatingwebhookconfigurations"
        }
        m if m.contains("denied the request") || m.contains("ValidatingAdmissionPolicy") => {
            "the policy or webhook that it names forbids it"
        }
        m if m.contains("serviceaccount") => "make the ServiceAccount that it names",
        _ => "",
    }
}

/// Of a claim; `class` is the StorageClass that it names or gets, `pods` are those that mount it.
pub(super) fn claim(about: &str, claim: &Value, class: Option<&Value>, pods: usize, events: &[Value]) -> Vec<Finding> {
    if let Some(going) = going(about, claim) {
        return vec![going];
    }
    if text(claim, "/status/phase") == "Bound" {
        return Vec::new();
    }
    let named = text(claim, "/spec/storageClassName");
    let Some(class) = class else {
        return vec![match named {
            "" => finding(
                about,
                "it names no StorageClass and there is no default one",
                "name one, or mark one as the default (storageclass.kubernetes.io/is-default-class)",
            ),
            named => finding(
                about,
                format!("there is no StorageClass {named}"),
                "kubectl get storageclass says which there are; a claim's class cannot be changed",
            ),
        }];
    };
    if text(class, "/volumeBindingMode") == "WaitForFirstConsumer" && pods == 0 {
        return vec![finding(
            about,
            "its volume is made when a pod that mounts it is scheduled, and there is none",
            "make that pod",
        )];
    }
    let said = warnings(events).first().map(|event| format!(": {}", text(event, "/message"))).unwrap_or_default();
    let what = format!(
        "it is not bound; its StorageClass {} is served by {}{said}",
        text(class, "/metadata/name"),
        text(class, "/provisioner")
    );
    vec![finding(about, what, "see whether the pods of that provisioner run")]
}

/// Of a Service; `ready` and `unready` are endpoints, `pods` those that its selector picks.
pub(super) fn service(about: &str, service: &Value, ready: usize, unready: usize, pods: usize) -> Vec<Finding> {
    let mut found: Vec<Finding> = going(about, service).into_iter().collect();
    let selector: Vec<String> = service
        .pointer("/spec/selector")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if text(service, "/spec/type") == "LoadBalancer" && items(service, "/status/loadBalancer/ingress").next().is_none()
    {
        found.push(finding(
            about,
            "no address was given to it yet",
            "see whether 'servicelb' is disabled here, and whether a node is ready whose port is free",
        ));
    }
    if text(service, "/spec/type") == "ExternalName" || ready > 0 {
        return found;
    }
    let picks = selector.join(",");
    found.push(match (selector.is_empty(), pods, unready) {
        (true, ..) => finding(
            about,
            "it has no selector and no ready endpoints",
            "make an EndpointSlice for it, or give it a selector",
        ),
        (_, 0, _) => finding(
            about,
            format!("no pod of its namespace has the labels {picks}"),
            "compare them with 'kubectl get pods --show-labels'",
        ),
        (_, n, 0) => finding(
            about,
            format!("{n} pods have the labels {picks}, and none has an address and a port of the name that it wants"),
            "compare targetPort with the pods' ports; see kedge why pod/NAME",
        ),
        (_, _, n) => finding(about, format!("none of its {n} endpoints is ready"), "see kedge why pod/NAME"),
    });
    found
}

/// Of any other kind: deletion, conditions that say no, and warnings.
pub(super) fn other(about: &str, object: &Value, events: &[Value]) -> Vec<Finding> {
    let mut found: Vec<Finding> = going(about, object).into_iter().collect();
    let bad_when_true = |kind: &str| {
        let words = ["Pressure", "Unavailable", "Fail", "Degraded", "Remaining", "Stalled", "Discovery"];
        words.iter().any(|word| kind.contains(word))
    };
    for condition in items(object, "/status/conditions") {
        let (kind, status) = (text(condition, "/type"), text(condition, "/status"));
        if status == if bad_when_true(kind) { "True" } else { "False" } {
            let what = format!("{kind} is {status}: {} {}", text(condition, "/reason"), text(condition, "/message"));
            found.push(finding(about, what.trim(), ""));
        }
    }
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        found.push(finding(about, "it takes no new pods", "kubectl uncordon NODE"));
    }
    if !found.is_empty() {
        let said = warnings(events);
        found.extend(
            said.iter()
                .take(3)
                .map(|event| finding(about, format!("{}: {}", text(event, "/reason"), text(event, "/message")), "")),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of_pod(status: Value, events: &[Value]) -> Vec<(String, String)> {
        let object = json!({"spec": {"nodeName": "n"}, "status": status});
        pod("pod web", &object, events, &|_| Some("boom\n".to_owned()))
            .into_iter()
            .map(|f| (f.what, f.remedy))
            .collect()
    }

    fn waiting(reason: &str, message: &str) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "app", "image": "x:1", "restartCount": 4, "state": {"waiting": {"reason": reason,
                "message": message}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 2}},
        }]})
    }

    #[test]
    fn a_pod_says_what_keeps_it() {
        let scheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "message": "0/1 nodes are available: 1 Insufficient cpu."}]});
        let found = of_pod(scheduled, &[]);
        assert!(found[0].0.contains("Insufficient cpu") && found[0].1.contains("requests"));
        assert!(
            of_pod(waiting("ImagePullBackOff", "no such host"), &[])[0].0.contains("x:1 is not there: no such host")
        );
        let crash = &of_pod(waiting("CrashLoopBackOff", "back-off"), &[])[0].0;
        assert!(
            crash.contains("4 times") && crash.contains("exit code 2") && crash.ends_with("its log ended with:\nboom"),
            "{crash}"
        );
        let unready = json!({"phase": "Running", "containerStatuses": [{"name": "app", "ready": false,
            "started": true, "state": {"running": {}}}]});
        let probe = json!({"type": "Warning", "reason": "Unhealthy", "message": "Readiness probe failed: 503",
            "lastTimestamp": "2026-01-01T00:00:00Z"});
        assert!(of_pod(unready, &[probe])[0].0.ends_with("Readiness probe failed: 503"));
        assert!(
            of_pod(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), &[]).is_empty()
        );
    }

    #[test]
    fn what_makes_pods_says_who_refused_them() {
        let events = [json!({"type": "Warning", "reason": "FailedCreate",
                "message": "pods \"a\" is forbidden: exceeded quota: q"})];
        let found = workload("replicaset web", &json!({}), &events);
        assert!(found[0].what.contains("exceeded quota") && found[0].remedy.contains("ResourceQuota"));
        assert!(workload("job x", &json!({"spec": {"suspend": true}}), &[])[0].what.contains("paused"));
    }

    #[test]
    fn claims_services_and_others_say_what_is_missing() {
        let pending = json!({"spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}});
        assert!(claim("pvc d", &pending, None, 0, &[])[0].what.contains("no StorageClass fast"));
        let late =
            json!({"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "p", "metadata": {"name": "fast"}});
        assert!(claim("pvc d", &pending, Some(&late), 0, &[])[0].what.contains("when a pod"));
        assert!(claim("pvc d", &pending, Some(&late), 1, &[])[0].what.contains("served by p"));
        let web = json!({"spec": {"selector": {"app": "web"}}});
        assert!(service("svc web", &web, 0, 0, 0)[0].what.contains("labels app=web"));
        assert!(service("svc web", &web, 0, 2, 2)[0].what.contains("none of its 2 endpoints"));
        assert!(service("svc web", &web, 1, 0, 1).is_empty());
        let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}});
        assert!(other("ns old", &gone, &[])[0].what.contains("x/y"));
        let node = json!({"status": {"conditions": [{"type": "DiskPressure", "status": "True",
            "message": "full"}, {"type": "Ready", "status": "True"}]}});
        assert_eq!(other("node n", &node, &[]).len(), 1);
    }

    #[test]
    fn a_pod_that_no_node_takes_has_the_remedy_for_its_reason() {
        for (message, remedy) in [
            ("1 Insufficient memory.", "lower its requests"),
            ("1 node(s) had untolerated taint(s).", "give it a toleration"),
            ("1 node(s) were unschedulable.", "let a node take pods again"),
            ("persistentvolumeclaim \"d\" not found", "see the claim"),
            ("1 node(s) didn't match Pod's node affinity/selector.", "compare its nodeSelector"),
            ("1 node(s) didn't have free ports", "kubectl describe nodes"),
        ] {
            let scheduled = json!({"type": "PodScheduled", "status": "False", "message": message});
            let found = of_pod(json!({"phase": "Pending", "conditions": [scheduled]}), &[]);
            assert_eq!(found[0].0, format!("no node takes it: {message}"));
            assert!(found[0].1.starts_with(remedy), "{message}: {}", found[0].1);
        }
        let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"});
        assert!(of_pod(json!({"conditions": [gated]}), &[])[0].1.contains("spec.schedulingGates"));
    }

    #[test]
    fn a_container_that_waits_has_the_remedy_for_its_reason() {
        for (reason, what, remedy) in [
            ("ErrImagePull", "its image x:1 is not there: why", "check the image's name"),
            ("InvalidImageName", "its image x:1 is not there: why", "check the image's name"),
            ("CreateContainerConfigError", "why", "make the ConfigMap or Secret"),
            ("CrashLoopBackOff", "it ended 4 times and waits for its next start: Error", "mend what its log says"),
            ("RunContainerError", "RunContainerError: why", ""),
        ] {
            let found = of_pod(waiting(reason, "why"), &[]);
            assert!(found[0].0.starts_with(what) && found[0].1.starts_with(remedy), "{reason}: {found:?}");
        }
        for beginning in ["ContainerCreating", "PodInitializing"] {
            assert_eq!(of_pod(waiting(beginning, ""), &[])[0].0, "it is starting");
        }
    }

    #[test]
    fn a_container_that_ended_for_want_of_memory_needs_more_of_it() {
        let mut status = waiting("CrashLoopBackOff", "back-off");
        status["containerStatuses"][0]["lastState"] = json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
        assert_eq!(of_pod(status, &[])[0].1, "raise its memory limit");
    }

    #[test]
    fn a_pod_that_failed_or_has_no_scheduler_says_so() {
        let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "low on disk"});
        assert_eq!(of_pod(failed, &[])[0].0, "it failed: Evicted low on disk");
        assert_eq!(of_pod(json!({"phase": "Failed"}), &[])[0].0, "it failed");
        assert!(of_pod(json!({"phase": "Succeeded"}), &[]).is_empty());
        let unseen = pod("pod web", &json!({"status": {"phase": "Pending"}}), &[], &|_| None);
        assert_eq!(unseen[0].what, "no scheduler has looked at it yet");
    }

    #[test]
    fn mounts_and_networks_that_fail_are_told_while_a_pod_waits() {
        for (reason, remedy) in [
            ("FailedMount", "what it mounts must be there"),
            ("FailedAttachVolume", "see VolumeAttachments"),
            ("FailedCreatePodSandBox", "the network plugin or the runtime"),
        ] {
            let event = json!({"type": "Warning", "reason": reason, "message": "m"});
            let found = of_pod(json!({"phase": "Pending"}), std::slice::from_ref(&event));
            assert!(found[0].0 == format!("{reason}: m") && found[0].1.starts_with(remedy), "{found:?}");
            assert!(!of_pod(json!({"phase": "Running"}), &[event])[0].1.starts_with(remedy), "it runs by now");
        }
    }

    #[test]
    fn a_closed_readiness_gate_is_told() {
        let of = |conditions: Value| {
            let gates = json!([{"conditionType": "example.com/ready"}]);
            let object = json!({"spec": {"nodeName": "n", "readinessGates": gates},
                "status": {"phase": "Running", "conditions": conditions}});
            pod("pod web", &object, &[], &|_| None).remove(0).what
        };
        assert_eq!(of(json!([])), "its readiness gate example.com/ready is not True");
        assert_eq!(of(json!([{"type": "example.com/ready", "status": "True"}])), "it is starting");
    }

    #[test]
    fn a_startup_probe_goes_before_a_readiness_probe() {
        let of = |started: bool, events: &[Value]| {
            let status = json!({"name": "app", "ready": false, "started": started, "state": {"running": {}}});
            of_pod(json!({"phase": "Running", "containerStatuses": [status]}), events).remove(0)
        };
        let probe = json!({"type": "Warning", "reason": "Unhealthy", "message": "refused"});
        assert_eq!(of(false, &[]).0, "its startup probe has not succeeded yet");
        assert_eq!(of(false, std::slice::from_ref(&probe)).0, "its startup probe has not succeeded yet: refused");
        assert!(of(false, &[]).1.contains("failureThreshold"));
        assert_eq!(of(true, &[]).0, "it runs and is not ready");
        assert_eq!(of(true, &[probe]).0, "it runs and is not ready: refused");
    }

    #[test]
    fn a_refused_pod_has_the_remedy_of_who_refused_it() {
        for (message, remedy) in [
            ("exceeded quota: q", "raise the ResourceQuota"),
            ("failed quota: q: must specify limits.cpu", "the ResourceQuota wants requests"),
            ("violates PodSecurity \"restricted:latest\"", "change the pod, or the namespace's label"),
            ("failed calling webhook \"w\": timeout", "see the Service behind that webhook"),
            ("admission webhook \"w\" denied the request: no", "the policy or webhook that it names"),
            ("ValidatingAdmissionPolicy 'p' with binding 'b' denied", "the policy or webhook that it names"),
            ("error looking up service account d/x: serviceaccount \"x\" not found", "make the ServiceAccount"),
            ("something else", ""),
        ] {
            assert!(refusal(message).starts_with(remedy), "{message}: {}", refusal(message));
            assert_eq!(refusal(message).is_empty(), remedy.is_empty());
        }
    }

    #[test]
    fn an_object_that_is_going_says_who_keeps_it() {
        let gone = |finalizers: Value| json!({"metadata": {"deletionTimestamp": "T", "finalizers": finalizers}});
        let kept = going("pod web", &gone(json!(["a/b", "c/d"]))).unwrap();
        assert_eq!(kept.what, "it was deleted at T, and finalizers keep it: a/b, c/d");
        let ending = going("pod web", &gone(json!([]))).unwrap();
        assert_eq!((ending.what.as_str(), ending.remedy.as_str()), ("it was deleted at T and is ending", ""));
        assert_eq!(going("pod web", &json!({"metadata": {}})), None);
    }

    #[test]
    fn a_claim_without_a_class_and_one_whose_provisioner_is_silent_say_so() {
        let said = |object: Value, class: Option<&Value>, pods| {
            claim("pvc d", &object, class, pods, &[json!({"type": "Warning", "reason": "r", "message": "m"})])
        };
        assert!(said(json!({"status": {"phase": "Bound"}}), None, 0).is_empty());
        assert_eq!(said(json!({}), None, 0)[0].what, "it names no StorageClass and there is no default one");
        let class = json!({"metadata": {"name": "c"}, "provisioner": "p"});
        assert_eq!(said(json!({}), Some(&class), 0)[0].what, "it is not bound; its StorageClass c is served by p: m");
    }

    #[test]
    fn a_service_says_what_stands_between_it_and_its_pods() {
        let of = |spec: Value, ready, unready, pods| {
            let found = service("svc web", &json!({"spec": spec}), ready, unready, pods);
            found.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let web = json!({"selector": {"app": "web"}});
        assert_eq!(of(json!({}), 0, 0, 0), ["it has no selector and no ready endpoints"]);
        assert!(of(web, 0, 0, 3)[0].starts_with("3 pods have the labels app=web, and none has an address"));
        assert!(of(json!({"type": "ExternalName"}), 0, 0, 0).is_empty());
        assert_eq!(
            of(json!({"type": "LoadBalancer", "selector": {"a": "b"}}), 1, 0, 1),
            ["no address was given to it yet"]
        );
    }

    #[test]
    fn any_other_object_shows_the_conditions_that_say_no_and_its_last_warnings() {
        let of = |conditions: Value, events: &[Value]| {
            let found = other("x y", &json!({"status": {"conditions": conditions}}), events);
            found.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let warning = "Warning";
        let event =
            |reason: &str, at: &str| json!({"type": warning, "reason": reason, "message": "m", "lastTimestamp": at});
        assert!(of(json!([{"type": "Established", "status": "True"}]), &[event("A", "1")]).is_empty());
        let bad = json!([{"type": "Available", "status": "False", "reason": "R", "message": "why"}]);
        let events = [event("A", "1"), event("B", "2"), event("A", "3"), event("C", "0"), event("D", "4")];
        assert_eq!(of(bad, &events), ["Available is False: R why", "D: m", "A: m", "B: m"]);
        let cordoned = other("node n", &json!({"spec": {"unschedulable": true}}), &[]);
        assert_eq!(
            (cordoned[0].what.as_str(), cordoned[0].remedy.as_str()),
            ("it takes no new pods", "kubectl uncordon NODE")
        );
    }
}
