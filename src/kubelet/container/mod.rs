//! From a container of a pod to what the runtime is told: environment, security, resources, mounts.

pub(crate) mod env;

pub(crate) mod error;

pub(crate) mod making;

pub(crate) mod fields;

pub(crate) mod security;

use std::collections::HashMap;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

use crate::cgroups::limits::{self, Qos};
use crate::container::error::ConfigError;
use crate::container::making::{HostFacts, Making, Swap};
use crate::runtime::labels;

/// Every container of the pod's spec in the order of its start, with what it is.
pub(crate) fn all(pod: &Pod) -> Vec<(&Container, Role)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|c| {
        let sidecar = c.restart_policy.as_deref() == Some("Always");
        (c, if sidecar { Role::Sidecar } else { Role::Init })
    });
    init.chain(spec.containers.iter().map(|c| (c, Role::Main))).collect()
}

/// The pod's ephemeral containers in the form of ordinary ones, each with the container whose processes it wants to
/// see.
pub(crate) fn ephemeral(pod: &Pod) -> Vec<(Container, Option<String>)> {
    let of = |e: &EphemeralContainer| {
        let e = e.clone();
        let container = Container {
            args: e.args,
            command: e.command,
            env: e.env,
            env_from: e.env_from,
            image: e.image,
            image_pull_policy: e.image_pull_policy,
            name: e.name,
            resources: e.resources,
            security_context: e.security_context,
            stdin: e.stdin,
            stdin_once: e.stdin_once,
            termination_message_path: e.termination_message_path,
            termination_message_policy: e.termination_message_policy,
            tty: e.tty,
            volume_devices: e.volume_devices,
            volume_mounts: e.volume_mounts,
            working_dir: e.working_dir,
            ..Default::default()
        };
        (container, e.target_container_name.filter(|t| !t.is_empty()))
    };
    pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten()).map(of).collect()
}

/// A container of any role by its name.
pub(crate) fn find(pod: &Pod, name: &str) -> Option<(Container, Role)> {
    if let Some((container, role)) = all(pod).into_iter().find(|(c, _)| c.name == name) {
        return Some((container.clone(), role));
    }
    ephemeral(pod).into_iter().find(|(c, _)| c.name == name).map(|(c, _)| (c, Role::Ephemeral))
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Init,
    Sidecar,
    Main,
    /// Put into a running pod by `kubectl debug`; started once.
    Ephemeral,
}

impl Role {
    /// The field path of events.
    pub(crate) fn field(self, name: &str) -> String {
        match self {
            Role::Main => format!("spec.containers{{{name}}}"),
            Role::Ephemeral => format!("spec.ephemeralContainers{{{name}}}"),
            Role::Init | Role::Sidecar => format!("spec.initContainers{{{name}}}"),
        }
    }
}

/// Changes when the container must be made anew: name and image, as upstream since v1.27.
pub(crate) fn hash(container: &Container) -> String {
    let text =
        format!("{{\"image\":{:?},\"name\":{:?}}}", container.image.as_deref().unwrap_or_default(), container.name);
    // FNV-1a, 32 bit, as upstream hashes the same text.
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

/// By what a container's crash loop is known: another image begins anew (upstream's `GetBackoffKey`, v1.36).
pub(crate) fn crash_loop(container: &Container) -> String {
    format!("{}_{}", container.name, hash(container))
}

/// `<container>/<attempt>.log` under the pod's log folder.
pub(crate) fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

/// Builds the runtime's configuration of a container.
pub(crate) fn config(making: Making<'_>) -> Result<cri::ContainerConfig, ConfigError> {
    let Making { pod, container, attempt, image, .. } = &making;
    let lookup: HashMap<&str, &str> = making.envs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut room = env::BYTES_MAX;
    let mut expand = |words: &Option<Vec<String>>| -> Result<Vec<String>, ConfigError> {
        words.iter().flatten().map(|word| env::expand(word, |name| lookup.get(name).copied(), &mut room)).collect()
    };
    let mut all_labels = labels::of_pod(pod);
    all_labels.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let linux = cri::LinuxContainerConfig {
        resources: Some(resources(making.pod, container, making.host)),
        security_context: Some(security::of_container(&making)?),
    };
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: *attempt }),
        image: Some(cri::ImageSpec {
            image: image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expand(&container.command)?,
        args: expand(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: making.envs.iter().map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: making.mounts.clone(),
        devices: making.devices.clone(),
        labels: all_labels,
        annotations: annotations(&making),
        log_path: log_path(&container.name, *attempt),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(linux),
        ..Default::default()
    })
}

fn annotations(making: &Making<'_>) -> HashMap<String, String> {
    let Making { pod, container, attempt, .. } = making;
    let policy = container.termination_message_policy.clone().unwrap_or_else(|| "File".to_owned());
    let path = container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned());
    let mut notes = HashMap::from([
        (labels::HASH.to_owned(), hash(container)),
        (labels::RESTART_COUNT.to_owned(), attempt.to_string()),
        (labels::TERMINATION_PATH.to_owned(), path),
        (labels::TERMINATION_POLICY.to_owned(), policy),
        (labels::TERMINATION_FILE.to_owned(), making.termination_file.display().to_string()),
    ]);
    if let Some(grace) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        notes.insert(labels::POD_GRACE.to_owned(), grace.to_string());
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        notes.insert(labels::PRE_STOP.to_owned(), serde_json::to_string(hook).unwrap_or_default());
    }
    notes
}

