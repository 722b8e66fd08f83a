//! The aggregation layer: API groups that other servers in the cluster answer, as APIServices say.
//!
//! [`registry`] knows who answers what, [`proxy`] passes requests on as [`caller`], [`availability`] watches over them,
//! [`local`] registers what this server answers itself, [`fetched`] asks the others what they serve and [`merge`] puts
//! everybody's groups into discovery and OpenAPI.

pub mod aggregation;
pub mod availability;
pub mod caller;
pub mod fetched;
pub mod local;
pub mod merge;
pub mod proxy;
pub mod registry;

/// Where APIServices live.
pub const GROUP: &str = "apiregistration.k8s.io";
/// Their plural.
pub const RESOURCE: &str = "apiservices";
