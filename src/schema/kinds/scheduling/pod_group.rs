//! PodGroup (scheduling.k8s.io).

use crate::behaviour::{Behaviour, Owners, kind};

/// The row.
pub(crate) static POD_GROUP: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata(),
    ..kind("scheduling.k8s.io", "PodGroup")
};
