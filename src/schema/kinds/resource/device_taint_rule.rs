//! DeviceTaintRule (resource.k8s.io).

use crate::behaviour::{Behaviour, Owners, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static DEVICE_TAINT_RULE: Behaviour = Behaviour {
    stored: Some(("resource.k8s.io", "v1beta2")),
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().counts_spec(),
    rules: Rules { always: validate::devices::taint_rule, ..Rules::NONE },
    ..kind("resource.k8s.io", "DeviceTaintRule")
};
