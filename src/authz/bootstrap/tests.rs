//! Bootstrap objects against upstream's published ones, and what a second start does.

use model::reference::{GroupResource, NamespacedName};
use registry::memory::Objects;

use super::*;

#[test]
fn a_second_start_writes_nothing_and_keeps_what_people_added() {
    let mut stored = Objects::default();
    for write in plan(&stored) {
        assert!(!write.exists);
        stored.put(GroupResource { group: write.group, resource: write.resource }, write.object);
    }
    assert_eq!(plan(&stored), []);

    let mut role = (*stored
        .get(GroupResource { group: RBAC, resource: "clusterroles" }, NamespacedName::cluster("system:node"))
        .unwrap())
    .clone();
    role["rules"] = json!([{"apiGroups": ["own.example"], "resources": ["x"], "verbs": ["get"]}]);
    stored.put(GroupResource { group: RBAC, resource: "clusterroles" }, role.clone());
    let writes = plan(&stored);
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].object["rules"][0]["apiGroups"][0], "own.example");
    assert!(writes[0].object["rules"].as_array().unwrap().len() > 20);

    role["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("false");
    stored.put(GroupResource { group: RBAC, resource: "clusterroles" }, role);
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
            let (namespace, name) = (model::meta::namespace(&item), model::meta::name(&item));
            // Not upstream's own: a distribution's, which a plain Kubernetes server does not create.
            if name.starts_with("system:openshift:") {
                continue;
            }
            let same = |(_, r, o): &&(&str, &str, Value)| {
                *r == resource && model::meta::namespace(o) == namespace && model::meta::name(o) == name
            };
            let (_, _, made) = ours.iter().find(same).unwrap_or_else(|| panic!("{name} is not made"));
            assert_eq!(sorted(made.clone()), sorted(item.clone()), "{name}");
            seen += 1;
        }
    }
    assert!(seen == 0 || seen > 100, "{seen}");
}

// Ours, so no published object holds it. docs/security.md: the network's part of an agent.
#[test]
fn the_network_of_a_node_lists_and_watches_four_kinds_and_writes_nothing_by_its_own_role() {
    let all = objects();
    let named = |resource: &str, name: &str| {
        let mut found =
            all.iter().filter(|(_, r, o)| *r == resource && model::meta::name(o) == name).map(|(_, _, object)| object);
        let one = found.next().unwrap();
        assert!(found.next().is_none(), "{name} is there twice");
        one
    };
    let rules = named("clusterroles", "kedge:node-network")["rules"].as_array().unwrap();
    let mut resources = Vec::new();
    for rule in rules {
        assert_eq!(rule["verbs"], json!(["list", "watch"]), "{rule}");
        assert!(rule["nonResourceURLs"].is_null(), "{rule}");
        resources
            .extend(rule["resources"].as_array().unwrap().iter().map(|name| format!("{}/{}", rule["apiGroups"], name)));
    }
    resources.sort();
    assert_eq!(
        resources,
        [r#"[""]/"namespaces""#, r#"[""]/"nodes""#, r#"[""]/"pods""#, r#"["networking.k8s.io"]/"networkpolicies""#]
    );
    assert_eq!(named("clusterrolebindings", "kedge:node-network")["subjects"].as_array().unwrap().len(), 1);
    // It and upstream's role are all that the network has.
    let is_its = |binding: &Value| {
        binding["subjects"].as_array().into_iter().flatten().any(|s| s["name"] == "system:kube-proxy")
    };
    let mut given: Vec<_> =
        all.iter().filter(|(_, _, o)| is_its(o)).map(|(_, _, o)| o["roleRef"]["name"].as_str().unwrap()).collect();
    given.sort_unstable();
    assert_eq!(given, ["kedge:node-network", "system:node-proxier"]);
}
