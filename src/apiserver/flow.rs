//! API priority and fairness: no user, however eager, keeps the others from being answered.
//!
//! [`classify`] finds the FlowSchema of a request, [`level`] gives out the seats of its priority level, [`controller`]
//! keeps both as the stored FlowSchemas and PriorityLevelConfigurations say, [`defaults`] are those that every cluster
//! has, [`status`] says of each schema whether its level is there.

pub mod classify;
pub mod controller;
pub mod defaults;
pub mod level;
pub mod status;

/// Where both kinds live.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
