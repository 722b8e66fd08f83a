//! Who may write which field: one row a kind, read by every road on which a client writes.
//!
//! A field is the client's unless its row says otherwise. `create` and `update` name what such a write to the object
//! itself leaves to others, `status` what a write to `status` leaves alone beside everything that is not status or
//! metadata, `subs` all that a write to another subresource changes, where `*` is any item of a list. Server-side apply
//! gives nobody the fields that its road does not write. Spec: the strategies of upstream v1.36
//! (`pkg/registry/*/*/strategy.go`); held against its API server by `tests/oracles/writes.py`.

use serde_json::{Map, Value};

use crate::table::Resource;

/// The way to a field, key by key.
pub type Path = &'static [&'static str];

/// What moves `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Nothing: whatever the creator says stays for ever.
    Untouched,
    /// It is 1 for ever.
    One,
    /// It begins with 1, and a change of one of these fields counts.
    Counts(&'static [Path]),
    /// A change of one of these counts, from what the creator said.
    Moves(&'static [Path]),
    /// A change of anything but metadata (and `status`, where that is a subresource) counts.
    Rest,
}

/// The row of one kind.
#[derive(Debug)]
pub struct Owners {
    /// Group and kind, as stored.
    pub kind: (&'static str, &'static str),
    /// The server's at creation: what a client sends is dropped.
    pub create: &'static [Path],
    /// Kept by a write to the object.
    pub update: &'static [Path],
    /// Kept by a write to `status`; `metadata` means all of it but the bookkeeping of the write.
    pub status: &'static [Path],
    /// Each other subresource whose body is the object: what a write to it may change.
    pub subs: &'static [(&'static str, &'static [Path])],
    /// What moves `metadata.generation`.
    pub generation: Generation,
    /// An update need not name the version that it replaces.
    pub unconditional: bool,
}

const STATUS: &[Path] = &[&["status"]];
const SPEC: &[Path] = &[&["spec"]];
const ALL_METADATA: &[Path] = &[&["metadata"]];

impl Owners {
    const fn with_status(mut self) -> Owners {
        self.create = STATUS;
        self.update = STATUS;
        self
    }

    const fn status_keeps(mut self, paths: &'static [Path]) -> Owners {
        self.status = paths;
        self
    }

    const fn subs(mut self, subs: &'static [(&'static str, &'static [Path])]) -> Owners {
        self.subs = subs;
        self
    }

    const fn generation(mut self, generation: Generation) -> Owners {
        self.generation = generation;
        self
    }

    const fn counts_spec(self) -> Owners {
        self.generation(Generation::Counts(SPEC))
    }

    const fn conditional(mut self) -> Owners {
        self.unconditional = false;
        self
    }
}

/// A kind whose fields are all its clients'.
const fn kind(group: &'static str, kind: &'static str) -> Owners {
    Owners {
        kind: (group, kind),
        create: &[],
        update: &[],
        status: &[],
        subs: &[],
        generation: Generation::Untouched,
        unconditional: true,
    }
}

/// Custom kinds, with `status` a subresource and without.
const CUSTOM_WITH_STATUS: Owners =
    kind("", "").with_status().status_keeps(ALL_METADATA).generation(Generation::Rest).conditional();
const CUSTOM: Owners = kind("", "").generation(Generation::Rest).conditional();

const POD_SUBS: &[(&str, &[Path])] =
    &[("ephemeralcontainers", &[&["spec", "ephemeralContainers"]]), ("resize", RESIZE)];
const RESIZE: &[Path] = &[
    &["spec", "containers", "*", "resources"],
    &["spec", "containers", "*", "resizePolicy"],
    &["spec", "initContainers", "*", "resources"],
    &["spec", "initContainers", "*", "resizePolicy"],
    &["spec", "resources"],
];
const NAMESPACE_SUBS: &[(&str, &[Path])] = &[("finalize", &[&["metadata"], &["spec"]])];
const REQUEST_SUBS: &[(&str, &[Path])] = &[("approval", &[&["metadata"], &["status", "conditions"]])];
/// What a Deployment's controller reads.
const DEPLOYMENT: &[Path] = &[&["spec"], &["metadata", "annotations"]];
const SLICE: &[Path] = &[&["addressType"], &["endpoints"], &["ports"], &["metadata", "labels"]];
const REQUEST: &[Path] = &[&["spec"], &["status"]];
const SERVICE_METADATA: &[Path] = &[
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["metadata", "finalizers"],
    &["metadata", "ownerReferences"],
];

const ROWS: &[Owners] = &[
    kind("", "ConfigMap"),
    kind("", "Endpoints"),
    kind("", "Event"),
    kind("", "LimitRange"),
    // Upstream keeps spec.finalizers, too; the kind's own strategy does that, as a client may send the rest of spec.
    kind("", "Namespace").with_status().subs(NAMESPACE_SUBS),
    // A kubelet registers its Node together with its status.
    Owners { create: &[], ..kind("", "Node").with_status() },
    kind("", "PersistentVolume").with_status(),
    kind("", "PersistentVolumeClaim").with_status(),
    kind("", "Pod").with_status().status_keeps(&[&["metadata", "ownerReferences"]]).subs(POD_SUBS).counts_spec(),
    kind("", "PodTemplate").generation(Generation::Counts(&[&["template"]])),
    kind("", "ReplicationController").with_status().counts_spec(),
    kind("", "ResourceQuota").with_status(),
    kind("", "Secret"),
    kind("", "Service").with_status(),
    kind("", "ServiceAccount"),
    kind("admissionregistration.k8s.io", "MutatingAdmissionPolicy").counts_spec().conditional(),
    kind("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding").counts_spec().conditional(),
    kind("admissionregistration.k8s.io", "MutatingWebhookConfiguration")
        .generation(Generation::Counts(&[&["webhooks"]]))
        .conditional(),
    kind("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
        .with_status()
        .status_keeps(ALL_METADATA)
        .counts_spec()
        .conditional(),
    kind("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding").counts_spec().conditional(),
    kind("admissionregistration.k8s.io", "ValidatingWebhookConfiguration")
        .generation(Generation::Counts(&[&["webhooks"]]))
        .conditional(),
    kind("apiextensions.k8s.io", "CustomResourceDefinition").with_status().counts_spec().conditional(),
    kind("apiregistration.k8s.io", "APIService").with_status().status_keeps(SERVICE_METADATA).conditional(),
    kind("apps", "ControllerRevision"),
    kind("apps", "DaemonSet").with_status().counts_spec(),
    kind("apps", "Deployment")
        .with_status()
        .status_keeps(&[&["metadata", "labels"]])
        .generation(Generation::Counts(DEPLOYMENT)),
    kind("apps", "ReplicaSet").with_status().counts_spec(),
    kind("apps", "StatefulSet").with_status().counts_spec(),
    kind("autoscaling", "HorizontalPodAutoscaler").with_status(),
    kind("batch", "CronJob").with_status().counts_spec(),
    kind("batch", "Job").with_status().counts_spec(),
    // Nothing of a request changes once it is made, but its metadata and its verdict.
    Owners {
        update: REQUEST,
        ..kind("certificates.k8s.io", "CertificateSigningRequest").with_status().subs(REQUEST_SUBS)
    },
    kind("certificates.k8s.io", "ClusterTrustBundle").conditional(),
    kind("certificates.k8s.io", "PodCertificateRequest").with_status().status_keeps(ALL_METADATA).conditional(),
    kind("coordination.k8s.io", "Lease").conditional(),
    kind("coordination.k8s.io", "LeaseCandidate").conditional(),
    kind("discovery.k8s.io", "EndpointSlice").generation(Generation::Counts(SLICE)),
    kind("flowcontrol.apiserver.k8s.io", "FlowSchema").with_status().status_keeps(ALL_METADATA).counts_spec(),
    kind("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration")
        .with_status()
        .status_keeps(ALL_METADATA)
        .counts_spec(),
    kind("internal.apiserver.k8s.io", "StorageVersion").with_status().status_keeps(ALL_METADATA).conditional(),
    kind("networking.k8s.io", "IPAddress"),
    kind("networking.k8s.io", "Ingress").with_status().counts_spec(),
    kind("networking.k8s.io", "IngressClass").counts_spec(),
    kind("networking.k8s.io", "NetworkPolicy").counts_spec(),
    kind("networking.k8s.io", "ServiceCIDR").with_status().status_keeps(ALL_METADATA),
    kind("node.k8s.io", "RuntimeClass").conditional(),
    kind("policy", "PodDisruptionBudget").with_status().counts_spec().conditional(),
    kind("rbac.authorization.k8s.io", "ClusterRole"),
    kind("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    kind("rbac.authorization.k8s.io", "Role"),
    kind("rbac.authorization.k8s.io", "RoleBinding"),
    kind("resource.k8s.io", "DeviceClass").counts_spec(),
    kind("resource.k8s.io", "DeviceTaintRule").with_status().status_keeps(ALL_METADATA).counts_spec(),
    kind("resource.k8s.io", "ResourceClaim").with_status().status_keeps(ALL_METADATA),
    kind("resource.k8s.io", "ResourceClaimTemplate"),
    kind("resource.k8s.io", "ResourcePoolStatusRequest").with_status().status_keeps(ALL_METADATA).conditional(),
    kind("resource.k8s.io", "ResourceSlice").counts_spec(),
    kind("scheduling.k8s.io", "PodGroup").with_status().status_keeps(ALL_METADATA),
    kind("scheduling.k8s.io", "PriorityClass").generation(Generation::One),
    kind("scheduling.k8s.io", "Workload"),
    kind("storage.k8s.io", "CSIDriver").generation(Generation::Moves(SPEC)).conditional(),
    kind("storage.k8s.io", "CSINode").conditional(),
    kind("storage.k8s.io", "CSIStorageCapacity").conditional(),
    kind("storage.k8s.io", "StorageClass"),
    kind("storage.k8s.io", "VolumeAttachment").with_status().status_keeps(ALL_METADATA).conditional(),
    kind("storage.k8s.io", "VolumeAttributesClass"),
    kind("storagemigration.k8s.io", "StorageVersionMigration").with_status().status_keeps(ALL_METADATA).conditional(),
];

/// What nobody stores has no owners.
const NONE: Owners = kind("", "");

/// The row of a stored resource.
pub fn of(r: &Resource) -> &'static Owners {
    match (r.custom, r.has_status()) {
        (true, true) => &CUSTOM_WITH_STATUS,
        (true, false) => &CUSTOM,
        (false, _) => ROWS.iter().find(|row| row.kind == (r.group.as_ref(), r.kind.as_ref())).unwrap_or(&NONE),
    }
}

/// Whether the row of this resource was written by somebody: a stored kind without one is a mistake.
pub fn is_declared(r: &Resource) -> bool {
    r.custom || ROWS.iter().any(|row| row.kind == (r.group.as_ref(), r.kind.as_ref()))
}

impl Owners {
    /// What a write to the object (`""`) or to `status` never gives a manager of fields.
    pub fn not_written(&self, subresource: &str) -> Vec<Path> {
        match subresource {
            "" => self.update.to_vec(),
            // The approvers own the verdict of a request.
            "status" if self.of_subresource("approval").is_some() => vec![&["spec"], &["status", "conditions"]],
            "status" => SPEC.iter().chain(self.status).copied().collect(),
            _ => Vec::new(),
        }
    }

    /// What a write to this subresource may change, if its body is the object itself.
    pub fn of_subresource(&self, subresource: &str) -> Option<&'static [Path]> {
        self.subs.iter().find(|(name, _)| *name == subresource).map(|(_, paths)| *paths)
    }
}

/// Makes the field of `new` what it is in `old`: its value, or its absence.
pub(super) fn keep(new: &mut Value, old: &Value, path: Path) {
    let [parents @ .., last] = path else { return };
    match path.iter().try_fold(old, |at, key| at.get(key)) {
        Some(value) => drop(super::make(new, parents).insert((*last).to_owned(), value.clone())),
        None => drop_field(new, path),
    }
}

/// The same for a field of this very struct.
pub(super) fn keep_key(new: &mut Value, old: &Value, key: &str) {
    match (new.as_object_mut(), old.get(key)) {
        (Some(fields), Some(value)) => drop(fields.insert(key.to_owned(), value.clone())),
        (Some(fields), None) => drop(fields.remove(key)),
        (None, _) => {}
    }
}

/// Takes the field away.
pub(super) fn drop_field(object: &mut Value, path: Path) {
    let [parents @ .., last] = path else { return };
    let parent = parents.iter().try_fold(object, |at, key| at.get_mut(key));
    if let Some(Value::Object(map)) = parent {
        map.remove(*last);
    }
}

/// Metadata as it was, but for the bookkeeping of the write itself.
pub(super) fn keep_metadata(new: &mut Value, old: &Value) {
    let bookkeeping = |key: &str| matches!(key, "resourceVersion" | "managedFields");
    let empty = Map::new();
    let before = model::meta::metadata(old).unwrap_or(&empty);
    let metadata = model::meta::metadata_mut(new);
    metadata.retain(|key, _| bookkeeping(key));
    metadata.extend(before.iter().filter(|(key, _)| !bookkeeping(key)).map(|(k, v)| (k.clone(), v.clone())));
}
