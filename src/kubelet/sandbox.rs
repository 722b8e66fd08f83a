//! From a pod to the configuration of its sandbox. Pure.

use std::collections::HashMap;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, PodSpec};

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::container::security;
use crate::resolv::Dns;
use crate::runtime::labels;

/// Whether the pod lives in the host's network.
pub(crate) fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// `<ns>_<name>_<uid>`: the folder of a pod's logs.
pub(crate) fn log_dir(config: &Config, pod: &Pod) -> std::path::PathBuf {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let meta = &pod.metadata;
    config.log_dir.join(format!("{}_{}_{}", text(&meta.namespace), text(&meta.name), text(&meta.uid)))
}

/// The pod's host name, and its fully qualified form where the pod has a subdomain.
pub(crate) fn hostname(pod: &Pod, domain: &str) -> (String, Option<String>) {
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(name) = spec.hostname_override {
        return (name, None);
    }
    let mut host = spec.hostname.filter(|h| !h.is_empty()).unwrap_or_else(|| pod.metadata.name.clone().unwrap_or_default());
    // A kernel host name has at most 63 bytes; a cut may not leave a dash or a dot at the end.
    host.truncate(63);
    let host = host.trim_end_matches(['-', '.']).to_owned();
    let ns = pod.metadata.namespace.clone().unwrap_or_default();
    let full = spec.subdomain.filter(|s| !s.is_empty()).map(|sub| format!("{host}.{sub}.{ns}.svc.{domain}"));
    (host, full)
}

/// Builds the sandbox of `attempt`.
pub(crate) fn config(node: &Config, cgroups: &Cgroups, pod: &Pod, attempt: u32, dns: Dns) -> cri::PodSandboxConfig {
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
        linux: Some(linux(cgroups, pod, &spec)),
        windows: None,
    }
}

fn linux(cgroups: &Cgroups, pod: &Pod, spec: &PodSpec) -> cri::LinuxPodSandboxConfig {
    let context = spec.security_context.clone().unwrap_or_default();
    cri::LinuxPodSandboxConfig {
        cgroup_parent: cgroups.parent_of(pod),
        security_context: Some(sandbox_security(spec, &context)),
        sysctls: context.sysctls.iter().flatten().map(|s| (s.name.clone(), s.value.clone())).collect(),
        overhead: None,
        resources: None,
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
