//! Whether this node takes a pod: upstream's last check, after the scheduler. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::cgroups;
use crate::config::Config;
use crate::container::{self, Role};
use crate::node::Machine;

/// The error is the reason and the text of the pod's failure.
pub(super) fn admit(config: &Config, machine: &Machine, pod: &Pod, others: &[Arc<Pod>]) -> Result<(), (&'static str, String)> {
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux") {
        return Err(("PodOSNotSupported", format!("Failed to admit pod as the OS field doesn't match node OS: {}", os.name)));
    }
    let labels = crate::register::labels(config);
    let wanted = spec.node_selector.iter().flatten();
    if !wanted.clone().all(|(key, value)| labels.get(key) == Some(value)) {
        return Err(("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".to_owned()));
    }
    let live: Vec<&Pod> = others.iter().map(Arc::as_ref).filter(|p| !over(p)).collect();
    if live.len() >= usize::try_from(config.max_pods).unwrap_or(usize::MAX) {
        let text = format!("Node didn't have enough resource: pods, requested: 1, used: {}, capacity: {}", live.len(), config.max_pods);
        return Err(("OutOfpods", text));
    }
    for (name, reason, capacity) in [("cpu", "OutOfcpu", machine.cpus * 1000), ("memory", "OutOfmemory", machine.memory)] {
        let requested = requests(pod, name);
        let used: i64 = live.iter().map(|p| requests(p, name)).sum();
        if requested > 0 && used + requested > capacity {
            let text = format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}");
            return Err((reason, text));
        }
    }
    let taken: Vec<(i32, String)> = live.iter().flat_map(|p| host_ports(p)).collect();
    if host_ports(pod).iter().any(|port| taken.contains(port)) {
        return Err(("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned()));
    }
    Ok(())
}

fn over(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// What a pod asks for: its containers and sidecars together, or its largest init container. CPU in milli-units.
pub(crate) fn requests(pod: &Pod, name: &str) -> i64 {
    let own = |c: &k8s_openapi::api::core::v1::Container| {
        let quantity = cgroups::request(c.resources.as_ref(), name);
        quantity.map_or(0, |q| if name == "cpu" { q.milli_value() } else { q.value() })
    };
    let all = container::all(pod);
    let steady: i64 = all.iter().filter(|(_, role)| *role != Role::Init).map(|(c, _)| own(c)).sum();
    let init = all.iter().filter(|(_, role)| *role == Role::Init).map(|(c, _)| own(c)).max().unwrap_or(0);
    steady.max(init)
}

fn host_ports(pod: &Pod) -> Vec<(i32, String)> {
    let ports = container::all(pod).into_iter().flat_map(|(c, _)| c.ports.iter().flatten());
    let used = ports.filter_map(|p| p.host_port.filter(|h| *h > 0).map(|h| (h, p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()))));
    used.collect()
}
