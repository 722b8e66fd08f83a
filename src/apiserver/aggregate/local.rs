//! APIServices for what this server answers itself: clients list them to learn what is served.

use serde_json::{Value, json};

use schema::catalog::Catalog;

/// Priorities of built-in groups and versions, as upstream gives them: order of discovery for clients.
const GROUPS: [(&str, i64); 23] = [
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("storagemigration.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("internal.apiserver.k8s.io", 16000),
    ("resource.k8s.io", 15900),
    ("apiregistration.k8s.io", 20000),
];

/// The label of the one that keeps such an APIService.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The APIServices of everything in the catalog, built in and custom.
pub fn wanted(catalog: &Catalog) -> Vec<Value> {
    let groups = catalog.groups().iter().filter(|g| g.name != super::GROUP);
    groups
        .flat_map(|group| {
            let n = group.versions.len();
            group.versions.iter().enumerate().map(move |(place, version)| {
                let (minimum, managed) = match GROUPS.iter().find(|(name, _)| *name == group.name) {
                    Some((_, minimum)) => (*minimum, "onstart"),
                    None => (1000, "true"),
                };
                // Upstream's highest is 15 for the built-in ones and 100 for custom ones; the catalog has the best
                // first.
                let top: i64 = if managed == "true" { 100 } else { 15 };
                let below = i64::try_from(place).unwrap_or(0) * 3;
                let priority = if group.name.is_empty() && n == 1 { 1 } else { (top - below).max(1) };
                api_service(&group.name, version, (minimum, priority), managed)
            })
        })
        .collect()
}

/// One that says that this server answers.
pub(super) fn api_service(group: &str, version: &str, (minimum, priority): (i64, i64), managed: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": format!("{version}.{group}"), "labels": { MANAGED: managed } },
        "spec": { "group": group, "version": version, "groupPriorityMinimum": minimum, "versionPriority": priority },
        "status": { "conditions": [] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_and_version_has_one() {
        let names: Vec<String> = wanted(Catalog::builtin()).iter().map(|o| model::meta::name(o).to_owned()).collect();
        for name in ["v1.", "v1.apps", "v2.autoscaling"] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        assert!(!names.iter().any(|n| n.contains("apiregistration")));
    }
}
