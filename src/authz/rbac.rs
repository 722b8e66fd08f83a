//! The RBAC authorizer: roles and bindings compiled into an index by subject, compiled again when they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::sync::Mutex;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::user::UserInfo;
use serde_json::Value;
use tokio::sync::watch;

use super::rule::{Rule, rules_of};
use super::{Authorizer, Decision};

/// API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Why the role of a binding has no rules, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleRefError {
    /// There is no such role.
    #[error("{kind}.{GROUP} {name:?} not found")]
    NotFound {
        /// `role` or `clusterrole`.
        kind: &'static str,
        /// The role's name.
        name: String,
    },
    /// It refers to something else than a role.
    #[error("unsupported role reference kind: {0:?}")]
    Kind(String),
}

/// Decides by roles and bindings.
pub struct Rbac {
    lookup: Arc<dyn Lookup>,
    changes: [watch::Receiver<u64>; 4],
    compiled: ArcSwap<Compiled>,
    compiling: Mutex<()>,
}

struct Compiled {
    at: [u64; 4],
    index: Index,
}

/// Bindings by the subject they name.
#[derive(Default)]
struct Index {
    cluster: Subjects,
    namespaces: BTreeMap<String, Subjects>,
}

#[derive(Default)]
struct Subjects {
    users: BTreeMap<String, Vec<Arc<Grant>>>,
    groups: BTreeMap<String, Vec<Arc<Grant>>>,
}

/// One subject of one binding.
struct Grant {
    /// Position among all bindings of the scope: the first that allows gives the reason.
    order: usize,
    /// `ClusterRoleBinding "x" of ClusterRole "y" to User "z"`.
    text: String,
    rules: Result<Arc<[Rule]>, RoleRefError>,
}

impl Rbac {
    /// Reads roles and bindings through `lookup`.
    pub fn new(lookup: Arc<dyn Lookup>) -> Rbac {
        let changes = ["roles", "rolebindings", "clusterroles", "clusterrolebindings"]
            .map(|resource| lookup.changed(GroupResource { group: GROUP, resource }));
        let compiled = ArcSwap::from_pointee(Compiled { at: [u64::MAX; 4], index: Index::default() });
        Rbac { lookup, changes, compiled, compiling: Mutex::new(()) }
    }

    /// Every rule that holds for `user` in `namespace` (empty: cluster scope), and what could not be resolved.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<RoleRefError>) {
        let compiled = self.current();
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for grant in compiled.index.grants(user, namespace) {
            match &grant.rules {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(missing) => errors.push(missing.clone()),
            }
        }
        (rules, errors)
    }

    /// Rules of the role that a binding in `namespace` refers to.
    pub fn rules_of_ref(&self, role_ref: &Value, namespace: &str) -> Result<Vec<Rule>, RoleRefError> {
        resolve(self.lookup.as_ref(), role_ref, namespace).map(|role| rules_of(&role))
    }

    fn current(&self) -> Arc<Compiled> {
        let now = || self.changes.each_ref().map(|rx| *rx.borrow());
        let compiled = self.compiled.load_full();
        if compiled.at == now() {
            return compiled;
        }
        let _one_at_a_time = self.compiling.lock();
        // The counters are read before the objects: a change in between is seen by the next request at the latest.
        let at = now();
        let compiled = self.compiled.load_full();
        if compiled.at == at {
            return compiled;
        }
        let fresh = Arc::new(Compiled { at, index: Index::compile(self.lookup.as_ref()) });
        self.compiled.store(fresh.clone());
        fresh
    }
}

#[async_trait]
impl Authorizer for Rbac {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let compiled = self.current();
        let mut missing: Vec<&RoleRefError> = Vec::new();
        for grant in compiled.index.grants(&a.user, &a.namespace) {
            match &grant.rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(a)) => {
                    return Decision::Allow { reason: format!("RBAC: allowed by {}", grant.text) };
                }
                Ok(_) => {}
                Err(role) if missing.contains(&role) => {}
                Err(role) => missing.push(role),
            }
        }
        let reason = match missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", listed(many.iter().copied())),
        };
        Decision::NoOpinion { reason }
    }
}

impl Index {
    fn compile(lookup: &dyn Lookup) -> Index {
        let mut index = Index::default();
        for (order, binding) in
            lookup.list(GroupResource { group: GROUP, resource: "clusterrolebindings" }, None).iter().enumerate()
        {
            index.cluster.add(lookup, binding, "", order);
        }
        for (order, binding) in
            lookup.list(GroupResource { group: GROUP, resource: "rolebindings" }, None).iter().enumerate()
        {
            let namespace = meta::namespace(binding);
            index.namespaces.entry(namespace.to_owned()).or_default().add(lookup, binding, namespace, order);
        }
        index
    }

    /// Grants of a user: cluster-wide ones first, then those of the namespace.
    fn grants(&self, user: &UserInfo, namespace: &str) -> Vec<&Grant> {
        let mut grants = self.cluster.grants(user);
        if let Some(subjects) = self.namespaces.get(namespace).filter(|_| !namespace.is_empty()) {
            grants.extend(subjects.grants(user));
        }
        grants
    }
}

