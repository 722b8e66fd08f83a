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
