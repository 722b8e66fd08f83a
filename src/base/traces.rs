//! Names under which this program is found in a machine's kernel: whoever makes something there, watches it or takes it
//! away uses these.

/// nft table of the service proxy, in `ip` and `ip6`.
pub const PROXY_TABLE: &str = "kedge-proxy";
/// nft table of host ports, in `ip` and `ip6`; the CNI plugin `portmap` writes it.
pub const HOSTPORT_TABLE: &str = "kedge-hostport";
/// nft table of masquerade, in `ip` and `ip6`; the CNI plugin `bridge` writes it.
pub const MASQUERADE_TABLE: &str = "kedge-masq";
/// nft table of network policies, in `inet`.
pub const POLICY_TABLE: &str = "kedge-policy";
/// nft table of limits of pods' bandwidth, in `inet`; the CNI plugin `bandwidth` writes it.
pub const BANDWIDTH_TABLE: &str = "kedge-bandwidth";
/// nft table that holds pods to their own addresses, in `bridge`; the CNI plugin `bridge` writes it.
pub const SOURCE_TABLE: &str = "kedge-source";

/// The tables that CNI plugins write, by family and name: they are only called when pods come and go.
pub const PLUGIN_TABLES: [(&str, &str); 6] = [
    ("ip", HOSTPORT_TABLE),
    ("ip6", HOSTPORT_TABLE),
    ("ip", MASQUERADE_TABLE),
    ("ip6", MASQUERADE_TABLE),
    ("inet", BANDWIDTH_TABLE),
    ("bridge", SOURCE_TABLE),
];

/// The tables that the network room writes, by family and name.
pub const NETWORK_TABLES: [(&str, &str); 3] = [("ip", PROXY_TABLE), ("ip6", PROXY_TABLE), ("inet", POLICY_TABLE)];

/// Bridge on which the pods of a node meet, under the name that k3s gives it.
pub const BRIDGE: &str = "cni0";
/// Device of the overlay's tunnel.
pub const TUNNEL: &str = "kedge.1";

/// Folder in which systemd keeps until the machine's end what it was told of units at run time: `UNIT.d`, also when the
/// unit is gone.
pub const SYSTEMD_NOTES: &str = "/run/systemd/system.control";

/// Routes that we make carry this protocol number (`ip route show proto 107`).
pub const ROUTE_PROTOCOL: u8 = 107;
