//! Versions of keys: the index in memory, the rows in SQLite, the one thread that writes both.
//!
//! `files` opens what is on the disk, `database` knows the rows, `index` which versions exist, `apply` turns commands
//! into rows of the `memtable`, `writer` is the thread that does so, `flush` writes them, `hub` tells watchers, `read`
//! and `history` look things up without ever blocking the writer.

pub mod applied_index;
pub mod apply;
pub mod database;
pub mod entry;
pub mod files;
pub mod flush;
pub mod history;
pub mod hub;
pub mod index;
mod install;
pub mod job;
pub mod memtable;
pub mod read;
pub mod shared;
pub mod space;
pub mod wait;
pub mod writer;
