//! Pulls and images: failures, ages, credentials and turns.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use base::rng::Rng;
use base::sync::Mutex;
use base::time::Stopwatch;

use super::pulled::Pulled;
use super::turns::Turns;
use crate::backoffs::Backoffs;
use crate::pace::Pace;

/// Between two looks at all images for the node's status, unless one was pulled.
const LIST_PERIOD: Duration = Duration::from_secs(60);

/// Pulls: failed ones by pod and image, the ages of images, whose credentials fetched them, and the
/// turns.
pub(crate) struct Pulls {
    pub(super) failed: Mutex<Backoffs>,
    pub(super) ages: Mutex<HashMap<String, Age>>,
    pub(super) pulled: Pulled,
    pub(super) turns: Turns,
    /// `registryPullQPS`.
    pub(super) pace: Pace,
    /// When all images were listed last.
    pub(super) listed: Mutex<Option<Stopwatch>>,
}

impl Pulls {
    /// `root_dir` is the kubelet's folder.
    pub(crate) fn new(root_dir: &Path, parallel: usize, pace: Pace, rng: &Rng) -> Pulls {
        Pulls {
            failed: Mutex::default(),
            ages: Mutex::default(),
            pulled: Pulled::open(root_dir, rng),
            turns: Turns::new(parallel),
            pace,
            listed: Mutex::default(),
        }
    }
}

impl Pulls {
    /// Whether it is time to list all images again.
    pub(super) fn wants_list(&self) -> bool {
        self.listed.lock().as_ref().is_none_or(|at| at.elapsed() >= LIST_PERIOD)
    }

    /// All images were listed just now.
    pub(super) fn note_list(&self) {
        *self.listed.lock() = Some(Stopwatch::start());
    }

    /// There is an image that no list has.
    pub(super) fn note_pull(&self) {
        *self.listed.lock() = None;
    }
}

/// When an image was first seen, and last in use: on a clock that nobody sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    pub(super) found: Stopwatch,
    pub(super) used: Option<Stopwatch>,
}