impl Subjects {
    fn add(&mut self, lookup: &dyn Lookup, binding: &Value, namespace: &str, order: usize) {
        let role_ref = &binding["roleRef"];
        let rules = resolve(lookup, role_ref, namespace).map(|role| Arc::from(rules_of(&role)));
        let (kind, name) = if namespace.is_empty() {
            ("ClusterRoleBinding", meta::name(binding).to_owned())
        } else {
            ("RoleBinding", format!("{}/{namespace}", meta::name(binding)))
        };
        let text = |field: &str| role_ref[field].as_str().unwrap_or_default();
        let head = format!("{kind} {name:?} of {} {:?} to", text("kind"), text("name"));
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            let who = subject["name"].as_str().unwrap_or_default();
            let grant = |described: String| {
                Arc::new(Grant { order, text: format!("{head} {described}"), rules: rules.clone() })
            };
            match subject["kind"].as_str() {
                Some("User") => self.users.entry(who.to_owned()).or_default().push(grant(format!("User {who:?}"))),
                Some("Group") => self.groups.entry(who.to_owned()).or_default().push(grant(format!("Group {who:?}"))),
                Some("ServiceAccount") => {
                    let of = subject["namespace"].as_str().filter(|ns| !ns.is_empty()).unwrap_or(namespace);
                    let user = format!("system:serviceaccount:{of}:{who}");
                    self.users.entry(user).or_default().push(grant(format!("ServiceAccount \"{who}/{of}\"")));
                }
                _ => {}
            }
        }
    }

    fn grants(&self, user: &UserInfo) -> Vec<&Grant> {
        let by_user = self.users.get(&user.name).into_iter().flatten();
        let by_group = user.groups.iter().filter_map(|group| self.groups.get(group)).flatten();
        let mut grants: Vec<&Grant> = by_user.chain(by_group).map(Arc::as_ref).collect();
        grants.sort_by_key(|grant| grant.order);
        grants
    }
}

/// Several errors in one text.
pub fn listed<'a>(errors: impl IntoIterator<Item = &'a RoleRefError>) -> String {
    errors.into_iter().map(RoleRefError::to_string).collect::<Vec<_>>().join(", ")
}

/// The role that `role_ref` names.
fn resolve(lookup: &dyn Lookup, role_ref: &Value, namespace: &str) -> Result<Arc<Value>, RoleRefError> {
    let name = role_ref["name"].as_str().unwrap_or_default();
    let found = match role_ref["kind"].as_str() {
        Some("ClusterRole") => lookup
            .get(GroupResource { group: GROUP, resource: "clusterroles" }, NamespacedName::cluster(name))
            .ok_or("clusterrole"),
        Some("Role") => lookup
            .get(GroupResource { group: GROUP, resource: "roles" }, NamespacedName { namespace, name })
            .ok_or("role"),
        other => return Err(RoleRefError::Kind(other.unwrap_or_default().to_owned())),
    };
    found.map_err(|kind| RoleRefError::NotFound { kind, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bootstrap;
    use registry::memory::Objects;

    fn asks(user: UserInfo, verb: &str, resource: &str, namespace: &str) -> Attributes {
        let (resource, namespace) = (resource.to_owned(), namespace.to_owned());
        Attributes {
            user: user.into(),
            verb: verb.into(),
            resource,
            namespace,
            is_resource: true,
            ..Attributes::default()
        }
    }

    fn binding(role: &str, subject: Value) -> Value {
        json!({"metadata": {"name": "b", "namespace": "default"}, "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [subject]})
    }

    #[tokio::test]
    async fn the_scheduler_may_bind_and_the_reason_names_the_binding() {
        let stored = Objects::of(bootstrap::objects());
        let rbac = Rbac::new(Arc::new(stored));
        let mut a = asks(UserInfo::new("system:kube-scheduler", &[]), "create", "pods", "default");
        a.subresource = "binding".into();
        let reason = "RBAC: allowed by ClusterRoleBinding \"system:kube-scheduler\" of ClusterRole \
                      \"system:kube-scheduler\" to User \"system:kube-scheduler\"";
        assert_eq!(rbac.authorize(&a).await, Decision::Allow { reason: reason.to_owned() });
        a.user = UserInfo::new("bob", &[]).into();
        assert_eq!(rbac.authorize(&a).await, Decision::NoOpinion { reason: String::new() });
    }

    #[tokio::test]
    async fn a_binding_in_a_namespace_reaches_no_further() {
        let mut stored = Objects::default();
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        stored.put(
            GroupResource { group: GROUP, resource: "clusterroles" },
            json!({"metadata": {"name": "r"}, "rules": rules}),
        );
        stored.put(
            GroupResource { group: GROUP, resource: "rolebindings" },
            binding("r", json!({"kind": "ServiceAccount", "name": "web"})),
        );
        let rbac = Rbac::new(Arc::new(stored));
        let user = UserInfo::new("system:serviceaccount:default:web", &[]);
        let allowed = rbac.authorize(&asks(user.clone(), "get", "pods", "default")).await;
        let reason = r#"RBAC: allowed by RoleBinding "b/default" of ClusterRole "r" to ServiceAccount "web/default""#;
        assert_eq!(allowed, Decision::Allow { reason: reason.to_owned() });
        for elsewhere in ["other", ""] {
            assert!(matches!(
                rbac.authorize(&asks(user.clone(), "get", "pods", elsewhere)).await,
                Decision::NoOpinion { .. }
            ));
        }
    }

    #[tokio::test]
    async fn a_missing_role_is_named() {
        let stored = Objects::of([(GROUP, "rolebindings", binding("gone", json!({"kind": "User", "name": "bob"})))]);
        let rbac = Rbac::new(Arc::new(stored));
        let decision = rbac.authorize(&asks(UserInfo::new("bob", &[]), "get", "pods", "default")).await;
        let reason = r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#.to_owned();
        assert_eq!(decision, Decision::NoOpinion { reason });
    }
}
