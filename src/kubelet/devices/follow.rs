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
use crate::plugins::link::Link;

const VERSION: &str = "v1beta1";
/// A plugin answers by then.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin registered by its own call.
pub(super) async fn by_call(node: &Arc<Node>, group: &Group, request: pb::RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        return Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is {VERSION:?}",
            request.version
        ));
    }
    check_name(&request.resource_name)?;
    let endpoint = Path::new(&request.endpoint);
    // A name in the folder, not a way out of it.
    if endpoint.file_name().is_none_or(|name| name != endpoint.as_os_str()) {
        return Err(format!("bad device plugin endpoint: {:?}", request.endpoint));
    }
    let link = Link::new(&node.devices.dir.join(endpoint));
    begin(node, group, &request.resource_name, link, request.options.unwrap_or_default());
    Ok(())
}

/// A plugin was found by its socket among those of all plugins.
pub(crate) async fn by_registry(
    node: &Arc<Node>,
    group: &Group,
    resource: &str,
    socket: &Path,
    versions: &[String],
) -> Result<(), String> {
    if !versions.iter().any(|v| v == VERSION) {
        return Err(format!(
            "device plugin {resource:?} has no supported version: {versions:?}; supported is {VERSION}"
        ));
    }
    check_name(resource)?;
    let link = Link::new(socket);
    let options =
        link.call(pb::GET_DEVICE_PLUGIN_OPTIONS, pb::Empty {}, TIMEOUT).await.map_err(|err| err.to_string())?;
    begin(node, group, resource, link, options);
    Ok(())
}

/// Only resources with a domain of their own can be a plugin's.
fn check_name(resource: &str) -> Result<(), String> {
    let (domain, name) = resource.split_once('/').unwrap_or_default();
    match domain.is_empty() || name.is_empty() || domain.ends_with("kubernetes.io") || domain.starts_with("requests.") {
        true => Err(format!("invalid name of device plugin socket: the ResourceName {resource:?} is invalid")),
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
            Err(status) => return crate::plugins::link::CallError::from(status).to_string(),
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
}
