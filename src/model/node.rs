//! A Node's word about itself, read as such: its kubelet writes it, on a machine that may be the enemy's. Code that
//! makes names, rules or dials of a node's addresses reads them here.

use std::net::IpAddr;

use base::unicast;
use k8s_openapi::api::core::v1::Node;

/// Addresses of one type that are read of a node; the API server takes no more from a kubelet.
pub const ADDRESSES_MAX: usize = 32;

/// A node's addresses of one type (`InternalIP`, `ExternalIP`) in its order. What is no address, and what is none of
/// one machine, is left out.
pub fn addresses<'a>(node: &'a Node, kind: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    own_addresses(node, kind).filter(|ip| unicast::is_global(*ip))
}

/// As [`addresses`], of the Node of this very machine, which may call itself 127.0.0.1: nobody else follows such a
/// word.
pub fn own_addresses<'a>(node: &'a Node, kind: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let parsed =
        all.filter(move |address| address.type_ == kind).filter_map(|address| address.address.parse::<IpAddr>().ok());
    parsed.map(|ip| ip.to_canonical()).take(ADDRESSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_addresses_are_what_machines_can_have() {
        let status = |addresses: Vec<(&str, String)>| {
            let mut node = Node::default();
            let of = |(kind, text): (&str, String)| k8s_openapi::api::core::v1::NodeAddress {
                type_: kind.to_owned(),
                address: text,
            };
            node.status.get_or_insert_default().addresses = Some(addresses.into_iter().map(of).collect());
            node
        };
        let said = [
            "10.0.0.1",
            "10.0.0.2 vault.prod.svc.cluster.local",
            "host.example.com",
            "127.0.0.1",
            "::ffff:10.0.0.3",
            "fd00::1",
            "",
        ];
        let node = status(said.into_iter().map(|text| ("InternalIP", text.to_owned())).collect());
        let read: Vec<String> = addresses(&node, "InternalIP").map(|ip| ip.to_string()).collect();
        assert_eq!(read, ["10.0.0.1", "10.0.0.3", "fd00::1"]);
        assert_eq!(addresses(&node, "ExternalIP").count(), 0);
        let many = status((0..1000).map(|n| ("InternalIP", format!("10.0.{}.{}", n / 250, n % 250 + 1))).collect());
        assert_eq!(addresses(&many, "InternalIP").count(), ADDRESSES_MAX);
    }
}
