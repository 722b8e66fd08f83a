//! Bootstrap objects against upstream's published ones, and what a second start does.

use super::*;
use crate::authz::fixture::Objects;

#[test]
fn a_second_start_writes_nothing_and_keeps_what_people_added() {
    let mut stored = Objects::default();
    for write in plan(&stored) {
        assert!(!write.exists);
        stored.put(write.group, write.resource, write.object);
    }
    assert_eq!(plan(&stored), []);

    let mut role = (*stored.get(RBAC, "clusterroles", "", "system:node").unwrap()).clone();
    role["rules"] = json!([{"apiGroups": ["own.example"], "resources": ["x"], "verbs": ["get"]}]);
    stored.put(RBAC, "clusterroles", role.clone());
    let writes = plan(&stored);
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].object["rules"][0]["apiGroups"][0], "own.example");
    assert!(writes[0].object["rules"].as_array().unwrap().len() > 20);

    role["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("false");
    stored.put(RBAC, "clusterroles", role);
    assert_eq!(plan(&stored), []);
}

/// Upstream's published objects, where they are present.
fn published(file: &str) -> Option<Vec<Value>> {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/upstream-v1.36");
    let dir = option_env!("KEDGE_UPSTREAM_DATA").unwrap_or(here);
    let text = std::fs::read_to_string(format!("{dir}/rbac/{file}")).ok()?;
    let list: Value = serde_saphyr::from_str(&text).unwrap();
    Some(list["items"].as_array().unwrap().clone())
}

fn sorted(mut object: Value) -> Value {
    for rule in object["rules"].as_array_mut().into_iter().flatten() {
        for field in ["apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs"] {
            if let Some(list) = rule[field].as_array_mut() {
                list.sort_by_key(|v| v.as_str().unwrap_or_default().to_owned());
            } else if let Some(map) = rule.as_object_mut() {
                map.remove(field);
            }
        }
    }
    if object["rules"].is_null() {
        object["rules"] = json!([]);
    }
    if object["subjects"].is_null() {
        object["subjects"] = json!([]);
    }
    object
}

#[test]
fn every_published_object_is_made_as_published() {
    let ours = objects();
    let mut seen = 0;
    for (file, resource) in [
        ("cluster-roles.yaml", "clusterroles"),
        ("controller-roles.yaml", "clusterroles"),
        ("cluster-role-bindings.yaml", "clusterrolebindings"),
        ("controller-role-bindings.yaml", "clusterrolebindings"),
        ("namespace-roles.yaml", "roles"),
        ("namespace-role-bindings.yaml", "rolebindings"),
    ] {
        let Some(items) = published(file) else {
            base::skips::say(&format!("{file} is not on this machine"));
            continue;
        };
        for item in items {
            let (namespace, name) = (meta::namespace(&item), meta::name(&item));
            // Not upstream's own: a distribution's, which a plain Kubernetes server does not create.
            if name.starts_with("system:openshift:") {
                continue;
            }
            let same = |(_, r, o): &&(&str, &str, Value)| *r == resource && meta::namespace(o) == namespace && meta::name(o) == name;
            let (_, _, made) = ours.iter().find(same).unwrap_or_else(|| panic!("{name} is not made"));
            assert_eq!(sorted(made.clone()), sorted(item.clone()), "{name}");
            seen += 1;
        }
    }
    assert!(seen == 0 || seen > 100, "{seen}");
}
