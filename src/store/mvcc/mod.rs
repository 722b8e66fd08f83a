//! Versions of keys: the index in memory, the rows in SQLite, the one thread that writes both.
//!
//! `files` opens what is on the disk, `database` knows the rows, `index` which versions exist. `writer` is the thread
//! that takes jobs, over four parts with a state of their own: the `log`, the `applier` (whose `apply` turns commands
//! into rows of the `memtable`), the flusher (`flush`), which brings those to the database, and the compactor
//! (`compact`). `hub` tells watchers, `read` and `history` look things up without ever blocking the writer.

pub mod applied_index;
mod applier;
pub mod apply;
mod compact;
pub mod database;
pub mod entry;
pub mod files;
pub mod flush;
pub mod history;
pub mod hub;
pub mod index;
mod install;
pub mod job;
mod log;
pub mod memtable;
pub mod read;
pub mod shared;
pub mod space;
pub mod wait;
pub mod writer;
