//! Services with their EndpointSlices, and which of them changed: what everybody needs who follows both and works on
//! one Service after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::time::Instant;

use crate::informer::{Change, Changes, Groups, Informer, Informers, Key};

/// The label that names the Service of a slice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The Service that a slice belongs to.
pub fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.as_deref().unwrap_or_default(), service))
}

/// The Services that changes concern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// These, which may be gone.
    These(BTreeSet<Key>),
    /// It is not known which: changes were missed, or nothing was seen yet.
    All,
}

impl Touched {
    /// None at all.
    pub fn none() -> Touched {
        Touched::These(BTreeSet::new())
    }

    fn add(&mut self, key: Option<Key>) {
        if let (Touched::These(keys), Some(key)) = (self, key) {
            keys.insert(key);
        }
    }
}

/// A reader of Services and their slices.
pub struct Services {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    by_service: Groups<EndpointSlice>,
    service_changes: Changes<Service>,
    slice_changes: Changes<EndpointSlice>,
}

impl Services {
    /// Follows both kinds; changes count from now on.
    pub fn follow(informers: &Informers) -> Services {
        let (services, slices) = (informers.get::<Service>(), informers.get::<EndpointSlice>());
        let (service_changes, slice_changes) = (services.changes(), slices.changes());
        let by_service = slices.group_by(service_of);
        Services { services, slices, by_service, service_changes, slice_changes }
    }

    /// Waits until both first lists are there.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
    }

    /// One Service.
    pub fn get(&self, key: &Key) -> Option<Arc<Service>> {
        self.services.get(&key.namespace, &key.name)
    }

    /// All Services, by namespace and name.
    pub fn list(&self) -> Vec<Arc<Service>> {
        self.services.list()
    }

    /// The slices of one Service, by name.
    pub fn slices(&self, key: &Key) -> Vec<Arc<EndpointSlice>> {
        self.by_service.get(key)
    }

    /// Waits for a change and notes which Services it concerns. Cancel safe.
    pub async fn touched(&mut self, touched: &mut Touched) {
        tokio::select! {
            change = self.service_changes.next() => match change {
                Change::Added(service) | Change::Deleted(service) | Change::Modified { new: service, .. } => {
                    touched.add(Some(Key::of(&*service)));
                }
            },
            change = self.slice_changes.next() => match change {
                Change::Added(slice) | Change::Deleted(slice) => touched.add(service_of(&slice)),
                Change::Modified { old, new } => {
                    touched.add(service_of(&old));
                    touched.add(service_of(&new));
                }
            },
        }
    }

    /// Notes the changes of the time to come, so that a burst is one piece of work. Cancel safe.
    pub async fn gather(&mut self, time: Duration, touched: &mut Touched) {
        let end = Instant::now() + time;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return,
                () = self.touched(touched) => {}
            }
        }
    }
}
