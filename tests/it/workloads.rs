//! Workloads without a node: controllers make what they should, and kubectl's rollout commands see it.

use crate::harness::{SETTLE_LIMIT, Server};

#[test]
fn a_deployment_becomes_a_set_and_pods_and_takes_them_along() {
    let server = Server::start();
    server.ok(&["create", "deployment", "web", "--image=web:1", "--replicas=3"]);
    server.until(&["get", "pods", "-l", "app=web", "-o", "name"], SETTLE_LIMIT, |out| out.lines().count() == 3);
    let owner =
        server.ok(&["get", "rs", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.ownerReferences[0].name}"]);
    assert_eq!(owner, "web");
    let line = server.until(&["get", "deployment", "web", "--no-headers"], SETTLE_LIMIT, |out| out.contains("0/3"));
    assert_eq!(line.split_whitespace().take(4).collect::<Vec<_>>(), ["web", "0/3", "3", "0"]);
    // No node: the scheduler says so in upstream's words.
    server.until(&["get", "events", "-o", "jsonpath={.items[*].message}"], SETTLE_LIMIT, |out| {
        out.contains("no nodes available to schedule pods")
    });
    server.ok(&["scale", "deployment", "web", "--replicas=1"]);
    server.until(&["get", "pods", "-l", "app=web", "-o", "name"], SETTLE_LIMIT, |out| out.lines().count() == 1);
    server.ok(&["delete", "deployment", "web"]);
    server.until(&["get", "rs,pods", "-o", "name"], SETTLE_LIMIT, str::is_empty);
    server.stop();
}

#[test]
fn a_rollout_has_a_history_and_a_way_back() {
    let server = Server::start();
    server.ok(&["create", "deployment", "web", "--image=web:1", "--replicas=1"]);
    server.until(&["rollout", "history", "deployment/web"], SETTLE_LIMIT, |out| out.contains("\n1 "));
    server.ok(&["set", "image", "deployment/web", "web=web:2"]);
    server.until(&["rollout", "history", "deployment/web"], SETTLE_LIMIT, |out| out.contains("\n2 "));
    assert!(server.ok(&["rollout", "history", "deployment/web", "--revision=1"]).contains("web:1"));
    server.ok(&["rollout", "undo", "deployment/web"]);
    server.until(&["rollout", "history", "deployment/web"], SETTLE_LIMIT, |out| {
        out.contains("\n3 ") && !out.contains("\n1 ")
    });
    assert_eq!(
        server.ok(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"]),
        "web:1"
    );
    server.ok(&["rollout", "pause", "deployment/web"]);
    assert!(server.refused(&["rollout", "restart", "deployment/web"]).contains("can't restart paused deployment"));
    server.ok(&["set", "env", "deployment/web", "A=b"]);
    server.ok(&["set", "resources", "deployment/web", "--limits=memory=16Mi"]);
    let sets = || server.ok(&["get", "rs", "-o", "name"]).lines().count();
    assert_eq!(sets(), 2, "a paused deployment rolls nothing out");
    server.ok(&["rollout", "resume", "deployment/web"]);
    server.until(&["get", "rs", "-o", "name"], SETTLE_LIMIT, |out| out.lines().count() == 3);
    server.ok(&["rollout", "restart", "deployment/web"]);
    server.until(&["get", "rs", "-o", "name"], SETTLE_LIMIT, |out| out.lines().count() == 4);
    let waiting = server.refused(&["rollout", "status", "deployment/web", "--timeout=1s"]);
    assert!(
        waiting.contains("timed out waiting for the condition") || waiting.contains("context deadline exceeded"),
        "{waiting}"
    );
    server.stop();
}

#[test]
fn jobs_daemons_and_bare_sets_are_counted() {
    let server = Server::start();
    server.ok(&["create", "job", "once", "--image=a:1"]);
    server.until(&["get", "pods", "-l", "job-name=once", "-o", "name"], SETTLE_LIMIT, |out| out.lines().count() == 1);
    let daemon = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec:\n  \
        selector: {matchLabels: {app: d}}\n  template:\n    metadata: {labels: {app: d}}\n    \
        spec: {containers: [{name: c, image: i}]}\n";
    server.ok_with(&["apply", "-f", "-"], daemon);
    server.until(
        &["get", "ds", "d", "-o", "jsonpath={.status.observedGeneration}/{.status.desiredNumberScheduled}"],
        SETTLE_LIMIT,
        |out| out == "1/0",
    );
    server.stop();
}

#[test]
fn services_get_addresses_of_their_range_and_slices_of_their_pods() {
    let server = Server::start();
    server.ok(&["create", "deployment", "web", "--image=web:1"]);
    server.ok(&["expose", "deployment", "web", "--port=80", "--type=NodePort"]);
    let ip = server.ok(&["get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    assert!(ip.starts_with("10.43."), "{ip}");
    let port: u16 = server.ok(&["get", "svc", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"]).parse().unwrap();
    assert!((30000..=32767).contains(&port), "{port}");
    server.until(
        &["get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "name"],
        SETTLE_LIMIT,
        |out| out.lines().count() == 1,
    );
    let taken = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: other}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
    );
    let refused = server.refused_with(&["create", "-f", "-"], &taken);
    assert!(
        refused.contains("spec.clusterIPs: Invalid value") && refused.contains("provided IP is already allocated"),
        "{refused}"
    );
    assert_eq!(server.ok(&["get", "svc", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]), "10.43.0.1");
    server.stop();
}

#[test]
fn a_disabled_component_is_not_there() {
    let server = Server::start();
    assert_eq!(server.ok(&["-n", "kube-system", "get", "deployments,services", "-o", "name"]), "");
    server.stop();
}
