//! The kinds of autoscaling.

pub(crate) mod horizontal_pod_autoscaler;
