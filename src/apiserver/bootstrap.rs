//! What every cluster has from its first second, and what has to be kept as it should be: system namespaces, the
//! `kubernetes` service and its endpoints, default roles, the CAs for extension servers; and the end of old events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::authz::{aggregate, bootstrap};
use crate::lookup::Lookup as _;
use crate::serve::{ApiServer, BuildError};
use crate::status::Status;
use crate::verbs::{get, write};
use crate::{flow, hooks, kinds, services};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
/// Between two looks for events that are too old.
const SWEEP_PERIOD: Duration = Duration::from_secs(600);
/// Lost races are run again this often.
const TRIES: usize = 8;

/// Makes what is missing.
///
/// Errors: the store fails, or a row of ours does not pass its own table.
pub async fn run(server: &ApiServer) -> Result<(), BuildError> {
    let ensure = |what: String, object: Value| async move {
        server.ensure(object).await.map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })
    };
    for name in NAMESPACES {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
        });
        ensure(format!("namespace {name}"), object).await?;
    }
    services::upgrade::check(server).await?;
    for object in own_service(server) {
        let what = format!("{} {}", meta::kind(&object), meta::name(&object));
        server.reconcile(object).await.map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })?;
    }
    let data = json!({
        "client-ca-file": server.config.client_ca_pem,
        "requestheader-client-ca-file": server.config.request_header_ca_pem,
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
    server
        .reconcile(authentication)
        .await
        .map_err(|status| BuildError::Bootstrap { what, why: status.message.clone() })?;
    let since = "configmap of the tracking of old tokens";
    crate::authn::legacy::track(server)
        .await
        .map_err(|status| BuildError::Bootstrap { what: since.to_owned(), why: status.message.clone() })?;
    flow_control(server).await?;
    carry_out(server, bootstrap::plan(server.cache.as_ref())).await;
    // Aggregation reads the roles, and so does whoever is authorised next: the cache may be behind what was just
    // written.
    server.cache.wait_for_now().await.map_err(unreadable)?;
    // Roles gather from roles that gather: admin from edit, edit from view. A few rounds, and nothing is left to do.
    for _ in 0..TRIES {
        let plan = aggregate::plan(server.cache.as_ref());
        if plan.is_empty() {
            break;
        }
        carry_out(server, plan).await;
        server.cache.wait_for_now().await.map_err(unreadable)?;
    }
    Ok(())
}

fn unreadable(err: store::error::Error) -> BuildError {
    BuildError::Bootstrap { what: "the roles".to_owned(), why: err.to_string() }
}

/// The levels and schemas of flow control that every cluster has.
async fn flow_control(server: &ApiServer) -> Result<(), BuildError> {
    let now = base::time::rfc3339_secs(server.config.clock.now());
    let mut writes: Vec<futures_util::future::BoxFuture<'_, Result<bool, Status>>> = Vec::new();
    for mut object in flow::defaults::objects() {
        let level = object["spec"]["priorityLevelConfiguration"]["name"].as_str().map(str::to_owned);
        if let Some(level) = level {
            let message = format!(
                "This FlowSchema references the PriorityLevelConfiguration object named {level:?} and it exists"
            );
            object["status"] = json!({ "conditions": [
                { "type": "Dangling", "status": "False", "reason": "Found", "message": message, "lastTransitionTime": now },
            ] });
        }
        let mandatory = flow::defaults::is_mandatory(meta::name(&object));
        writes.push(if mandatory { Box::pin(server.reconcile(object)) } else { Box::pin(server.ensure(object)) });
    }
    let failed = futures_util::future::join_all(writes).await.into_iter().find_map(Result::err);
    let what = || "the defaults of flow control".to_owned();
    failed.map_or(Ok(()), |status| Err(BuildError::Bootstrap { what: what(), why: status.message.clone() }))
}

/// Writes what a plan wants; a failure is logged, for the next start or change tries again.
async fn carry_out(server: &ApiServer, plan: Vec<bootstrap::Write>) {
    for step in plan {
        let name = meta::name(&step.object).to_owned();
        let done = if step.exists { server.reconcile(step.object).await } else { server.ensure(step.object).await };
        if let Err(status) = done {
            warn!(resource = step.resource, name, why = %status, "cannot write a default object");
        }
    }
}

/// The service `kubernetes`; its endpoints are kept by `endpoints`.
fn own_service(server: &ApiServer) -> Vec<Value> {
    let config = &server.config;
    let Some(first) = config.service_cidrs.first().map(|cidr| services::nth_address(cidr, 1)) else {
        return Vec::new();
    };
    let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let cidrs: Vec<String> = config.service_cidrs.iter().map(ToString::to_string).collect();
    vec![
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" }, "spec": { "cidrs": cidrs },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kubernetes", "namespace": "default", "labels": labels },
            "spec": {
                "type": "ClusterIP", "clusterIP": first.to_string(), "clusterIPs": [first.to_string()],
                "ipFamilies": [family(&first)], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": config.advertise_port }],
            },
            "status": { "loadBalancer": {} },
        }),
    ]
}

