//! Networks of sandboxes that a power cut, or the end of containerd, left half made: kedge ends them at its next start,
//! and killall does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::{Place, Server, run_with, signal, wait_for};
use crate::namespaces::{self, NODE_IP};
use crate::node::processes;
use crate::story::{HEAL_LIMIT, POD_LIMIT};

const RECORDS: &str = "/var/lib/cni/results";

/// A uid that no pod has.
const NOBODYS: &str = "00000000-0000-0000-0000-000000000000";

#[test]
fn networks_that_no_sandbox_has_are_ended() {
    if std::env::var_os(namespaces::INSIDE).is_some() {
        tell(&PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap()));
        return;
    }
    match namespaces::what_is_missing() {
        Some(missing) => base::skips::say(&missing),
        None => namespaces::enter("leftovers::networks_that_no_sandbox_has_are_ended"),
    }
}

fn tell(program: &Path) {
    // The records of other tests' nodes are the machine's, too: this one begins with none.
    fs::create_dir_all("/var/lib/cni").unwrap();
    ok("mount", &["-t", "tmpfs", "tmpfs", "/var/lib/cni"]);
    let flags = [format!("--node-ip={NODE_IP}"), "--node-name=n1".to_owned()];
    let server = Server::start_in(Place::of_program(program, &flags));
    server.ok(&["-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s"]);
    let address = ["-n", "kube-system", "get", "pods", "-o", "jsonpath={.items[*].status.podIP}"];
    let before = server.ok(&address);

    let place = server.kill_only();
    processes(&["containerd", "--config"]).into_iter().for_each(|pid| signal(pid, "KILL"));
    wait_for("containerd's end", HEAL_LIMIT, || {
        if processes(&["containerd", "--config"]).is_empty() { Ok(()) } else { Err(String::new()) }
    });
    let dead = Leftover::make(&place, "dead");
    let foreign = dead.copy_of_another_network();
    let server = Server::start_in(place);
    wait_for("the end of a network that no sandbox has", POD_LIMIT, || dead.gone());
    assert!(foreign.exists(), "the record of another kedge's network is gone");
    server.ok(&["wait", "node/n1", "--for=condition=Ready", "--timeout=90s"]);
    server.ok(&["-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s"]);
    assert_eq!(server.ok(&address), before, "the pod that runs keeps its address");

    let place = server.kill_only();
    let dead = Leftover::make(&place, "dying");
    // One that had come no further than its namespace.
    let bare = namespace("bare");
    let said = run_with(Command::new(program).arg("killall").arg("--data-dir").arg(place.data_dir()), "");
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(dead.gone(), Ok(()), "{}", said.out);
    assert!(!bare.exists() && foreign.exists(), "{}", said.out);
    let left: Vec<_> = fs::read_dir(RECORDS).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [foreign], "records");
    assert_eq!(fs::read_dir("/run/netns").unwrap().count(), 0, "namespaces");
    let links = run_with(Command::new("ip").args(["-o", "link"]), "").out;
    assert!(!links.contains("veth"), "{links}");
}

fn ok(program: &str, args: &[&str]) -> String {
    let said = run_with(Command::new(program).args(args), "");
    assert_eq!(said.code, 0, "{program} {args:?}: {}{}", said.out, said.err);
    said.out
}

/// A namespace as containerd makes it, named and with nobody in it.
fn namespace(name: &str) -> PathBuf {
    let path = PathBuf::from(format!("/run/netns/cni-{name}"));
    fs::write(&path, "").unwrap();
    ok("unshare", &[&format!("--net={}", path.display()), "true"]);
    path
}

/// The remains of a sandbox whose network was made, and of which containerd wrote nothing down.
struct Leftover {
    sandbox: String,
    netns: PathBuf,
    link: String,
    lease: PathBuf,
    network: Value,
}

impl Leftover {
    fn make(place: &Place, sandbox: &str) -> Leftover {
        let data = place.data_dir();
        let network: Value =
            serde_json::from_slice(&fs::read(data.join("agent/etc/cni/net.d/10-kedge.conflist")).unwrap()).unwrap();
        let mut plugin = network["plugins"][0].clone();
        plugin["name"] = network["name"].clone();
        plugin["cniVersion"] = network["cniVersion"].clone();
        let netns = namespace(sandbox);
        let mut add = Command::new(data.join("data/cni/bridge"));
        add.env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", sandbox)
            .env("CNI_NETNS", &netns)
            .env("CNI_IFNAME", "eth0");
        let said = run_with(add.env("CNI_PATH", data.join("data/cni")), &plugin.to_string());
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        let result: Value = serde_json::from_str(&said.out).unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        let leftover = Leftover {
            sandbox: sandbox.to_owned(),
            link: result["interfaces"][1]["name"].as_str().unwrap().to_owned(),
            lease: data.join("agent/cni/networks/kedge").join(address),
            network,
            netns,
        };
        assert!(leftover.lease.exists() && leftover.link.starts_with("veth"), "{result}");
        leftover.record("kedge", "eth0", &leftover.network, &result);
        leftover.record(
            "cni-loopback",
            "lo",
            &json!({"name": "cni-loopback", "plugins": [{"type": "loopback"}]}),
            &json!({}),
        );
        leftover
    }

    /// As libcni writes it.
    fn record(&self, network: &str, ifname: &str, conf: &Value, result: &Value) -> PathBuf {
        let record = json!({"kind": "cniCacheV1", "containerId": self.sandbox,
            "config": STANDARD.encode(conf.to_string()), "ifName": ifname,
            "networkName": network, "cniArgs": [["K8S_POD_UID", NOBODYS]], "result": result});
        let path = Path::new(RECORDS).join(format!("{network}-{}-{ifname}", self.sandbox));
        fs::create_dir_all(RECORDS).unwrap();
        fs::write(&path, record.to_string()).unwrap();
        path
    }

    /// The record of another kedge on this machine, whose network has our name.
    fn copy_of_another_network(&self) -> PathBuf {
        let mut conf = self.network.clone();
        conf["plugins"][0]["ipam"]["dataDir"] = json!("/var/lib/other/agent/cni/networks");
        let theirs = Leftover {
            sandbox: "theirs".to_owned(),
            link: String::new(),
            lease: PathBuf::new(),
            netns: PathBuf::new(),
            network: conf,
        };
        theirs.record("kedge", "eth0", &theirs.network, &json!({}))
    }

    fn gone(&self) -> Result<(), String> {
        let records = ["kedge", "cni-loopback"].map(|network| format!("{network}-{}-", self.sandbox));
        let left = fs::read_dir(RECORDS).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.filter(|name| records.iter().any(|start| name.starts_with(start))).collect();
        left.extend(
            [&self.netns, &self.lease].into_iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
        );
        let links = run_with(Command::new("ip").args(["-o", "link"]), "").out;
        left.extend(links.contains(&self.link).then(|| self.link.clone()));
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:?}")) }
    }
}