/// A container's limits in the runtime's form.
pub(crate) fn resources(pod: &Pod, container: &Container, host: HostFacts) -> cri::LinuxContainerResources {
    let resources = container.resources.as_ref();
    let cpu_request = limits::request(resources, "cpu").map_or(0, |q| q.milli_value());
    let cpu_limit = limits::limit_within(pod, resources, "cpu").map(|q| q.milli_value()).filter(|_| host.cpu_quota);
    let adjust = limits::oom_score_adj(pod, container, host.memory);
    let mut limits = cri::LinuxContainerResources {
        cpu_period: if cpu_limit.is_some() { limits::PERIOD_USEC } else { 0 },
        cpu_quota: cpu_limit.map_or(0, limits::quota),
        cpu_shares: limits::shares(cpu_request),
        memory_limit_in_bytes: limits::limit_within(pod, resources, "memory").map_or(0, |q| q.value()),
        // runc would refuse a container whose value cannot be set.
        oom_score_adj: if host.restrict_oom_score_adj { adjust.max(0) } else { adjust },
        hugepage_limits: hugepages(container),
        ..Default::default()
    };
    if host.unified {
        // All processes of a container go together, as upstream since v1.28.
        limits.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
        let swap = match host.swap {
            Swap::Unbounded => None,
            Swap::None => Some(0),
            Swap::Shared(bytes) => Some(swap_share(pod, container, Machines { swap: bytes, memory: host.memory })),
        };
        limits.unified.extend(swap.map(|bytes| ("memory.swap.max".to_owned(), bytes.to_string())));
    }
    limits
}

/// Pods of this priority and above are critical.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Bytes of the machine.
struct Machines {
    swap: i64,
    memory: i64,
}

/// The swap of a container of a Burstable pod: as large a part of the machine's as its request is of the memory.
/// Upstream's `LimitedSwap` (pkg/kubelet/kuberuntime/kuberuntime_container_linux.go v1.36).
fn swap_share(pod: &Pod, container: &Container, all: Machines) -> i64 {
    let is_critical = pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|p| p >= CRITICAL_PRIORITY);
    let request = limits::request(container.resources.as_ref(), "memory").map_or(0, |q| q.value());
    let limit = limits::limit(container.resources.as_ref(), "memory").map_or(0, |q| q.value());
    if limits::qos(pod) != Qos::Burstable || is_critical || request <= 0 || request == limit || all.memory <= 0 {
        return 0;
    }
    let share = i128::from(all.swap) * i128::from(request) / i128::from(all.memory);
    i64::try_from(share).unwrap_or(i64::MAX).min(all.swap)
}

