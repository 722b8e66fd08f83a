//! Host ports: two pods cannot have one port of one address.

use client::pod::Pod;

use super::{Candidate, Reasons, because};
use crate::snapshot::{NodeState, Snapshot};

/// A port on the host: address, protocol, number.
type HostPort<'a> = (&'a str, &'a str, i32);

fn host_ports(pod: &Pod) -> Vec<HostPort<'_>> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
            Some((address, port.protocol.as_deref().unwrap_or("TCP"), number))
        })
        .collect()
}

fn clash(a: HostPort<'_>, b: HostPort<'_>) -> bool {
    a.1 == b.1 && a.2 == b.2 && (a.0 == b.0 || a.0 == "0.0.0.0" || b.0 == "0.0.0.0")
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let wanted = host_ports(candidate.pod);
    let taken = |port: &HostPort<'_>| node.pods.iter().any(|pod| host_ports(pod).into_iter().any(|other| clash(*port, other)));
    because(wanted.iter().any(taken), "node(s) didn't have free ports for the requested pod ports")
}
