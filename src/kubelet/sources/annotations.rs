//! Annotations by which the pods of a file, of the API and their mirrors are told apart.

use k8s_openapi::api::core::v1::Pod;

pub(super) const SOURCE: &str = "kubernetes.io/config.source";

/// Its value for pods of the API.
pub(super) const API: &str = "api";

pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) const HASH: &str = "kubernetes.io/config.hash";

/// Whether a pod comes from a file.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE).is_some_and(|source| source != API) && annotation(pod, MIRROR).is_none()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}
