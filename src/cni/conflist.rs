//! The network configuration list that the agent writes for containerd: bridge with host-local addresses, then portmap.

use base::ports;
use ipnet::IpNet;
use serde_json::{Value, json};

/// Settings that differ between nodes.
#[derive(Clone, Debug)]
pub struct Conflist {
    /// The node's `spec.podCIDRs`, IPv4 first.
    pub pod_cidrs: Vec<IpNet>,
    /// MTU of pod interfaces: the uplink's less the overlay's header. `None` leaves the kernel's default.
    pub mtu: Option<u32>,
    /// Where address reservations are kept, e.g. `/var/lib/cni/networks`.
    pub ipam_dir: String,
    /// Name of the bridge, normally `cni0`.
    pub bridge: String,
    /// Socket at which new pods wait for their network policies; `None` if there are no policies on this node.
    pub policy_socket: Option<String>,
    /// Whether pods are held to the addresses that they are given.
    pub source_guard: bool,
    /// TCP ports of the node that are the system's beside those that are on every node: no pod has one as its host
    /// port.
    pub own_ports: Vec<u16>,
}

/// The text of the conflist, named `kedge`, of version 1.0.0. Pod traffic that leaves the cluster is masqueraded by the
/// service proxy, hence no `ipMasq`.
pub fn conflist(node: &Conflist) -> String {
    let ranges: Vec<Value> =
        node.pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr.trunc().to_string() }])).collect();
    let routes: Vec<Value> = node
        .pod_cidrs
        .iter()
        .map(|cidr| json!({ "dst": if cidr.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" } }))
        .collect();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": node.bridge,
        "isDefaultGateway": true,
        "forceAddress": true,
        "hairpinMode": true,
        "sourceGuard": node.source_guard,
        "ipam": { "type": "host-local", "dataDir": node.ipam_dir, "ranges": ranges, "routes": routes },
    });
    if let Some(mtu) = node.mtu {
        bridge["mtu"] = json!(mtu);
    }
    let mut plugins = vec![bridge];
    plugins.extend(node.policy_socket.as_ref().map(|socket| json!({ "type": "kedge-policy", "socket": socket })));
    let own = ports::ANSWERING.into_iter().chain(node.own_ports.iter().map(|port| ("tcp", *port)));
    let own: Vec<String> = own.map(|(protocol, port)| format!("{port}/{protocol}")).collect();
    plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true, "ownPorts": own }));
    plugins.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
    let list = json!({ "cniVersion": "1.0.0", "name": "kedge", "plugins": plugins });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dual_stack_gets_one_range_and_one_default_route_a_family() {
        let text = conflist(&Conflist {
            pod_cidrs: vec!["10.42.0.0/24".parse().unwrap(), "fd00:42::/64".parse().unwrap()],
            mtu: Some(1450),
            ipam_dir: "/var/lib/cni/networks".to_owned(),
            bridge: "cni0".to_owned(),
            policy_socket: Some("/run/kedge/network.sock".to_owned()),
            source_guard: true,
            own_ports: vec![10_250],
        });
        let list: Value = serde_json::from_str(&text).unwrap();
        let ipam = &list["plugins"][0]["ipam"];
        assert_eq!(ipam["ranges"], json!([[{ "subnet": "10.42.0.0/24" }], [{ "subnet": "fd00:42::/64" }]]));
        assert_eq!(ipam["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));
        assert_eq!(list["plugins"][0]["mtu"], 1450);
        assert_eq!(list["plugins"][0]["sourceGuard"], true);
        assert_eq!(list["plugins"][2]["ownPorts"], json!(["10256/tcp", "8472/udp", "8473/udp", "10250/tcp"]));
        assert_eq!(list["plugins"][1], json!({ "type": "kedge-policy", "socket": "/run/kedge/network.sock" }));
    }
}
