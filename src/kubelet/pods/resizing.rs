//! Resources that a pod wants, was granted and has. Pure. Spec: KEP-1287.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::spec::requests;
use crate::cgroups::limits::{self, Limits};
use crate::container;
use crate::pods::admission::Host;
use crate::sources::annotations::is_static;
use crate::status::resources;

/// Stands for the pod as a whole among its containers: nobody else has this name.
pub(crate) const WHOLE: &str = "";

/// What of a resize a pod's task remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resizing {
    /// What the node granted, by container; nothing until the pod was admitted.
    pub(crate) allocated: Option<BTreeMap<String, ResourceRequirements>>,
    /// What holds in each running container, by its id, and for the pod as a whole.
    pub(crate) applied: BTreeMap<String, ResourceRequirements>,
    /// What the pod as a whole had when a container was made or changed last, by its id: limits that it lacks are its
    /// pod's.
    pub(crate) under: BTreeMap<String, Option<ResourceRequirements>>,
    /// What the pod's group took in a resize: else it has what was granted.
    pub(crate) group: Option<Limits>,
    /// Why the spec's wish is not granted: reason and text.
    pub(crate) pending: Option<(&'static str, String)>,
    /// Set while containers are not there yet, with the last error.
    pub(crate) progress: Option<Option<String>>,
    /// Containers that must be made again to change.
    pub(crate) restart: BTreeSet<String>,
}

/// The node's answer to a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Granted,
    Deferred(String),
    Infeasible(String),
}

pub(crate) fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    container::all(pod).into_iter().map(|(c, _)| c)
}

/// What a pod asks for as a whole, whatever its containers do.
pub(crate) fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

pub(crate) fn wishes(pod: &Pod) -> BTreeMap<String, ResourceRequirements> {
    let own = whole(pod).map(|resources| (WHOLE.to_owned(), resources.clone()));
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).chain(own).collect()
}

/// Requests and limits as numbers, so that `1000m` and `1` are the same.
fn amounts(resources: &ResourceRequirements) -> BTreeMap<(bool, &str), i64> {
    let of = |is_limit: bool, map: &'_ Option<BTreeMap<String, _>>| -> Vec<((bool, String), i64)> {
        let value = |name: &str, q| {
            if name == "cpu" { limits::parse(q).milli_value() } else { limits::parse(q).value() }
        };
        map.iter().flatten().map(|(name, q)| ((is_limit, name.clone()), value(name, q))).collect()
    };
    let names: Vec<(bool, &str)> = [(false, &resources.requests), (true, &resources.limits)]
        .into_iter()
        .flat_map(|(is_limit, map)| map.iter().flatten().map(move |(name, _)| (is_limit, name.as_str())))
        .collect();
    let values: BTreeMap<(bool, String), i64> =
        of(false, &resources.requests).into_iter().chain(of(true, &resources.limits)).collect();
    names.into_iter().map(|(l, n)| ((l, n), values.get(&(l, n.to_owned())).copied().unwrap_or(0))).collect()
}

pub(crate) fn same(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    amounts(a) == amounts(b)
}

/// Resources that differ between two.
pub(crate) fn changed<'a>(a: &'a ResourceRequirements, b: &'a ResourceRequirements) -> BTreeSet<&'a str> {
    let (a, b) = (amounts(a), amounts(b));
    let differs = |key: &(bool, &'a str)| a.get(key) != b.get(key);
    a.keys().chain(b.keys()).filter(|key| differs(key)).map(|(_, name)| *name).collect()
}

pub(crate) fn with(pod: &Pod, resources: &BTreeMap<String, ResourceRequirements>) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.resources = resources.get(WHOLE).cloned();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(own) = resources.get(&container.name) {
                container.resources = Some(own.clone());
            }
        }
    }
    pod
}

/// Whether the node can give a pod what it asks for now. Pure.
pub(crate) fn grant(host: &Host<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Grant {
    if is_static(pod) {
        return Grant::Infeasible("In-place resize of static-pods is not supported".to_owned());
    }
    for name in ["cpu", "memory"] {
        let (asked, capacity) = (requests(pod, name), host.allocatable.get(name).copied().unwrap_or(0));
        if asked > capacity {
            return Grant::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {asked}, capacity: {capacity}"
            ));
        }
        let used = others.iter().map(|p| requests(p, name)).fold(0, i64::saturating_add);
        if used.saturating_add(asked) > capacity {
            return Grant::Deferred(format!(
                "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {capacity}"
            ));
        }
    }
    Grant::Granted
}

/// A pod of an earlier kubelet, with what that one granted it by its status.
pub(crate) fn granted_before(pod: &Arc<Pod>) -> Arc<Pod> {
    let Some(told) = &pod.status else { return Arc::clone(pod) };
    let mut resizing = Resizing::default();
    resizing.admit(pod, told);
    resizing.effective(pod)
}

impl Resizing {
    /// The pod with what was granted in place of what was asked for.
    pub(crate) fn effective(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match &self.allocated {
            Some(allocated) if *allocated != wishes(pod) => Arc::new(with(pod, allocated)),
            _ => Arc::clone(pod),
        }
    }

