//! Claims about values that nobody wrote.

use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::table::GroupVersion;

fn defaulted(group: &str, plural: &str, mut value: Value) -> Value {
    let catalog = Catalog::builtin();
    let r = catalog.resource(GroupVersion { group, version: "v1" }, plural).expect("row");
    super::apply(r, &mut value);
    value
}

#[test]
fn a_pods_container_gets_upstreams_defaults() {
    let pod = defaulted(
        "",
        "pods",
        json!({"spec": {"containers": [{"name": "a", "image": "x:1", "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1"}}, "livenessProbe": {"httpGet": {"port": 80}}}]}}),
    );
    let c = &pod["spec"]["containers"][0];
    assert_eq!(c["imagePullPolicy"], "IfNotPresent");
    assert_eq!(c["ports"][0]["protocol"], "TCP");
    assert_eq!(c["resources"]["requests"]["cpu"], "1");
    assert_eq!(
        c["livenessProbe"],
        json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
            "successThreshold": 1, "failureThreshold": 3})
    );
    assert_eq!(pod["spec"]["enableServiceLinks"], true);
}

#[test]
fn the_pull_policy_follows_the_tag() {
    for (image, policy) in [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("r:5000/a", "Always"),
        ("r:5000/a:1", "IfNotPresent"),
        ("a@sha256:00", "IfNotPresent"),
    ] {
        let pod = defaulted("", "pods", json!({"spec": {"containers": [{"image": image}]}}));
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
    }
}

#[test]
fn a_template_is_not_given_service_links_nor_requests() {
    let d = defaulted(
        "apps",
        "deployments",
        json!({"spec": {"template": {"spec": {"containers": [{"image": "a",
            "resources": {"limits": {"cpu": "1"}}}]}}}}),
    );
    let pod = &d["spec"]["template"]["spec"];
    assert!(pod.get("enableServiceLinks").is_none() && pod["containers"][0]["resources"].get("requests").is_none());
    assert_eq!(
        d["spec"]["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
    );
}

#[test]
fn a_services_target_port_is_its_port() {
    let s = defaulted("", "services", json!({"spec": {"ports": [{"port": 80}]}}));
    assert_eq!(s["spec"]["ports"][0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
    assert_eq!(s["spec"]["internalTrafficPolicy"], "Cluster");
    assert!(s["spec"].get("externalTrafficPolicy").is_none());
}
