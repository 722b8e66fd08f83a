//! Which group and version is whose: the APIServices, read once and kept until one changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;
use model::meta;
use model::reference::GroupResource;
use registry::lookup::Lookup;
use registry::webhook::call::{Endpoint, Target};
use serde_json::Value;

use super::{GROUP, RESOURCE};

/// One APIService.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiService {
    /// `v1.apps`
    pub name: String,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// The service that answers, without a path; `None`: this server does.
    pub service: Option<Endpoint>,
    /// This server answers, but from no table of its own: from what others tell it ([`crate::usage`]).
    pub computed: bool,
    /// Its certificate is not looked at.
    pub insecure: bool,
    /// `groupPriorityMinimum` and `versionPriority`.
    pub priority: (i64, i64),
    /// Condition `Available`.
    pub available: bool,
    /// When that condition last changed, RFC 3339; empty: there is none.
    pub since: String,
}

impl ApiService {
    fn of(object: &Value, computed: Computed<'_>) -> ApiService {
        let spec = &object["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let condition = conditions.find(|c| c["type"] == "Available").unwrap_or(&Value::Null);
        let service = &spec["service"];
        let service = service.is_object().then(|| Endpoint {
            target: Target::Service {
                namespace: service["namespace"].as_str().unwrap_or_default().to_owned(),
                name: service["name"].as_str().unwrap_or_default().to_owned(),
                port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
            },
            path: "/".to_owned(),
            ca_pem: registry::webhook::call::ca_bundle(&spec["caBundle"]).unwrap_or_default(),
        });
        ApiService {
            computed: service.is_none()
                && computed.iter().any(|(group, version)| spec["group"] == *group && spec["version"] == *version),
            name: meta::name(object).to_owned(),
            group: text("group"),
            version: text("version"),
            service,
            insecure: spec["insecureSkipTLSVerify"].as_bool().unwrap_or(false),
            priority: (
                spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
                spec["versionPriority"].as_i64().unwrap_or(0),
            ),
            available: condition["status"] == "True",
            since: condition["lastTransitionTime"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// Groups and versions that this server computes.
type Computed<'a> = &'a [(&'static str, &'static str)];

/// All APIServices at one moment.
#[derive(Debug, Default)]
pub struct Known {
    /// Answered by others, or computed, by group and version.
    pub remote: BTreeMap<(String, String), Arc<ApiService>>,
    /// Everybody's, by group and version.
    pub all: BTreeMap<(String, String), Arc<ApiService>>,
}

impl Known {
    fn of(objects: &[Arc<Value>], computed: Computed<'_>) -> Known {
        let mut known = Known::default();
        for object in objects {
            let service = Arc::new(ApiService::of(object, computed));
            let key = (service.group.clone(), service.version.clone());
            if service.service.is_some() || service.computed {
                known.remote.insert(key.clone(), service.clone());
            }
            known.all.insert(key, service);
        }
        known
    }

    /// Versions of a group that others answer, best first.
    pub fn versions(&self, group: &str) -> Vec<Arc<ApiService>> {
        let mut versions: Vec<_> = self.remote.values().filter(|s| s.group == group).cloned().collect();
        versions.sort_by(|a, b| {
            b.priority.1.cmp(&a.priority.1).then_with(|| kube_version(&b.version).cmp(&kube_version(&a.version)))
        });
        versions
    }

    /// Groups that others answer, best first.
    pub fn groups(&self) -> Vec<String> {
        let mut groups: BTreeMap<&str, i64> = BTreeMap::new();
        for service in self.remote.values() {
            let priority = groups.entry(&service.group).or_default();
            *priority = service.priority.0.max(*priority);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        groups.into_iter().map(|(group, _)| group.to_owned()).collect()
    }
}

/// Orders `v2` over `v1`, both over `v1beta1`, that over `v1alpha1`, and all over what is no version of that form.
fn kube_version(text: &str) -> (u8, u32, u32) {
    let Some(rest) = text.strip_prefix('v') else { return (0, 0, 0) };
    let (major, stage) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let Ok(major) = major.parse() else { return (0, 0, 0) };
    if stage.is_empty() {
        return (3, major, 0);
    }
    let level = |prefix: &str| stage.strip_prefix(prefix).and_then(|n| n.parse::<u32>().ok());
    match (level("beta"), level("alpha")) {
        (Some(n), _) => (2, major, n),
        (_, Some(n)) => (1, major, n),
        _ => (0, 0, 0),
    }
}

/// Keeps [`Known`] until an APIService changes.
pub struct Registry {
    lookup: Arc<dyn Lookup>,
    computed: Vec<(&'static str, &'static str)>,
    known: Mutex<(u64, Arc<Known>)>,
}

impl Registry {
    /// Reads APIServices through `lookup`; this server computes the groups and versions `computed` if no service is
    /// named for them.
    pub fn new(lookup: Arc<dyn Lookup>, computed: Vec<(&'static str, &'static str)>) -> Registry {
        Registry { lookup, computed, known: Mutex::new((u64::MAX, Arc::default())) }
    }

    /// As it stands now.
    pub fn now(&self) -> Arc<Known> {
        let at = *self.lookup.changed(GroupResource { group: GROUP, resource: RESOURCE }).borrow();
        let mut known = self.known.lock();
        if known.0 != at {
            *known = (
                at,
                Arc::new(Known::of(
                    &self.lookup.list(GroupResource { group: GROUP, resource: RESOURCE }, None),
                    &self.computed,
                )),
            );
        }
        known.1.clone()
    }

    /// The APIService of a path below `/apis`, if it is not this server's.
    pub fn backend(&self, path: &str) -> Option<Arc<ApiService>> {
        let rest = path.strip_prefix("/apis/")?;
        let mut parts = rest.splitn(3, '/');
        let (group, version) = (parts.next()?, parts.next().filter(|v| !v.is_empty())?);
        let known = self.now();
        if known.remote.is_empty() {
            return None;
        }
        known.remote.get(&(group.to_owned(), version.to_owned())).cloned()
    }
}

#[cfg(test)]
impl ApiService {
    /// `v1.g`, available since then; empty: it is not.
    pub(super) fn since(since: &str) -> ApiService {
        ApiService {
            name: "v1.g".into(),
            group: "g".into(),
            version: "v1".into(),
            service: None,
            computed: false,
            insecure: false,
            priority: (1, 1),
            available: !since.is_empty(),
            since: since.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::memory::Objects;
    use serde_json::json;

    fn service(group: &str, version: &str, remote: bool, priority: i64) -> Value {
        let mut object = json!({ "metadata": { "name": format!("{version}.{group}") }, "spec": { "group": group,
            "version": version, "groupPriorityMinimum": 100, "versionPriority": priority } });
        if remote {
            object["spec"]["service"] = json!({ "namespace": "n", "name": "s" });
        }
        object
    }

    #[test]
    fn only_what_a_service_answers_is_passed_on() {
        let list = [service("a.example", "v1", true, 10), service("apps", "v1", false, 10)];
        let registry = Registry::new(Arc::new(Objects::of(list.map(|o| (GROUP, RESOURCE, o)))), Vec::new());
        assert_eq!(registry.backend("/apis/a.example/v1/things").unwrap().name, "v1.a.example");
        for path in ["/apis/apps/v1/deployments", "/apis/a.example", "/apis/a.example/v2", "/api/v1/pods"] {
            assert!(registry.backend(path).is_none(), "{path}");
        }
    }

    #[test]
    fn a_computed_group_is_a_services_as_soon_as_one_is_named() {
        let backend = |remote| {
            let objects = Objects::of([(GROUP, RESOURCE, service("m", "v1", remote, 1))]);
            Registry::new(Arc::new(objects), vec![("m", "v1")])
                .backend("/apis/m/v1/pods")
                .map(|s| (s.computed, s.service.is_some()))
        };
        assert_eq!([backend(false), backend(true)], [Some((true, false)), Some((false, true))]);
    }

    #[test]
    fn it_is_known_since_when_a_service_is_available() {
        let condition = json!({ "type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        for (conditions, wanted) in
            [(json!([{ "type": "Else" }, condition]), (true, "2026-01-01T00:00:00Z")), (json!(null), (false, ""))]
        {
            let mut object = service("g", "v1", true, 1);
            object["status"]["conditions"] = conditions;
            let it = ApiService::of(&object, &[]);
            assert_eq!((it.available, it.since.as_str()), wanted);
        }
    }

    #[test]
    fn the_higher_priority_and_then_the_more_stable_version_comes_first() {
        let list =
            [service("g", "v1beta1", true, 10), service("g", "v1", true, 10), service("g", "v1alpha1", true, 20)];
        let known = Registry::new(Arc::new(Objects::of(list.map(|o| (GROUP, RESOURCE, o)))), Vec::new()).now();
        let versions: Vec<_> = known.versions("g").iter().map(|s| s.version.clone()).collect();
        assert_eq!(versions, ["v1alpha1", "v1", "v1beta1"]);
    }
}
