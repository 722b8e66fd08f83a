//! The Node object: registered once, its status kept true, its lease renewed. A cordon or a label set by a person is
//! never touched.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::task::Group;
use base::time::Clock;
use client::informer::Change;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node as ApiNode, NodeAddress, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use tracing::{info, warn};

use crate::conditions::{self, is_true};
use crate::config::Config;
use crate::events::{Kind, Recorder};
use crate::images;
use crate::node::Node;
use crate::node_labels::{arch, labels};
use crate::node_object::NodeObject;
use crate::runtime::Runtime;
use crate::settings::Cloud;

const LEASE_NS: &str = "kube-node-lease";
/// Until the node is ready, so that it is ready soon after its network is: the first and the longest pause.
const UNREADY_PERIOD: (Duration, Duration) = (Duration::from_millis(40), Duration::from_secs(1));
/// The place that the node's runtime comes from, for `kedge status`.
const RUNTIME_FROM: &str = "kedge.io/runtime-from";
/// Upstream's taint of a node that its cloud has not completed yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Upstream's annotation for the cloud: the address that the operator gave.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// The Kubernetes version that this node speaks.
pub(crate) const VERSION: &str = base::version::GIT_VERSION;

/// Starts registration and the two loops after it.
pub(crate) fn start(node: Arc<Node>, group: &Group) {
    let group = group.clone();
    group.clone().spawn("node", async move {
        register(&node).await;
        node.events.node(&node.config.node_name, Kind::Normal, "Starting", "Starting kubelet.");
        let leased = Arc::clone(&node);
        group.spawn("lease", async move { keep_lease(&leased).await });
        keep_status(&node).await;
    });
}

async fn register(node: &Node) {
    let api: Api<ApiNode> = Api::all(node.client.clone());
    let name = &node.config.node_name;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    let settings = &node.config.settings;
    let mut taints = node.config.taints.clone();
    let told = BTreeMap::from([(RUNTIME_FROM.to_owned(), node.config.runtime_from.clone())]);
    let mut annotations = told.clone();
    if settings.cloud == Cloud::External {
        let (value, effect) = (Some("true".to_owned()), "NoSchedule".to_owned());
        taints.push(Taint { key: UNINITIALIZED.to_owned(), value, effect, time_added: None });
        annotations.insert(PROVIDED_IP.to_owned(), node.config.internal_ips().join(","));
    }
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        labels: Some(labels(&node.config)),
        annotations: Some(annotations),
        ..Default::default()
    };
    let fresh = ApiNode {
        metadata,
        spec: Some(NodeSpec {
            taints: Some(taints).filter(|t| !t.is_empty()),
            provider_id: Some(settings.provider_id.clone()).filter(|id| !id.is_empty()),
            ..Default::default()
        }),
        status: Some(status(node, &NodeStatus::default()).await),
    };
    loop {
        let made = match api.create(&PostParams::default(), &fresh).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                // It exists: only the labels that are ours by right are brought up to date.
                let own = labels(&Config { labels: BTreeMap::new(), ..node.config.clone() });
                api.patch(
                    name,
                    &PatchParams::default(),
                    &Patch::Merge(serde_json::json!({"metadata": {"labels": own, "annotations": told}})),
                )
                .await
            }
            other => other,
        };
        match made {
            Ok(object) => {
                info!(node = %name, "node registered");
                node.own.note_registered(object);
                return;
            }
            Err(err) => {
                warn!(node = %name, err = %Chain(&err), "cannot register the node");
                tokio::time::sleep(backoff.next(&node.rng)).await;
            }
        }
    }
}

async fn keep_status(node: &Node) {
    let api: Api<ApiNode> = Api::all(node.client.clone());
    let mut before = NodeStatus::default();
    let mut written_at: Option<Timestamp> = None;
    let mut version = None;
    let (mut changes, mut node_ips) = (node.own.changes(), node.config.node_ips.clone());
    let mut unready = Backoff::new(UNREADY_PERIOD.0, UNREADY_PERIOD.1);
    let mut uses = node.csi.uses();
    let mut devices = node.devices.changes();
    loop {
        let now = node.clock.now();
        let next = status(node, &before).await;
        let report_secs = i64::try_from(node.config.settings.report_period.as_secs()).unwrap_or(i64::MAX);
        let due = written_at.is_none_or(|at| now.duration_since(at).as_secs() >= report_secs);
        let foreign = node
            .own
            .object()
            .is_some_and(|shown| version_of(&shown) > version && is_overwritten(shown.status.as_ref(), &before));
        if due || foreign || without_heartbeats(&next) != without_heartbeats(&before) {
            tell_transitions(&node.events, &node.config.node_name, &before, &next);
            let mut change = serde_json::json!({"status": next});
            // Addresses merge by their type: of two internal ones, one would come out twice
            // (https://issue.k8s.io/79391).
            if let Some(addresses) = change["status"]["addresses"].as_array_mut() {
                addresses.insert(0, serde_json::json!({"$patch": "replace"}));
            }
            match api.patch_status(&node.config.node_name, &PatchParams::default(), &Patch::Strategic(change)).await {
                Ok(object) => {
                    before = next;
                    version = version_of(&object);
                    written_at = Some(now);
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => register(node).await,
                Err(err) => warn!(err = %Chain(&err), "cannot write the node's status"),
            }
        }
        let pause = if is_true(&before, "Ready") {
            unready.reset();
            node.config.settings.status_period
        } else {
            unready.next(&node.rng)
        };
        // A resource that somebody advertises on the Node must become allocatable at once.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = foreign_change(&mut changes) => {}
            // An end means that the process ends.
            Ok(()) = node_ips.changed() => {}
            // A volume is attached, and mounted, only after it was told to be in use.
            Ok(()) = uses.changed() => {}
            Ok(()) = devices.changed() => {}
        }
    }
}

