//! convert/mod
