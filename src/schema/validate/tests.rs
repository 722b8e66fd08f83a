//! Objects right and wrong, with the words a user sees.

use serde_json::{Value, json};

use super::*;
use crate::table::{Name, TypeDef, TypeRef};

fn resource(group: &'static str, kind: &'static str, namespaced: bool) -> Resource {
    let none = Name::default;
    Resource {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        list_kind: none(),
        plural: none(),
        singular: none(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: Vec::new(),
        subresources: Vec::new(),
        storage_version: none(),
        storage_group: none(),
        storage_version_hash: none(),
        selectable: Vec::new(),
        type_ref: TypeRef::of(TypeDef::default()),
        custom: false,
        behaviour: crate::kinds::of((group, kind)),
        definition: None,
    }
}

fn with_name(mut object: Value) -> Value {
    for (field, value) in [("name", "web"), ("namespace", "default"), ("resourceVersion", "1")] {
        if object["metadata"].get(field).is_none() {
            object["metadata"][field] = json!(value);
        }
    }
    object
}

fn created(group: &'static str, kind: &'static str, object: Value) -> Vec<String> {
    create(&resource(group, kind, true), &with_name(object)).iter().map(FieldError::to_string).collect()
}

fn updated(group: &'static str, kind: &'static str, new: Value, old: Value) -> Vec<String> {
    update(&resource(group, kind, true), &with_name(new), &with_name(old)).iter().map(FieldError::to_string).collect()
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "a", "image": "i"}], "restartPolicy": "Always"})
}

fn deployment() -> Value {
    json!({"spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec()}}})
}

// security.md C3 and KEP-3721: what a volume's author writes is handed to mount(8), or read by the kubelet.
#[test]
fn servers_of_shares_and_files_of_variables_are_judged() {
    let share = |server: &str| {
        let mut spec = pod_spec();
        spec["volumes"] = json!([{"name": "s", "nfs": {"server": server, "path": "/f"}}]);
        created("", "Pod", json!({"spec": spec}))
    };
    for server in ["nas", "nas.lan.", "10.0.0.1", "fd00::1", "[fd00::1]", "fe80::1%eth0"] {
        assert_eq!(share(server), [""; 0], "{server}");
    }
    for server in ["--fstab=/tmp/a", "-o", "a b", "a/b", "a,b"] {
        assert!(share(server)[0].contains("must be a host name or an IP address"), "{server}");
    }
    let variable = |volume: Value| {
        let mut spec = pod_spec();
        spec["containers"][0]["env"] =
            json!([{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "f", "key": "A"}}}]);
        spec["volumes"] = volume;
        created("", "Pod", json!({"spec": spec}))
    };
    assert_eq!(variable(json!([{"name": "v", "emptyDir": {}}])), [""; 0]);
    let at = "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName";
    assert_eq!(variable(json!([])), [format!("{at}: Not found: \"v\"")]);
    let other = variable(json!([{"name": "v", "hostPath": {"path": "/tmp", "type": ""}}]));
    assert_eq!(other, [format!("{at}: Invalid value: \"v\": referenced volume must be of type emptyDir")]);
}

#[test]
fn good_objects_pass() {
    assert_eq!(created("", "Pod", json!({"spec": pod_spec()})), [""; 0]);
    assert_eq!(created("apps", "Deployment", deployment()), [""; 0]);
    assert_eq!(created("", "ConfigMap", json!({"data": {"a.b": "c"}})), [""; 0]);
    let ports = json!([{"port": 80, "protocol": "TCP", "targetPort": "http"}]);
    let service =
        json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": ports}});
    assert_eq!(created("", "Service", service), [""; 0]);
}

#[test]
fn metadata_is_checked_for_every_kind() {
    let errors = created("", "ConfigMap", json!({"metadata": {"name": "Web", "labels": {"a": "b c"}}}));
    assert!(
        errors[0].starts_with("metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 subdomain must consist of"),
        "{errors:?}"
    );
    assert!(errors[1].starts_with("metadata.labels: Invalid value: \"b c\": a valid label must be"), "{errors:?}");
    let cluster = create(&resource("", "Namespace", false), &with_name(json!({})));
    assert_eq!(cluster[0].to_string(), "metadata.namespace: Forbidden: not allowed on this type");
    let errors = updated("", "ConfigMap", json!({"metadata": {"uid": "b"}}), json!({"metadata": {"uid": "a"}}));
    assert_eq!(errors, ["metadata.uid: Invalid value: \"b\": field is immutable"]);
}

#[test]
fn pods_need_containers_with_names_and_images() {
    assert_eq!(created("", "Pod", json!({"spec": {"containers": []}})), ["spec.containers: Required value"]);
    let spec = json!({"containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 99999}],
        "volumeMounts": [{"name": "x", "mountPath": "/x"}]},
        {"name": "a", "image": "", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]});
    assert_eq!(
        created("", "Pod", json!({"spec": spec})),
        [
            "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
            "spec.containers[1].name: Duplicate value: \"a\"",
            "spec.containers[1].image: Required value",
            "spec.containers[1].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ]
    );
}

