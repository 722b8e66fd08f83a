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

    fn schema(rule: Value) -> FlowSchema {
        FlowSchema::of(&serde_json::json!({ "metadata": { "name": "s" }, "spec": { "rules": [rule] } }))
    }

    #[test]
    fn a_rule_wants_one_of_its_subjects_and_one_of_its_resources() {
        let bob = || UserInfo::new("bob", &["dev"]);
        let account = || UserInfo::new("system:serviceaccount:ns:web", &[]);
        let pods = |user: UserInfo, namespace: &str| Attributes {
            user: user.into(),
            verb: "list".into(),
            resource: "pods".into(),
            namespace: namespace.into(),
            is_resource: true,
            ..Attributes::default()
        };
        let rule = |subject: Value, verbs: &str, resource: &str, namespaces: &[&str], cluster: bool| {
            serde_json::json!({ "subjects": [subject], "resourceRules": [{
                "verbs": [verbs], "apiGroups": [""], "resources": [resource], "namespaces": namespaces,
                "clusterScope": cluster,
            }] })
        };
        let user = |name: &str| serde_json::json!({ "kind": "User", "user": { "name": name } });
        let group = |name: &str| serde_json::json!({ "kind": "Group", "group": { "name": name } });
        let accounts = |name: &str| {
            serde_json::json!({ "kind": "ServiceAccount",
            "serviceAccount": { "namespace": "ns", "name": name } })
        };
        for (rule, request, matches) in [
            (rule(user("bob"), "*", "*", &["*"], false), pods(bob(), "a"), true),
            (rule(user("*"), "list", "pods", &["a"], false), pods(bob(), "a"), true),
            (rule(user("alice"), "*", "*", &["*"], false), pods(bob(), "a"), false),
            (rule(group("dev"), "*", "*", &["*"], false), pods(bob(), "a"), true),
            (rule(group("ops"), "*", "*", &["*"], false), pods(bob(), "a"), false),
            (rule(accounts("web"), "*", "*", &["*"], false), pods(account(), "a"), true),
            (rule(accounts("*"), "*", "*", &["*"], false), pods(account(), "a"), true),
            (rule(accounts("other"), "*", "*", &["*"], false), pods(account(), "a"), false),
            (rule(accounts("*"), "*", "*", &["*"], false), pods(bob(), "a"), false),
            (rule(user("bob"), "get", "*", &["*"], false), pods(bob(), "a"), false),
            (rule(user("bob"), "*", "nodes", &["*"], false), pods(bob(), "a"), false),
            (rule(user("bob"), "*", "*", &["b"], false), pods(bob(), "a"), false),
            // All namespaces are the cluster's scope, whatever namespaces are named.
            (rule(user("bob"), "*", "*", &["*"], false), pods(bob(), ""), false),
            (rule(user("bob"), "*", "*", &[], true), pods(bob(), ""), true),
            (rule(user("bob"), "*", "*", &[], true), pods(bob(), "a"), false),
            (serde_json::json!({ "subjects": [user("bob")] }), pods(bob(), "a"), false),
        ] {
            assert_eq!(schema(rule.clone()).matches(&request), matches, "{rule} {:?}", request.namespace);
        }
    }

    #[test]
    fn a_path_matches_whole_or_by_a_star_behind_a_slash() {
        let path = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        for (url, asked, matches) in [
            ("*", "/anything", true),
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", false),
            ("/healthz/*", "/healthz/ping", true),
            ("/healthz*", "/healthz/ping", false),
        ] {
            let rule = serde_json::json!({
                "subjects": [{ "kind": "User", "user": { "name": "*" } }],
                "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": [url] }],
            });
            assert_eq!(schema(rule).matches(&path(asked)), matches, "{url} {asked}");
        }
    }

    #[test]
    fn flows_are_told_apart_as_the_schema_says() {
        let a = Attributes { user: UserInfo::new("bob", &[]).into(), namespace: "ns".into(), ..Attributes::default() };
        for (by, flow) in [("ByUser", "bob"), ("ByNamespace", "ns"), ("", "")] {
            let object = serde_json::json!({ "spec": { "distinguisherMethod": { "type": by } } });
            let read = FlowSchema::of(&object);
            assert_eq!((read.flow(&a), read.precedence), (flow, 1000), "{by}");
        }
    }
}
