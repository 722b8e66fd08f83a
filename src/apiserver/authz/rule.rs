//! One rule of a role: what it allows, what it covers, how it prints.

use serde_json::{Map, Value, json};

use crate::attributes::Attributes;

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

/// The name that a request is about. A list or watch of one object carries it in its field selector.
pub fn name_asked(a: &Attributes) -> &str {
    if !a.name.is_empty() || !matches!(a.verb.as_str(), "list" | "watch" | "deletecollection") {
        return &a.name;
    }
    field_asked(a, "metadata.name").unwrap_or("")
}

/// The value that the field selector demands of `field` with `=` or `==`.
pub fn field_asked<'a>(a: &'a Attributes, field: &str) -> Option<&'a str> {
    a.field_selector.split(',').find_map(|term| {
        let (key, value) = term.split_once('=')?;
        (key == field).then(|| value.strip_prefix('=').unwrap_or(value)).filter(|value| !value.is_empty())
    })
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
            && (self.resource_names.is_empty() || has(&self.resource_names, name_asked(a)))
    }

    /// Whether whoever has this rule has all of `other` too. `other` names at most one thing of each sort (see [`Rule::split`]).
    fn covers(&self, other: &Rule) -> bool {
        let all = |mine: &[String], theirs: &[String]| has(mine, "*") || theirs.iter().all(|word| has(mine, word));
        let resource = |wanted: &String| {
            let sub = wanted.split_once('/').map_or("", |(_, sub)| sub);
            self.resources.iter().any(|pattern| resource_matches(pattern, wanted, sub))
        };
        let names =
            self.resource_names.is_empty() || (!other.resource_names.is_empty() && all(&self.resource_names, &other.resource_names));
        let url = |wanted: &String| {
            self.non_resource_urls.iter().any(|mine| mine == wanted || mine.strip_suffix('*').is_some_and(|head| wanted.starts_with(head)))
        };
        all(&self.verbs, &other.verbs)
            && all(&self.api_groups, &other.api_groups)
            && other.resources.iter().all(resource)
            && names
            && other.non_resource_urls.iter().all(url)
    }

    /// The rule as rules with one verb and one resource of one group (or one path) each.
    fn split(&self) -> Vec<Rule> {
        let one = |word: &String| vec![word.clone()];
        let mut out = Vec::new();
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let base = Rule { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Rule::default() };
                    if self.resource_names.is_empty() {
                        out.push(base);
                    } else {
                        out.extend(self.resource_names.iter().map(|name| Rule { resource_names: one(name), ..base.clone() }));
                    }
                }
            }
            out.extend(self.non_resource_urls.iter().map(|url| Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() }));
        }
        out
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

/// What of `wanted` the owner of `held` does not have, put together again by resource, sorted by how it prints.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for part in wanted.iter().flat_map(Rule::split) {
        if held.iter().any(|rule| rule.covers(&part)) {
            continue;
        }
        let same = |other: &&mut Rule| Rule { verbs: Vec::new(), ..(**other).clone() } == Rule { verbs: Vec::new(), ..part.clone() };
        match missing.iter_mut().find(same) {
            Some(rule) if has(&rule.verbs, &part.verbs[0]) => {}
            Some(rule) => rule.verbs.extend(part.verbs),
            None => missing.push(part),
        }
    }
    missing.sort_by_key(Rule::compact);
    missing
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
        let one = rule(json!({"verbs": ["list", "create"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}));
        let mut list = asks("list", "", "secrets", "", "");
        assert!(!one.allows(&list));
        list.field_selector = "metadata.name=a".into();
        assert!(one.allows(&list));
        assert!(!one.allows(&asks("create", "", "secrets", "", "")));
    }

    #[test]
    fn paths_match_by_prefix_and_only_for_requests_of_paths() {
        let urls = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz/*", "/version"]}));
        let path = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert!(urls.allows(&path("/healthz/etcd")) && urls.allows(&path("/version")));
        assert!(!urls.allows(&path("/healthz")) && !urls.allows(&path("/version/x")));
    }

    #[test]
    fn what_is_missing_is_put_together_by_resource() {
        let held = [rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}))];
        let wanted = [rule(json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "secrets"]}))];
        let texts: Vec<String> = missing(&held, &wanted).iter().map(Rule::compact).collect();
        let pods = r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#;
        let secrets = r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "watch"]}"#;
        assert_eq!(texts, [pods, secrets]);
        assert!(missing(&[rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))], &wanted).is_empty());
        let named = [rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}))];
        assert_eq!(missing(&named, &held).len(), 1);
    }
}
