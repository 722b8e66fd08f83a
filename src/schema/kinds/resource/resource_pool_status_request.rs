//! ResourcePoolStatusRequest (resource.k8s.io).

use crate::behaviour::{Behaviour, Owners, kind};

/// The row.
pub(crate) static RESOURCE_POOL_STATUS_REQUEST: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().conditional(),
    ..kind("resource.k8s.io", "ResourcePoolStatusRequest")
};
