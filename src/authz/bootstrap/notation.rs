//! The short form in which bootstrap roles are written down, and its way into objects.
//!
//! One line is one rule: `verbs @groups resources… =names`. `core` is the empty group, `@url` marks paths instead of
//! resources. Three words stand for verbs: `read` is get, list, watch; `write` is create, delete, deletecollection,
//! patch, update; `all` is both. `read,create @core,events.k8s.io events` lets one get, list, watch and create events
//! of both groups.

use serde_json::{Map, Value, json};

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// One cluster role in short form.
pub(super) struct ClusterRole {
    pub(super) name: &'static str,
    rules: &'static [&'static str],
    gathers: Option<&'static str>,
    part_of: Option<&'static str>,
}

pub(super) const fn role(name: &'static str, rules: &'static [&'static str]) -> ClusterRole {
    ClusterRole { name, rules, gathers: None, part_of: None }
}

impl ClusterRole {
    /// Its rules are those of every role labelled `aggregate-to-<word>`.
    pub(super) const fn gathers(mut self, word: &'static str) -> ClusterRole {
        self.gathers = Some(word);
        self
    }

    /// It is labelled `aggregate-to-<word>`.
    pub(super) const fn part_of(mut self, word: &'static str) -> ClusterRole {
        self.part_of = Some(word);
        self
    }

    /// The object, with `prefix` before the name.
    pub(super) fn object(&self, prefix: &str) -> Value {
        let mut object = object("ClusterRole", "", &format!("{prefix}{}", self.name));
        if let Some(word) = self.part_of {
            object["metadata"]["labels"][aggregate_label(word)] = json!("true");
        }
        if let Some(word) = self.gathers {
            object["aggregationRule"] =
                json!({"clusterRoleSelectors": [{"matchLabels": {aggregate_label(word): "true"}}]});
        }
        object["rules"] = rules(self.rules);
        object
    }
}

fn aggregate_label(word: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{word}")
}

/// An RBAC object without rules or subjects, marked as made at start.
pub(super) fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut metadata = json!({
        "name": name,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
    });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata})
}

/// Rules of several lines.
pub(super) fn rules(lines: &[&str]) -> Value {
    Value::Array(lines.iter().map(|line| rule(line)).collect())
}

fn rule(line: &str) -> Value {
    let mut words = line.split_whitespace();
    let verbs = verbs(words.next().unwrap_or_default());
    let groups = words.next().unwrap_or_default().trim_start_matches('@');
    let (names, resources): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('='));
    if groups == "url" {
        return json!({"verbs": verbs, "nonResourceURLs": resources});
    }
    let groups: Vec<&str> = groups.split(',').map(|group| if group == "core" { "" } else { group }).collect();
    let mut rule = Map::new();
    rule.insert("apiGroups".to_owned(), json!(groups));
    rule.insert("resources".to_owned(), json!(resources));
    if let Some(names) = names.first() {
        rule.insert("resourceNames".to_owned(), json!(names.trim_start_matches('=').split(',').collect::<Vec<_>>()));
    }
    rule.insert("verbs".to_owned(), json!(verbs));
    Value::Object(rule)
}

fn verbs(word: &str) -> Vec<&str> {
    let mut verbs: Vec<&str> = Vec::new();
    for verb in word.split(',') {
        match verb {
            "read" => verbs.extend(READ),
            "write" => verbs.extend(WRITE),
            "all" => verbs.extend(READ.iter().chain(&WRITE)),
            other => verbs.push(other),
        }
    }
    verbs.sort_unstable();
    verbs
}

/// `user NAME`, `group NAME` or `sa NAMESPACE/NAME` as a subject.
pub(super) fn subject(text: &str) -> Value {
    let api = "rbac.authorization.k8s.io";
    match text.split_once(' ') {
        Some(("user", name)) => json!({"apiGroup": api, "kind": "User", "name": name}),
        Some(("group", name)) => json!({"apiGroup": api, "kind": "Group", "name": name}),
        Some((_, account)) => {
            let (namespace, name) = account.split_once('/').unwrap_or(("kube-system", account));
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        None => Value::Null,
    }
}

/// A binding of `subjects` to a role.
pub(super) fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: &[&str]) -> Value {
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let mut object = object(kind, namespace, name);
    object["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
    if !subjects.is_empty() {
        object["subjects"] = Value::Array(subjects.iter().map(|text| subject(text)).collect());
    }
    object
}
