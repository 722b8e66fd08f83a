//! Upstream's published cases, where they are present, texts, versions and labels.

use model::meta;
use model::reference::GroupResource;
use registry::memory::Objects;
use registry::user::UserInfo;
use serde_json::json;

use super::checks::Level;
use super::policy::Version;
use super::*;

fn of(level: Level, version: Version) -> Asked {
    Asked { level, version }
}

/// Version, file and pod of every published case; folders are called `restricted-v1.35`.
#[allow(clippy::disallowed_methods, reason = "a test is told where upstream's data lies")]
fn cases(level: Level, verdict: &str) -> Vec<(Version, String, Value)> {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/upstream-v1.36");
    let dir = format!("{}/pod-security", std::env::var("KEDGE_UPSTREAM_DATA").unwrap_or(here.to_owned()));
    let Ok(folders) = std::fs::read_dir(&dir) else {
        base::skips::say(&format!("{dir} is not on this machine"));
        return Vec::new();
    };
    let mut out = Vec::new();
    for folder in folders.map(|folder| folder.unwrap()) {
        let name = folder.file_name().into_string().unwrap();
        let Some(version) = name.strip_prefix(&format!("{}-", level.as_str())).and_then(Version::parse) else {
            continue;
        };
        for file in std::fs::read_dir(folder.path().join(verdict)).unwrap() {
            let path = file.unwrap().path();
            out.push((
                version,
                path.display().to_string(),
                serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap(),
            ));
        }
    }
    out
}

#[test]
fn every_published_case_is_judged_as_published() {
    for level in [Level::Baseline, Level::Restricted] {
        for (version, name, pod) in cases(level, "pass") {
            assert_eq!(violations(of(level, version), &pod["metadata"], &pod["spec"]), [], "{name}");
        }
        for (version, name, pod) in cases(level, "fail") {
            assert!(!violations(of(level, version), &pod["metadata"], &pod["spec"]).is_empty(), "{name}");
        }
    }
}