/// Waits for a change of the Node's capacity.
async fn foreign_change(changes: &mut client::informer::Changes<ApiNode>) {
    loop {
        if let Change::Modified { old, new } = changes.next().await
            && old.status.as_ref().map(|s| &s.capacity) != new.status.as_ref().map(|s| &s.capacity)
        {
            return;
        }
    }
}

/// Resource versions of one kind are numbers that can be compared (KEP-5504).
fn version_of(object: &ApiNode) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

/// Whether somebody wrote over what the kubelet said: the node controller writes `Unknown` for a node that fell silent,
/// and other people's words must not stand until the next report.
fn is_overwritten(shown: Option<&NodeStatus>, said: &NodeStatus) -> bool {
    let state = |status: &NodeStatus, kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone())
    };
    let Some(shown) = shown else { return said.conditions.is_some() };
    said.conditions.iter().flatten().any(|c| state(shown, &c.type_).as_ref() != Some(&c.status))
}

fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    status.conditions.iter_mut().flatten().for_each(|c| c.last_heartbeat_time = None);
    status
}

fn tell_transitions(events: &Recorder, name: &str, before: &NodeStatus, next: &NodeStatus) {
    for (kind, on, off) in [
        ("Ready", "NodeReady", "NodeNotReady"),
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
    ] {
        let first = before.conditions.is_none();
        if first || is_true(before, kind) != is_true(next, kind) {
            let reason = if is_true(next, kind) { on } else { off };
            if !(first && reason == "NodeNotReady") {
                events.node(name, Kind::Normal, reason, format!("Node {name} status is now: {reason}"));
            }
        }
    }
}

/// Features that the API server would not let be asked of an older kubelet: `worker/resize.rs` resizes pods as a
/// whole, and init containers that end.
const DECLARED: [&str; 2] = ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"];

async fn status(node: &Node, before: &NodeStatus) -> NodeStatus {
    let capacity = quantities(node.capacity().all());
    let mut allocatable = quantities(node.capacity().allocatable());
    // As whoever advertises them wrote them.
    let object = node.own.object();
    let advertised = object.iter().flat_map(|n| n.status.iter()).flat_map(|s| s.capacity.iter().flatten());
    let foreign = node.capacity().extended();
    allocatable
        .extend(advertised.filter(|(name, _)| foreign.contains_key(*name)).map(|(name, q)| (name.clone(), q.clone())));
    let image =
        |(names, size): (Vec<String>, u64)| ContainerImage { names: Some(names), size_bytes: i64::try_from(size).ok() };
    let images_max = usize::try_from(node.config.settings.status_images_max).unwrap_or(usize::MAX);
    let images = match images::to_list(&node.pulls, &node.runtime, images_max).await {
        Some(Ok(images)) => Some(images.into_iter().map(image).collect()),
        // Nothing new; or they are still there when the runtime is back.
        None | Some(Err(_)) => before.images.clone(),
    };
    let in_use = node.csi.volumes_in_use();
    NodeStatus {
        // Told to be none once there were some.
        volumes_in_use: Some(in_use).filter(|all| !all.is_empty() || had_volumes(&node.own, before)),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        addresses: Some(addresses(&node.config)),
        conditions: Some(conditions::conditions(&node.runtime, &node.signals, before, node.clock.now()).await),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(node.config.port) }),
        }),
        images,
        node_info: Some(system_info(&node.runtime)),
        features: Some(NodeFeatures {
            supplemental_groups_policy: Some(node.runtime.features.supplemental_groups_policy),
        }),
        runtime_handlers: Some(handlers(&node.runtime)).filter(|h| !h.is_empty()),
        declared_features: Some(DECLARED.iter().map(|feature| (*feature).to_owned()).collect()),
        ..Default::default()
    }
}

/// Whether the Node shows volumes, or we have told of some.
fn had_volumes(own: &NodeObject, before: &NodeStatus) -> bool {
    let shown = own.object().is_some_and(|n| n.status.as_ref().is_some_and(|s| s.volumes_in_use.is_some()));
    shown || before.volumes_in_use.is_some()
}

