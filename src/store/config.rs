//! The settings of a store: its folder, its way to the other members, its bounds.

use crate::{bounds, member};

/// Where the store lives and who it is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the database, e.g. `<data-dir>/server/db`; made with mode 0700 if missing.
    pub dir: std::path::PathBuf,
    /// The start of a store whose directory is empty.
    pub bootstrap: member::Bootstrap,
    /// How members reach each other; `None` is a store that stays alone.
    pub network: Option<member::Network>,
    /// Draws the numbers of a new store.
    pub rng: base::rng::Rng,
    /// Sizes and times.
    pub bounds: bounds::Bounds,
}
