//! Running the plugins: a round that changes, and again if a plugin asks for it, then a round that judges.

use std::sync::Arc;

use base::time::Stopwatch;
use registry::status::Status;

use super::timing::{Outcome, Round, Times};
use super::{Plugin, Review};

/// The plugins of one server, in the order they run.
pub struct Admission {
    plugins: Vec<Arc<dyn Plugin>>,
    /// How long they took.
    /// Times of the plugins.
    pub times: Times,
}

impl Admission {
    /// Of these plugins.
    pub fn new(plugins: Vec<Arc<dyn Plugin>>) -> Admission {
        let times = Times::of(plugins.iter().map(|plugin| plugin.name()));
        Admission { plugins, times }
    }

    /// Both rounds.
    ///
    /// Errors: a plugin's refusal.
    pub async fn both(&self, review: &mut Review<'_>) -> Result<(), Status> {
        self.run(review, Round::Admit).await?;
        self.run(review, Round::Validate).await
    }

    /// One round: `admit` of every plugin, or `validate` of every plugin.
    ///
    /// Errors: a plugin's refusal.
    pub async fn run(&self, review: &mut Review<'_>, round: Round) -> Result<(), Status> {
        let whole = Stopwatch::start();
        let outcome = self.ask(review, round).await;
        self.times.step(round, review.operation, Outcome::of(&outcome), whole.elapsed());
        outcome
    }

    async fn ask(&self, review: &mut Review<'_>, round: Round) -> Result<(), Status> {
        loop {
            for plugin in self.handling(review) {
                let own = Stopwatch::start();
                let outcome = match round {
                    Round::Admit => plugin.admit(review).await,
                    Round::Validate => plugin.validate(review).await,
                };
                self.times.plugin(plugin.name(), round, review.operation, Outcome::of(&outcome), own.elapsed());
                outcome?;
            }
            if round == Round::Validate || !review.reinvocation.wanted() {
                return Ok(());
            }
            review.reinvocation.begin_second();
        }
    }

    fn handling(&self, review: &Review<'_>) -> Vec<&dyn Plugin> {
        let plugins = self.plugins.iter().map(AsRef::as_ref);
        plugins.filter(|plugin| plugin.handles(review.operation, review.attributes)).collect()
    }
}
