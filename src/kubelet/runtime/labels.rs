//! Labels and annotations on sandboxes and containers, by which the next kubelet knows them again. Names as upstream's.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub(crate) const HASH: &str = "io.kubernetes.container.hash";
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub(crate) const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub(crate) const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub(crate) const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// The folder of the kubelet that made a sandbox: on a runtime that is shared, others' pods are not ours to end.
pub(crate) const OWNER: &str = "kedge.io/kubelet-dir";
/// Where the file behind `terminationMessagePath` lies on the host.
pub(crate) const TERMINATION_FILE: &str = "kedge.io/termination-file";
/// The preStop hook as JSON, so that a container whose pod vanished from the API is still ended in its own way.
pub(crate) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";

/// The labels that both sandbox and containers of a pod carry.
pub(crate) fn of_pod(pod: &Pod) -> HashMap<String, String> {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    HashMap::from([
        (POD_NAME.to_owned(), text(&pod.metadata.name)),
        (POD_NAMESPACE.to_owned(), text(&pod.metadata.namespace)),
        (POD_UID.to_owned(), text(&pod.metadata.uid)),
    ])
}
