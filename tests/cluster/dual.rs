//! A cluster that begins with IPv4 and gets IPv6 later: what ran runs on, what asks for both has both, and IPv6 is
//! served and guarded as IPv4 is.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::asked::{self, LIMIT, answers, asking};
use crate::hosts::{Host, kill_hard, wait_for};

const BOTH: [&str; 3] = [
    "--cluster-cidr=10.42.0.0/16,fd42::/56",
    "--service-cidr=10.43.0.0/16,fd43::/112",
    "--node-ip=10.210.0.40,fd77::40",
];
const NODE_PORT: u16 = 30086;

struct One {
    host: Host,
}

pub(crate) fn run(program: &Path) {
    let Some(place) = asked::place("kedge-dual-") else { return };
    let host = Host::new("d", 40, place.path(), program);
    host.must(
        "sh",
        &["-c", "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip address add fd77::40/64 dev eth0 nodad"],
    );
    let kubeconfig = format!("--write-kubeconfig={}", host.dir.join("kubeconfig").display());
    let one = One { host };
    let began = Instant::now();
    let first = one.host.start("server", &[&kubeconfig], "log");
    one.ready();
    one.host.import_busybox();
    one.host.apply(&pod("old"));
    one.host.apply(&service("both", "PreferDualStack"));
    one.host.field_is(&["service", "both"], "{.spec.clusterIPs[*]}", &|ips| {
        ips.starts_with("10.43.") && !ips.contains(':')
    });
    let container = one.running("old");
    println!("a cluster of IPv4 alone: {:.1} s", began.elapsed().as_secs_f32());

    let began = Instant::now();
    kill_hard(first);
    let second = one.host.start("server", &[&[kubeconfig.as_str()], BOTH.as_slice()].concat(), "second");
    one.grown(&container);
    println!("it got IPv6: {:.1} s", began.elapsed().as_secs_f32());
    let began = Instant::now();
    one.served();
    println!("IPv6 is served: {:.1} s", began.elapsed().as_secs_f32());
    let began = Instant::now();
    one.guarded();
    println!("IPv6 is guarded: {:.1} s", began.elapsed().as_secs_f32());
    kill_hard(second);
    one.not_taken_away(&kubeconfig);
}

/// A pod that knows its addresses.
fn pod(name: &str) -> Value {
    let mut pod = asked::pod(name);
    pod["spec"]["containers"][0]["env"] =
        json!([{ "name": "IPS", "valueFrom": { "fieldRef": { "fieldPath": "status.podIPs" } } }]);
    pod
}

fn service(name: &str, policy: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "ipFamilyPolicy": policy, "type": "NodePort", "selector": { "who": "new" },
            "ports": [{ "port": 80, "nodePort": if name == "both" { Some(NODE_PORT) } else { None } }] } })
}

