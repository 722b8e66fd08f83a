//! Which FlowSchema a request belongs to, and which flow of it.

use model::meta;
use registry::attributes::Attributes;
use serde_json::Value;

/// A FlowSchema, read.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSchema {
    /// Its name.
    pub name: String,
    /// Its uid, for the response's header.
    pub uid: String,
    /// The level it leads to.
    pub level: String,
    /// The lowest wins.
    pub precedence: i64,
    by: By,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Nobody,
    User,
    Namespace,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<(Vec<String>, Vec<String>)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Subject {
    User(String),
    Group(String),
    Account(String, String),
}

#[derive(Clone, Debug, PartialEq)]
struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    namespaces: Vec<String>,
    cluster: bool,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

impl FlowSchema {
    /// Reads a stored object.
    pub fn of(object: &Value) -> FlowSchema {
        let spec = &object["spec"];
        let by = match spec["distinguisherMethod"]["type"].as_str() {
            Some("ByUser") => By::User,
            Some("ByNamespace") => By::Namespace,
            _ => By::Nobody,
        };
        FlowSchema {
            name: meta::name(object).to_owned(),
            uid: meta::uid(object).to_owned(),
            level: spec["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default().to_owned(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            by,
            rules: spec["rules"].as_array().into_iter().flatten().map(Rule::of).collect(),
        }
    }

    /// Whether a request belongs here.
    pub fn matches(&self, a: &Attributes) -> bool {
        self.rules.iter().any(|rule| rule.matches(a))
    }

    /// The distinguisher of the schema's flows.
    pub fn flow<'a>(&self, a: &'a Attributes) -> &'a str {
        match self.by {
            By::Nobody => "",
            By::User => &a.user.name,
            By::Namespace => &a.namespace,
        }
    }
}

impl Rule {
    fn of(value: &Value) -> Rule {
        let list = |field: &str| value[field].as_array().cloned().unwrap_or_default();
        let subject = |s: &Value| {
            let name = |kind: &str| s[kind]["name"].as_str().unwrap_or_default().to_owned();
            match s["kind"].as_str()? {
                "User" => Some(Subject::User(name("user"))),
                "Group" => Some(Subject::Group(name("group"))),
                "ServiceAccount" => Some(Subject::Account(
                    s["serviceAccount"]["namespace"].as_str().unwrap_or_default().to_owned(),
                    name("serviceAccount"),
                )),
                _ => None,
            }
        };
        let resource = |r: &Value| ResourceRule {
            verbs: texts(&r["verbs"]),
            groups: texts(&r["apiGroups"]),
            resources: texts(&r["resources"]),
            namespaces: texts(&r["namespaces"]),
            cluster: r["clusterScope"].as_bool().unwrap_or(false),
        };
        Rule {
            subjects: list("subjects").iter().filter_map(subject).collect(),
            resources: list("resourceRules").iter().map(resource).collect(),
            paths: list("nonResourceRules")
                .iter()
                .map(|r| (texts(&r["verbs"]), texts(&r["nonResourceURLs"])))
                .collect(),
        }
    }

    fn matches(&self, a: &Attributes) -> bool {
        self.subjects.iter().any(|subject| subject.is(a))
            && if a.is_resource {
                self.resources.iter().any(|r| r.matches(a))
            } else {
                self.paths.iter().any(|p| path_matches(p, a))
            }
    }
}

impl Subject {
    fn is(&self, a: &Attributes) -> bool {
        match self {
            Subject::User(name) => name == "*" || *name == a.user.name,
            Subject::Group(name) => name == "*" || a.user.in_group(name),
            Subject::Account(namespace, name) => {
                let of = authn::service_account::split_user(&a.user.name);
                of.is_some_and(|(ns, account)| ns == namespace && (name == "*" || name == account))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, a: &Attributes) -> bool {
        let place = if a.namespace.is_empty() { self.cluster } else { has(&self.namespaces, &a.namespace) };
        has(&self.verbs, &a.verb) && has(&self.groups, &a.group) && has(&self.resources, &a.resource_path()) && place
    }
}

fn path_matches((verbs, urls): &(Vec<String>, Vec<String>), a: &Attributes) -> bool {
    let fits = |url: &String| {
        url == "*" || *url == a.path || url.strip_suffix('*').is_some_and(|p| p.ends_with('/') && a.path.starts_with(p))
    };
    has(verbs, &a.verb) && urls.iter().any(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::user::UserInfo;

    #[test]
    fn everybody_finds_his_own() {
        let mut schemas: Vec<FlowSchema> = super::super::defaults::objects()
            .iter()
            .filter(|o| o["kind"] == "FlowSchema")
            .map(FlowSchema::of)
            .collect();
        schemas.sort_by_key(|s| s.precedence);
        let find = |user: UserInfo, verb: &str, group: &str, resource: &str, path: &str| {
            let is_resource = !resource.is_empty();
            let namespace = if resource == "nodes" { "" } else { "kube-system" };
            let a = Attributes {
                user: user.into(),
                verb: verb.into(),
                group: group.into(),
                resource: resource.into(),
                path: path.into(),
                is_resource,
                namespace: namespace.into(),
                ..Attributes::default()
            };
            schemas.iter().find(|s| s.matches(&a)).map(|s| s.name.clone()).unwrap_or_default()
        };
        assert_eq!(find(UserInfo::new("root", &["system:masters"]), "list", "", "pods", ""), "exempt");
        assert_eq!(find(UserInfo::anonymous(), "get", "", "", "/healthz"), "probes");
        assert_eq!(
            find(UserInfo::new("system:node:a", &["system:nodes"]), "patch", "", "nodes", ""),
            "system-node-high"
        );
        assert_eq!(find(UserInfo::new("system:node:a", &["system:nodes"]), "list", "", "pods", ""), "system-nodes");
        assert_eq!(
            find(UserInfo::new("system:kube-scheduler", &[]), "update", "coordination.k8s.io", "leases", ""),
            "system-leader-election"
        );
        assert_eq!(find(UserInfo::new("bob", &[]), "list", "", "pods", ""), "global-default");
    }
}
