//! What the plugins that ask webhooks need.

use std::sync::Arc;

use base::rng::Rng;

use crate::webhook::client::Webhooks;

/// What both plugins need.
#[derive(Clone)]
pub struct Outside {
    /// The way there.
    pub webhooks: Arc<Webhooks>,
    /// Uids of questions.
    pub rng: Rng,
}
