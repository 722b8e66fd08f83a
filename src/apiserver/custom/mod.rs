//! Custom resources: which are served, and who keeps their definitions' status.

pub mod keeper;
pub mod status;
