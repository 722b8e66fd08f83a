//! `kedge why`: what an object waits for, of objects that wait for ever here: there is no node.

use std::process::Command;

use crate::harness::{SETTLE_LIMIT, Said, Server, wait_for};

fn why(server: &Server, args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command
        .arg("why")
        .args(args)
        .arg(format!("--kubeconfig={}", server.place.kubeconfig().display()))
        .output()
        .unwrap()
        .into()
}

fn until(server: &Server, args: &[&str], words: &[&str]) {
    wait_for(&format!("kedge why {args:?}"), SETTLE_LIMIT * 2, || {
        let said = why(server, args);
        if said.code == 1 && words.iter().all(|word| said.out.contains(word)) {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    });
}

#[test]
fn what_waits_says_for_what_and_what_to_do() {
    let mut server = Server::start();
    server.announce("will try again");
    server.until(&["get", "serviceaccount", "default"], SETTLE_LIMIT * 2, |_| true);
    server.ok(&["run", "web", "--image=x", "--labels=app=web"]);
    until(&server, &["pod/web"], &["pod web", "no node takes it", "no nodes available"]);
    server.ok(&["expose", "pod", "web", "--port=80"]);
    until(&server, &["svc", "web"], &["1 pods have the labels app=web", "no node takes it"]);
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n\
        spec: {accessModes: [ReadWriteOnce], storageClassName: fast, \
        resources: {requests: {storage: 1Mi}}}\n";
    server.ok_with(&["apply", "-f", "-"], claim);
    until(&server, &["pvc/data"], &["there is no StorageClass fast"]);
    server.ok(&["create", "namespace", "small"]);
    server.ok(&["create", "quota", "none", "-n", "small", "--hard=pods=0"]);
    server.until(
        &["get", "quota", "none", "-n", "small", "-o", "jsonpath={.status.hard.pods}"],
        SETTLE_LIMIT * 2,
        |said| said == "0",
    );
    server.ok(&["create", "deployment", "app", "-n", "small", "--image=x"]);
    until(&server, &["deployment/app", "-n", "small"], &["exceeded quota: none", "raise the ResourceQuota"]);

    server.ok(&["create", "configmap", "fine"]);
    let fine = why(&server, &["configmap/fine"]);
    assert!(fine.code == 0 && fine.out.contains("waits for nothing"), "{fine:?}");
    assert!(why(&server, &["nonsense/x"]).err.contains("no kind of object named 'nonsense'"));
    assert!(why(&server, &["pod/none"]).err.contains("pods \"none\" not found"));
    server.stop();
}
