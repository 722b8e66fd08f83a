//! The table of all settings of upstream's kubelet v1.36: what is done, what is so in any case, and what is refused.
//!
//! Spec: cmd/kubelet/app/options and k8s.io/kubelet/config/v1beta1/types.go, v1.36.2.

use super::row::Row;
use super::rows::{eviction, images, logging, naming, pods, resources, serving};

/// All rows.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [naming::ROWS, serving::ROWS, pods::ROWS, images::ROWS, eviction::ROWS, resources::ROWS, logging::ROWS]
        .into_iter()
        .flatten()
}

/// The row of a field, by its dotted path.
pub(super) fn by_field(path: &str) -> Option<&'static Row> {
    all().find(|row| row.field == path)
}

/// The row of a flag without dashes.
pub(super) fn by_flag(name: &str) -> Option<&'static Row> {
    all().find(|row| !row.flag.is_empty() && row.flag == name)
}

/// Whether fields lie below a path.
pub(super) fn has_below(path: &str) -> bool {
    all().any(|row| row.field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}
