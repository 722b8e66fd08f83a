//! The verdicts of a container's probes.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;

/// The verdict of a container's probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// The container they speak of.
    pub(crate) id: String,
    /// The startup probe passed, or there is none.
    pub(crate) started: bool,
    /// The readiness probe passes, or there is none.
    pub(crate) ready: bool,
    /// Which probe wants the container killed: `liveness` or `startup`.
    pub(crate) kill: Option<&'static str>,
}

pub(crate) type Shared = Arc<Mutex<BTreeMap<String, Health>>>;
