//! Facts about storage that discovery does not tell: which version is stored, and which fields selectors may name.

/// The group and version in which objects of this resource are stored.
pub fn version(group: &'static str, version: &'static str, plural: &str) -> (&'static str, &'static str) {
    match (group, plural) {
        ("events.k8s.io", "events") => ("", "v1"),
        ("autoscaling", "horizontalpodautoscalers") => ("autoscaling", "v2"),
        ("resource.k8s.io", "devicetaintrules") => ("resource.k8s.io", "v1beta2"),
        ("resource.k8s.io", "resourcepoolstatusrequests") => ("resource.k8s.io", "v1alpha3"),
        ("resource.k8s.io", _) => ("resource.k8s.io", "v1"),
        ("admissionregistration.k8s.io", _) => ("admissionregistration.k8s.io", "v1"),
        ("networking.k8s.io", _) => ("networking.k8s.io", "v1"),
        ("storage.k8s.io", _) => ("storage.k8s.io", "v1"),
        ("coordination.k8s.io", "leases") => ("coordination.k8s.io", "v1"),
        ("coordination.k8s.io", "leasecandidates") => ("coordination.k8s.io", "v1beta1"),
        ("certificates.k8s.io", "certificatesigningrequests") => ("certificates.k8s.io", "v1"),
        ("certificates.k8s.io", _) => ("certificates.k8s.io", "v1beta1"),
        _ => (group, version),
    }
}

/// JSON paths that a field selector may name beside metadata.name and metadata.namespace.
pub fn selectable(group: &str, plural: &str) -> &'static [&'static str] {
    match (group, plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("", "namespaces") => &["status.phase"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => &["status.replicas"],
        ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["spec.signerName"],
        ("certificates.k8s.io", "clustertrustbundles") => &["spec.signerName"],
        ("certificates.k8s.io", "podcertificaterequests") => &["spec.signerName", "spec.podName", "spec.nodeName"],
        ("resource.k8s.io", "resourceslices") => &["spec.nodeName", "spec.driver"],
        _ => &[],
    }
}
