//! kubectl's columns.
