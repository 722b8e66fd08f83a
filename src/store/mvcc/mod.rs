//! Versions of keys: the index in memory, the rows in SQLite, the one thread that writes both.

pub mod past;
