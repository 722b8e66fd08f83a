//! Status of a definition: which names it got, and whether it is served. Pure.

use std::collections::BTreeSet;

use model::meta;
use schema::catalog::Catalog;
use schema::read;
use serde_json::{Value, json};

/// A definition with its status as it should be, given all definitions; `None` if it is so already.
pub fn settled(definition: &Value, all: &[std::sync::Arc<Value>], now: &str) -> Option<Value> {
    let mut new = definition.clone();
    let (names, conflict) = accept(definition, all);
    new["status"]["acceptedNames"] = names;
    let accepted = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found".to_owned()),
        Some((reason, taken)) => ("False", *reason, format!("{taken:?} is already in use")),
    };
    set_condition(&mut new, "NamesAccepted", (accepted.0, accepted.1, &accepted.2), now);
    // Once served, a definition stays so, whatever names it asks for later.
    if !read::condition_is_true(definition, "Established") {
        if conflict.is_none() {
            set_condition(
                &mut new,
                "Established",
                ("True", "InitialNamesAccepted", "the initial names have been accepted"),
                now,
            );
        } else {
            set_condition(&mut new, "Established", ("False", "NotAccepted", "not all names are accepted"), now);
        }
    }
    if let Some(approval) = approval(definition) {
        set_condition(&mut new, "KubernetesAPIApprovalPolicyConformant", (approval.0, approval.1, &approval.2), now);
    }
    (new["status"] != definition["status"]).then_some(new)
}

/// The names it may have, and the first that somebody else has.
fn accept(definition: &Value, all: &[std::sync::Arc<Value>]) -> (Value, Option<(&'static str, String)>) {
    let group = read::text(definition, "spec.group");
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for other in all.iter().filter(|o| meta::name(o) != meta::name(definition) && read::text(o, "spec.group") == group)
    {
        let names = &other["status"]["acceptedNames"];
        resources.extend(
            [read::text(names, "plural"), read::text(names, "singular")]
                .into_iter()
                .chain(read::texts(names, "shortNames")),
        );
        kinds.extend([read::text(names, "kind"), read::text(names, "listKind")]);
    }
    // What is built in was there first, and its objects are no definition's to serve or to delete.
    for row in Catalog::builtin().resources().iter().filter(|row| row.group == group) {
        resources.extend(
            [row.plural.as_ref(), row.singular.as_ref()].into_iter().chain(row.short_names.iter().map(AsRef::as_ref)),
        );
        kinds.extend([row.kind.as_ref(), row.list_kind.as_ref()]);
    }
    let wanted = &definition["spec"]["names"];
    let mut accepted = definition["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({});
    }
    let mut conflict = None;
    for (field, taken, reason) in [
        ("plural", &resources, "PluralConflict"),
        ("singular", &resources, "SingularConflict"),
        ("shortNames", &resources, "ShortNamesConflict"),
        ("kind", &kinds, "KindConflict"),
        ("listKind", &kinds, "ListKindConflict"),
    ] {
        let asked: Vec<&str> =
            if field == "shortNames" { read::texts(wanted, field) } else { vec![read::text(wanted, field)] };
        match asked.iter().find(|name| !name.is_empty() && taken.contains(*name)) {
            Some(name) => conflict = Some((reason, (*name).to_owned())),
            None => copy(wanted, &mut accepted, field),
        }
    }
    copy(wanted, &mut accepted, "categories");
    (accepted, conflict)
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => drop(to.as_object_mut().and_then(|m| m.remove(field))),
    }
}

fn approval(definition: &Value) -> Option<(&'static str, &'static str, String)> {
    let group = read::text(definition, "spec.group");
    if !(group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io")) {
        return None;
    }
    let annotation = "api-approved.kubernetes.io";
    let said = meta::annotation(definition, annotation).unwrap_or_default();
    Some(match said {
        "" => (
            "False",
            "MissingAnnotation",
            format!(
                "protected groups must have approval annotation {annotation:?}, see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ),
        said if said.starts_with("unapproved") => ("False", "UnapprovedAnnotation", format!("not approved: {said:?}")),
        said => ("True", "ApprovedAnnotation", format!("approved in {said}")),
    })
}

/// Sets a condition; the time moves only with the status.
pub fn set_condition(object: &mut Value, kind: &str, (status, reason, message): (&str, &str, &str), now: &str) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    let mut condition =
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now});
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == status && !old["lastTransitionTime"].is_null() {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            if let Some(generation) = old.get("observedGeneration") {
                condition["observedGeneration"] = generation.clone();
            }
            *old = condition;
        }
        None => list.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn definition(name: &str, kind: &str) -> Value {
        json!({"metadata": {"name": format!("{name}.a.b")}, "spec": {"group": "a.b", "names": {"plural": name,
            "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")}}})
    }

    #[test]
    fn a_definition_named_like_a_built_in_kind_is_never_served() {
        let mut shadow = definition("networkpolicies", "NetworkPolicy");
        shadow["spec"]["group"] = json!("networking.k8s.io");
        shadow["spec"]["versions"] =
            json!([{"name": "v1", "served": true, "storage": true}, {"name": "v9", "served": true}]);
        let settled = settled(&shadow, &[], "t").unwrap();
        assert!(
            !read::condition_is_true(&settled, "Established") && !read::condition_is_true(&settled, "NamesAccepted")
        );
        // One that an older program served all the same is none of the catalog's: what cleans up behind it finds
        // nothing.
        let rows = schema::custom::resources(&shadow).into_iter().map(Arc::new).collect();
        assert!(!Catalog::with(rows).resources().iter().any(|row| row.custom));
    }

    #[test]
    fn a_definition_is_established_unless_a_name_is_taken_and_then_it_says_which() {
        let first = Arc::new(settled(&definition("foos", "Foo"), &[], "t").unwrap());
        assert!(read::condition_is_true(&first, "Established") && read::condition_is_true(&first, "NamesAccepted"));
        assert!(settled(&first, &[Arc::clone(&first)], "u").is_none());
        let second = settled(&definition("foods", "Foo"), &[Arc::clone(&first)], "t").unwrap();
        let conditions = second["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions[0]["message"], "\"FooList\" is already in use");
        assert_eq!(conditions[1]["reason"], "NotAccepted");
    }
}
