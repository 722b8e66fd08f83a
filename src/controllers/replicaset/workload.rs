//! The two kinds that keep a number of pods: the newer one, and the older one read as if it were the newer.

use std::sync::Arc;

use client::informer::Kind;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

/// A kind that this controller works on.
pub(super) trait Workload:
    Kind + kube::Resource<Scope = NamespaceResourceScope> + k8s_openapi::Metadata<Ty = ObjectMeta> + serde::Serialize
{
    /// The name of the controller and of its service account.
    const CONTROLLER: &'static str;

    /// The object as a ReplicaSet.
    fn as_set(object: &Arc<Self>) -> Arc<ReplicaSet>;

    /// The object with another status.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl Workload for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn as_set(object: &Arc<ReplicaSet>) -> Arc<ReplicaSet> {
        Arc::clone(object)
    }

    fn with_status(&self, status: ReplicaSetStatus) -> ReplicaSet {
        ReplicaSet { status: Some(status), ..self.clone() }
    }
}

impl Workload for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";

    fn as_set(object: &Arc<ReplicationController>) -> Arc<ReplicaSet> {
        let spec = object.spec.clone().map(|spec| ReplicaSetSpec {
            replicas: spec.replicas,
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector { match_labels: spec.selector, match_expressions: None },
            template: spec.template,
        });
        let status = object.status.clone().map(|status| ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| {
                let convert = |c: ReplicationControllerCondition| ReplicaSetCondition {
                    type_: c.type_,
                    status: c.status,
                    reason: c.reason,
                    message: c.message,
                    last_transition_time: c.last_transition_time,
                };
                all.into_iter().map(convert).collect()
            }),
        });
        Arc::new(ReplicaSet { metadata: object.metadata.clone(), spec, status })
    }

    fn with_status(&self, status: ReplicaSetStatus) -> ReplicationController {
        let convert = |c: ReplicaSetCondition| ReplicationControllerCondition {
            type_: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(convert).collect()),
        };
        ReplicationController { status: Some(status), ..self.clone() }
    }
}
