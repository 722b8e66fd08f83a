//! The next step of a Deployment: a set to make, sets to scale, old sets to forget, and the status. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use kube::ResourceExt as _;
use model::owners;

use super::numbers::{self, actual, available, wanted};
use super::template;

/// Annotations that belong to the controller.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations that a set does not take over from its Deployment.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];

/// One request to make.
#[derive(Debug)]
pub(super) enum Action {
    /// Make the set for the current template.
    Create(Box<ReplicaSet>),
    /// Change the size of a set; its annotations follow.
    Scale { set: Arc<ReplicaSet>, to: i32, annotations: BTreeMap<String, String> },
    /// Bring up to date what a set has of its Deployment beside the template and the size.
    Renew { set: Arc<ReplicaSet>, annotations: BTreeMap<String, String>, min_ready_secs: i32 },
    /// Write the revision on the Deployment itself.
    SetRevision(String),
    /// Forget an old set beyond the history limit.
    Delete(Arc<ReplicaSet>),
}

/// The sets of a Deployment, told apart.
pub(super) struct Sets {
    /// The one with the current template.
    pub(super) new: Option<Arc<ReplicaSet>>,
    /// All others, oldest first.
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    /// Sorts owned sets.
    pub(super) fn of(deployment: &Deployment, owned: &[Arc<ReplicaSet>]) -> Sets {
        let new = template::newest(deployment, owned).cloned();
        let uid = new.as_ref().and_then(|set| set.uid());
        let mut old: Vec<Arc<ReplicaSet>> =
            owned.iter().filter(|set| set.uid() != uid || uid.is_none()).cloned().collect();
        old.sort_by_key(|set| (set.metadata.creation_timestamp.as_ref().map(|t| t.0), set.name_any()));
        Sets { new, old }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(self.new.iter())
    }
}

fn annotation<'a>(set: &'a ReplicaSet, key: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// The next requests, in order. None means that the rollout waits for pods, or is done.
pub(super) fn plan(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let Some(spec) = &deployment.spec else { return Vec::new() };
    let paused = spec.paused.unwrap_or(false);
    if paused || is_scaling(deployment, sets) {
        let mut actions = renew(deployment, sets);
        actions.extend(scale_in_proportion(deployment, sets));
        if paused {
            actions.extend(surplus_history(deployment, sets));
        }
        return actions;
    }
    let recreate = spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
    let mut actions = if recreate { plan_recreate(deployment, sets) } else { plan_rolling(deployment, sets) };
    if is_complete(deployment, sets) {
        actions.extend(surplus_history(deployment, sets));
    }
    actions
}

/// Whether the wanted size has changed since the active sets were last sized.
fn is_scaling(deployment: &Deployment, sets: &Sets) -> bool {
    let replicas = numbers::replicas(deployment);
    sets.all()
        .filter(|set| wanted(set) > 0)
        .any(|set| annotation(set, DESIRED).and_then(|d| d.parse().ok()).is_some_and(|d: i32| d != replicas))
}

/// The annotations that `set` should have.
fn annotations(deployment: &Deployment, set: Option<&ReplicaSet>, revision: &str) -> BTreeMap<String, String> {
    let mut annotations = set.and_then(|set| set.metadata.annotations.clone()).unwrap_or_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let before = annotations.insert(REVISION.to_owned(), revision.to_owned());
    if let Some(before) = before.filter(|before| before != revision) {
        let history = annotations.get(REVISION_HISTORY).map_or(before.clone(), |history| format!("{history},{before}"));
        annotations.insert(REVISION_HISTORY.to_owned(), history);
    }
    size_annotations(deployment, &mut annotations);
    annotations
}

fn size_annotations(deployment: &Deployment, annotations: &mut BTreeMap<String, String>) {
    let replicas = numbers::replicas(deployment);
    annotations.insert(DESIRED.to_owned(), replicas.to_string());
    annotations.insert(MAX.to_owned(), (replicas + numbers::bounds(deployment).surge).to_string());
}

/// The revision of the new set: one above the old ones, or its own if that is the highest already.
fn new_revision(sets: &Sets) -> String {
    let above_old = sets.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
    let own = sets.new.as_ref().map_or(0, |set| revision(set));
    above_old.max(own).to_string()
}

