//! Versions of keys: the index in memory, the rows in SQLite, the one thread that writes both.
//!
//! `database` opens the file, `index` knows which versions exist, `apply` turns commands into rows, `writer` is the
//! thread that commits them, `hub` tells watchers, `read` and `past` look things up without ever blocking the writer.

pub mod ahead;
pub mod apply;
pub mod database;
pub mod hub;
pub mod index;
pub mod job;
pub mod past;
pub mod read;
pub mod writer;
