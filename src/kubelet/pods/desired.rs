//! The state that a pod should reach, and why it does not: it fails, waits, or the node ends it early.

use std::collections::VecDeque;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::sources::annotations::is_static;

/// Ends that are remembered of one pod.
pub(crate) const ENDED_MAX: usize = 64;

/// Why a pod fails or a container waits: reason and message of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// One word for programs, e.g. `Evicted`.
    pub(crate) reason: String,
    /// A text for people.
    pub(crate) message: String,
}

impl Cause {
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> Cause {
        Cause { reason: reason.to_owned(), message: message.into() }
    }
}

/// How much time an evicted pod has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// None: the node is out of something.
    Hard,
    /// Its own grace period, but so many seconds at most; below zero its own in any case.
    Soft(i64),
}

/// Why the node ends a pod before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ousting {
    /// The node runs short of something, or the pod took more than it may; the text says of what.
    Evicted(String, Notice),
    /// A critical pod needs its room.
    Preempted,
}

impl Ousting {
    /// The reason in the pod's status and in events.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Ousting::Evicted(..) => "Evicted",
            Ousting::Preempted => "Preempting",
        }
    }

    /// The message that goes with the reason.
    pub(crate) fn message(&self) -> &str {
        match self {
            Ousting::Evicted(message, _) => message,
            Ousting::Preempted => "Preempted in order to admit critical pod",
        }
    }
}

/// The state that a pod should reach, as its task last heard. Only the latest counts.
#[derive(Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// The API object is gone, or the manifest file.
    pub(crate) gone: bool,
    /// Counts volume refreshes asked for.
    pub(crate) refresh: u64,
    /// The containers of which the runtime said last that they ended.
    pub(crate) ended: VecDeque<String>,
    /// Why the node ends the pod before its time.
    pub(crate) ousted: Option<Ousting>,
    /// Made from a file: its API object is only a mirror.
    pub(crate) is_static: bool,
    /// Its object says now that it is the mirror of another pod: it is ended, and its object deleted after it.
    pub(crate) is_disowned: bool,
}

impl Desired {
    /// A pod as a source told of it.
    pub(crate) fn new(pod: Arc<Pod>) -> Desired {
        let is_static = is_static(&pod);
        Desired { pod, gone: false, refresh: 0, ended: VecDeque::new(), ousted: None, is_static, is_disowned: false }
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
        self.gone || self.is_disowned || self.pod.metadata.deletion_timestamp.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_to_be_forgotten_when_its_object_goes_or_turns_into_another() {
        let pod = || Desired::new(Arc::new(Pod::default()));
        assert!(!pod().is_deleted());
        assert!(
            !Desired { ousted: Some(Ousting::Preempted), ..pod() }.is_deleted(),
            "its object stays to be looked at"
        );
        assert!(Desired { gone: true, ..pod() }.is_deleted());
        assert!(Desired { is_disowned: true, ..pod() }.is_deleted());
        let mut deleted = Pod::default();
        deleted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(Desired::new(Arc::new(deleted)).is_deleted());
    }

    #[test]
    fn a_pod_that_is_ended_early_is_told_so_in_upstreams_words() {
        let evicted = Ousting::Evicted("The node was low on resource: memory. ".to_owned(), Notice::Hard);
        assert_eq!((evicted.reason(), evicted.message()), ("Evicted", "The node was low on resource: memory. "));
        let preempted = Ousting::Preempted;
        assert_eq!(
            (preempted.reason(), preempted.message()),
            ("Preempting", "Preempted in order to admit critical pod")
        );
    }
}
