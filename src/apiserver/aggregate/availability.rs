//! Whether those who answer for a group are there: the condition `Available` of each APIService, in upstream's words.

use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use registry::registrar::Registrar;
use registry::status::Status;
use registry::webhook::call::Target;
use registry::webhook::client::ready;
use registry::{forms, keys};
use serde_json::{Value, json};
use tracing::warn;

use super::aggregation::Aggregation;
use super::registry::ApiService;
use super::{GROUP, RESOURCE, local};
use crate::usage;

/// Every backend is asked again after this, as upstream.
const RECHECK: Duration = Duration::from_secs(30);
/// A backend that failed is asked again sooner.
const RECHECK_FAILED: Duration = Duration::from_secs(1);
/// It must answer within this.
const ANSWER: Duration = Duration::from_secs(5);
/// A burst of changes (endpoints of many services) is looked at together.
const GATHER: Duration = Duration::from_millis(200);
const TRIES: usize = 5;

/// Finding of a check: status, reason, message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    ok: bool,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn no(reason: &'static str, message: String) -> Finding {
        Finding { ok: false, reason, message }
    }
}

/// Looks after the APIServices of one server.
pub struct Watchdog {
    pub(crate) registrar: Arc<Registrar>,
    pub(crate) aggregation: Arc<Aggregation>,
    /// Whether this server answers for `metrics.k8s.io`.
    pub(crate) serve_usage: bool,
}

impl Watchdog {
    fn objects(&self) -> &Objects {
        &self.registrar.objects
    }
}

/// Starts the task that keeps the local APIServices and everybody's condition.
pub fn keep(watchdog: Watchdog, group: &Group) {
    group.spawn("apiservice-availability", async move {
        let cache = &watchdog.registrar.objects.cache;
        let watched = [
            (GROUP, RESOURCE),
            ("", "services"),
            ("discovery.k8s.io", "endpointslices"),
            ("apiextensions.k8s.io", "customresourcedefinitions"),
        ];
        let mut changes = Vec::new();
        for (group, resource) in watched {
            cache.load(GroupResource { group, resource }).await;
            changes.push(cache.changed(GroupResource { group, resource }));
        }
        loop {
            for change in &mut changes {
                change.mark_unchanged();
            }
            register(&watchdog).await;
            let failed = check_all(&watchdog).await;
            let some = futures_util::future::select_all(changes.iter_mut().map(|c| Box::pin(c.changed())));
            // Cancel safe: what has changed stays changed until the next round marks it.
            tokio::select! {
                _ = some => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(if failed { RECHECK_FAILED } else { RECHECK }) => {}
            }
        }
    });
}

/// Makes the APIServices of what this server answers itself and removes those of groups that are gone.
async fn register(watchdog: &Watchdog) {
    let mut wanted = local::wanted(&watchdog.objects().catalogs.now());
    if watchdog.serve_usage {
        wanted.push(local::api_service(usage::GROUP, usage::VERSION, usage::PRIORITY, "true"));
    }
    let existing = watchdog.objects().cache.list(GroupResource { group: GROUP, resource: RESOURCE }, None);
    let has = |name: &str| existing.iter().any(|o| meta::name(o) == name);
    let mut made: Vec<futures_util::future::BoxFuture<'_, Result<bool, Status>>> = Vec::new();
    for object in wanted.iter().filter(|o| !has(meta::name(o))) {
        let mut object = object.clone();
        object["status"]["conditions"] = json!([condition(watchdog, &local_finding())]);
        made.push(Box::pin(watchdog.registrar.ensure(object)));
    }
    for done in futures_util::future::join_all(made).await {
        if let Err(status) = done {
            warn!(why = %status, "cannot register an APIService");
        }
    }
    let gone =
        existing.iter().filter(|o| meta::labels(o).is_some_and(|l| l.get(local::MANAGED).is_some_and(|v| v == "true")));
    // Who gave such a group to a service of their own keeps it.
    for object in
        gone.filter(|o| !o["spec"]["service"].is_object() && !wanted.iter().any(|w| meta::name(w) == meta::name(o)))
    {
        let Some(row) = forms::stored(GroupResource { group: GROUP, resource: RESOURCE }) else { continue };
        let rv = meta::resource_version(object).parse().unwrap_or(0);
        if let Err(status) = watchdog.objects().remove(&row, NamespacedName::cluster(meta::name(object)), rv).await {
            warn!(why = %status, "cannot remove an APIService");
        }
    }
}

fn local_finding() -> Finding {
    Finding { ok: true, reason: "Local", message: "Local APIServices are always available".to_owned() }
}

