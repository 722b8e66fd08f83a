//! The name of a pod as the container runtime gives it to CNI plugins.

use serde::{Deserialize, Serialize};

/// A pod as the runtime names it. (Without a namespace in what an earlier kedge wrote down.)
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodRef {
    #[serde(default)]
    pub(crate) ns: String,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) uid: String,
}