fn handlers(runtime: &Runtime) -> Vec<NodeRuntimeHandler> {
    let one = |h: &k8s_cri::v1::RuntimeHandler| NodeRuntimeHandler {
        name: Some(h.name.clone()),
        features: h.features.map(|f| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(f.recursive_read_only_mounts),
            user_namespaces: Some(f.user_namespaces),
        }),
    };
    runtime.handlers.iter().map(one).collect()
}

/// As upstream writes them: memory in Ki, CPU whole where it is.
fn quantities(amounts: BTreeMap<String, i64>) -> BTreeMap<String, Quantity> {
    let text = |name: &str, value: i64| match name {
        "cpu" if value % 1000 == 0 => (value / 1000).to_string(),
        "cpu" => format!("{value}m"),
        "memory" | "ephemeral-storage" if value % 1024 == 0 => format!("{}Ki", value / 1024),
        _ => value.to_string(),
    };
    amounts.into_iter().map(|(name, value)| (name.clone(), Quantity(text(&name, value)))).collect()
}

fn addresses(config: &Config) -> Vec<NodeAddress> {
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    let internal = config.internal_ips().into_iter().map(|ip| address("InternalIP", ip));
    let external = config.node_external_ips.iter().map(|ip| address("ExternalIP", ip.to_string()));
    let dns =
        |kind: &'static str, names: &[String]| names.iter().map(|name| address(kind, name.clone())).collect::<Vec<_>>();
    let names =
        dns("InternalDNS", &config.node_dns.internal).into_iter().chain(dns("ExternalDNS", &config.node_dns.external));
    internal.chain(external).chain([address("Hostname", config.hostname.clone())]).chain(names).collect()
}

fn system_info(runtime: &Runtime) -> NodeSystemInfo {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let pretty = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .unwrap_or("Linux")
        .trim_matches('"')
        .to_owned();
    NodeSystemInfo {
        architecture: arch().to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("{}://{}", runtime.name, runtime.version),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: VERSION.to_owned(),
        machine_id: read("/etc/machine-id"),
        operating_system: "linux".to_owned(),
        os_image: pretty,
        system_uuid: read("/sys/class/dmi/id/product_uuid"),
        swap: None,
    }
}

async fn keep_lease(node: &Node) {
    let (own, clock): (&NodeObject, &Clock) = (&node.own, &node.clock);
    let api: Api<Lease> = Api::namespaced(node.client.clone(), LEASE_NS);
    let name = own.name().to_owned();
    let lease_secs = node.config.settings.lease_secs;
    // As upstream: four tries within the time that it lasts.
    let period = Duration::from_secs(u64::from(lease_secs.unsigned_abs())) / 4;
    loop {
        let spec = LeaseSpec {
            holder_identity: Some(name.clone()),
            lease_duration_seconds: Some(lease_secs),
            renew_time: Some(MicroTime(micros(clock.now()))),
            ..Default::default()
        };
        let change = Patch::Merge(serde_json::json!({"spec": spec}));
        let renewed = match api.patch(&name, &PatchParams::default(), &change).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => {
                let owner = OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: name.clone(),
                    uid: own.uid().unwrap_or_default(),
                    ..Default::default()
                };
                let metadata =
                    ObjectMeta { name: Some(name.clone()), owner_references: Some(vec![owner]), ..Default::default() };
                api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
            }
            other => other,
        };
        let pause = match renewed {
            Ok(_) => period,
            Err(err) => {
                warn!(err = %Chain(&err), "cannot renew the node's lease");
                Duration::from_secs(1)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md N10
    #[test]
    fn a_status_that_others_wrote_over_is_written_again() {
        let of = |ready: &str, pressure: &str| -> NodeStatus {
            let conditions =
                serde_json::json!([{"type": "Ready", "status": ready}, {"type": "Theirs", "status": pressure}]);
            serde_json::from_value(
                serde_json::json!({"conditions": conditions, "addresses": [{"type": "Hostname", "address": "n"}]}),
            )
            .unwrap()
        };
        let mut said = of("True", "True");
        said.conditions.as_mut().unwrap().truncate(1);
        assert!(!is_overwritten(Some(&of("True", "False")), &said), "other conditions are others'");
        assert!(is_overwritten(Some(&of("Unknown", "True")), &said));
        assert!(is_overwritten(None, &said));
        assert!(!is_overwritten(None, &NodeStatus::default()), "nothing was said yet");
    }

    #[test]
    fn amounts_are_written_as_upstream_writes_them() {
        for (name, amount, expected) in [
            ("cpu", 4000, "4"),
            ("cpu", 3920, "3920m"),
            ("memory", 4096, "4Ki"),
            ("memory", 4097, "4097"),
            ("ephemeral-storage", 1 << 20, "1024Ki"),
            ("pods", 110, "110"),
            ("hugepages-2Mi", 0, "0"),
        ] {
            let told = quantities(BTreeMap::from([(name.to_owned(), amount)]));
            assert_eq!(told[name].0, expected, "{name}");
        }
    }
}
