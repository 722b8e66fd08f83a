//! The devices that containers have.

use std::collections::{BTreeMap, BTreeSet};

use proto::plugins as pb;

/// What one container has of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given {
    pub(crate) ids: BTreeSet<String>,
    pub(crate) needs: pb::ContainerAllocation,
}

/// By pod, container and resource.
pub(crate) type Allocations = BTreeMap<String, BTreeMap<String, BTreeMap<String, Given>>>;