    /// At admission: what an earlier kubelet granted, or all that is asked for.
    pub(crate) fn admit(&mut self, pod: &Pod, told: &PodStatus) {
        let mut allocated = wishes(pod);
        let lists = [&told.init_container_statuses, &told.container_statuses];
        for status in lists.into_iter().flat_map(|l| l.iter().flatten()) {
            let (Some(own), Some(resources)) = (allocated.get_mut(&status.name), &status.resources) else { continue };
            *own = ResourceRequirements { claims: own.claims.clone(), ..resources.clone() };
            if let Some((_, id)) = status.container_id.as_deref().and_then(|id| id.split_once("://")) {
                self.applied.insert(id.to_owned(), resources.clone());
            }
        }
        let unchanged =
            |resources: &ResourceRequirements| [true, false].iter().any(|run| same(&self.of_pod(pod, *run), resources));
        if let (Some(own), Some(resources)) =
            (allocated.get_mut(WHOLE), told.resources.as_ref().filter(|told| !unchanged(told)))
        {
            keep_to(&mut own.requests, resources.requests.as_ref());
            keep_to(&mut own.limits, resources.limits.as_ref());
        }
        if let Some(own) = allocated.get(WHOLE) {
            self.applied.insert(WHOLE.to_owned(), own.clone());
        }
        self.allocated = Some(allocated);
    }

    /// A container of `pod` was made with these resources, or changed to them.
    pub(crate) fn made(&mut self, id: &str, pod: &Pod, resources: Option<&ResourceRequirements>) {
        self.applied.insert(id.to_owned(), resources.cloned().unwrap_or_default());
        self.under.insert(id.to_owned(), whole(pod).cloned());
    }

    /// The pod's group was made by what is granted.
    pub(crate) fn made_group(&mut self) {
        self.group = None;
    }

    /// What a running container has for its own part and that of its pod.
    pub(crate) fn held(&self, id: &str, own: &ResourceRequirements) -> ResourceRequirements {
        let under = self.under.get(id).map_or_else(|| self.applied.get(WHOLE), Option::as_ref);
        held(under, own)
    }

    /// What the group of a pod has, which is the pod as it was granted.
    pub(crate) fn in_force(&self, pod: &Pod) -> Limits {
        self.group.unwrap_or_else(|| Limits::of(pod))
    }

    /// What the pod as a whole has, as its status tells. `pod` is the pod as it was granted.
    pub(crate) fn of_pod(&self, pod: &Pod, is_running: bool) -> ResourceRequirements {
        let own = self.applied.get(WHOLE).or(whole(pod));
        resources::of_pod(pod, own, self.in_force(pod), is_running)
    }

    /// What holds in a running container.
    pub(crate) fn applied(&self, id: &str) -> Option<&ResourceRequirements> {
        self.applied.get(id)
    }
}

/// Of what an earlier kubelet granted, the amounts of what the pod itself speaks of: its status tells its containers'
/// as well.
fn keep_to(own: &mut Option<BTreeMap<String, ApiQuantity>>, granted: Option<&BTreeMap<String, ApiQuantity>>) {
    let Some(own) = own else { return };
    own.retain(|name, amount| {
        granted.and_then(|granted| granted.get(name)).is_some_and(|had| {
            amount.clone_from(had);
            true
        })
    });
}

/// What holds in a container: limits of CPU and memory that it lacks are those of its pod.
///
/// Spec: `GetLimits` in pkg/kubelet/util/util.go v1.36.2.
pub(crate) fn held(pod: Option<&ResourceRequirements>, own: &ResourceRequirements) -> ResourceRequirements {
    let mut held = own.clone();
    for name in ["cpu", "memory"].into_iter().filter(|name| limits::limit(Some(own), name).is_none()) {
        if let Some(limit) =
            pod.filter(|pod| limits::limit(Some(pod), name).is_some()).and_then(|pod| pod.limits.as_ref()?.get(name))
        {
            held.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use serde_json::json;

    fn pod(cpu: &str) -> Pod {
        serde_json::from_value(
            serde_json::json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}),
        )
        .unwrap()
    }

    #[test]
    fn a_wish_is_granted_deferred_or_infeasible() {
        let settings = Settings::default();
        let host = Host::with(&[("cpu", 2000), ("memory", 1 << 30)], &settings);
        let others = [Arc::new(pod("1"))];
        assert_eq!(grant(&host, &pod("1"), &others), Grant::Granted);
        assert!(
            matches!(grant(&host, &pod("1500m"), &others), Grant::Deferred(why) if why == "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000")
        );
        assert!(
            matches!(grant(&host, &pod("3"), &others), Grant::Infeasible(why) if why == "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000")
        );
    }

    #[test]
    fn what_was_granted_stands_in_for_the_wish_and_equal_amounts_are_no_change() {
        let mut resizing = Resizing::default();
        resizing.admit(&pod("1"), &PodStatus::default());
        let asked = Arc::new(pod("2"));
        assert_eq!(requests(&resizing.effective(&asked), "cpu"), 1000);
        let whole = |cpu: &str| {
            let mut pod = pod("1");
            let own = json!({"requests": {"cpu": cpu}});
            pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(own).unwrap());
            Arc::new(pod)
        };
        let mut resizing = Resizing::default();
        resizing.admit(&whole("2"), &PodStatus::default());
        assert_eq!(
            requests(&resizing.effective(&whole("3")), "cpu"),
            2000,
            "a wish of the pod as a whole waits for its grant, too"
        );
        let with_init = |cpu: &str| {
            let init = json!([{"name": "i", "resources": {"requests": {"cpu": cpu}}}]);
            let mut pod = pod("1");
            pod.spec.as_mut().unwrap().init_containers = Some(serde_json::from_value(init).unwrap());
            Arc::new(pod)
        };
        let mut resizing = Resizing::default();
        resizing.admit(&with_init("2"), &PodStatus::default());
        assert_eq!(
            requests(&resizing.effective(&with_init("3")), "cpu"),
            2000,
            "so does one of a container that goes before"
        );
        let of = |cpu: &str| wishes(&pod(cpu)).remove("c").unwrap();
        assert!(same(&of("1"), &of("1000m")));
        assert_eq!(changed(&of("1"), &of("2")), ["cpu"].into());
    }
}