/// `hugepages-2Mi: 4Mi` becomes `2MB: 4194304`, as the kernel names page sizes.
fn hugepages(container: &Container) -> Vec<cri::HugepageLimit> {
    let limits = container.resources.iter().flat_map(|r| r.limits.iter().flatten());
    let sized =
        limits.filter_map(|(name, amount)| Some((name.strip_prefix("hugepages-")?, limits::parse(amount).value())));
    sized
        .map(|(size, bytes)| cri::HugepageLimit {
            page_size: size.replace("Ki", "KB").replace("Mi", "MB").replace("Gi", "GB"),
            limit: u64::try_from(bytes).unwrap_or(0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn containers_start_in_the_order_of_the_spec_and_each_has_its_role() {
        let pod = pod(json!({"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "e", "targetContainerName": "a"},
                {"name": "f", "targetContainerName": ""}]}));
        let roles: Vec<_> = all(&pod).into_iter().map(|(c, role)| (c.name.as_str(), role)).collect();
        assert_eq!(roles, [("i", Role::Init), ("s", Role::Sidecar), ("a", Role::Main), ("b", Role::Main)]);
        let targets: Vec<_> = ephemeral(&pod).into_iter().map(|(c, target)| (c.name, target)).collect();
        assert_eq!(targets, [("e".to_owned(), Some("a".to_owned())), ("f".to_owned(), None)]);
        let role = |name: &str| find(&pod, name).map(|(_, role)| role);
        assert_eq!((role("s"), role("e"), role("x")), (Some(Role::Sidecar), Some(Role::Ephemeral), None));
    }

    #[test]
    fn events_name_the_field_of_a_container() {
        for (role, field) in [
            (Role::Main, "spec.containers{c}"),
            (Role::Ephemeral, "spec.ephemeralContainers{c}"),
            (Role::Init, "spec.initContainers{c}"),
            (Role::Sidecar, "spec.initContainers{c}"),
        ] {
            assert_eq!(role.field("c"), field);
        }
    }

    // Upstream's `HashContainer`, pkg/kubelet/container/helpers.go: FNV-1a of `{"image":"nginx:1","name":"c"}`.
    #[test]
    fn another_name_or_image_makes_a_container_anew_and_nothing_else_does() {
        let container = |spec: serde_json::Value| serde_json::from_value::<Container>(spec).unwrap();
        let known = container(json!({"name": "c", "image": "nginx:1"}));
        assert_eq!(hash(&known), "ffd62fdb");
        assert_eq!(hash(&container(json!({"name": "c", "image": "nginx:1", "command": ["x"]}))), hash(&known));
        assert_ne!(hash(&container(json!({"name": "c", "image": "nginx:2"}))), hash(&known));
        assert_eq!(crash_loop(&known), "c_ffd62fdb");
    }

    #[test]
    fn limits_are_told_to_the_runtime_in_its_units() {
        let pod = pod(json!({"containers": [{"name": "c", "resources": {
            "limits": {"cpu": "500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "250m"}}}]}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let host = HostFacts::of_tests();
        let told = resources(&pod, container, host);
        assert_eq!((told.cpu_period, told.cpu_quota, told.cpu_shares), (100_000, 50_000, 256));
        assert_eq!(told.memory_limit_in_bytes, 64 << 20);
        let pages = (told.hugepage_limits[0].page_size.as_str(), told.hugepage_limits[0].limit);
        assert_eq!(pages, ("2MB", 4 << 20));
        assert_eq!(told.unified["memory.oom.group"], "1");
        assert!(resources(&pod, container, HostFacts { unified: false, ..host }).unified.is_empty());
    }

    #[test]
    fn quotas_of_cpu_can_be_switched_off() {
        let pod = pod(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}}}]}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let told = resources(&pod, container, HostFacts { cpu_quota: false, ..HostFacts::of_tests() });
        assert_eq!((told.cpu_period, told.cpu_quota, told.cpu_shares), (0, 0, 512), "the weight stays");
    }

    #[test]
    fn swap_is_for_burstable_pods_by_their_requests_and_for_nobody_by_default() {
        let host = |swap| HostFacts { memory: 1000, swap, ..HostFacts::of_tests() };
        let told = |spec: serde_json::Value, swap| {
            let pod = pod(spec);
            resources(&pod, &pod.spec.as_ref().unwrap().containers[0], host(swap)).unified.remove("memory.swap.max")
        };
        let burstable = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "100"}}}]});
        let guaranteed = json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "100", "cpu": "1"}}}]});
        let critical = json!({"priority": 2_000_001_000,
            "containers": [{"name": "c", "resources": {"requests": {"memory": "100"}}}]});
        let zero = Some("0".to_owned());
        assert_eq!(told(burstable.clone(), Swap::Unbounded), None);
        assert_eq!(told(burstable.clone(), Swap::None), zero);
        assert_eq!(told(burstable, Swap::Shared(500)), Some("50".to_owned()));
        for spec in [guaranteed, critical, json!({"containers": [{"name": "c"}]})] {
            assert_eq!(told(spec, Swap::Shared(500)), zero);
        }
    }

    #[test]
    fn a_container_without_limits_has_no_quota() {
        let pod = pod(json!({"containers": [{"name": "c"}]}));
        let host = HostFacts::of_tests();
        let told = resources(&pod, &pod.spec.as_ref().unwrap().containers[0], host);
        assert_eq!((told.cpu_period, told.cpu_quota, told.memory_limit_in_bytes), (0, 0, 0));
        assert_eq!((told.cpu_shares, told.oom_score_adj), (2, 1000));
    }

    #[test]
    fn a_kubelet_that_may_not_lower_oom_score_adj_leaves_it_at_zero() {
        let pod = pod(json!({"priorityClassName": "system-node-critical", "priority": 2_000_001_000,
            "containers": [{"name": "c"}]}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let host = HostFacts::of_tests();
        assert!(resources(&pod, container, host).oom_score_adj < 0);
        assert_eq!(resources(&pod, container, HostFacts { restrict_oom_score_adj: true, ..host }).oom_score_adj, 0);
    }

    #[test]
    fn a_command_sees_the_environment() {
        let pod = pod(json!({"terminationGracePeriodSeconds": 7, "containers": [{"name": "c", "image": "i:1",
            "command": ["$(A)", "$$(A)"], "args": ["$(B)"], "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]}));
        let image = cri::Image { id: "sha256:1".to_owned(), ..Default::default() };
        let envs = vec![("A".to_owned(), "1".to_owned())];
        let made = config(Making { envs, attempt: 3, ..Making::first_of(&pod, &image) }).unwrap();
        assert_eq!((made.command, made.args), (vec!["1".to_owned(), "$(A)".to_owned()], vec!["$(B)".to_owned()]));
        assert_eq!((made.log_path.as_str(), made.metadata.unwrap().attempt), ("c/3.log", 3));
        let image = made.image.unwrap();
        assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "i:1"));
        let note = |key: &str| made.annotations[key].as_str();
        assert_eq!((note(labels::RESTART_COUNT), note(labels::POD_GRACE)), ("3", "7"));
        assert_eq!(note(labels::TERMINATION_PATH), "/dev/termination-log");
        assert!(note(labels::PRE_STOP).contains("exec"));
    }
}
