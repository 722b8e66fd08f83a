//! Mirror pods: how static pods show themselves in the API. Deleting one does not end its pod.

use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::rng::Rng;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tracing::{debug, warn};

use crate::node_object::NodeObject;
use crate::sources::annotations::{HASH, MIRROR, annotation};

/// Between two looks whether the node is registered.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Whether an object is the picture that this kubelet made of a static pod: anybody may write the annotation alone.
pub(crate) fn is_of(own: &NodeObject, mirror: &Pod, pod: &Pod) -> bool {
    is_picture(mirror, pod, own.name(), own.uid().as_deref())
}

fn is_picture(mirror: &Pod, pod: &Pod, node_name: &str, node_uid: Option<&str>) -> bool {
    let ours = |owner: &OwnerReference| {
        owner.kind == "Node" && owner.name == node_name && node_uid.is_none_or(|uid| owner.uid == uid)
    };
    let owner = mirror.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    annotation(mirror, MIRROR).is_some()
        && annotation(mirror, MIRROR) == annotation(pod, HASH)
        && owner.is_some_and(ours)
}

/// Makes the mirror of a static pod, or replaces one that shows an older manifest.
pub(crate) async fn keep(client: &kube::Client, own: &NodeObject, rng: &Rng, pod: &Pod, have: Option<&Pod>) {
    if let Some(have) = have {
        if is_of(own, have, pod) && have.metadata.deletion_timestamp.is_none() {
            return;
        }
        remove(client, have).await;
    }
    let mut mirror = pod.clone();
    mirror.metadata.uid = None;
    mirror.status = None;
    let hash = annotation(pod, HASH).unwrap_or_default().to_owned();
    mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: own.name().to_owned(),
        uid: uid_of_node(own, rng).await,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    let api: Api<Pod> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    match api.create(&PostParams::default(), &mirror).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => debug!("mirror pod exists already"),
        Err(err) => warn!(pod = ?pod.metadata.name, err = %Chain(&err), "cannot make a mirror pod"),
    }
}

/// The node's uid is known once it is registered; a mirror without its owner is refused.
async fn uid_of_node(own: &NodeObject, rng: &Rng) -> String {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        match own.uid().filter(|uid| !uid.is_empty()) {
            Some(uid) => return uid,
            None => tokio::time::sleep(backoff.next(rng)).await,
        }
    }
}

/// Removes a mirror whose file is gone.
pub(crate) async fn remove(client: &kube::Client, mirror: &Pod) {
    let api: Api<Pod> = Api::namespaced(client.clone(), mirror.metadata.namespace.as_deref().unwrap_or_default());
    let preconditions = Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None };
    let now = DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..Default::default() };
    match api.delete(mirror.metadata.name.as_deref().unwrap_or_default(), &now).await {
        Ok(_) => {}
        // Gone, or another object has the name by now.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
        Err(err) => warn!(pod = ?mirror.metadata.name, err = %Chain(&err), "cannot remove a mirror pod"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review security-2.md F2
    #[test]
    fn only_what_the_kubelet_made_itself_is_a_mirror() {
        let of = |value: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": value})).unwrap()
        };
        let pod = of(serde_json::json!({"annotations": {HASH: "h"}}));
        let owner = |uid: &str| {
            let mut owner = serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
            (owner["uid"], owner["controller"]) = (uid.into(), true.into());
            serde_json::json!([owner])
        };
        let mirror = |hash: &str, uid: &str| {
            of(serde_json::json!({"annotations": {MIRROR: hash}, "ownerReferences": owner(uid)}))
        };
        let believed = |mirror: &Pod| is_picture(mirror, &pod, "n", Some("node-uid"));
        assert!(believed(&mirror("h", "node-uid")));
        assert!(!believed(&mirror("other", "node-uid")));
        assert!(!believed(&mirror("h", "older-node")), "the Node was made anew: its old mirrors are collected");
        assert!(!believed(&of(serde_json::json!({"annotations": {MIRROR: "h"}}))));
    }
}
