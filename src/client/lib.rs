//! This room talks to the API server for everybody else: one client with two transports, one list/watch per kind and
//! process, a work queue, and events.
//!
//! In: a transport from the root. Out: `kube::Client`s, informers, queues, recorders. It never knows who answers.

pub mod transport;

mod changes;
pub mod index;
pub mod informer;
mod outage;
pub mod reflector;
pub mod services;

pub mod queue;

pub mod events;

pub mod volumes;

pub mod typed;
