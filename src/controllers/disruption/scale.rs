//! How many pods the controllers of some pods want together.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::informer::{Informer, Informers};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject};
use model::owners;
use model::pod::Pod;
use model::reference::GroupResource;

use super::error::CountError;
use crate::discovery;

/// Knows the built-in workloads from caches and asks others for their `scale`.
#[derive(Clone)]
pub(super) struct Scales {
    client: kube::Client,
    replica_sets: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    stateful_sets: Informer<StatefulSet>,
    replication_controllers: Informer<ReplicationController>,
}

/// The sum that was found.
pub(super) struct Sum {
    pub(super) wanted: i32,
    /// Pods that no controller looks after.
    pub(super) unmanaged: usize,
}

impl Scales {
    pub(super) fn new(client: kube::Client, informers: &Informers) -> Scales {
        Scales {
            client,
            replica_sets: informers.get(),
            deployments: informers.get(),
            stateful_sets: informers.get(),
            replication_controllers: informers.get(),
        }
    }

    pub(super) async fn synced(&self) {
        self.replica_sets.synced().await;
        self.deployments.synced().await;
        self.stateful_sets.synced().await;
        self.replication_controllers.synced().await;
    }

    /// Each controller once.
    pub(super) async fn sum(&self, covered: &[Arc<Pod>]) -> Result<Sum, CountError> {
        let (mut by_uid, mut unmanaged) = (BTreeMap::new(), 0);
        for pod in covered {
            let Some(owner) = owners::controller_of(&pod.metadata) else {
                unmanaged += 1;
                continue;
            };
            if by_uid.contains_key(&owner.uid) {
                continue;
            }
            let namespace = pod.namespace().unwrap_or_default();
            let wanted = match self.known(&namespace, owner) {
                Some(known) => known,
                None => self.asked(&namespace, owner).await?,
            };
            let (uid, wanted) = wanted.ok_or_else(|| CountError::NoController { pod: pod.name_any() })?;
            by_uid.insert(uid, wanted);
            by_uid.entry(owner.uid.clone()).or_insert(0);
        }
        Ok(Sum { wanted: by_uid.values().sum(), unmanaged })
    }

    /// The uid and the number of a built-in kind's object (a Deployment for its ReplicaSets); outer `None` for other
    /// kinds.
    fn known(&self, namespace: &str, owner: &OwnerReference) -> Option<Option<(String, i32)>> {
        let same = |uid: Option<String>| uid.filter(|uid| *uid == owner.uid);
        Some(match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => self.replica_sets.get(namespace, &owner.name).and_then(|set| {
                let uid = same(set.uid())?;
                let deployment = owners::controller_of(&set.metadata).filter(|r| r.kind == "Deployment");
                match deployment.and_then(|r| self.deployments.get(namespace, &r.name)) {
                    Some(deployment) => Some((deployment.uid()?, deployment.spec.as_ref()?.replicas.unwrap_or(1))),
                    None => Some((uid, set.spec.as_ref()?.replicas.unwrap_or(1))),
                }
            }),
            ("apps/v1", "StatefulSet") => {
                let set = self.stateful_sets.get(namespace, &owner.name);
                set.and_then(|set| Some((same(set.uid())?, set.spec.as_ref()?.replicas.unwrap_or(1))))
            }
            ("v1", "ReplicationController") => {
                let set = self.replication_controllers.get(namespace, &owner.name);
                set.and_then(|set| Some((same(set.uid())?, set.spec.as_ref()?.replicas.unwrap_or(1))))
            }
            _ => return None,
        })
    }

    async fn asked(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<(String, i32)>, CountError> {
        let kinds = discovery::kinds(&self.client).await?;
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let Some(kind) =
            kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == owner.kind && k.namespaced)
        else {
            return Ok(None);
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        match api.get_scale(&owner.name).await {
            Ok(scale) if scale.metadata.uid.as_ref() == Some(&owner.uid) => {
                Ok(Some((owner.uid.clone(), scale.spec.and_then(|s| s.replicas).unwrap_or(0))))
            }
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let resource = GroupResource { group, resource: &kind.resource.plural };
                Err(CountError::NoScale { resource: resource.to_string() })
            }
            Err(err) => Err(err.into()),
        }
    }
}
