//! Versions of keys: the index in memory, the rows in SQLite, the one thread that writes both.
//!
//! `files` opens what is on the disk, `database` knows the rows, `index` which versions exist, `apply` turns commands
//! into rows that are `behind`, `writer` is the thread that does so, `flush` writes them, `hub` tells watchers, `read`
//! and `past` look things up without ever blocking the writer.

pub mod ahead;
pub mod apply;
pub mod behind;
pub mod database;
pub mod files;
pub mod flush;
pub mod hub;
pub mod index;
mod install;
pub mod job;
pub mod past;
pub mod read;
pub mod space;
pub mod wait;
pub mod writer;
