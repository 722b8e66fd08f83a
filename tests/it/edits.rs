//! What a person changes in files while a server runs, and what becomes of it.

use std::fs;
use std::process::Command;

use crate::harness::{Place, SETTLE_LIMIT, Said, Server, wait_for};

fn kedge(place: &Place, args: &[&str]) -> Said {
    let data = format!("--data-dir={}", place.data_dir().display());
    Command::new(env!("CARGO_BIN_EXE_kedge")).args(args).arg(data).output().unwrap().into()
}

#[test]
fn a_manifest_is_applied_followed_and_taken_back() {
    let mut server = Server::start();
    let dir = server.place.data_dir().join("server/manifests");
    let config_map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n");
    fs::create_dir(dir.join("team")).unwrap();
    fs::write(dir.join("team/web.yaml"), config_map("one") + "---\n" + &config_map("two")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out.contains("one") && out.contains("two"));
    server.until(&["get", "addons", "-n", "kube-system", "-o", "name"], SETTLE_LIMIT, |out| out.contains("team-web"));
    fs::write(dir.join("team/web.yaml"), config_map("two")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("one") && out.contains("two"));
    server.announce("cannot apply a manifest");
    fs::write(dir.join("broken.yaml"), "apiVersion: v1\nkind: ConfigMap\n").unwrap();
    let error = ["get", "addon", "broken", "-n", "kube-system", "-o", "jsonpath={.status.error}"];
    server.until(&error, SETTLE_LIMIT, |out| out.contains("metadata.name is missing"));
    fs::remove_file(dir.join("broken.yaml")).unwrap();
    fs::write(dir.join("kept.yaml"), config_map("kept")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out.contains("kept"));
    fs::remove_dir_all(dir.join("team")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("two"));
    // What goes while the server does not run is taken back at its next start.
    let place = server.stop();
    fs::remove_file(dir.join("kept.yaml")).unwrap();
    let server = Server::start_in(place);
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("kept"));
}

#[test]
fn certificates_are_rotated_under_a_running_server() {
    let server = Server::start();
    let before = fs::read(server.place.kubeconfig()).unwrap();
    let said = kedge(&server.place, &["certificate", "rotate"]);
    assert_eq!(said.code, 0, "{said:?}");
    wait_for("a new kubeconfig", SETTLE_LIMIT, || match fs::read(server.place.kubeconfig()) {
        Ok(now) if now != before => Ok(()),
        _ => Err("the old one".to_owned()),
    });
    server.ok(&["get", "--raw", "/readyz"]);
    let said = kedge(&server.place, &["certificate", "check", "--output=json"]);
    let list: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(said.code == 0 && list.as_array().unwrap().iter().all(|one| one["status"] == "OK"), "{said:?}");
    assert!(server.ok(&["get", "--raw", "/metrics"]).contains("kedge_certificate_expiration_seconds{name=\"client-admin\"}"));
}

#[test]
fn authorities_are_replaced_and_the_old_ones_trusted_until_they_are_dropped() {
    let mut server = Server::start();
    server.announce("new authorities are here");
    let old = server.place.path("old-kubeconfig");
    fs::copy(server.place.kubeconfig(), &old).unwrap();
    let old = format!("--kubeconfig={}", old.display());
    let rotate = |server: &Server, more: &[&str]| {
        let kubeconfig = format!("--kubeconfig={}", server.place.kubeconfig().display());
        kedge(&server.place, &[&["certificate", "rotate-ca", &kubeconfig], more].concat())
    };
    let wrong = rotate(&server, &[&format!("--path={}", server.place.path("none").display())]);
    assert!(wrong.code != 0 && wrong.err.contains("none: there is no such folder"), "{wrong:?}");
    let authority = |server: &Server| fs::read_to_string(server.place.data_dir().join("server/tls/server-ca.crt")).unwrap();
    for (more, old_is_good, authorities) in [(&[][..], true, 3), (&["--drop-old"][..], false, 1)] {
        let said = rotate(&server, more);
        assert!(said.code == 0 && said.out.contains("Restart kedge"), "{said:?}");
        let next = server.place.data_dir().join("server/cred/authorities-next.json");
        wait_for("the new set beside the one in use", SETTLE_LIMIT, || if next.exists() { Ok(()) } else { Err("none".to_owned()) });
        server.ok(&["get", "--raw", "/readyz"]);
        server = Server::start_in(server.stop());
        // The log is that of all starts.
        server.announce("new authorities are here");
        assert!(!next.exists());
        assert_eq!(authority(&server).matches("BEGIN CERTIFICATE").count(), authorities);
        server.ok(&["get", "namespaces"]);
        let said = server.said(&["get", "namespaces", &old]);
        assert_eq!(said.code == 0, old_is_good, "{said:?}");
    }
    let said = rotate(&server, &["--drop-old"]);
    assert!(said.code != 0 && said.err.contains("nothing would change"), "{said:?}");
    server.stop();
}

#[test]
fn the_server_answers_for_metrics_unless_it_is_told_not_to() {
    let server = Server::start();
    let service = ["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.status.conditions[0].reason}"];
    server.until(&service, SETTLE_LIMIT, |out| out == "Local");
    assert!(server.ok(&["api-resources", "--api-group=metrics.k8s.io", "-o", "name"]).contains("nodes.metrics.k8s.io"));
    assert!(server.refused(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/none"]).contains("not found"));
    let mut place = server.stop();
    place.flags.push("--disable=metrics-server".to_owned());
    let server = Server::start_in(place);
    wait_for("no APIService", SETTLE_LIMIT, || match server.said(&["get", "apiservice", "v1beta1.metrics.k8s.io"]).code {
        0 => Err("it is there".to_owned()),
        _ => Ok(()),
    });
}
