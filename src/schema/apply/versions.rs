//! Managers of fields that wrote in another version than the request: their paths mean fields of that version, so what
//! a request changes and prunes is looked at in each version that has managers.
//!
//! Spec: `merge.Updater` of sigs.k8s.io/structured-merge-diff v6, as upstream v1.36.2 has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::apply::managers::{Managers, Owned};
use crate::apply::merge::{Comparison, compare, remove_items};
use crate::apply::set::Set;
use crate::apply::typing::{View, field_set, with_named_fields};
use crate::apply::{Request, skeleton_of};
use crate::table::{Resource, TypeDef};

/// The two `apiVersion`s of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// The version in which the object is.
    pub from: &'a str,
    /// The version in which it is wanted.
    pub to: &'a str,
}

/// The versions of the resource that a request is about.
pub trait Versions {
    /// The row of this `apiVersion`; `None` if the resource has no such version (any more).
    fn resource(&self, api_version: &str) -> Option<Arc<Resource>>;

    /// An object of one `apiVersion` in another; `None` if it has no form there.
    fn convert(&mut self, object: &Value, between: Between<'_>) -> Option<Value>;
}

/// A resource with no version but the request's.
pub struct Only;

impl Versions for Only {
    fn resource(&self, _: &str) -> Option<Arc<Resource>> {
        None
    }

    fn convert(&mut self, _: &Value, _: Between<'_>) -> Option<Value> {
        None
    }
}

/// A request and the versions beside its own.
pub(super) struct Forms<'r> {
    pub(super) request: &'r Request<'r>,
    versions: &'r mut dyn Versions,
}

/// The type of a version.
enum Type<'r> {
    Own(&'r TypeDef),
    Other(Arc<Resource>),
}

impl Type<'_> {
    fn of(&self) -> &TypeDef {
        match self {
            Type::Own(of) => of,
            Type::Other(resource) => resource.type_def(),
        }
    }

    fn view(&self) -> View<'_> {
        View::Root(self.of())
    }
}

impl<'r> Forms<'r> {
    pub(super) fn new(request: &'r Request<'r>, versions: &'r mut dyn Versions) -> Forms<'r> {
        Forms { request, versions }
    }

    fn type_of(&self, api_version: &str) -> Option<Type<'r>> {
        if api_version == self.request.api_version {
            return Some(Type::Own(self.request.type_def));
        }
        self.versions.resource(api_version).map(Type::Other)
    }

    fn convert(&mut self, object: &Value, between: Between<'_>) -> Option<Value> {
        if between.from == between.to { Some(object.clone()) } else { self.versions.convert(object, between) }
    }
}

/// The changes of a request, in the words of one version.
pub(super) struct Change {
    /// Added or modified.
    pub(super) touched: Set,
    /// Gone.
    pub(super) removed: Set,
}

/// The same by version. A version that is missing here is none.
pub(super) type Changes = BTreeMap<String, Change>;

/// The changes between `live` (`None`: the object is new) and `new`, in every version that a manager wrote in; `own`
/// is what changed in the request's.
pub(super) fn changes(
    forms: &mut Forms<'_>,
    own: Comparison,
    live: Option<&Value>,
    new: &Value,
    managers: &Managers,
) -> Changes {
    let request = forms.request;
    let change = |c: Comparison| Change { touched: c.modified.union(&c.added), removed: c.removed };
    let mut out = BTreeMap::from([(request.api_version.to_owned(), change(own))]);
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    for owned in managers.values() {
        let version = owned.api_version.as_str();
        if out.contains_key(version) || gone.contains(version) {
            continue;
        }
        let Some(compared) = compared(forms, version, live, new) else {
            gone.insert(version);
            continue;
        };
        out.insert(version.to_owned(), change(compared.map(|set| request.written(set))));
    }
    out
}

fn compared(forms: &mut Forms<'_>, version: &str, live: Option<&Value>, new: &Value) -> Option<Comparison> {
    let own = forms.request.api_version;
    let of = forms.type_of(version)?;
    // Both are asked for, whichever is missing: who has to ask others for them does it at once.
    let (new, live) = (
        forms.convert(new, Between { from: own, to: version }),
        live.map(|live| forms.convert(live, Between { from: own, to: version })),
    );
    let new = new?;
    let live = match live {
        Some(live) => live?,
        None => skeleton_of(of.of(), &new),
    };
    Some(compare(of.view(), Some(&live), Some(&new)))
}

