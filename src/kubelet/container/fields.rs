//! The downward API: fields of the pod and resources of its containers as text.

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector};
use model::quantity::Quantity;

use crate::cgroups::limits;
use crate::container::error::ConfigError;

/// The facts of its node that a pod learns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) host_ips: Vec<String>,
    pub(crate) pod_ips: Vec<String>,
    pub(crate) cpu_allocatable_milli: i64,
    pub(crate) memory_allocatable: i64,
    pub(crate) storage_allocatable: i64,
}

/// The text of a `fieldRef`.
pub(crate) fn field(pod: &Pod, around: &Surroundings, path: &str) -> Result<String, ConfigError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |s: Option<&String>| s.cloned().unwrap_or_default();
    if let Some((base, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match base {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(unsupported(path)),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => format_map(meta.labels.iter().flatten()),
        "metadata.annotations" => format_map(meta.annotations.iter().flatten()),
        "spec.nodeName" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" => around.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => around.host_ips.join(","),
        "status.podIP" => around.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => around.pod_ips.join(","),
        _ => return Err(unsupported(path)),
    })
}

fn unsupported(path: &str) -> ConfigError {
    ConfigError::new(format!("unsupported fieldPath: {path}"))
}

/// `key="value"` lines, quoted as Go does, in the order of keys.
fn format_map<'a>(map: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    map.map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

/// The text of a `resourceFieldRef`; a missing limit is the pod's own, or else what the node can give.
pub(crate) fn resource(
    pod: &Pod,
    around: &Surroundings,
    default_container: &str,
    selector: &ResourceFieldSelector,
) -> Result<String, ConfigError> {
    let name = selector.container_name.as_deref().filter(|n| !n.is_empty()).unwrap_or(default_container);
    let found = super::all(pod).into_iter().find(|(c, _)| c.name == name);
    let Some((container, _)) = found else { return Err(ConfigError::new(format!("container {name} not found"))) };
    let resources = container.resources.as_ref();
    let divisor = selector.divisor.as_ref().map(limits::parse).filter(|d| !d.is_zero());
    let (kind, unit) = selector.resource.split_once('.').unwrap_or((&selector.resource, ""));
    let value = match kind {
        "limits" => limits::limit_within(pod, resources, unit).or_else(|| allocatable(around, unit)),
        "requests" => limits::request(resources, unit),
        _ => return Err(ConfigError::new(format!("unsupported container resource : {}", selector.resource))),
    };
    let value = value.unwrap_or_else(|| Quantity::from_milli(0));
    Ok(match unit {
        // Rounded up, in milli-units so that half a CPU over `1m` is 500.
        "cpu" => {
            let divisor = divisor.map_or(1000, |d| d.milli_value().max(1));
            ceil_div(value.milli_value(), divisor).to_string()
        }
        _ => ceil_div(value.value(), divisor.map_or(1, |d| d.value().max(1))).to_string(),
    })
}

fn ceil_div(value: i64, by: i64) -> i64 {
    value.saturating_add(by - 1) / by
}

fn allocatable(around: &Surroundings, unit: &str) -> Option<Quantity> {
    match unit {
        "cpu" => Some(Quantity::from_milli(around.cpu_allocatable_milli)),
        "memory" => Some(from_bytes(around.memory_allocatable)),
        "ephemeral-storage" => Some(from_bytes(around.storage_allocatable)),
        _ => None,
    }
}

fn from_bytes(bytes: i64) -> Quantity {
    bytes.to_string().parse().unwrap_or_else(|_| Quantity::from_milli(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "labels": {"b": "2", "a": "x\"y"}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}]}
        }))
        .unwrap()
    }

    #[test]
    fn labels_are_quoted_lines_and_one_label_is_bare() {
        let around = Surroundings::default();
        assert_eq!(field(&pod(), &around, "metadata.labels").unwrap(), "a=\"x\\\"y\"\nb=\"2\"");
        assert_eq!(field(&pod(), &around, "metadata.labels['b']").unwrap(), "2");
        assert!(field(&pod(), &around, "spec.foo").is_err());
    }

    #[test]
    fn a_container_without_a_limit_has_its_pods() {
        let around = Surroundings { cpu_allocatable_milli: 8000, memory_allocatable: 1 << 40, ..Default::default() };
        let mut pod = pod();
        let container: k8s_openapi::api::core::v1::Container =
            serde_json::from_value(serde_json::json!({"name": "free"})).unwrap();
        let spec = pod.spec.as_mut().unwrap();
        spec.containers.push(container);
        spec.resources = Some(serde_json::from_value(serde_json::json!({"limits": {"memory": "128Mi"}})).unwrap());
        let ask = |container: &str, name: &str| {
            let selector = serde_json::from_value(serde_json::json!({"resource": name, "divisor": "1"})).unwrap();
            resource(&pod, &around, container, &selector).unwrap()
        };
        assert_eq!(ask("free", "limits.memory"), (128 << 20).to_string());
        assert_eq!(ask("c", "limits.memory"), (64 << 20).to_string());
        assert_eq!(ask("free", "limits.cpu"), "8");
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let around = Surroundings { memory_allocatable: 7, ..Default::default() };
        let ask = |resource: &str, divisor: &str| {
            let selector =
                serde_json::from_value(serde_json::json!({"resource": resource, "divisor": divisor})).unwrap();
            resource_of(&around, &selector)
        };
        fn resource_of(around: &Surroundings, selector: &ResourceFieldSelector) -> String {
            resource(&pod(), around, "c", selector).unwrap()
        }
        assert_eq!(ask("limits.cpu", "1"), "2");
        assert_eq!(ask("limits.cpu", "1m"), "1500");
        assert_eq!(ask("limits.memory", "1Mi"), "64");
        assert_eq!(ask("requests.memory", "1Mi"), "64");
    }
}
