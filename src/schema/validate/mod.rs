//! Is this object allowed? Field errors in upstream's words.

pub mod error;
pub mod names;
