//! Flags, environment and files of settings: what a person says to a server, an agent or a command, and what is
//! refused.

pub(crate) mod claims;
pub(crate) mod config_file;
pub(crate) mod config_source;
pub(crate) mod environment;
pub(crate) mod layers;
pub(crate) mod profile;
pub(crate) mod ranges;
pub(crate) mod refused;
pub(crate) mod roles;
pub(crate) mod runtime;
pub(crate) mod s3;
pub(crate) mod shared;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod value;