#[test]
fn sysctls_have_names_that_the_kernel_could_have() {
    let names = ["foo-", "kernel.shmmax", "safe-and-unsafe", "bar..", "net/ipv4/x", "kernel.shmmax"];
    let mut spec = pod_spec();
    spec["securityContext"] = json!({"sysctls": names.map(|name| json!({"name": name, "value": "1"}))});
    let errors = created("", "Pod", json!({"spec": spec})).join("\n");
    for (idx, bad) in
        [(0, "Invalid value: \"foo-\""), (3, "Invalid value: \"bar..\""), (5, "Duplicate value: \"kernel.shmmax\"")]
    {
        assert!(errors.contains(&format!("spec.securityContext.sysctls[{idx}].name: {bad}")), "{errors}");
    }
    assert_eq!(errors.matches("sysctls[").count(), 3, "{errors}");
}

#[test]
fn a_running_pod_may_change_its_image_and_little_else() {
    let mut new = json!({"spec": pod_spec()});
    new["spec"]["containers"][0]["image"] = json!("other");
    assert_eq!(updated("", "Pod", new.clone(), json!({"spec": pod_spec()})), [""; 0]);
    new["spec"]["nodeName"] = json!("n");
    let errors = updated("", "Pod", new, json!({"spec": pod_spec()}));
    assert!(
        errors[0]
            .starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"),
        "{errors:?}"
    );
}

#[test]
fn ephemeral_containers_only_come() {
    let pod = |image: &str| {
        with_name(json!({"spec": {"containers": [{"name": "a", "image": "i"}],
                "ephemeralContainers": [{"name": "e", "image": image}]}}))
    };
    assert!(
        update_part(
            &resource("", "Pod", true),
            "ephemeralcontainers",
            &pod("x"),
            &with_name(json!({"spec": pod_spec()}))
        )
        .is_empty()
    );
    let errors = update_part(&resource("", "Pod", true), "ephemeralcontainers", &pod("y"), &pod("x"));
    assert_eq!(
        errors[0].to_string(),
        "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be changed\n"
    );
}

#[test]
fn selectors_match_their_template_and_stay() {
    let mut wrong = deployment();
    wrong["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    assert_eq!(
        created("apps", "Deployment", wrong),
        ["spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template \
            `labels`"]
    );
    let mut new = deployment();
    new["spec"]["selector"]["matchLabels"] = json!({"app": "x"});
    new["spec"]["template"]["metadata"]["labels"] = json!({"app": "x"});
    assert_eq!(
        updated("apps", "Deployment", new, deployment()),
        ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"x\"}}: field is immutable"]
    );
}

#[test]
fn services_keep_their_address_and_name_their_ports() {
    let service = |ip: &str| {
        json!({"spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
        "ports": [{"port": 80, "protocol": "TCP"}]}})
    };
    assert_eq!(
        updated("", "Service", service("10.0.0.2"), service("10.0.0.1")),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
    let two = json!({"spec": {"type": "ClusterIP",
        "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP", "name": "b", "nodePort": 30000}]}});
    assert_eq!(
        created("", "Service", two),
        [
            "spec.ports[0].name: Required value",
            "spec.ports[1].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"
        ]
    );
}

#[test]
fn frozen_config_stays() {
    let frozen = json!({"immutable": true, "data": {"a": "1"}});
    let errors = updated("", "ConfigMap", json!({"immutable": true, "data": {"a": "2"}}), frozen);
    assert_eq!(errors, ["data: Forbidden: field is immutable when `immutable` is set"]);
    assert_eq!(
        updated("", "Secret", json!({"type": "b"}), json!({"type": "Opaque"})),
        ["type: Invalid value: \"b\": field is immutable"]
    );
    assert_eq!(
        created("", "Secret", json!({"type": "kubernetes.io/tls", "data": {"tls.key": ""}})),
        ["data[tls.crt]: Required value"]
    );
}

#[test]
fn role_refs_do_not_change() {
    let binding =
        |name: &str| json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}});
    let errors = updated("rbac.authorization.k8s.io", "RoleBinding", binding("b"), binding("a"));
    assert!(errors[0].ends_with("cannot change roleRef"), "{errors:?}");
}

#[test]
fn jobs_do_not_restart_always_and_schedules_have_five_fields() {
    let mut spec = pod_spec();
    spec["restartPolicy"] = json!("Always");
    let cron = json!({"spec": {"schedule": "* * * *", "jobTemplate": {"spec": {"template": {"spec": spec}}}}});
    assert_eq!(
        created("batch", "CronJob", cron),
        [
            "spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]",
            "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ]
    );
}