/// Removes what was applied last time and is owned by nobody now.
pub(super) fn prune(forms: &mut Forms<'_>, merged: Value, managers: &Managers, last: &Owned) -> Value {
    let (own, home) = (forms.request.api_version, last.api_version.as_str());
    if last.set.is_empty() {
        return merged;
    }
    let Some(of) = forms.type_of(home) else { return merged };
    let Some(whole) = forms.convert(&merged, Between { from: own, to: home }) else { return merged };
    // First all of a version together, then named once: a client may make up thousands of managers.
    let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
    for manager in managers.values() {
        owned.entry(&manager.api_version).or_default().absorb(&manager.set);
    }
    let named = |set: &Set| with_named_fields(of.view(), Some(&whole), set);
    let last = named(&last.set);
    let cut = removed(of.view(), &whole, &last);
    let all = named(&field_set(of.view(), &whole));
    // Owned by someone, or not in the last set and below nothing that went: stays.
    let kept = named(&field_set(of.view(), &cut)).union(&named(&owned.remove(home).unwrap_or_default()));
    let mut gone = all.difference(&kept);
    if !owned.is_empty() {
        let left = removed(of.view(), &whole, &gone);
        let left = owned
            .into_iter()
            .fold(left, |left, (version, owned)| put_back(forms, (&whole, left), home, version, &owned));
        gone = all.difference(&named(&field_set(of.view(), &left)));
    }
    let left = removed(of.view(), &whole, &gone.intersection(&last));
    forms.convert(&left, Between { from: home, to: own }).unwrap_or(merged)
}

/// The rest of the whole object together with what managers of another version own of it.
fn put_back(forms: &mut Forms<'_>, (whole, left): (&Value, Value), home: &str, version: &str, owned: &Set) -> Value {
    let Some(of) = forms.type_of(version) else { return left };
    let (Some(whole), Some(cut)) = (
        forms.convert(whole, Between { from: home, to: version }),
        forms.convert(&left, Between { from: home, to: version }),
    ) else {
        return left;
    };
    let named = |set: &Set| with_named_fields(of.view(), Some(&whole), set);
    let kept = named(&field_set(of.view(), &cut)).union(&named(owned));
    let gone = named(&field_set(of.view(), &whole)).difference(&kept);
    forms.convert(&removed(of.view(), &whole, &gone), Between { from: version, to: home }).unwrap_or(left)
}

