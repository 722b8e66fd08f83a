//! Objects that every cluster has from its first second, and that are kept as they should be: system namespaces, the
//! `kubernetes` service and its endpoints, default roles, the CAs for extension servers; and the end of old events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use authz::{aggregate, bootstrap};
use base::task::Group;
use jiff::Timestamp;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use registry::registrar::Registrar;
use registry::services;
use registry::services::upgrade::FamilyError;
use registry::status::Status;
use schema::behaviour::Lifetime;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::config::Config;
use crate::flow;

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
/// Between two looks for events that are too old.
const SWEEP_PERIOD: Duration = Duration::from_secs(600);
/// Lost races are run again this often.
const TRIES: usize = 8;

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The store cannot be read or written.
    #[error("cannot use the store")]
    Store(#[from] store::error::Error),
    /// An object every cluster has cannot be made.
    #[error("cannot create {what}: {why}")]
    Bootstrap {
        /// Which.
        what: String,
        /// Why not.
        why: String,
    },
}

/// Makes what is missing.
///
/// Errors: the store fails, or a row of ours does not pass its own table.
pub async fn run(registrar: &Registrar, config: &Config) -> Result<(), BuildError> {
    let ensure = |what: String, object: Value| async move {
        registrar.ensure(object).await.map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })
    };
    for name in NAMESPACES {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name,
                "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
        });
        ensure(format!("namespace {name}"), object).await?;
    }
    let missing =
        |err: FamilyError| BuildError::Bootstrap { what: "ServiceCIDR kubernetes".to_owned(), why: err.to_string() };
    services::upgrade::check(&registrar.allocator).await.map_err(missing)?;
    for object in own_service(config) {
        let what = format!("{} {}", meta::kind(&object), meta::name(&object));
        registrar
            .reconcile(object)
            .await
            .map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })?;
    }
    let data = json!({
        "client-ca-file": config.client_ca_pem,
        "requestheader-client-ca-file": config.request_header_ca_pem,
        "requestheader-allowed-names": "[\"system:auth-proxy\"]",
        "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        "requestheader-group-headers": "[\"X-Remote-Group\"]",
        "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
    });
    let authentication = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": "extension-apiserver-authentication", "namespace": "kube-system" },
    });
    let what = "configmap extension-apiserver-authentication".to_owned();
    registrar
        .reconcile(authentication)
        .await
        .map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })?;
    let since = "configmap of the tracking of old tokens";
    authn::legacy::track(registrar)
        .await
        .map_err(|status| BuildError::Bootstrap { what: since.to_owned(), why: status.message.clone() })?;
    flow_control(registrar).await?;
    carry_out(registrar, bootstrap::plan(registrar.objects.cache.as_ref())).await;
    // Aggregation reads the roles, and so does whoever is authorised next: the cache may be behind what was just
    // written.
    registrar.objects.cache.wait_for_now().await.map_err(unreadable)?;
    // Roles gather from roles that gather: admin from edit, edit from view. A few rounds, and nothing is left to do.
    for _ in 0..TRIES {
        let plan = aggregate::plan(registrar.objects.cache.as_ref());
        if plan.is_empty() {
            break;
        }
        carry_out(registrar, plan).await;
        registrar.objects.cache.wait_for_now().await.map_err(unreadable)?;
    }
    Ok(())
}

fn unreadable(err: store::error::Error) -> BuildError {
    BuildError::Bootstrap { what: "the roles".to_owned(), why: err.to_string() }
}

/// The levels and schemas of flow control that every cluster has.
async fn flow_control(registrar: &Registrar) -> Result<(), BuildError> {
    let now = base::time::rfc3339_secs(registrar.objects.clock.now());
    let mut writes: Vec<futures_util::future::BoxFuture<'_, Result<bool, Status>>> = Vec::new();
    for mut object in flow::defaults::objects() {
        let level = object["spec"]["priorityLevelConfiguration"]["name"].as_str().map(str::to_owned);
        if let Some(level) = level {
            let message = format!(
                "This FlowSchema references the PriorityLevelConfiguration object named {level:?} and it exists"
            );
            object["status"] = json!({ "conditions": [
                { "type": "Dangling", "status": "False", "reason": "Found", "message": message,
                    "lastTransitionTime": now },
            ] });
        }
        let mandatory = flow::defaults::is_mandatory(meta::name(&object));
        writes.push(if mandatory { Box::pin(registrar.reconcile(object)) } else { Box::pin(registrar.ensure(object)) });
    }
    let failed = futures_util::future::join_all(writes).await.into_iter().find_map(Result::err);
    let what = || "the defaults of flow control".to_owned();
    failed.map_or(Ok(()), |status| Err(BuildError::Bootstrap { what: what(), why: status.message.clone() }))
}

