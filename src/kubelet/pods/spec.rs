//! Short answers about the spec of a pod.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;

/// Bytes of a pod's host name, as upstream.
const HOSTNAME_BYTES_MAX: usize = 63;

/// A pod's request of one resource, CPU in milli-units.
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
    // A kernel host name has at most 63 bytes; a cut may not leave a dash or a dot at the end. Nobody has checked the
    // letters of a name that comes from a manifest.
    let cut = (0..=HOSTNAME_BYTES_MAX.min(host.len())).rev().find(|at| host.is_char_boundary(*at));
    host.truncate(cut.unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(name: &str, spec: serde_json::Value) -> (String, Option<String>) {
        let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": "u"}, "spec": spec});
        hostname(&serde_json::from_value(pod).unwrap(), "cluster.local")
    }

    #[test]
    fn a_host_name_is_the_pods_unless_its_spec_says_another() {
        for (spec, host, full) in [
            (json!({"containers": []}), "web-0", None),
            (json!({"containers": [], "hostname": "own"}), "own", None),
            (json!({"containers": [], "hostname": ""}), "web-0", None),
            (json!({"containers": [], "subdomain": "web"}), "web-0", Some("web-0.web.d.svc.cluster.local")),
            (
                json!({"containers": [], "hostname": "own", "subdomain": "web"}),
                "own",
                Some("own.web.d.svc.cluster.local"),
            ),
            (json!({"containers": [], "hostnameOverride": "all", "hostname": "own", "subdomain": "web"}), "all", None),
        ] {
            assert_eq!(named("web-0", spec.clone()), (host.to_owned(), full.map(str::to_owned)), "{spec}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_does_not_end_with_a_dash() {
        let spec = || json!({"containers": []});
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(9));
        assert_eq!(named(&long, spec()).0, "a".repeat(62));
        assert_eq!(named(&"a".repeat(63), spec()).0, "a".repeat(63));
    }

    // A manifest with such a name ended its pod's task with a panic, again and again.
    #[test]
    fn a_name_of_any_letters_is_cut_between_two_of_them() {
        assert_eq!(named(&"é".repeat(40), json!({"containers": []})).0, "é".repeat(31));
    }

    #[test]
    fn a_pod_is_named_in_texts_as_upstream_names_it() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}})).unwrap();
        assert_eq!(pod_text(&pod), "p_d(u)");
        assert_eq!(pod_text(&Pod::default()), "_()");
    }
}
