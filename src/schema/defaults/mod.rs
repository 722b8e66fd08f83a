//! defaults/mod
