//! StorageVersion (internal.apiserver.k8s.io).

use crate::behaviour::{Behaviour, Owners, kind};

/// The row.
pub(crate) static STORAGE_VERSION: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().conditional(),
    ..kind("internal.apiserver.k8s.io", "StorageVersion")
};