fn condition(watchdog: &Watchdog, finding: &Finding) -> Value {
    let now = base::time::rfc3339_secs(watchdog.objects().clock.now());
    let status = if finding.ok { "True" } else { "False" };
    json!({ "type": "Available", "status": status, "reason": finding.reason, "message": finding.message,
        "lastTransitionTime": now })
}

/// Looks at everybody; true if somebody is not available.
async fn check_all(watchdog: &Watchdog) -> bool {
    let known = watchdog.aggregation.registry.now();
    let mut checks: Vec<futures_util::future::BoxFuture<'_, bool>> = Vec::new();
    for service in known.all.values() {
        checks.push(Box::pin(async move {
            let finding = check(watchdog, service).await;
            if let Err(status) = write_condition(watchdog, service, &finding).await {
                warn!(name = %service.name, why = %status, "cannot write the condition of an APIService");
            }
            !finding.ok
        }));
    }
    futures_util::future::join_all(checks).await.into_iter().any(|failed| failed)
}

async fn check(watchdog: &Watchdog, service: &ApiService) -> Finding {
    let Some(endpoint) = &service.service else { return local_finding() };
    let Target::Service { namespace, name, port } = &endpoint.target else { return local_finding() };
    let Some(object) =
        watchdog.objects().cache.get(GroupResource::core("services"), NamespacedName { namespace, name })
    else {
        return Finding::no("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    if object["spec"]["type"] == "ClusterIP" || object["spec"]["type"].is_null() {
        let ports = object["spec"]["ports"].as_array().into_iter().flatten();
        let Some(wanted) = ports.into_iter().find(|p| p["port"].as_u64() == Some(u64::from(*port))) else {
            return Finding::no(
                "ServicePortError",
                format!("service/{name} in {namespace:?} is not listening on port {port}"),
            );
        };
        let port_name = wanted["name"].as_str().unwrap_or_default();
        let slices = watchdog
            .objects()
            .cache
            .list(GroupResource { group: "discovery.k8s.io", resource: "endpointslices" }, Some(namespace));
        let mine: Vec<_> =
            slices.iter().filter(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == name.as_str()).collect();
        if mine.is_empty() {
            return Finding::no(
                "EndpointsNotFound",
                format!("cannot find endpointslices for service/{name} in {namespace:?}"),
            );
        }
        if mine.iter().all(|slice| ready(slice, port_name).is_empty()) {
            let message = format!(
                "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
            );
            return Finding::no("MissingEndpoints", message);
        }
    }
    let mut to = endpoint.clone();
    to.path = format!("/apis/{}/{}", service.group, service.version);
    let asked = watchdog.aggregation.caller.get(&to, service, ANSWER).await;
    let failed = |why: String| {
        Finding::no("FailedDiscoveryCheck", format!("failing or missing response from {}: {why}", to.url()))
    };
    match asked {
        Ok(answer) if answer.status().is_success() => {
            Finding { ok: true, reason: "Passed", message: "all checks passed".to_owned() }
        }
        Ok(answer) => failed(format!("bad status from {}: {}", to.url(), answer.status().as_u16())),
        Err(err) => failed(err.to_string().replacen("Post ", "Get ", 1)),
    }
}

async fn write_condition(watchdog: &Watchdog, service: &ApiService, finding: &Finding) -> Result<(), Status> {
    let row = forms::stored(GroupResource { group: GROUP, resource: RESOURCE }).ok_or_else(Status::no_such_resource)?;
    for _ in 0..TRIES {
        let Some(entry) = watchdog
            .objects()
            .cache
            .kind(GroupResource { group: GROUP, resource: RESOURCE })
            .get(&keys::local(NamespacedName::cluster(&service.name)))
        else {
            return Ok(());
        };
        let mut object = entry.value();
        let mut wanted = condition(watchdog, finding);
        let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        match conditions.iter_mut().find(|c| c["type"] == "Available") {
            Some(have) => {
                if have["status"] == wanted["status"] {
                    wanted["lastTransitionTime"] = have["lastTransitionTime"].clone();
                }
                if *have == wanted {
                    return Ok(());
                }
                *have = wanted;
            }
            None => conditions.push(wanted),
        }
        object["status"]["conditions"] = Value::Array(conditions);
        if watchdog.objects().put(&row, NamespacedName::cluster(&service.name), &mut object, entry.rv).await?.is_some()
        {
            return Ok(());
        }
        // Somebody was faster: the cache will show it.
        if watchdog.objects().read(&row, NamespacedName::cluster(&service.name)).await?.is_none() {
            return Ok(());
        }
    }
    Ok(())
}