impl ApiServer {
    /// Creates an object of this server's own if there is none of its name; true if it did. No admission.
    ///
    /// Errors: unknown kind, invalid object, the store.
    pub async fn ensure(&self, mut object: Value) -> Result<bool, Status> {
        let resource = self.row_of(&object)?;
        let (namespace, name) = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
        if get::read(self, &resource, &namespace, &name).await?.is_some() {
            return Ok(false);
        }
        write::stamp(self, &mut object);
        schema::defaults::apply(&self.catalogs.now(), &resource, &mut object);
        let turn = if hooks::of(&resource.group, &resource.plural).addresses { Some(self.turn().await?) } else { None };
        if turn.is_some() {
            services::on_create(self, &mut object)?;
        }
        kinds::verdict(&resource, &name, schema::validate::create(&resource, &object))?;
        Ok(write::put_beside(
            self,
            &resource,
            &namespace,
            &name,
            &mut object,
            0,
            write::Beside { turn: turn.as_ref(), ..write::Beside::default() },
        )
        .await?
        .is_some())
    }

    /// Makes the stored object have the labels and everything but metadata and status of `want`; creates it if it is
    /// missing. True if something was written. No admission.
    ///
    /// Errors: as [`ApiServer::ensure`].
    pub async fn reconcile(&self, want: Value) -> Result<bool, Status> {
        let resource = self.row_of(&want)?;
        let (namespace, name) = (meta::namespace(&want).to_owned(), meta::name(&want).to_owned());
        for _ in 0..TRIES {
            let Some(have) = get::read(self, &resource, &namespace, &name).await? else {
                return self.ensure(want).await;
            };
            let old = have.value();
            let mut new = old.clone();
            for (key, value) in
                want.as_object().into_iter().flatten().filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status"))
            {
                new[key] = value.clone();
            }
            for (key, value) in meta::labels(&want).into_iter().flatten() {
                meta::set_label(&mut new, key, value.as_str().unwrap_or_default());
            }
            schema::defaults::apply(&self.catalogs.now(), &resource, &mut new);
            if new == old {
                return Ok(false);
            }
            kinds::verdict(&resource, &name, schema::validate::create(&resource, &new))?;
            if write::put(self, &resource, &namespace, &name, &mut new, have.rv).await?.is_some() {
                return Ok(true);
            }
        }
        Err(Status::modified(&resource.group, &resource.plural, &name))
    }

    pub(crate) fn row_of(&self, object: &Value) -> Result<Arc<schema::table::Resource>, Status> {
        let catalog = self.catalogs.now();
        let row = catalog.by_api_version(meta::api_version(object), meta::kind(object));
        row.map(|r| Arc::clone(catalog.storage_of(r))).ok_or_else(Status::no_such_resource)
    }
}

/// Starts the tasks that keep things as they should be.
pub fn keep(server: &Arc<ApiServer>, group: &Group) {
    crate::aggregate::availability::keep(server, group);
    services::upgrade::start(server, group);
    crate::authn::legacy::keep(server, group);
    let sweeper = Arc::clone(server);
    group.spawn("event-sweeper", async move {
        loop {
            tokio::time::sleep(SWEEP_PERIOD).await;
            if let Err(status) = sweep(&sweeper).await {
                warn!(why = %status, "cannot remove old events");
            }
        }
    });
    let aggregator = Arc::clone(server);
    group.spawn("role-aggregation", async move {
        let mut changed = aggregator.cache.changed("rbac.authorization.k8s.io", "clusterroles");
        while changed.changed().await.is_ok() {
            carry_out(&aggregator, aggregate::plan(aggregator.cache.as_ref())).await;
        }
    });
}

/// Removes objects that have outlived their resource's life (events).
async fn sweep(server: &ApiServer) -> Result<(), Status> {
    let now = server.config.clock.now();
    for resource in server
        .catalogs
        .now()
        .resources()
        .iter()
        .filter(|r| r.version == r.storage_version && r.group == r.storage_group)
    {
        let lives = hooks::of(&resource.group, &resource.plural).lives_secs;
        if lives == 0 {
            continue;
        }
        let lives = i64::try_from(server.config.arguments.event_ttl.as_secs()).unwrap_or(lives);
        let prefix = crate::keys::prefix(&resource.group, &resource.plural);
        let (kvs, _) = server.cache.read_all(&prefix, None).await?;
        let mut removed = 0;
        for kv in &kvs {
            let Ok(object) = serde_json::from_slice::<Value>(&kv.value) else { continue };
            if last_touched(&object).is_some_and(|at| now.as_second() - at.as_second() > lives) {
                let (namespace, name) = (meta::namespace(&object), meta::name(&object));
                removed +=
                    usize::from(write::remove(server, resource, namespace, name, kv.mod_revision.0).await?.is_some());
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
