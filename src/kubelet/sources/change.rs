//! A change of a source: pods that appear, change and go.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

/// A change that a source tells.
pub(crate) enum Change {
    /// A pod that should run here, new or changed.
    Set(Arc<Pod>),
    /// By uid: its object or file is gone.
    Gone(String),
    /// A pod of ours whose object now calls itself the mirror of another: nobody may make a pod's containers nobody's.
    Disowned(Arc<Pod>),
    /// The API's picture of a static pod.
    Mirror(Arc<Pod>),
    /// That picture was deleted.
    MirrorGone(Arc<Pod>),
    /// All that existed at the start was told.
    Synced,
}
