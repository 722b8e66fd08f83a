//! Bounds that several rooms share or that make up the process's memory, each with what happens when it is reached. A
//! bound that concerns one file stands there, as a constant with a sentence.

/// How long old revisions stay readable: watches and paged lists may go on from there, as with upstream's API server.
pub const HISTORY_SECS: u64 = 300;

/// Reports of ended tasks that wait for the role; one is enough, more are dropped.
pub const FATAL_REPORTS: usize = 4;

/// Bytes of a request body, as upstream's `MaxRequestBodyBytes` (3 MiB); a longer one is refused with 413.
pub const REQUEST_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Levels of nesting in a decoded document; a deeper one is refused with 400.
pub const NESTING_DEPTH_MAX: usize = 128;

/// Batches of events that wait for one store watcher; a slower one is closed and must list again.
pub const STORE_WATCH_BACKLOG_BATCHES: usize = 1024;

/// Events that wait for one API watcher; the stream of a slower one ends, and it resumes.
pub const API_WATCH_BACKLOG_EVENTS: usize = 1024;

/// Writes that wait for the store's next batch; more wait in their callers.
pub const STORE_WRITE_QUEUE: usize = 4096;

/// Recent changes kept per resource for watches that resume, for at most `HISTORY_SECS`; older ones are read from the
/// store.
pub const WATCH_CACHE_RING: usize = 1024;

/// Bytes of these changes per resource, with the frames that they become: more than 1024 changes of usual objects.
/// Older ones are read from the store.
pub const WATCH_CACHE_RING_BYTES: usize = 8 * 1024 * 1024;

/// The same of changes that wait for one API watcher; the stream of a slower one ends, and it resumes.
pub const API_WATCH_BACKLOG_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of changes read from the store for one watch that resumes; one with more is told that it is too old, and lists
/// again.
pub const WATCH_HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Keys read from the store at once while a watch cache fills, or a collection is read at an old revision.
pub const CACHE_FILL_PAGE_KEYS: u64 = 2000;

/// Deletes of one deletecollection that are under way at once; the others wait their turn.
pub const DELETE_COLLECTION_PARALLEL: usize = 256;

/// Messages that wait on one stream of the etcd face for a client that does not read; more wait in the store.
pub const STORE_ETCD_STREAM: usize = 128;