fn removed(view: View<'_>, value: &Value, gone: &Set) -> Value {
    remove_items(view, value, gone).unwrap_or_else(|| Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apply::{apply, track_update};
    use crate::catalog::Catalog;
    use crate::convert;
    use model::meta;

    const V1: &str = "autoscaling/v1";
    const V2: &str = "autoscaling/v2";

    /// The versions of autoscalers.
    struct Autoscalers;

    impl Versions for Autoscalers {
        fn resource(&self, api_version: &str) -> Option<Arc<Resource>> {
            Catalog::builtin()
                .by_kind(crate::table::GroupVersion::parse(api_version), "HorizontalPodAutoscaler")
                .cloned()
        }

        fn convert(&mut self, object: &Value, between: Between<'_>) -> Option<Value> {
            let (from, to) = (self.resource(between.from)?, self.resource(between.to)?);
            convert::convert(object.clone(), &from, &to).ok()
        }
    }

    fn row(api_version: &str) -> Arc<Resource> {
        Autoscalers.resource(api_version).unwrap()
    }

    fn request<'a>(of: &'a Resource, api_version: &'a str, manager: &'a str) -> Request<'a> {
        Request {
            type_def: of.type_def(),
            api_version,
            subresource: "",
            manager,
            now: "2026-11-23T00:00:00Z",
            reset: &[],
            only: &[],
        }
    }

    fn autoscaler(api_version: &str, spec: Value) -> Value {
        json!({ "apiVersion": api_version, "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "h", "namespace": "n" }, "spec": spec })
    }

    fn of_cpu(percent: u32) -> Value {
        let target = json!({ "type": "Utilization", "averageUtilization": percent });
        json!({ "maxReplicas": 3, "metrics": [{ "type": "Resource",
            "resource": { "name": "cpu", "target": target } }] })
    }

    fn owners(object: &Value) -> Vec<(String, String, String)> {
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        meta::managed_fields(object)
            .iter()
            .map(|e| (text(e, "manager"), text(e, "apiVersion"), e["fieldsV1"]["f:spec"].to_string()))
            .collect()
    }

    fn entry(manager: &str, api_version: &str, spec: Value) -> (String, String, String) {
        (manager.to_owned(), api_version.to_owned(), spec.to_string())
    }

    // issue 12: every entry said the stored version, whichever the request's was.
    #[test]
    fn an_update_takes_fields_from_managers_of_another_version() {
        let (v1, v2) = (row(V1), row(V2));
        let mut live = autoscaler(V1, json!({ "maxReplicas": 3, "targetCPUUtilizationPercentage": 50 }));
        track_update(&request(&v1, V1, "old"), &mut Autoscalers, None, &mut live);
        assert_eq!(
            owners(&live),
            [entry("old", V1, json!({ "f:maxReplicas": {}, "f:targetCPUUtilizationPercentage": {} }))]
        );
        let live = Autoscalers.convert(&live, Between { from: V1, to: V2 }).unwrap();
        let mut new = live.clone();
        new["spec"]["metrics"] = of_cpu(60)["metrics"].take();
        track_update(&request(&v2, V2, "new"), &mut Autoscalers, Some(&live), &mut new);
        assert_eq!(
            owners(&new),
            [entry("new", V2, json!({ "f:metrics": {} })), entry("old", V1, json!({ "f:maxReplicas": {} }))]
        );
    }

    #[test]
    fn an_apply_meets_the_owner_of_a_field_in_another_version() {
        let (v1, v2) = (row(V1), row(V2));
        let applied =
            apply(&request(&v2, V2, "a"), &mut Autoscalers, None, &autoscaler(V2, of_cpu(50)), false).unwrap();
        let live = Autoscalers.convert(&applied, Between { from: V2, to: V1 }).unwrap();
        let config = autoscaler(V1, json!({ "targetCPUUtilizationPercentage": 60 }));
        let refused = apply(&request(&v1, V1, "b"), &mut Autoscalers, Some(&live), &config, false).unwrap_err();
        assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"a\": .spec.metrics");
        let forced = apply(&request(&v1, V1, "b"), &mut Autoscalers, Some(&live), &config, true).unwrap();
        let of_b = json!({ "f:targetCPUUtilizationPercentage": {} });
        assert_eq!(owners(&forced), [entry("a", V2, json!({ "f:maxReplicas": {} })), entry("b", V1, of_b)]);
    }

    #[test]
    fn what_was_applied_in_another_version_is_pruned_unless_somebody_owns_it_there() {
        let (v1, v2) = (row(V1), row(V2));
        let applied = |others: &[&str]| {
            let mut live =
                apply(&request(&v2, V2, "a"), &mut Autoscalers, None, &autoscaler(V2, of_cpu(50)), false).unwrap();
            for other in others {
                live =
                    apply(&request(&v2, V2, other), &mut Autoscalers, Some(&live), &autoscaler(V2, of_cpu(50)), false)
                        .unwrap();
            }
            let live = Autoscalers.convert(&live, Between { from: V2, to: V1 }).unwrap();
            let less = autoscaler(V1, json!({ "maxReplicas": 3 }));
            apply(&request(&v1, V1, "a"), &mut Autoscalers, Some(&live), &less, false).unwrap()
        };
        let alone = applied(&[]);
        assert_eq!(alone["spec"], json!({ "maxReplicas": 3 }));
        assert_eq!(owners(&alone), [entry("a", V1, json!({ "f:maxReplicas": {} }))]);
        assert_eq!(applied(&["b"])["spec"], json!({ "maxReplicas": 3, "targetCPUUtilizationPercentage": 50 }));
    }

    #[test]
    fn who_wrote_in_a_version_that_is_no_more_owns_nothing() {
        let v2 = row(V2);
        let mut live = autoscaler(V2, of_cpu(50));
        let fields = json!({ "f:spec": { "f:maxReplicas": {} } });
        let old = |n: usize| {
            json!({ "manager": format!("m{n}"), "operation": "Update",
            "apiVersion": format!("autoscaling/v9{n}"), "fieldsType": "FieldsV1", "fieldsV1": fields })
        };
        meta::set_managed_fields(&mut live, (0..3).map(old).collect());
        meta::set_creation_timestamp(&mut live, "2026-11-23T00:00:00Z");
        let mut new = live.clone();
        new["spec"]["maxReplicas"] = json!(4);
        track_update(&request(&v2, V2, "m"), &mut Autoscalers, Some(&live), &mut new);
        assert_eq!(owners(&new), [entry("m", V2, json!({ "f:maxReplicas": {} }))]);
    }
}
