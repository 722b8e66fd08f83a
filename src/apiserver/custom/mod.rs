//! Custom resources: which are served, and who keeps their definitions' status.

pub mod catalogs;
pub mod conversion;
pub mod keeper;
pub mod selection;
pub mod status;
