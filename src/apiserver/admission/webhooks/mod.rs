//! Admission webhooks: programs outside of this server that change and judge objects.
//!
//! [`Mutating`] asks one after the other, in the order of the configurations' names; [`Validating`] asks all at once.

pub mod hook;
pub mod mutating;
pub mod question;
pub mod validating;

pub use mutating::Mutating;
pub use validating::Validating;

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

#[cfg(test)]
mod tests;
