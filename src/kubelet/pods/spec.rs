//! Short answers about the spec of a pod.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;

/// What a pod asks for of one resource, CPU in milli-units.
pub(crate) fn requests(pod: &Pod, name: &str) -> i64 {
    pod.spec.as_ref().and_then(|spec| model::requests::of_spec(spec).get(name).copied()).unwrap_or(0)
}

/// Whether the pod lives in the host's network.
pub(crate) fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// The pod's host name, and its fully qualified form where the pod has a subdomain.
pub(crate) fn hostname(pod: &Pod, domain: &str) -> (String, Option<String>) {
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(name) = spec.hostname_override {
        return (name, None);
    }
    let mut host =
        spec.hostname.filter(|h| !h.is_empty()).unwrap_or_else(|| pod.metadata.name.clone().unwrap_or_default());
    // A kernel host name has at most 63 bytes; a cut may not leave a dash or a dot at the end.
    host.truncate(63);
    let host = host.trim_end_matches(['-', '.']).to_owned();
    let ns = pod.metadata.namespace.clone().unwrap_or_default();
    let full = spec.subdomain.filter(|s| !s.is_empty()).map(|sub| format!("{host}.{sub}.{ns}.svc.{domain}"));
    (host, full)
}

/// `name_namespace(uid)`, upstream's way to name a pod in texts.
pub(crate) fn pod_text(pod: &Pod) -> String {
    let mut text = pod.metadata.name.clone().unwrap_or_default();
    let (ns, uid) = (pod.metadata.namespace.as_deref(), pod.metadata.uid.as_deref());
    let _never_fails = write!(text, "_{}({})", ns.unwrap_or_default(), uid.unwrap_or_default());
    text
}
