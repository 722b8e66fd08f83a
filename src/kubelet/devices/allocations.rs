//! The devices that containers have.

use std::collections::{BTreeMap, BTreeSet};

use proto::plugins as pb;

/// The devices of one resource that one container has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given {
    pub(crate) ids: BTreeSet<String>,
    pub(crate) needs: pb::ContainerAllocation,
}

/// By pod, container and resource.
pub(crate) type Allocations = BTreeMap<String, BTreeMap<String, BTreeMap<String, Given>>>;

/// A container of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodContainer<'a> {
    /// The pod's.
    pub(crate) uid: &'a str,
    pub(crate) name: &'a str,
}

impl PodContainer<'_> {
    /// The devices that it has, by resource.
    pub(super) fn given(self, all: &Allocations) -> impl Iterator<Item = (&String, &Given)> {
        all.get(self.uid).and_then(|pod| pod.get(self.name)).into_iter().flatten()
    }
}
