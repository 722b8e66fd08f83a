//! From a pod to the configuration of its sandbox. Pure.

use std::collections::HashMap;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, PodSpec};
use model::quantity::Quantity;

use crate::cgroups::{Cgroups, limits};
use crate::config::Config;
use crate::container::security;
use crate::pods::spec::{host_network, hostname, requests};
use crate::resolv::Dns;
use crate::runtime::labels;

/// `<ns>_<name>_<uid>`: the folder of a pod's logs.
pub(crate) fn log_dir(config: &Config, pod: &Pod) -> std::path::PathBuf {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let meta = &pod.metadata;
    config.log_dir.join(format!("{}_{}_{}", text(&meta.namespace), text(&meta.name), text(&meta.uid)))
}

/// Builds the sandbox of `attempt`.
pub(crate) fn config(node: &Config, groups: &Cgroups, pod: &Pod, attempt: u32, dns: Dns) -> cri::PodSandboxConfig {
    let spec = pod.spec.clone().unwrap_or_default();
    let (host, full) = hostname(pod, &node.cluster_domain);
    let hostname = match (host_network(pod), spec.set_hostname_as_fqdn.unwrap_or(false), full) {
        // In the host's network it keeps the host's name: runc refuses to set one there.
        (true, ..) => String::new(),
        (false, true, Some(full)) => full,
        (false, ..) => host,
    };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let mut all_labels: HashMap<String, String> = pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    all_labels.extend(labels::of_pod(pod));
    all_labels.insert(labels::OWNER.to_owned(), node.root_dir.display().to_string());
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            uid,
            attempt,
        }),
        hostname,
        log_directory: log_dir(node, pod).display().to_string(),
        dns_config: Some(cri::DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options }),
        port_mappings: if host_network(pod) { Vec::new() } else { port_mappings(&spec) },
        labels: all_labels,
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(linux(groups, pod, &spec)),
        windows: None,
    }
}

fn linux(groups: &Cgroups, pod: &Pod, spec: &PodSpec) -> cri::LinuxPodSandboxConfig {
    let context = spec.security_context.clone().unwrap_or_default();
    let overhead = |name: &str| spec.overhead.as_ref().and_then(|o| o.get(name)).map(limits::parse);
    let limit = |name: &str| limits::limit_of_pod(spec, name);
    cri::LinuxPodSandboxConfig {
        cgroup_parent: groups.parent_of(pod),
        security_context: Some(sandbox_security(spec, &context)),
        sysctls: context.sysctls.iter().flatten().map(|s| (s.name.clone(), s.value.clone())).collect(),
        // A runtime that makes a machine for the pod sizes it by these.
        overhead: Some(amounts(overhead("cpu").map(|q| q.milli_value()), overhead("cpu"), overhead("memory"))),
        resources: Some(amounts(
            Some(requests(pod, "cpu").saturating_sub(overhead("cpu").map_or(0, |q| q.milli_value()))),
            limit("cpu"),
            limit("memory"),
        )),
    }
}

/// Requests and limits of a pod, in the runtime's form.
fn amounts(
    cpu_request_milli: Option<i64>,
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
) -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_shares: cpu_request_milli.map_or(0, limits::shares),
        cpu_period: cpu.as_ref().map_or(0, |_| limits::PERIOD_USEC),
        cpu_quota: cpu.map_or(0, |q| limits::quota(q.milli_value())),
        memory_limit_in_bytes: memory.map_or(0, |q| q.value()),
        ..Default::default()
    }
}

fn sandbox_security(spec: &PodSpec, context: &PodSecurityContext) -> cri::LinuxSandboxSecurityContext {
    let mut groups = context.supplemental_groups.clone().unwrap_or_default();
    groups.extend(context.fs_group);
    let privileged = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .any(|c| c.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false));
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(security::namespaces(spec)),
        run_as_user: context.run_as_user.map(|value| cri::Int64Value { value }),
        run_as_group: context.run_as_user.and(context.run_as_group).map(|value| cri::Int64Value { value }),
        supplemental_groups: groups,
        supplemental_groups_policy: security::groups_policy(context),
        privileged,
        // The sandbox's own process is always confined by the runtime's profile, as upstream.
        seccomp: Some(cri::SecurityProfile { profile_type: 0, localhost_ref: String::new() }),
        ..Default::default()
    }
}

fn port_mappings(spec: &PodSpec) -> Vec<cri::PortMapping> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter(|port| port.host_port.is_some_and(|p| p > 0))
        .map(|port| cri::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp as i32,
                Some("SCTP") => cri::Protocol::Sctp as i32,
                _ => cri::Protocol::Tcp as i32,
            },
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md M20
    #[test]
    fn a_runtime_that_makes_machines_is_told_how_large() {
        let spec = serde_json::json!({"overhead": {"cpu": "250m", "memory": "128Mi"}, "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "b", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]});
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
        let config = linux(&Cgroups::of_tests(), &pod, pod.spec.as_ref().unwrap());
        let told =
            |r: Option<cri::LinuxContainerResources>| r.map(|r| (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes));
        assert_eq!(told(config.resources), Some((2048, 200_000, 2 << 30)));
        assert_eq!(told(config.overhead), Some((256, 25_000, 128 << 20)));
    }

    #[test]
    fn ports_of_the_host_are_those_of_main_containers_and_sidecars() {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [
                {"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]},
                {"name": "s", "restartPolicy": "Always",
                 "ports": [{"containerPort": 2, "hostPort": 82, "protocol": "UDP"}]}],
            "containers": [{"name": "m", "ports": [{"containerPort": 3}, {"containerPort": 4, "hostPort": 0},
                {"containerPort": 5, "hostPort": 85, "hostIP": "192.0.2.1"},
                {"containerPort": 6, "hostPort": 86, "protocol": "SCTP"}]}]}))
        .unwrap();
        let told: Vec<_> = port_mappings(&spec)
            .into_iter()
            .map(|p| (p.protocol(), p.container_port, p.host_port, p.host_ip))
            .collect();
        assert_eq!(
            told,
            [
                (cri::Protocol::Tcp, 5, 85, "192.0.2.1".to_owned()),
                (cri::Protocol::Sctp, 6, 86, String::new()),
                (cri::Protocol::Udp, 2, 82, String::new()),
            ]
        );
    }

    #[test]
    fn a_sandbox_has_the_groups_of_its_pod_and_no_group_without_a_user() {
        let of = |spec: serde_json::Value| {
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            sandbox_security(&spec, &spec.security_context.clone().unwrap_or_default())
        };
        let both = of(serde_json::json!({"containers": [],
            "securityContext": {"runAsUser": 7, "runAsGroup": 8, "supplementalGroups": [9], "fsGroup": 10}}));
        assert_eq!((both.run_as_user.map(|id| id.value), both.run_as_group.map(|id| id.value)), (Some(7), Some(8)));
        assert_eq!((both.supplemental_groups, both.privileged), (vec![9, 10], false));
        let group = of(serde_json::json!({"containers": [], "securityContext": {"runAsGroup": 8}}));
        assert_eq!((group.run_as_user, group.run_as_group), (None, None), "the runtime refuses a group alone");
        let privileged = serde_json::json!({"name": "i", "securityContext": {"privileged": true}});
        assert!(of(serde_json::json!({"containers": [], "initContainers": [privileged]})).privileged);
    }
}