fn renew(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let Some(new) = &sets.new else { return Vec::new() };
    let revision = new_revision(sets);
    let mut actions = Vec::new();
    let wanted = annotations(deployment, Some(new), &revision);
    let min_ready_secs = deployment.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let stale = new.metadata.annotations.as_ref() != Some(&wanted)
        || new.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0) != min_ready_secs;
    if stale && !is_scaling(deployment, sets) {
        actions.push(Action::Renew { set: Arc::clone(new), annotations: wanted, min_ready_secs });
    }
    if deployment.metadata.annotations.as_ref().and_then(|a| a.get(REVISION)) != Some(&revision) {
        actions.push(Action::SetRevision(revision));
    }
    actions
}

/// The set for the current template with `replicas` pods.
fn new_set(deployment: &Deployment, sets: &Sets, replicas: i32) -> Option<ReplicaSet> {
    let spec = deployment.spec.as_ref()?;
    let collisions = deployment.status.as_ref().and_then(|s| s.collision_count);
    let hash = template::hash(&spec.template, collisions);
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(template::HASH_LABEL.to_owned(), hash.clone());
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(template::HASH_LABEL.to_owned(), hash.clone());
    let mut set = ReplicaSet::default();
    set.metadata.name = Some(format!("{}-{hash}", deployment.name_any()));
    set.metadata.namespace = deployment.namespace();
    set.metadata.labels = template.metadata.as_ref().and_then(|m| m.labels.clone());
    set.metadata.owner_references = Some(vec![owners::reference_to(deployment)]);
    set.metadata.annotations = Some(annotations(deployment, None, &new_revision(sets)));
    set.spec = Some(ReplicaSetSpec {
        replicas: Some(replicas),
        min_ready_seconds: spec.min_ready_seconds,
        selector,
        template: Some(template),
    });
    Some(set)
}

fn scale(deployment: &Deployment, set: &Arc<ReplicaSet>, to: i32) -> Option<Action> {
    let mut annotations = set.metadata.annotations.clone().unwrap_or_default();
    size_annotations(deployment, &mut annotations);
    let sized = wanted(set) == to && set.metadata.annotations.as_ref() == Some(&annotations);
    (!sized).then(|| Action::Scale { set: Arc::clone(set), to, annotations })
}

/// How large the new set may be now. Spec: upstream's `NewRSNewReplicas`.
fn new_size(deployment: &Deployment, sets: &Sets) -> i32 {
    let replicas = numbers::replicas(deployment);
    let own = sets.new.as_ref().map_or(0, |set| wanted(set));
    let all: i32 = sets.old.iter().map(|set| wanted(set)).sum::<i32>() + own;
    let max = replicas + numbers::bounds(deployment).surge;
    if all >= max { own } else { own + (max - all).min(replicas - own) }
}

fn plan_rolling(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let Some(new) = &sets.new else {
        return new_set(deployment, sets, new_size(deployment, sets))
            .map(|set| Action::Create(Box::new(set)))
            .into_iter()
            .collect();
    };
    let mut actions = renew(deployment, sets);
    let replicas = numbers::replicas(deployment);
    let size = if wanted(new) > replicas { replicas } else { new_size(deployment, sets) };
    if size != wanted(new) {
        actions.extend(scale(deployment, new, size));
        return actions;
    }
    actions.extend(scale_old_down(deployment, sets, new));
    actions
}

/// Takes pods from old sets as far as enough stay available: unhealthy ones first, then healthy ones, oldest set first.
fn scale_old_down(deployment: &Deployment, sets: &Sets, new: &ReplicaSet) -> Vec<Action> {
    let minimum = numbers::replicas(deployment) - numbers::bounds(deployment).unavailable;
    let old_total: i32 = sets.old.iter().map(|set| wanted(set)).sum();
    let new_unavailable = wanted(new) - available(new);
    let max_cleanup = old_total + wanted(new) - minimum - new_unavailable;
    if old_total == 0 || max_cleanup <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<i32> = sets.old.iter().map(|set| wanted(set)).collect();
    let mut cleaned = 0;
    for (set, size) in sets.old.iter().zip(&mut sizes) {
        let unhealthy = (*size - available(set)).max(0).min(max_cleanup - cleaned);
        *size -= unhealthy;
        cleaned += unhealthy;
    }
    let available_total: i32 = sets.all().map(|set| available(set)).sum();
    let mut spare = available_total - minimum;
    for size in &mut sizes {
        let taken = (*size).min(spare).max(0);
        *size -= taken;
        spare -= taken;
    }
    let changed = sets.old.iter().zip(sizes).filter(|(set, size)| wanted(set) != *size);
    changed.filter_map(|(set, size)| scale(deployment, set, size)).collect()
}

