//! Workload (scheduling.k8s.io).

use crate::behaviour::{Behaviour, kind};

/// The row.
pub(crate) static WORKLOAD: Behaviour = Behaviour { ..kind("scheduling.k8s.io", "Workload") };
