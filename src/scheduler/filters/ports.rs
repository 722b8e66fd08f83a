//! Host ports: two pods cannot have one port of one address.

use std::collections::{BTreeMap, BTreeSet};

use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because};
use crate::snapshot::{NodeState, Snapshot};

/// Every address of the host.
const ANY: &str = "0.0.0.0";

/// A port on the host: address, protocol, number.
type HostPort<'a> = (&'a str, &'a str, i32);

fn host_ports(pod: &Pod) -> Vec<HostPort<'_>> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(ANY);
            Some((address, port.protocol.as_deref().unwrap_or("TCP"), number))
        })
        .collect()
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    // The wanted addresses of each port: a pod may want, and have, tens of thousands.
    let mut wanted: BTreeMap<(&str, i32), BTreeSet<&str>> = BTreeMap::new();
    for (address, protocol, number) in host_ports(candidate.pod) {
        wanted.entry((protocol, number)).or_default().insert(address);
    }
    let clashes = |(address, protocol, number): HostPort<'_>| {
        wanted
            .get(&(protocol, number))
            .is_some_and(|mine| address == ANY || mine.contains(ANY) || mine.contains(address))
    };
    let is_taken = !wanted.is_empty() && node.pods.iter().any(|pod| host_ports(pod).into_iter().any(clashes));
    because(is_taken, "node(s) didn't have free ports for the requested pod ports")
}
