//! Turns of image pulls: few at a time, for all of a machine that begins would be slower at once than one after
//! another, and yet a registry that never answers keeps nobody from another one's images.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use tokio::sync::{AcquireError, Semaphore};

/// A pull that takes longer lets one from another registry go beside it; of its own registry it keeps its turn.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pulls that take longer, of all registries: beyond these they keep their turns. The runtime ends those that get
/// nothing for some minutes.
const SLOW_MAX: usize = 32;

/// The turns of one node.
pub(super) struct Turns {
    /// Pulls at a time, of one registry and of all.
    parallel: usize,
    patience: Duration,
    all: Semaphore,
    slow: Semaphore,
    registries: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Turns {
    pub(super) fn new(parallel: usize) -> Turns {
        Turns::with_patience(parallel, PATIENCE)
    }

    fn with_patience(parallel: usize, patience: Duration) -> Turns {
        // More than that is no limit.
        let parallel = parallel.min(Semaphore::MAX_PERMITS);
        Turns {
            parallel,
            patience,
            all: Semaphore::new(parallel),
            slow: Semaphore::new(SLOW_MAX),
            registries: Mutex::default(),
        }
    }

    /// Waits for a turn of this registry's, then does `work`. Cancel safe: the turn is given back.
    ///
    /// Errors: none while the node lives; its turns were closed.
    pub(super) async fn within<T>(&self, registry: &str, work: impl Future<Output = T>) -> Result<T, AcquireError> {
        let _own = self.of(registry).acquire_owned().await?;
        let turn = self.all.acquire().await?;
        let mut work = pin!(work);
        if let Ok(done) = tokio::time::timeout(self.patience, work.as_mut()).await {
            return Ok(done);
        }
        match self.slow.try_acquire() {
            Ok(_slow) => {
                drop(turn);
                Ok(work.await)
            }
            Err(_) => Ok(work.await),
        }
    }

    /// The turns of one registry. Those that nobody holds or waits for are forgotten: whoever makes a pod makes up
    /// names.
    fn of(&self, registry: &str) -> Arc<Semaphore> {
        let mut registries = self.registries.lock();
        registries.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(registries.entry(registry.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.parallel))))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::{join_all, select};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    // three registries that hung held all turns, and no other image came
    #[tokio::test]
    async fn registries_that_hang_hold_up_no_other_one() {
        let turns = Turns::with_patience(2, Duration::from_millis(1));
        let hang = |registry: &'static str| turns.within(registry, pending::<()>());
        let hanging = pin!(join_all([hang("a"), hang("b"), hang("a"), hang("a"), hang("b")]));
        let others = pin!(async {
            for _ in 0..9 {
                turns.within("c", ready(())).await.unwrap();
            }
            assert_eq!(turns.of("a").available_permits(), 0, "a registry has two turns, however long they take");
            assert!(tokio::time::timeout(Duration::from_millis(20), turns.within("a", ready(()))).await.is_err());
        });
        assert!(
            matches!(select(hanging, others).await, futures_util::future::Either::Right(_)),
            "what hangs does not end"
        );
    }

    #[tokio::test]
    async fn pulls_that_are_let_go_give_their_turns_back_and_names_that_nobody_pulls_from_are_forgotten() {
        let turns = Turns::with_patience(2, LONG);
        {
            let hanging = pin!(join_all(["a", "b", "c"].map(|registry| turns.within(registry, pending::<()>()))));
            let late = pin!(tokio::time::sleep(Duration::from_millis(1)));
            select(hanging, late).await;
            assert_eq!((turns.all.available_permits(), turns.registries.lock().len()), (0, 3), "two at a time");
        }
        turns.within("d", ready(())).await.unwrap();
        assert_eq!((turns.all.available_permits(), turns.registries.lock().len()), (2, 1));
        assert_eq!(Turns::new(usize::MAX).parallel, Semaphore::MAX_PERMITS);
    }
}
