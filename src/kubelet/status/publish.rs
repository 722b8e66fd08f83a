//! A pod's status is written to the API.

use std::collections::BTreeSet;

use base::chain::Chain;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{Patch, PatchParams};
use tracing::{debug, warn};

/// A status that meets another write is tried again at once this often.
const CONFLICTS_MAX: u32 = 3;

/// Conditions that the kubelet takes away again.
const PASSING: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// Whether a status reached the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// With the object's resource version since then.
    Yes(Option<u64>),
    /// The pod is not there any more, or another one has its name.
    Gone,
    /// Try again.
    Failed,
}

/// The patch of a status: what is absent in it is taken away, and so are addresses and passing conditions told before.
fn change(pod: &Pod, status: &PodStatus, before: Option<&PodStatus>) -> serde_json::Value {
    let mut body = serde_json::to_value(status).unwrap_or_default();
    if let Some(fields) = body.as_object_mut() {
        for absent in ["reason", "message", "podIP", "podIPs"] {
            fields.entry(absent).or_insert(serde_json::Value::Null);
        }
        // A condition that keeps an old text would lie.
        for condition in fields.get_mut("conditions").and_then(|c| c.as_array_mut()).into_iter().flatten() {
            for absent in ["reason", "message"] {
                condition.as_object_mut().map(|c| c.entry(absent).or_insert(serde_json::Value::Null));
            }
        }
    }
    // Addresses merge by themselves: an old one would stay beside the new (upstream's `preparePatchBytesForPodStatus`
    // deletes them).
    for list in ["podIPs", "hostIPs"] {
        if let Some(addresses) = body.get_mut(list).and_then(|l| l.as_array_mut()) {
            addresses.insert(0, serde_json::json!({"$patch": "replace"}));
        }
    }
    // Conditions come and go with a resize; a merge alone would keep them.
    let told = before.into_iter().chain(pod.status.as_ref()).flat_map(|s| s.conditions.iter().flatten());
    let passing = told.filter(|c| PASSING.contains(&c.type_.as_str())).map(|c| c.type_.clone());
    let over: BTreeSet<String> =
        passing.filter(|kind| !status.conditions.iter().flatten().any(|c| c.type_ == *kind)).collect();
    if let Some(list) = body.get_mut("conditions").and_then(|c| c.as_array_mut()) {
        list.extend(over.iter().map(|kind| serde_json::json!({"type": kind, "$patch": "delete"})));
    }
    body
}

/// Writes a status to the API. Fields that are absent are taken away.
pub(crate) async fn publish(
    client: &kube::Client,
    pod: &Pod,
    status: &PodStatus,
    before: Option<&PodStatus>,
) -> Published {
    let api: Api<Pod> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    let name = pod.metadata.name.clone().unwrap_or_default();
    let change = serde_json::json!({"metadata": {"uid": pod.metadata.uid}, "status": change(pod, status, before)});
    let mut answer = api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&change)).await;
    for _ in 0..CONFLICTS_MAX {
        if !matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409) {
            break;
        }
        answer = api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&change)).await;
    }
    match answer {
        Ok(now) => Published::Yes(version(&now)),
        Err(kube::Error::Api(status)) if status.code == 404 => Published::Gone,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            debug!(pod = %name, err = %status.message, "conflict on a pod's status");
            // Either another pod has the name now, or somebody wrote at the same moment: only the object itself can
            // tell.
            match api.get_opt(&name).await {
                Ok(Some(now)) if now.metadata.uid == pod.metadata.uid => Published::Failed,
                Ok(_) => Published::Gone,
                Err(_) => Published::Failed,
            }
        }
        Err(err) => {
            warn!(pod = %name, err = %Chain(&err), "cannot write a pod's status");
            Published::Failed
        }
    }
}

/// Resource versions of one kind are numbers that can be compared (KEP-5504).
pub(crate) fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// Conditions that are the kubelet's to say, though the node controller writes `Ready` of pods on a node that fell
/// silent.
const OWN: [&str; 3] = ["Initialized", "ContainersReady", "Ready"];

/// Whether the API shows another phase or other conditions than the kubelet says.
pub(crate) fn differs(shown: &PodStatus, said: &PodStatus) -> bool {
    let state = |status: &PodStatus, kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone())
    };
    shown.phase != said.phase || OWN.iter().any(|kind| state(shown, kind) != state(said, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_a_pod_lost_are_not_kept_by_the_merge() {
        let pod = Pod::default();
        let status: PodStatus = serde_json::from_value(
            serde_json::json!({"podIPs": [{"ip": "10.0.0.9"}], "hostIPs": [{"ip": "10.1.0.1"}]}),
        )
        .unwrap();
        let body = change(&pod, &status, None);
        assert_eq!(body["podIPs"], serde_json::json!([{"$patch": "replace"}, {"ip": "10.0.0.9"}]));
        assert_eq!(body["hostIPs"], serde_json::json!([{"$patch": "replace"}, {"ip": "10.1.0.1"}]));
        assert!(change(&pod, &PodStatus::default(), None)["podIPs"].is_null());
    }

    #[test]
    fn a_ready_that_somebody_else_took_away_differs_and_foreign_conditions_do_not() {
        let of = |conditions: serde_json::Value| -> PodStatus {
            serde_json::from_value(serde_json::json!({"phase": "Running", "conditions": conditions})).unwrap()
        };
        let said = of(serde_json::json!([{"type": "Ready", "status": "True"}]));
        assert!(differs(
            &of(serde_json::json!([{"type": "Ready", "status": "False", "reason": "NodeNotReady"}])),
            &said
        ));
        assert!(!differs(
            &of(serde_json::json!([{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "False"}])),
            &said
        ));
    }
}
