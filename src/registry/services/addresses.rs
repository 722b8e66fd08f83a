//! Addresses and families of services, as text and as numbers.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

/// Its protocol, TCP unless it says another.
pub(super) fn protocol(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or("TCP").to_owned()
}

/// The addresses that a service names, the first family first.
pub(super) fn cluster_ips(service: &Value) -> Vec<String> {
    let list = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    let mut ips: Vec<String> = list.filter_map(Value::as_str).map(str::to_owned).collect();
    let single = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    if ips.is_empty() && !single.is_empty() {
        ips.push(single.to_owned());
    }
    ips
}

/// The family of an address, as `ipFamilies` calls it.
pub(super) fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The family of a range.
pub(super) fn cidr_family(cidr: &IpNet) -> &'static str {
    family(&cidr.addr())
}

/// The `place`th address of a range, counted from its network's own, which is the 0th.
pub fn nth_address(range: &IpNet, place: u128) -> IpAddr {
    match range.network() {
        IpAddr::V4(net) => IpAddr::from(u32::to_be_bytes(u32::from(net) + u32::try_from(place).unwrap_or(0))),
        IpAddr::V6(net) => IpAddr::from(u128::to_be_bytes(u128::from(net) + place)),
    }
}
