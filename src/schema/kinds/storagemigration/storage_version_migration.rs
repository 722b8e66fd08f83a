//! StorageVersionMigration (storagemigration.k8s.io).

use crate::behaviour::{Behaviour, Owners, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static STORAGE_VERSION_MIGRATION: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().conditional(),
    rules: Rules {
        always: validate::coordination::migration,
        update: validate::coordination::migration_update,
        ..Rules::NONE
    },
    ..kind("storagemigration.k8s.io", "StorageVersionMigration")
};
