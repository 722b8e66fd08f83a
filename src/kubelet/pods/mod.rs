//! Pods on this node: what each should be, what it has, what the node granted it.

pub(crate) mod admission;
pub(crate) mod desired;
pub(crate) mod folder;
pub(crate) mod map;
pub(crate) mod observed;
pub(crate) mod resizing;
mod share;
pub(crate) mod snapshot;
pub(crate) mod spec;
