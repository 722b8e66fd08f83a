//! Aggregated cluster roles: rules gathered from every role that a selector matches.

use std::collections::BTreeSet;

use model::labels::Selector;
use model::meta;
use model::reference::GroupResource;
use registry::lookup::Lookup;
use serde_json::Value;

use super::bootstrap::Write;
use super::rbac::GROUP;

/// The cluster roles whose gathered rules are not what they should be, as updates. To be asked after each change of
/// cluster roles.
pub fn plan(lookup: &dyn Lookup) -> Vec<Write> {
    let roles = lookup.list(GroupResource { group: GROUP, resource: "clusterroles" }, None);
    let mut writes = Vec::new();
    for role in &roles {
        let Some(selectors) = role["aggregationRule"]["clusterRoleSelectors"].as_array() else { continue };
        let mut rules: Vec<Value> = Vec::new();
        let mut known = BTreeSet::new();
        for selector in selectors {
            // A selector that cannot be read gathers nothing: upstream's controller stops at it as well.
            let Ok(selector) = Selector::from_json(Some(selector)) else { continue };
            for source in
                roles.iter().filter(|source| meta::name(source) != meta::name(role) && selector.matches_object(source))
            {
                for rule in source["rules"].as_array().into_iter().flatten() {
                    if known.insert(rule.to_string()) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        if role["rules"].as_array().map_or(&[][..], Vec::as_slice) != rules {
            let mut object = (**role).clone();
            object["rules"] = Value::Array(rules);
            writes.push(Write { group: GROUP, resource: "clusterroles", object, exists: true });
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap;
    use model::reference::NamespacedName;
    use registry::memory::Objects;

    #[test]
    fn admin_gathers_what_edit_and_view_hold_after_a_few_rounds() {
        let mut stored = Objects::of(bootstrap::objects());
        for round in 0.. {
            let writes = plan(&stored);
            if writes.is_empty() {
                break;
            }
            assert!(round < 5);
            for write in writes {
                stored.put(GroupResource { group: write.group, resource: write.resource }, write.object);
            }
        }
        let holds = |role: &str, resource: &str| {
            let role = stored
                .get(GroupResource { group: GROUP, resource: "clusterroles" }, NamespacedName::cluster(role))
                .unwrap();
            role["rules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|rule| rule["resources"].as_array().unwrap().iter().any(|r| r == resource))
        };
        assert!(holds("admin", "rolebindings") && holds("admin", "pods/exec") && holds("admin", "pods/log"));
        assert!(holds("edit", "secrets") && !holds("edit", "rolebindings"));
        assert!(holds("view", "configmaps") && !holds("view", "secrets"));
    }
}