impl One {
    fn ready(&self) {
        let ready = "{.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        wait_for("the node", LIMIT, || {
            let said = self.host.kubectl(&["get", "nodes", "-o", &format!("jsonpath={ready}")]);
            if said.ok && said.text == "True" {
                Ok(())
            } else {
                Err(format!("{}\n{}", said.text, self.host.log("log")))
            }
        });
    }

    fn running(&self, pod: &str) -> String {
        self.host
            .field_is(&["pod", pod], "{.status.conditions[?(@.type==\"Ready\")].status}", &|ready| ready == "True");
        self.host.field_is(&["pod", pod], "{.status.containerStatuses[0].containerID}", &|id| !id.is_empty())
    }

    /// The answer that this machine gets from there.
    fn page(&self, ip: &str, port: u16, says: &str) {
        wait_for(&format!("{ip} port {port} to say {says}"), LIMIT, || {
            let ask = format!("exec 3<>/dev/tcp/{ip}/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
            let said = self.host.said("timeout", &["3", "bash", "-c", &ask]);
            if said.text.contains(says) { Ok(()) } else { Err(said.text) }
        });
    }

    fn grown(&self, container: &str) {
        self.host.field_is(&["node", "d"], "{.spec.podCIDRs}", &|cidrs| cidrs == r#"["10.42.0.0/24","fd42::/64"]"#);
        self.host.field_is(&["node", "d"], "{.status.addresses[?(@.type==\"InternalIP\")].address}", &|ips| {
            ips == "10.210.0.40 fd77::40"
        });
        self.host.field_is(&["service", "both"], "{.spec.clusterIPs[*]}", &|ips| ips.contains(" fd43::"));
        assert_eq!(self.running("old"), container, "the pod was started again");
        // Until the node's new network is known to the runtime, a pod may still get one address.
        let conflist = self.host.data_dir().join("agent/etc/cni/net.d/10-kedge.conflist");
        wait_for("the pod network of both families", LIMIT, || {
            let text = std::fs::read_to_string(&conflist).unwrap_or_default();
            if text.contains("fd42::/64") { Ok(()) } else { Err(text) }
        });
        wait_for("a new pod with both addresses", LIMIT, || {
            self.host.apply(&pod("new"));
            self.running("new");
            let ips = self.host.field_is(&["pod", "new"], "{.status.podIPs[*].ip}", &|ips| !ips.is_empty());
            if ips.contains(" fd42::") {
                return Ok(());
            }
            // containerd reads the folder a moment after it changed.
            self.host.kubectl(&["delete", "pod", "new", "--wait=true"]);
            Err(ips)
        });
    }

    fn served(&self) {
        let v6 = self.host.field_is(&["pod", "new"], "{.status.podIPs[1].ip}", &|ip| ip.starts_with("fd42::"));
        self.page(&v6, 80, "I am new");
        let slices = ["endpointslices", "-l", "kubernetes.io/service-name=both"];
        self.host
            .field_is(&slices, "{.items[*].addressType}", &|kinds| kinds.contains("IPv4") && kinds.contains("IPv6"));
        let ips = self.host.field_is(&["service", "both"], "{.spec.clusterIPs[*]}", &|_| true);
        for ip in ips.split(' ') {
            self.page(ip, 80, "I am new");
        }
        for ip in ["10.210.0.40", "fd77::40"] {
            self.page(ip, NODE_PORT, "I am new");
        }
        wait_for("the pod to know both addresses and both name servers", LIMIT, || {
            let env = self.host.kubectl(&["exec", "new", "--", "sh", "-c", "echo $IPS; cat /etc/resolv.conf"]).text;
            if env.contains(&format!(",{v6}")) && env.contains("fd43::a") { Ok(()) } else { Err(env) }
        });
        wait_for("both addresses in DNS", LIMIT, || {
            let said =
                self.host.kubectl(&["exec", "new", "--", "nslookup", "both.default.svc.cluster.local", "10.43.0.10"]);
            let all = ips.split(' ').all(|ip| said.text.contains(ip));
            if all { Ok(()) } else { Err(said.text) }
        });
        let spec = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "six" },
            "spec": { "ipFamilies": ["IPv6"], "selector": { "who": "new" }, "ports": [{ "port": 80 }] } });
        self.host.apply(&spec);
        let six = self.host.field_is(&["service", "six"], "{.spec.clusterIPs[*]}", &|ips| ips.starts_with("fd43::"));
        self.page(&six, 80, "I am new");
    }

    /// Over IPv6, from a pod to a pod.
    fn guarded(&self) {
        self.host.apply(&pod("peer"));
        self.running("peer");
        let v6 = self.host.field_is(&["pod", "new"], "{.status.podIPs[1].ip}", &|ip| ip.starts_with("fd42::"));
        let peer = self.host.field_is(&["pod", "peer"], "{.status.podIPs[1].ip}", &|ip| ip.starts_with("fd42::"));
        let ask = asking(&v6, 80);
        let reaches = |wanted: bool, what: &str| {
            answers(what, wanted, || self.host.kubectl(&["exec", "peer", "--", "sh", "-c", &ask]).text)
        };
        let policy = |ingress: Value| {
            self.host.apply(&json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "guard" },
                "spec": { "podSelector": { "matchLabels": { "who": "new" } }, "policyTypes": ["Ingress"],
                    "ingress": ingress } }));
        };
        reaches(true, "a pod to be reached over IPv6");
        policy(json!([]));
        reaches(false, "a policy to keep IPv6 out");
        policy(json!([{ "from": [{ "ipBlock": { "cidr": format!("{peer}/128") } }] }]));
        reaches(true, "a policy to let one IPv6 address in");
    }

    fn not_taken_away(&self, kubeconfig: &str) {
        let mut last = self.host.start("server", &[kubeconfig], "third");
        let ended = wait_for("a server without IPv6 to give up", LIMIT, || {
            last.try_wait().unwrap().ok_or_else(|| self.host.log("third"))
        });
        let log = self.host.log("third");
        assert!(
            !ended.success() && log.contains("a family can be added behind the first, and none be taken away"),
            "{log}"
        );
    }
}