/// Writes what a plan wants; a failure is logged, for the next start or change tries again.
async fn carry_out(registrar: &Registrar, plan: Vec<bootstrap::Write>) {
    for step in plan {
        let name = meta::name(&step.object).to_owned();
        let done =
            if step.exists { registrar.reconcile(step.object).await } else { registrar.ensure(step.object).await };
        if let Err(status) = done {
            warn!(resource = step.resource, name, why = %status, "cannot write a default object");
        }
    }
}

/// The service `kubernetes`; its endpoints are kept by `endpoints`.
fn own_service(config: &Config) -> Vec<Value> {
    let Some(first) = config.service_cidrs.first().map(|cidr| services::nth_address(cidr, 1)) else {
        return Vec::new();
    };
    let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let cidrs: Vec<String> = config.service_cidrs.iter().map(ToString::to_string).collect();
    vec![
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
            "spec": { "cidrs": cidrs },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kubernetes", "namespace": "default",
                "labels": labels },
            "spec": {
                "type": "ClusterIP", "clusterIP": first.to_string(), "clusterIPs": [first.to_string()],
                "ipFamilies": [family(&first)], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
                "internalTrafficPolicy": "Cluster",
                "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": config.advertise_port }],
            },
            "status": { "loadBalancer": {} },
        }),
    ]
}

/// Starts the tasks that remove old events, which live for `event_ttl`, and keep gathered roles.
pub fn keep(registrar: &Arc<Registrar>, event_ttl: Duration, group: &Group) {
    let objects = Arc::clone(&registrar.objects);
    group.spawn("event-sweeper", async move {
        loop {
            tokio::time::sleep(SWEEP_PERIOD).await;
            if let Err(status) = sweep(&objects, event_ttl).await {
                warn!(why = %status, "cannot remove old events");
            }
        }
    });
    let aggregator = Arc::clone(registrar);
    group.spawn("role-aggregation", async move {
        let cache = &aggregator.objects.cache;
        let mut changed = cache.changed(GroupResource { group: "rbac.authorization.k8s.io", resource: "clusterroles" });
        while changed.changed().await.is_ok() {
            carry_out(&aggregator, aggregate::plan(cache.as_ref())).await;
        }
    });
}

/// Removes objects that have outlived their resource's life (events).
async fn sweep(objects: &Objects, event_ttl: Duration) -> Result<(), Status> {
    let now = objects.clock.now();
    for resource in objects
        .catalogs
        .now()
        .resources()
        .iter()
        .filter(|r| r.version == r.storage_version && r.group == r.storage_group)
    {
        if resource.behaviour.deletion.lifetime == Lifetime::Forever {
            continue;
        }
        let lives = i64::try_from(event_ttl.as_secs()).unwrap_or(i64::MAX);
        let prefix = registry::keys::prefix(resource.group_resource());
        let (kvs, _) = objects.cache.read_all(&prefix, None).await?;
        let mut removed = 0;
        for kv in &kvs {
            let Ok(object) = serde_json::from_slice::<Value>(&kv.value) else { continue };
            if last_touched(&object).is_some_and(|at| now.as_second() - at.as_second() > lives) {
                let (namespace, name) = (meta::namespace(&object), meta::name(&object));
                removed += usize::from(
                    objects.remove(resource, NamespacedName { namespace, name }, kv.mod_revision.0).await?.is_some(),
                );
            }
        }
        if removed > 0 {
            info!(n = removed, resource = %resource.plural, "removed old objects");
        }
    }
    Ok(())
}

fn last_touched(object: &Value) -> Option<Timestamp> {
    let times = [
        &object["metadata"]["creationTimestamp"],
        &object["lastTimestamp"],
        &object["eventTime"],
        &object["series"]["lastObservedTime"],
    ];
    times.into_iter().filter_map(|t| t.as_str()?.parse().ok()).max()
}
