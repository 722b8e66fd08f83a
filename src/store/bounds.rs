//! Sizes and times of the store that a test may want smaller or larger. They are parameters: the code that a test runs
//! is the code that is shipped.

use std::time::Duration;

/// Sizes and times of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a segment of the log, unless a record is larger; whole pages of 4096.
    pub segment_bytes: usize,
    /// Bytes that may be behind the database before they are written at once.
    pub behind_bytes_max: usize,
    /// How long a write waits for a leader and a majority.
    pub write_timeout: Duration,
    /// How long a linearizable read waits for them.
    pub read_timeout: Duration,
    /// How long a change of the group may take, handing over included.
    pub change_timeout: Duration,
}

impl Bounds {
    /// Those of a server. Writes wait as long as etcd's: 5 s and two election times.
    pub const SHIPPED: Bounds = Bounds {
        segment_bytes: 2 * 1024 * 1024,
        behind_bytes_max: 1024 * 1024,
        write_timeout: Duration::from_secs(9),
        read_timeout: Duration::from_secs(7),
        change_timeout: Duration::from_secs(30),
    };

    /// Tests have little to write and want many segments of it, on slow machines that they share.
    #[cfg(test)]
    pub(crate) const TESTS: Bounds = Bounds {
        segment_bytes: 16 * 1024,
        behind_bytes_max: 8 * 1024,
        write_timeout: Duration::from_secs(120),
        read_timeout: Duration::from_secs(120),
        change_timeout: Duration::from_secs(120),
    };
}