fn plan_recreate(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let shrinking: Vec<Action> =
        sets.old.iter().filter(|set| wanted(set) > 0).filter_map(|set| scale(deployment, set, 0)).collect();
    if !shrinking.is_empty() {
        return shrinking;
    }
    let terminating = |set: &ReplicaSet| set.status.as_ref().and_then(|s| s.terminating_replicas).unwrap_or(0);
    if sets.old.iter().any(|set| actual(set) > 0 || terminating(set) > 0) {
        return Vec::new();
    }
    let replicas = numbers::replicas(deployment);
    match &sets.new {
        None => new_set(deployment, sets, replicas).map(|set| Action::Create(Box::new(set))).into_iter().collect(),
        Some(new) => {
            let mut actions = renew(deployment, sets);
            if wanted(new) != replicas {
                actions.extend(scale(deployment, new, replicas));
            }
            actions
        }
    }
}

/// After the wanted size has changed: one active set takes it all; in the middle of a rollout every set gets its share.
fn scale_in_proportion(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let replicas = numbers::replicas(deployment);
    let active: Vec<&Arc<ReplicaSet>> = sets.all().filter(|set| wanted(set) > 0).collect();
    if active.len() <= 1 {
        let only = active.first().copied().or(sets.new.as_ref()).or(sets.old.last());
        return only.and_then(|set| scale(deployment, set, replicas)).into_iter().collect();
    }
    if sets.new.as_ref().is_some_and(|new| wanted(new) == replicas && available(new) == replicas) {
        return sets.old.iter().filter(|set| wanted(set) > 0).filter_map(|set| scale(deployment, set, 0)).collect();
    }
    let mut by_size = active;
    by_size.sort_by_key(|set| (std::cmp::Reverse(wanted(set)), set.metadata.creation_timestamp.as_ref().map(|t| t.0)));
    let total = if replicas > 0 { replicas + numbers::bounds(deployment).surge } else { 0 };
    let before = by_size.iter().filter_map(|set| annotation(set, MAX)?.parse().ok()).max().unwrap_or(total);
    let sizes: Vec<i32> = by_size.iter().map(|set| wanted(set)).collect();
    let shares = numbers::proportions(&sizes, before, total);
    by_size.into_iter().zip(shares).filter_map(|(set, size)| scale(deployment, set, size)).collect()
}

/// Whether the new set alone serves, at full size.
pub(super) fn is_complete(deployment: &Deployment, sets: &Sets) -> bool {
    let replicas = numbers::replicas(deployment);
    let all: i32 = sets.all().map(|set| actual(set)).sum();
    sets.new.as_ref().is_some_and(|new| actual(new) == replicas && available(new) == replicas) && all == replicas
}

fn surplus_history(deployment: &Deployment, sets: &Sets) -> Vec<Action> {
    let limit = deployment.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(10);
    let mut empty: Vec<&Arc<ReplicaSet>> = sets
        .old
        .iter()
        .filter(|set| wanted(set) == 0 && actual(set) == 0 && set.metadata.deletion_timestamp.is_none())
        .filter(|set| set.metadata.generation <= set.status.as_ref().and_then(|s| s.observed_generation))
        .collect();
    empty.sort_by_key(|set| revision(set));
    let surplus = empty.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    empty.into_iter().take(surplus).map(|set| Action::Delete(Arc::clone(set))).collect()
}

/// The moment that `progressDeadlineSeconds` counts from, and the deadline; `None` if the spec sets none.
pub(super) fn deadline(deployment: &Deployment, since: Timestamp) -> Option<Timestamp> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds.filter(|secs| *secs != i32::MAX)?;
    since.checked_add(jiff::SignedDuration::from_secs(i64::from(seconds))).ok()
}
