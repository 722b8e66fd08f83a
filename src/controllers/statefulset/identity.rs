//! Identity of a pod of a StatefulSet: its name, its labels, its claims. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod as WholePod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use model::pod::Pod;
use model::{owners, phase};

pub(super) const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The first ordinal and the number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordinals {
    pub(super) first: i32,
    pub(super) n: i32,
}

impl Ordinals {
    pub(super) fn of(set: &StatefulSet) -> Ordinals {
        let spec = set.spec.as_ref();
        let first = spec.and_then(|s| s.ordinals.as_ref()).and_then(|o| o.start).unwrap_or(0);
        Ordinals { first, n: spec.and_then(|s| s.replicas).unwrap_or(1).max(0) }
    }

    pub(super) fn contains(self, ordinal: i32) -> bool {
        (self.first..self.first.saturating_add(self.n)).contains(&ordinal)
    }

    pub(super) fn all(self) -> std::ops::Range<i32> {
        self.first..self.first.saturating_add(self.n)
    }
}

/// The ordinal of a pod of this set by its name; `None` if the name is not one of the set's.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, number) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (Some(parent) == set.metadata.name.as_deref() && digits).then(|| number.parse().ok()).flatten()
}

/// The set's own pod at an ordinal, of a template and its revision.
pub(super) fn pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> WholePod {
    let mut pod = phase::from_template(template, "", &set.namespace().unwrap_or_default(), owners::reference_to(set));
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(format!("{}-{ordinal}", set.name_any()));
    pod.metadata.labels.get_or_insert_default().insert(REVISION_LABEL.to_owned(), revision.to_owned());
    identify(set, &mut pod, ordinal);
    let name = pod.metadata.name.clone();
    if let Some(spec) = pod.spec.as_mut() {
        spec.hostname = name;
        spec.subdomain = set.spec.as_ref().and_then(|s| s.service_name.clone()).filter(|name| !name.is_empty());
        spec.volumes = Some(volumes(set, spec.volumes.take().unwrap_or_default(), ordinal)).filter(|v| !v.is_empty());
    }
    pod
}

/// Writes the labels that say who the pod is.
fn identify(set: &StatefulSet, pod: &mut WholePod, ordinal: i32) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(NAME_LABEL.to_owned(), format!("{}-{ordinal}", set.name_any()));
    labels.insert(INDEX_LABEL.to_owned(), ordinal.to_string());
}

/// The labels that the pod lacks of its identity; `None` if it has them all.
pub(super) fn missing_labels(set: &StatefulSet, pod: &Pod, ordinal: i32) -> Option<BTreeMap<String, String>> {
    let mut wanted = WholePod::default();
    identify(set, &mut wanted, ordinal);
    let wanted = wanted.metadata.labels.unwrap_or_default();
    let missing: BTreeMap<_, _> = wanted.into_iter().filter(|(k, v)| pod.labels().get(k) != Some(v)).collect();
    (!missing.is_empty()).then_some(missing)
}

/// Volumes of the claims first; the template's own of the same name give way.
fn volumes(set: &StatefulSet, own: Vec<Volume>, ordinal: i32) -> Vec<Volume> {
    let claims = claims(set, ordinal);
    let of_claim = |(name, claim): &(String, PersistentVolumeClaim)| Volume {
        name: name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.name_any(),
            read_only: None,
        }),
        ..Volume::default()
    };
    let mut all: Vec<Volume> = claims.iter().map(of_claim).collect();
    all.extend(own.into_iter().filter(|volume| !claims.iter().any(|(name, _)| *name == volume.name)));
    all
}

/// The claims of the pod at an ordinal, by the name of their template.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<(String, PersistentVolumeClaim)> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let templates = spec.volume_claim_templates.iter().flatten();
    templates
        .map(|template| {
            let name = template.name_any();
            let mut claim = PersistentVolumeClaim { spec: template.spec.clone(), ..PersistentVolumeClaim::default() };
            claim.metadata.name = Some(format!("{name}-{}-{ordinal}", set.name_any()));
            claim.metadata.namespace = set.namespace();
            claim.metadata.annotations = template.metadata.annotations.clone();
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
            claim.metadata.labels = Some(labels);
            (name, claim)
        })
        .collect()
}

/// Fate of claims when the set goes, and when it shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention {
    pub(super) delete_with_set: bool,
    pub(super) delete_when_scaled: bool,
}

impl Retention {
    pub(super) fn of(set: &StatefulSet) -> Retention {
        let policy = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |field: Option<&String>| field.is_some_and(|policy| policy == "Delete");
        Retention {
            delete_with_set: deletes(policy.and_then(|p| p.when_deleted.as_ref())),
            delete_when_scaled: deletes(policy.and_then(|p| p.when_scaled.as_ref())),
        }
    }
}

/// Owners of a claim that exists, by the retention policy.
#[derive(Debug, PartialEq)]
pub(super) enum Owners {
    /// They are as they should be.
    Right,
    /// They must become these.
    Become(Vec<OwnerReference>),
    /// Somebody else manages the claim: the policy is not for it.
    Conflict,
}

/// The owners that a claim of `pod` should have: the set, the pod that is going, or neither. Spec: upstream's
/// `updateClaimOwnerRefForSetAndPod`.
pub(super) fn claim_owners(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> Owners {
    let policy = Retention::of(set);
    let scaled_down = ordinal(set, pod).is_some_and(|n| !Ordinals::of(set).contains(n));
    let have = claim.metadata.owner_references.clone().unwrap_or_default();
    let of_set = |r: &OwnerReference| r.kind == "StatefulSet" && r.name == set.name_any();
    let of_pod = |r: &OwnerReference| r.kind == "Pod" && r.name == pod.name_any();
    let mut want: Vec<OwnerReference> = have.iter().filter(|r| !of_set(r) && !of_pod(r)).cloned().collect();
    let wants_owner = policy.delete_with_set || policy.delete_when_scaled;
    if wants_owner && want.iter().any(|r| r.controller == Some(true)) {
        return Owners::Conflict;
    }
    if policy.delete_when_scaled && scaled_down {
        want.push(owners::reference_to(pod));
    } else if policy.delete_with_set {
        want.push(owners::reference_to(set));
    }
    if want == have { Owners::Right } else { Owners::Become(want) }
}

/// Whether a claim still belongs to an earlier pod of this name, which is on its way out: it will be deleted with it.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod: &str, uid: Option<&str>) -> bool {
    claim.owner_references().iter().any(|r| r.kind == "Pod" && r.name == pod && uid != Some(r.uid.as_str()))
}
