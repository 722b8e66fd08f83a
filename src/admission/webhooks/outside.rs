//! The way to webhooks, for the plugins that ask them.

use std::sync::Arc;

use base::rng::Rng;
use registry::webhook::client::Webhooks;

/// Dependencies of both plugins.
#[derive(Clone)]
pub struct Outside {
    /// The way there.
    pub webhooks: Arc<Webhooks>,
    /// Uids of questions.
    pub rng: Rng,
}
