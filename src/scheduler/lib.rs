//! This room finds a node for each pod that has none: filter the nodes that can take it, score them, bind to the best.
//!
//! In: pods and nodes from shared informers. Out: Bindings, PodScheduled conditions, events. It never starts a pod and
//! never keeps a decision that is not written as a Binding.

pub mod run;

pub mod settings;

pub mod queue;

pub mod snapshot;

pub mod cycle;

pub mod preempt;

pub mod filters;

mod assumed;

mod drivers;

pub mod scores;

pub mod resources;

pub mod affinity;

#[cfg(test)]
mod tests;
