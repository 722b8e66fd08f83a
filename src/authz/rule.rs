//! One rule of a role: what it allows, what it covers, how it prints.

use registry::attributes::Attributes;
use schema::fields::FieldSelector;
use serde_json::{Map, Value, json};

/// A `PolicyRule` of RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// `*` or verbs.
    pub verbs: Vec<String>,
    /// `*` or API groups, `""` for core.
    pub api_groups: Vec<String>,
    /// `*`, `pods`, `pods/log`, `*/scale`.
    pub resources: Vec<String>,
    /// Names; empty is every name.
    pub resource_names: Vec<String>,
    /// `*`, `/healthz`, `/apis/*`.
    pub non_resource_urls: Vec<String>,
}

/// Rules of a role's `rules`.
pub fn rules_of(role: &Value) -> Vec<Rule> {
    role["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect()
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|entry| entry == word)
}

fn has_or_star(list: &[String], word: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == word)
}

/// The value that the field selector demands of `field` with `=` or `==`, read as the verbs read it.
pub fn field_asked(a: &Attributes, field: &str) -> Option<String> {
    let selector = FieldSelector::parse(&a.field_selector).ok()?;
    selector.exact(field).filter(|value| !value.is_empty()).map(str::to_owned)
}

impl Rule {
    /// Reads a rule of a stored role.
    pub fn from_value(value: &Value) -> Rule {
        let list = |field: &str| -> Vec<String> {
            value[field].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        Rule {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// Whether the rule allows a request.
    pub fn allows(&self, a: &Attributes) -> bool {
        if !has_or_star(&self.verbs, &a.verb) {
            return false;
        }
        if !a.is_resource {
            return self.non_resource_urls.iter().any(|pattern| url_matches(pattern, &a.path));
        }
        has_or_star(&self.api_groups, &a.group)
            && self.resources.iter().any(|pattern| resource_matches(pattern, &a.resource_path(), &a.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, &a.name))
    }

    /// Every list of words in it.
    pub fn lists(&self) -> [&[String]; 5] {
        [&self.verbs, &self.api_groups, &self.resources, &self.resource_names, &self.non_resource_urls]
    }

    /// `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`, as upstream prints it in refusals.
    pub fn compact(&self) -> String {
        let quoted = |list: &[String]| list.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:[{}]", quoted(list)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }

    /// The rule as `SelfSubjectRulesReview` lists it.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("verbs".to_owned(), json!(self.verbs));
        for (name, list) in [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ] {
            if !list.is_empty() {
                out.insert(name.to_owned(), json!(list));
            }
        }
        Value::Object(out)
    }
}

/// `*`, the very resource, or `*/sub` for any resource's subresource. `pods/*` means nothing, as upstream.
fn resource_matches(pattern: &str, resource: &str, sub: &str) -> bool {
    pattern == "*" || pattern == resource || (!sub.is_empty() && pattern.strip_prefix("*/") == Some(sub))
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern == "*" || pattern == path || pattern.strip_suffix('*').is_some_and(|head| path.starts_with(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(value: Value) -> Rule {
        Rule::from_value(&value)
    }

    fn asks(verb: &str, group: &str, resource: &str, sub: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: sub.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn a_rule_for_pods_says_nothing_about_their_logs() {
        let pods = rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}));
        assert!(pods.allows(&asks("get", "", "pods", "", "a")));
        assert!(!pods.allows(&asks("get", "", "pods", "log", "a")));
        assert!(!pods.allows(&asks("get", "apps", "pods", "", "a")));
        let scale = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/scale"]}));
        assert!(scale.allows(&asks("patch", "apps", "deployments", "scale", "a")));
        assert!(!scale.allows(&asks("patch", "apps", "deployments", "", "a")));
    }

    #[test]
    fn a_rule_with_names_allows_a_list_of_that_name_only() {
        let one = rule(
            json!({"verbs": ["list", "create"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}),
        );
        assert!(
            !one.allows(&asks("list", "", "secrets", "", "")) && !one.allows(&asks("list", "", "secrets", "", "b"))
        );
        // The name is the one that the request's field selector demands: info.rs reads it.
        assert!(one.allows(&asks("list", "", "secrets", "", "a")));
        assert!(!one.allows(&asks("create", "", "secrets", "", "")));
    }

    #[test]
    fn a_selector_is_read_by_the_authorizer_as_by_the_verb() {
        let asked = |text: &str| {
            field_asked(&Attributes { field_selector: text.into(), ..Attributes::default() }, "spec.nodeName")
        };
        assert_eq!(asked("a!=b,spec.nodeName==n1").as_deref(), Some("n1"));
        assert_eq!(asked("x=a\\,spec.nodeName\\=n1"), None);
        assert_eq!(asked("spec.nodeName!=n1"), None);
        assert_eq!(asked("spec.nodeName=n1,broken"), None);
    }

    #[test]
    fn paths_match_by_prefix_and_only_for_requests_of_paths() {
        let urls = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz/*", "/version"]}));
        let path = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert!(urls.allows(&path("/healthz/etcd")) && urls.allows(&path("/version")));
        assert!(!urls.allows(&path("/healthz")) && !urls.allows(&path("/version/x")));
    }
}
