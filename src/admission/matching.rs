//! Whether a webhook or an admission policy is meant by a request: rules, selectors and `matchPolicy`, as upstream
//! reads them.
//!
//! One [`Matcher`] is made per webhook, policy or binding and kept; [`Matcher::matches`] then reads no JSON but labels.

use std::sync::Arc;

use model::labels::Selector;
use model::labels::error::SelectorError;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use schema::catalog::Catalog;
use schema::table::{GroupVersion, Gvk, Resource};
use serde_json::Value;

use super::{Operation, Review};

/// Where webhooks and policies are configured.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// The version under which a request is shown to who asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// `apps`
    pub group: String,
    /// `v1`: that of the request, or of an equivalent that a rule names.
    pub version: String,
    /// `deployments`
    pub resource: String,
    /// Kind of the object under review in that version, such as `apps/v1 Deployment` or `autoscaling/v1 Scale`.
    pub kind: Gvk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Namespaced,
    Cluster,
}

/// One `RuleWithOperations`, or `NamedRuleWithOperations`.
#[derive(Clone, Debug)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    scope: Scope,
}

/// A resource as a rule sees it.
struct Target<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

impl Rule {
    /// Reads one element of `rules` or `resourceRules`.
    pub fn of(rule: &Value) -> Rule {
        let texts = |field: &str| schema::read::texts(rule, field).into_iter().map(str::to_owned).collect();
        let scope = match schema::read::text(rule, "scope") {
            "Namespaced" => Scope::Namespaced,
            "Cluster" => Scope::Cluster,
            _ => Scope::All,
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            scope,
        }
    }

    fn covers(&self, operation: Operation, a: &Attributes, name: &str, target: &Target<'_>) -> bool {
        has(&self.operations, operation.text())
            && has(&self.groups, target.group)
            && has(&self.versions, target.version)
            && self.resources.iter().any(|r| covers_resource(r, target.resource, &a.subresource))
            && self.in_scope(a, target)
            && (self.names.is_empty() || self.names.iter().any(|n| n == name))
    }

    fn in_scope(&self, a: &Attributes, target: &Target<'_>) -> bool {
        // A request for a namespace names it as its namespace too, but is of cluster scope.
        let is_namespace = target.group.is_empty() && target.version == "v1" && target.resource == "namespaces";
        match self.scope {
            Scope::All => true,
            Scope::Namespaced => !is_namespace && !a.namespace.is_empty(),
            Scope::Cluster => is_namespace || a.namespace.is_empty(),
        }
    }
}

/// `pods`, `pods/status`, `pods/*`, `*`, `*/*`, `*/scale`.
fn covers_resource(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (of, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    (of == "*" || of == resource) && (sub == "*" || sub == subresource)
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|x| x == "*" || x == wanted)
}

/// Rules of a webhook, a policy or a binding about the requests it wants.
#[derive(Clone, Debug)]
pub struct Matcher {
    rules: Vec<Rule>,
    exclude: Vec<Rule>,
    namespaces: Selector,
    objects: Selector,
    exact: bool,
}

impl Matcher {
    /// Of one element of `webhooks`.
    ///
    /// Errors: a selector that validation would have refused.
    pub fn of_webhook(webhook: &Value) -> Result<Matcher, SelectorError> {
        Matcher::read(webhook, "rules")
    }

    /// Of `matchConstraints` or `matchResources`; without rules everything matches.
    ///
    /// Errors: a selector that validation would have refused.
    pub fn of_policy(resources: &Value) -> Result<Matcher, SelectorError> {
        Matcher::read(resources, "resourceRules")
    }

    fn read(from: &Value, rules: &str) -> Result<Matcher, SelectorError> {
        // An absent selector means everything here; elsewhere it means nothing.
        let selector = |field: &str| match from.get(field) {
            None | Some(Value::Null) => Ok(Selector::everything()),
            some => Selector::from_json(some),
        };
        let rules_of = |field: &str| schema::read::list(from, field).iter().map(Rule::of).collect();
        Ok(Matcher {
            rules: rules_of(rules),
            exclude: rules_of("excludeResourceRules"),
            namespaces: selector("namespaceSelector")?,
            objects: selector("objectSelector")?,
            exact: schema::read::text(from, "matchPolicy") == "Exact",
        })
    }

    /// Whether the request is meant, and in which version to show it; `None` if it is not.
    ///
    /// A policy without rules means every request (`resourceRules` empty, as bindings may be); a webhook without rules
    /// means none. Errors: the namespace of the request cannot be found.
    pub fn matches(&self, review: &Review<'_>) -> Result<Option<Matched>, Status> {
        // The cheap questions first; the answer is the same in any order.
        if self.excludes(review) {
            return Ok(None);
        }
        let Some(found) = self.by_rules(review) else { return Ok(None) };
        let fits = self.fits_namespace(review)? && self.fits_object(review);
        Ok(fits.then_some(found))
    }

    /// [`Matcher::matches`] for a binding's `matchResources`, where no rules mean every resource.
    ///
    /// Errors: the namespace of the request cannot be found.
    pub fn matches_or_unruled(&self, review: &Review<'_>) -> Result<Option<Matched>, Status> {
        if !self.rules.is_empty() {
            return self.matches(review);
        }
        let fits = !self.excludes(review) && self.fits_namespace(review)? && self.fits_object(review);
        Ok(fits.then(|| as_requested(review)))
    }

