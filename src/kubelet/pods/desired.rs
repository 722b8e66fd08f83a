//! The state that a pod should reach.

use std::collections::VecDeque;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::sources::annotations::is_static;

/// Ends that are remembered of one pod.
pub(crate) const ENDED_MAX: usize = 64;

/// What a pod should be, as its task last heard. Only the latest counts.
#[derive(Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// The API object is gone, or the manifest file.
    pub(crate) gone: bool,
    /// Counts volume refreshes asked for.
    pub(crate) refresh: u64,
    /// The containers of which the runtime said last that they ended.
    pub(crate) ended: VecDeque<String>,
    /// Why the node throws the pod out: reason and text.
    pub(crate) evicted: Option<(&'static str, String)>,
    /// Made from a file: its API object is only a mirror.
    pub(crate) is_static: bool,
    /// Its object says now that it is the mirror of another pod: it is ended, and its object deleted after it.
    pub(crate) is_ousted: bool,
}

impl Desired {
    /// A pod as a source told of it.
    pub(crate) fn new(pod: Arc<Pod>) -> Desired {
        let is_static = is_static(&pod);
        Desired { pod, gone: false, refresh: 0, ended: VecDeque::new(), evicted: None, is_static, is_ousted: false }
    }

    /// The runtime says that a container ended.
    pub(crate) fn has_ended(&mut self, id: String) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
    }

    /// The pod is to be ended and forgotten.
    pub(crate) fn is_deleted(&self) -> bool {
        self.gone || self.is_ousted || self.pod.metadata.deletion_timestamp.is_some()
    }
}