#[test]
fn texts_are_those_that_people_search_for() {
    let spec = json!({"containers": [{"name": "nginx"}]});
    let text = "allowPrivilegeEscalation != false (container \"nginx\" must set \
                securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"nginx\" must \
                set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"nginx\" \
                must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"nginx\" must set \
                securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
    let found = violations(of(Level::Restricted, Version::Latest), &Value::Null, &spec);
    assert_eq!(details(&found), text);
    assert_eq!(
        checks::reasons(&found),
        "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    );
    assert_eq!(violations(of(Level::Baseline, Version::Latest), &Value::Null, &spec), []);
}

#[test]
fn each_version_asks_for_what_it_asked_for_then() {
    // The minimum versions of pod-security-admission policy/check_*.go, 1.36.2: a pod that one control alone refuses,
    // since when, until when.
    let restricted = || json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let good = |more: Value| {
        let mut pod = json!({"containers": [{"name": "c", "securityContext": restricted()}],
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}});
        let mut patch = |at: &str, value: &Value| match pod.pointer_mut(at) {
            Some(place) => *place = value.clone(),
            None => {
                let (parent, key) = at.rsplit_once('/').unwrap();
                pod.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        };
        more.as_object().unwrap().iter().for_each(|(at, value)| patch(at, value));
        pod
    };
    let sysctl = |name: &str| json!({"/securityContext/sysctls": [{"name": name, "value": "1"}]});
    let (context, first) = ("/containers/0/securityContext", "/containers/0");
    let windows = |at: &str, value: Value| json!({"/os": {"name": "windows"}, at: value});
    let own_users = |at: &str, value: Value| json!({"/hostUsers": false, at: value});
    let always = 99;
    for (level, changes, since, until) in [
        (Level::Baseline, sysctl("net.ipv4.ip_local_reserved_ports"), 0, 27),
        (Level::Baseline, sysctl("net.ipv4.tcp_keepalive_time"), 0, 29),
        (Level::Baseline, sysctl("net.ipv4.tcp_wmem"), 0, 32),
        (Level::Baseline, sysctl("net.ipv4.tcp_syncookies"), always, always),
        (Level::Baseline, json!({"/securityContext/seLinuxOptions": {"type": "container_engine_t"}}), 0, 31),
        (Level::Baseline, json!({"/securityContext/seccompProfile/type": "Unconfined"}), 19, always),
        (Level::Baseline, json!({format!("{first}/livenessProbe"): {"httpGet": {"host": "h"}}}), 34, always),
        (Level::Baseline, own_users("/containers/0/securityContext/procMount", json!("Unmasked")), 0, 35),
        (Level::Restricted, own_users("/containers/0/securityContext/procMount", json!("Unmasked")), 0, always),
        (Level::Restricted, json!({format!("{context}/allowPrivilegeEscalation"): true}), 8, always),
        (Level::Restricted, windows("/containers/0/securityContext/allowPrivilegeEscalation", json!(true)), 8, 25),
        (Level::Restricted, json!({format!("{context}/capabilities"): {}}), 22, always),
        (Level::Restricted, windows("/containers/0/securityContext/capabilities", json!({})), 22, 25),
        (Level::Restricted, json!({format!("{context}/capabilities/add"): ["SYS_ADMIN"]}), 0, always),
        (Level::Restricted, json!({format!("{context}/runAsUser"): 0}), 23, always),
        (Level::Restricted, own_users("/containers/0/securityContext/runAsUser", json!(0)), 23, 35),
        (Level::Restricted, own_users("/securityContext/runAsNonRoot", json!(false)), 0, 35),
        (Level::Restricted, json!({"/securityContext/seccompProfile": null}), 19, always),
        (Level::Restricted, windows("/securityContext/seccompProfile", Value::Null), 19, 25),
    ] {
        let pod = good(changes.clone());
        for minor in 0..=40 {
            let refused = !violations(of(level, Version::Minor(minor)), &Value::Null, &pod).is_empty();
            assert_eq!(refused, (since..until).contains(&minor), "{level:?} v1.{minor} {changes}");
        }
        let refused = !violations(of(level, Version::Latest), &Value::Null, &pod).is_empty();
        assert_eq!(refused, since != always && until == always, "{level:?} latest {changes}");
    }
}

#[test]
fn seccomp_was_an_annotation_before_it_was_a_field() {
    let metadata =
        |value: &str| json!({"annotations": {"container.seccomp.security.alpha.kubernetes.io/c": value, "other": "x"}});
    let spec = json!({"containers": [{"name": "c"}]});
    let at = |minor: u64, value: &str| {
        details(&violations(of(Level::Baseline, Version::Minor(minor)), &metadata(value), &spec))
    };
    let text = "seccompProfile (forbidden annotation container.seccomp.security.alpha.kubernetes.io/c=\"unconfined\")";
    assert_eq!(
        (at(18, "unconfined"), at(18, "localhost/x"), at(19, "unconfined")),
        (text.to_owned(), String::new(), String::new())
    );
}

fn labelled(labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| (format!("{LABELS}/{key}"), json!(value))).collect();
    json!({"metadata": {"name": "n", "labels": labels}})
}

#[test]
fn enforcing_warns_too_and_labels_that_cannot_be_read_close_the_door_only() {
    let of = |labels: &[(&str, &str)]| {
        let (policy, causes) = Policy::of(&labelled(labels), &Policy::default());
        (policy.enforce.to_string(), policy.audit.to_string(), policy.warn.to_string(), causes.len())
    };
    let want = |enforce: &str, audit: &str, warn: &str, causes: usize| {
        (enforce.to_owned(), audit.to_owned(), warn.to_owned(), causes)
    };
    assert_eq!(of(&[]), want("privileged:latest", "privileged:latest", "privileged:latest", 0));
    assert_eq!(
        of(&[("enforce", "baseline"), ("enforce-version", "v1.24")]),
        want("baseline:v1.24", "privileged:latest", "baseline:v1.24", 0)
    );
    assert_eq!(
        of(&[("enforce", "baseline"), ("warn-version", "v1.3")]),
        want("baseline:latest", "privileged:latest", "baseline:v1.3", 0)
    );
    assert_eq!(
        of(&[("enforce", "baseline"), ("warn", "privileged")]),
        want("baseline:latest", "privileged:latest", "privileged:latest", 0)
    );
    let typing = [
        ("enforce", "restrcited"),
        ("audit", "x"),
        ("warn", "x"),
        ("enforce-version", "1.3"),
        ("warn-version", "v1.03"),
    ];
    assert_eq!(of(&typing), want("restricted:latest", "privileged:latest", "privileged:latest", 5));
}

