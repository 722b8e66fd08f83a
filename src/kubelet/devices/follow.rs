//! A plugin of devices is followed: what it has, and that it is gone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use proto::plugins as pb;
use tracing::info;

use super::registry::Seen;
use crate::node::Node;
use crate::plugins::link::{CallError, Link};

const VERSION: &str = "v1beta1";
/// A plugin answers by then.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin of devices that cannot be taken in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicePluginError {
    #[error("requested API version {version:?} is not supported by kubelet. Supported version is {VERSION:?}")]
    Version { version: String },
    #[error("device plugin {resource:?} has no supported version: {versions:?}; supported is {VERSION}")]
    Versions { resource: String, versions: Vec<String> },
    #[error("invalid name of device plugin socket: the ResourceName {resource:?} is invalid")]
    Name { resource: String },
    #[error("bad device plugin endpoint: {endpoint:?}")]
    Endpoint { endpoint: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A plugin registered by its own call.
pub(super) async fn by_call(
    node: &Arc<Node>,
    group: &Group,
    request: pb::RegisterRequest,
) -> Result<(), DevicePluginError> {
    check(&request)?;
    let link = Link::new(&node.devices.dir.join(&request.endpoint));
    begin(node, group, &request.resource_name, link, request.options.unwrap_or_default());
    Ok(())
}

fn check(request: &pb::RegisterRequest) -> Result<(), DevicePluginError> {
    if request.version != VERSION {
        return Err(DevicePluginError::Version { version: request.version.clone() });
    }
    check_name(&request.resource_name)?;
    let endpoint = Path::new(&request.endpoint);
    // A name in the folder, not a way out of it.
    match endpoint.file_name().is_some_and(|name| name == endpoint.as_os_str()) {
        true => Ok(()),
        false => Err(DevicePluginError::Endpoint { endpoint: request.endpoint.clone() }),
    }
}

/// A plugin was found by its socket among those of all plugins.
pub(crate) async fn by_registry(
    node: &Arc<Node>,
    group: &Group,
    resource: &str,
    socket: &Path,
    versions: &[String],
) -> Result<(), DevicePluginError> {
    if !versions.iter().any(|v| v == VERSION) {
        return Err(DevicePluginError::Versions { resource: resource.to_owned(), versions: versions.to_vec() });
    }
    check_name(resource)?;
    let link = Link::new(socket);
    let options = link.call(pb::GET_DEVICE_PLUGIN_OPTIONS, pb::Empty {}, TIMEOUT).await?;
    begin(node, group, resource, link, options);
    Ok(())
}

/// Only resources with a domain of their own can be a plugin's.
fn check_name(resource: &str) -> Result<(), DevicePluginError> {
    let (domain, name) = resource.split_once('/').unwrap_or_default();
    match domain.is_empty() || name.is_empty() || domain.ends_with("kubernetes.io") || domain.starts_with("requests.") {
        true => Err(DevicePluginError::Name { resource: resource.to_owned() }),
        false => Ok(()),
    }
}

fn begin(node: &Arc<Node>, group: &Group, resource: &str, link: Link, options: pb::DevicePluginOptions) {
    let generation = node.devices.with(|state| {
        let entry = state.resources.entry(resource.to_owned()).or_default();
        entry.generation += 1;
        entry.link = Some(link.clone());
        entry.options = options;
        entry.generation
    });
    info!(resource, "plugin of devices registered");
    let (node, resource) = (Arc::clone(node), resource.to_owned());
    group.spawn_short("device-plugin", async move {
        let ended = follow(&node, &resource, &link, generation).await;
        let is_current =
            node.devices.with(|state| state.resources.get(&resource).is_some_and(|r| r.generation == generation));
        if !is_current {
            return;
        }
        info!(resource, err = %ended, "a plugin of devices is gone");
        node.devices.stop(&resource);
        tokio::time::sleep(super::registry::STOP_GRACE).await;
        // If it has not come back, the node has none of it.
        node.devices.tell();
    });
}

/// Takes in what the plugin has, each time that changes. Returns why it ended.
async fn follow(node: &Arc<Node>, resource: &str, link: &Link, generation: u64) -> String {
    let mut stream = match link.follow::<_, pb::Devices>(pb::LIST_AND_WATCH, pb::Empty {}).await {
        Ok(stream) => stream,
        Err(err) => return err.to_string(),
    };
    loop {
        let told = match stream.message().await {
            Ok(Some(told)) => told,
            Ok(None) => return "it ended its stream".to_owned(),
            Err(status) => return CallError::from(status).to_string(),
        };
        let is_current = node.devices.with(|state| {
            let Some(entry) = state.resources.get_mut(resource).filter(|r| r.generation == generation) else {
                return false;
            };
            entry.stopped = None;
            entry.devices = told.devices.into_iter().map(|device| (device.id.clone(), seen(&device))).collect();
            true
        });
        if !is_current {
            return "another one took its place".to_owned();
        }
        node.devices.keep();
        node.devices.tell();
    }
}

fn seen(device: &pb::Device) -> Seen {
    let nodes = device.topology.iter().flat_map(|t| &t.nodes);
    Seen { healthy: device.health == "Healthy", numa: nodes.map(|n| n.id).collect::<BTreeSet<i64>>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_may_not_take_a_resource_of_kubernetes() {
        assert!(check_name("nvidia.com/gpu").is_ok());
        for bad in ["cpu", "kubernetes.io/x", "requests.x.io/y", "x.io/"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plugins_call_names_its_version_its_resource_and_a_socket_in_the_folder() {
        let good = pb::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: "gpu.sock".to_owned(),
            resource_name: "x.io/gpu".to_owned(),
            ..Default::default()
        };
        check(&good).unwrap();
        let why = |request: pb::RegisterRequest| check(&request).unwrap_err().to_string();
        assert_eq!(
            why(pb::RegisterRequest { version: "v1".to_owned(), ..good.clone() }),
            "requested API version \"v1\" is not supported by kubelet. Supported version is \"v1beta1\""
        );
        assert_eq!(
            why(pb::RegisterRequest { resource_name: "gpu".to_owned(), ..good.clone() }),
            "invalid name of device plugin socket: the ResourceName \"gpu\" is invalid"
        );
        for endpoint in ["", "..", "../x.sock", "/run/x.sock", "sub/x.sock", "x.sock/"] {
            let why = why(pb::RegisterRequest { endpoint: endpoint.to_owned(), ..good.clone() });
            assert_eq!(why, format!("bad device plugin endpoint: {endpoint:?}"));
        }
    }

    #[test]
    fn only_a_device_that_is_called_healthy_is_well() {
        let device = |health: &str, nodes: &[i64]| pb::Device {
            id: "a".to_owned(),
            health: health.to_owned(),
            topology: Some(pb::TopologyInfo { nodes: nodes.iter().map(|&id| pb::NumaNode { id }).collect() }),
        };
        assert_eq!(seen(&device("Healthy", &[1, 0])), Seen { healthy: true, numa: BTreeSet::from([0, 1]) });
        for health in ["Unhealthy", "healthy", ""] {
            assert!(!seen(&device(health, &[])).healthy, "{health}");
        }
    }
}