    fn excludes(&self, review: &Review<'_>) -> bool {
        !self.exclude.is_empty() && self.find(&self.exclude, review).is_some()
    }

    fn by_rules(&self, review: &Review<'_>) -> Option<Matched> {
        self.find(&self.rules, review)
    }

    fn find(&self, rules: &[Rule], review: &Review<'_>) -> Option<Matched> {
        let a = review.attributes;
        let asked = Target { group: &a.group, version: &a.version, resource: &a.resource };
        let covers = |target: &Target<'_>| rules.iter().any(|r| r.covers(review.operation, a, &a.name, target));
        if covers(&asked) {
            return Some(as_requested(review));
        }
        if self.exact {
            return None;
        }
        equivalents(review.catalog, a)
            .find(|m| covers(&Target { group: &m.group, version: &m.version, resource: &m.resource }))
    }

    fn fits_namespace(&self, review: &Review<'_>) -> Result<bool, Status> {
        let a = review.attributes;
        let is_namespace = a.group.is_empty() && a.resource == "namespaces";
        if self.namespaces.is_empty() || (a.namespace.is_empty() && !is_namespace) {
            return Ok(true);
        }
        // A namespace that is being written is not in the cache yet, or not as it will be.
        if is_namespace && a.subresource.is_empty() && matches!(review.operation, Operation::Create | Operation::Update)
        {
            return Ok(self.namespaces.matches(meta::labels(review.object)));
        }
        match review.lookup.get(GroupResource::core("namespaces"), NamespacedName::cluster(&a.namespace)) {
            Some(namespace) => Ok(self.namespaces.matches(meta::labels(&namespace))),
            None if is_namespace => Ok(self.namespaces.matches(review.old.and_then(meta::labels))),
            None => Err(Status::not_found(GroupResource::core("namespaces"), &a.namespace)),
        }
    }

    /// The new object or the old one.
    fn fits_object(&self, review: &Review<'_>) -> bool {
        let fits = |object: &Value| meta::metadata(object).is_some() && self.objects.matches(meta::labels(object));
        self.objects.is_empty() || fits(review.object) || review.old.is_some_and(fits)
    }
}

impl Operation {
    /// As rules and AdmissionReviews spell it.
    pub fn text(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// The request as it came.
pub fn as_requested(review: &Review<'_>) -> Matched {
    let a = review.attributes;
    let row = review.catalog.resource(GroupVersion { group: &a.group, version: &a.version }, &a.resource);
    let kind = row.and_then(|row| kind_of(row, &a.subresource)).unwrap_or_else(|| Gvk {
        group: a.group.clone().into(),
        version: a.version.clone().into(),
        kind: review.kind.to_owned().into(),
    });
    Matched { group: a.group.clone(), version: a.version.clone(), resource: a.resource.clone(), kind }
}

/// The kind of what is sent to a resource, or to its subresource.
fn kind_of(row: &Resource, subresource: &str) -> Option<Gvk> {
    match subresource {
        "" => Some(row.gvk()),
        sub => row.subresource(sub).map(|s| if s.kind.kind == row.kind { row.gvk() } else { s.kind.clone() }),
    }
}

/// Other groups and versions of the same stored objects.
fn equivalents<'a>(catalog: &'a Catalog, a: &'a Attributes) -> impl Iterator<Item = Matched> + 'a {
    let group_version = GroupVersion { group: &a.group, version: &a.version };
    let stored = catalog.resource(group_version, &a.resource).map(|r| r.storage_group.clone());
    let same = move |r: &&Arc<Resource>| {
        Some(&r.storage_group) == stored.as_ref()
            && r.plural == a.resource
            && (r.group != a.group || r.version != a.version)
    };
    catalog.resources().iter().filter(same).filter_map(|r| {
        let kind = kind_of(r, &a.subresource)?;
        Some(Matched { group: r.group.to_string(), version: r.version.to_string(), resource: a.resource.clone(), kind })
    })
}

/// Whether nobody is asked about such a request: what configures admission itself, so that a broken configuration can
/// be mended.
pub fn configures_admission(a: &Attributes) -> bool {
    let plurals = [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
    ];
    a.group == GROUP && plurals.contains(&a.resource.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_resources_cover_subresources_only_when_they_say_so() {
        let covers = |pattern: &str, path: &str| {
            let (resource, sub) = path.split_once('/').unwrap_or((path, ""));
            covers_resource(pattern, resource, sub)
        };
        assert!(
            covers("*", "pods") && !covers("*", "pods/status") && covers("*/*", "pods/status") && covers("*/*", "pods")
        );
        assert!(covers("pods/*", "pods") && covers("pods/*", "pods/log") && !covers("pods", "pods/log"));
        assert!(covers("*/scale", "deployments/scale") && !covers("*/scale", "deployments"));
    }

    #[test]
    fn other_versions_of_the_same_objects_are_equivalent() {
        let a = Attributes {
            group: "autoscaling".into(),
            version: "v1".into(),
            resource: "horizontalpodautoscalers".into(),
            ..Attributes::default()
        };
        let found: Vec<_> = equivalents(Catalog::builtin(), &a).map(|m| (m.group, m.version)).collect();
        assert_eq!(found, [("autoscaling".to_owned(), "v2".to_owned())]);
    }
}
