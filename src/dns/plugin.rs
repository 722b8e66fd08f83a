//! Plugins that one file tells, each with its lines of a Corefile and what it does.

pub(crate) mod acl;
pub(crate) mod autopath;
pub(crate) mod errors;
mod go_template;
pub(crate) mod header;
pub(crate) mod local;
pub(crate) mod log;
mod master_file;
pub(crate) mod rewrite;
pub(crate) mod template;
pub(crate) mod zone_file;
