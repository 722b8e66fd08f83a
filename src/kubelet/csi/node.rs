//! The drivers of this node as the cluster sees them: the CSINode object, and what the Node says of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use k8s_openapi::api::core::v1::Node as ApiNode;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use proto::csi as pb;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::Driver;
use super::error::RegistrationError;
use crate::node::Node;

/// The Node's annotation with its names as drivers know it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Between two tries to write: the first and the longest pause.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Failures that are no reason for a warning.
const QUIET_FAILURES: u32 = 8;
/// Somebody else writes the objects, too.
const TRIES: usize = 5;

/// Sees to it that the node has its CSINode, as upstream has for every node.
pub(crate) async fn ensure(node: &Node) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    let mut failures = 0;
    loop {
        // The owner's uid is known once the Node is there.
        if node.own.uid().is_some_and(|uid| !uid.is_empty()) {
            match write(node, |_| {}).await {
                Ok(()) => return,
                // A cluster that is starting refuses for a moment.
                Err(err) if failures < QUIET_FAILURES => {
                    failures += 1;
                    debug!(err = %Chain(&err), "cannot write this node's CSINode yet");
                }
                Err(err) => warn!(err = %Chain(&err), "cannot write this node's CSINode"),
            }
        }
        tokio::time::sleep(backoff.next(&node.rng)).await;
    }
}

/// Takes a driver in: from now on pods may use it.
pub(crate) async fn register(
    node: &Node,
    name: &str,
    socket: &Path,
    versions: &[String],
) -> Result<(), RegistrationError> {
    if !versions.iter().any(|v| v.trim_start_matches('v').starts_with("1.")) {
        return Err(RegistrationError::Versions { name: name.to_owned(), versions: versions.to_vec() });
    }
    let driver = Arc::new(Driver::new(socket));
    let answer = driver.call(pb::NODE_GET_INFO, pb::Empty {}).await;
    let info: pb::NodeInfo = answer.map_err(RegistrationError::NodeInfo)?;
    if info.node_id.is_empty() {
        return Err(RegistrationError::NoNodeId { name: name.to_owned() });
    }
    let segments: BTreeMap<String, String> =
        info.accessible_topology.map(|t| t.segments.into_iter().collect()).unwrap_or_default();
    mark(node, name, Some(&info.node_id), &segments).await?;
    let keys: Vec<String> = segments.keys().cloned().collect();
    let entry = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(keys).filter(|k| !k.is_empty()),
        allocatable: i32::try_from(info.max_volumes_per_node)
            .ok()
            .filter(|n| *n > 0)
            .map(|n| VolumeNodeResources { count: Some(n) }),
    };
    write(node, |drivers| {
        drivers.retain(|d| d.name != entry.name);
        drivers.push(entry.clone());
    })
    .await
    .map_err(RegistrationError::CsiNode)?;
    node.csi.drivers.lock().insert(name.to_owned(), driver);
    info!(driver = name, node_id = %info.node_id, "driver of volumes registered");
    Ok(())
}

/// Takes a driver out.
pub(crate) async fn deregister(node: &Node, name: &str) {
    node.csi.drivers.lock().remove(name);
    if let Err(err) = write(node, |drivers| drivers.retain(|d| d.name != name)).await {
        warn!(driver = name, err = %Chain(&err), "cannot take a driver out of CSINode");
    }
    if let Err(err) = mark(node, name, None, &BTreeMap::new()).await {
        warn!(driver = name, err = %Chain(&err), "cannot take a driver out of the Node's annotation");
    }
}

/// Changes the node's CSINode, which is made if it is not there.
async fn write(node: &Node, change: impl Fn(&mut Vec<CSINodeDriver>)) -> Result<(), kube::Error> {
    let api: Api<CSINode> = Api::all(node.client.clone());
    let name = &node.config.node_name;
    let mut tries = 0;
    loop {
        tries += 1;
        let found = api.get_opt(name).await?;
        let done = match found {
            Some(mut object) => {
                let before = object.spec.drivers.clone();
                change(&mut object.spec.drivers);
                if object.spec.drivers == before {
                    return Ok(());
                }
                api.replace(name, &PostParams::default(), &object).await
            }
            None => {
                let owner = OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: name.clone(),
                    uid: node.own.uid().unwrap_or_default(),
                    ..Default::default()
                };
                let metadata =
                    ObjectMeta { name: Some(name.clone()), owner_references: Some(vec![owner]), ..Default::default() };
                let mut drivers = Vec::new();
                change(&mut drivers);
                api.create(&PostParams::default(), &CSINode { metadata, spec: CSINodeSpec { drivers } }).await
            }
        };
        match done {
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
            other => return other.map(drop),
        }
    }
}

/// Writes the driver's name for the node, and where the node lies, into the Node. A label that says otherwise stays,
/// and is an error.
async fn mark(
    node: &Node,
    driver: &str,
    id: Option<&str>,
    segments: &BTreeMap<String, String>,
) -> Result<(), RegistrationError> {
    let api: Api<ApiNode> = Api::all(node.client.clone());
    let name = &node.config.node_name;
    let mut tries = 0;
    loop {
        tries += 1;
        let object = api.get(name).await.map_err(RegistrationError::Node)?;
        collision(segments, &object.metadata.labels.unwrap_or_default()).map_or(Ok(()), Err)?;
        let noted = object.metadata.annotations.unwrap_or_default().remove(NODE_IDS).unwrap_or_default();
        let note = note(serde_json::from_str(&noted).unwrap_or_default(), driver, id);
        let change = json!({"metadata": {"resourceVersion": object.metadata.resource_version,
            "annotations": {NODE_IDS: note}, "labels": segments}});
        match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
            other => return other.map(drop).map_err(RegistrationError::Node),
        }
    }
}

/// The place of the node that the driver tells and a label of the Node gainsays.
fn collision(segments: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Option<RegistrationError> {
    segments.iter().find_map(|(key, reported)| {
        let label = labels.get(key).filter(|label| *label != reported)?;
        let (key, reported, label) = (key.clone(), reported.clone(), label.clone());
        Some(RegistrationError::Collision { key, reported, label })
    })
}

/// The annotation with the driver's name for the node in it, or without one; `null` if no driver is left.
fn note(mut ids: BTreeMap<String, String>, driver: &str, id: Option<&str>) -> Value {
    match id {
        Some(id) => drop(ids.insert(driver.to_owned(), id.to_owned())),
        None => drop(ids.remove(driver)),
    }
    if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_driver_may_not_move_the_node() {
        let labels = map(&[("zone", "a"), ("other", "x")]);
        assert!(collision(&map(&[("zone", "a"), ("rack", "1")]), &labels).is_none());
        assert_eq!(
            collision(&map(&[("zone", "b")]), &labels).unwrap().to_string(),
            "detected topology value collision: driver reported \"zone\":\"b\" but existing label is \"zone\":\"a\""
        );
    }

    #[test]
    fn the_annotation_holds_each_drivers_name_for_the_node() {
        let one = note(map(&[]), "d.io", Some("n1"));
        assert_eq!(one, r#"{"d.io":"n1"}"#);
        let two = note(map(&[("d.io", "n1")]), "e.io", Some("n2"));
        assert_eq!(two, r#"{"d.io":"n1","e.io":"n2"}"#);
        assert_eq!(note(map(&[("d.io", "n1"), ("e.io", "n2")]), "d.io", None), r#"{"e.io":"n2"}"#);
        assert_eq!(note(map(&[("d.io", "n1")]), "d.io", None), Value::Null);
    }
}