/// The answer of PodSecurity to a write in the namespace `n`: the warnings, or the refusal.
async fn said(resource: &str, object: Value, old: Option<Value>, objects: Objects) -> Result<Vec<String>, String> {
    let attributes = Attributes {
        user: UserInfo::new("bob", &[]).into(),
        group: if resource == "deployments" { "apps".into() } else { String::new() },
        resource: resource.into(),
        namespace: "n".into(),
        name: meta::name(&object).to_owned(),
        is_resource: true,
        ..Attributes::default()
    };
    let (mut warnings, mut object) = (Vec::new(), object);
    let review = Review {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        attributes: &attributes,
        kind: "",
        object: &mut object,
        old: old.as_ref(),
        dry_run: false,
        catalog: schema::catalog::Catalog::builtin(),
        lookup: &objects,
        versions: &objects,
        warnings: &mut warnings,
        reinvocation: Default::default(),
        charge: Default::default(),
    };
    PodSecurity::default().validate(&review).await.map_err(|status| status.message.clone())?;
    Ok(attributes.trail.take_warnings())
}

fn pod(name: &str, owner: &str, image: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n",
        "ownerReferences": [{"uid": owner, "controller": !owner.is_empty()}]},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": image}]}})
}

#[tokio::test]
async fn whoever_makes_a_namespace_stricter_hears_which_pods_break_it() {
    let objects = || {
        let mut objects = Objects::default();
        for (name, owner) in [("web-1", "rs"), ("web-2", "rs"), ("alone", "")] {
            objects.put(GroupResource::core("pods"), pod(name, owner, "i"));
        }
        let mut privileged = pod("zz", "", "i");
        privileged["spec"]["containers"][0]["securityContext"]["privileged"] = json!(true);
        objects.put(GroupResource::core("pods"), privileged);
        objects
    };
    let change =
        |old: &[(&str, &str)], new: &[(&str, &str)]| said("namespaces", labelled(new), Some(labelled(old)), objects());
    let want = [
        "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:v1.20\"",
        "alone (and 2 other pods): host namespaces",
        "zz: host namespaces, privileged",
    ];
    assert_eq!(change(&[], &[("enforce", "baseline"), ("enforce-version", "v1.20")]).await.unwrap(), want);
    // A namespace that is made no stricter is not looked at.
    for (old, new) in [
        (vec![("enforce", "restricted")], vec![("enforce", "baseline")]),
        (vec![("enforce", "baseline")], vec![("enforce", "baseline"), ("warn", "restricted")]),
        (vec![("enforce", "baseline")], vec![]),
    ] {
        assert!(change(&old, &new).await.unwrap().is_empty());
    }
    assert!(said("namespaces", labelled(&[("enforce", "restricted")]), None, objects()).await.unwrap().is_empty());
    // What could not be read before may stay as it is; something else that cannot be read may not come.
    change(&[("enforce", "x")], &[("enforce", "x")]).await.unwrap();
    let text = change(&[("enforce", "x")], &[("enforce", "y")]).await.unwrap_err();
    assert!(text.contains("metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"y\""), "{text}");
}

#[tokio::test]
async fn a_workload_is_warned_of_what_its_pods_will_be_refused_for() {
    let objects = || {
        let mut objects = Objects::default();
        objects
            .put(GroupResource::core("namespaces"), labelled(&[("enforce", "baseline"), ("enforce-version", "v1.30")]));
        objects
    };
    let template = json!({"metadata": {"name": "d"}, "spec": {"template": pod("", "", "i")}});
    let want = ["would violate PodSecurity \"baseline:v1.30\": host namespaces (hostNetwork=true)"];
    assert_eq!(said("deployments", template, None, objects()).await.unwrap(), want);
    let text = said("pods", pod("p", "", "i"), None, objects()).await.unwrap_err();
    assert!(text.contains("violates PodSecurity \"baseline:v1.30\": host namespaces"), "{text}");
    // A pod that was there before the labels may be changed, but for its images.
    let mut tolerant = pod("p", "", "i");
    tolerant["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    said("pods", tolerant, Some(pod("p", "", "i")), objects()).await.unwrap();
    said("pods", pod("p", "", "j"), Some(pod("p", "", "i")), objects()).await.unwrap_err();
}
