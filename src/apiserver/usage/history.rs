//! Rates of nodes and containers from two looks at a node's counters, taken when somebody asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use model::reference::NamespacedName;
use tokio::time::Instant;

use super::page::{ContainerKey, Counters, Page};

/// A look younger than this is good enough: who asks in a loop does not make kubelets work in a loop.
const FRESH: Duration = Duration::from_secs(5);
/// Counters older than this say nothing of now.
const STALE: Duration = Duration::from_secs(90);
/// The shortest time over which a rate is taken.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// One look.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    wall: Timestamp,
    page: Arc<Page>,
}

/// Two looks, the second one new.
#[derive(Clone, Debug)]
pub struct Pair {
    before: Look,
    last: Look,
}

/// Usage of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Nanoseconds of CPU per second.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

impl Pair {
    /// The time of the later look.
    pub fn at(&self) -> Timestamp {
        self.last.wall
    }

    /// The time between the looks.
    pub fn window(&self) -> Duration {
        self.last.at.duration_since(self.before.at)
    }

    /// Usage of the machine.
    pub fn node(&self) -> Option<Use> {
        self.rate(Some(&self.before.page.node), &self.last.page.node)
    }

    /// Usage of a pod's containers, by name.
    ///
    /// A container that began between the looks is measured from its start; one that began just now is not there yet.
    pub fn containers(&self, pod: NamespacedName<'_>) -> Vec<(String, Use)> {
        let is_its = |key: &ContainerKey| key.namespace == pod.namespace && key.pod == pod.name;
        let mine = self.last.page.containers.iter().filter(|(key, _)| is_its(key));
        mine.filter_map(|(key, now)| {
            let before =
                self.before.page.containers.get(key).filter(|before| before.started_nanos == now.started_nanos);
            Some((key.container.clone(), self.rate(before, now)?))
        })
        .collect()
    }

    fn rate(&self, before: Option<&Counters>, now: &Counters) -> Option<Use> {
        let (used, memory) = (now.cpu_nanos?, now.memory?);
        let (grown, span) = match before {
            Some(before) => (used.checked_sub(before.cpu_nanos?)?, u64::try_from(self.window().as_nanos()).ok()?),
            None => (used, u64::try_from(self.last.wall.as_nanosecond()).ok()?.checked_sub(now.started_nanos?)?),
        };
        if u128::from(span) < SPAN_MIN.as_nanos() {
            return None;
        }
        let per_second = u128::from(grown) * 1_000_000_000 / u128::from(span);
        Some(Use { cpu: u64::try_from(per_second).ok()?, memory })
    }
}

fn seen(page: Page, wall: Timestamp) -> Look {
    Look { at: Instant::now(), wall, page: Arc::new(page) }
}

/// The last looks at one node; held by whoever looks, so that two questions make one look.
#[derive(Default)]
struct Node(tokio::sync::Mutex<Option<(Look, Option<Look>)>>);

/// The last looks at every node that was asked about.
#[derive(Default)]
pub struct Histories(Mutex<HashMap<String, Arc<Node>>>);

impl Histories {
    /// Two looks at a node, the later one new enough: from memory, or by looking with `look`, twice if nobody looked of
    /// late.
    ///
    /// Errors: those of `look`. Cancel safety: a look that is dropped was none.
    pub async fn pair<'a, E: Send>(
        &self,
        node: &str,
        look: impl Fn() -> BoxFuture<'a, Result<Page, E>> + Send + Sync,
        now: impl Fn() -> Timestamp + Send + Sync,
    ) -> Result<Pair, E> {
        let slot = Arc::clone(self.0.lock().entry(node.to_owned()).or_default());
        let mut kept = slot.0.lock().await;
        if let Some((last, Some(before))) = kept.as_ref().filter(|(last, _)| last.at.elapsed() < FRESH) {
            return Ok(Pair { before: before.clone(), last: last.clone() });
        }
        let before = match kept.take().map(|(last, _)| last).filter(|last| last.at.elapsed() < STALE) {
            Some(last) => last,
            None => seen(look().await?, now()),
        };
        tokio::time::sleep_until(before.at + SPAN_MIN).await;
        let last = seen(look().await?, now());
        *kept = Some((last.clone(), Some(before.clone())));
        Ok(Pair { before, last })
    }

    /// Forgets nodes that are gone.
    pub fn keep(&self, wanted: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| wanted(name));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const POD: NamespacedName<'_> = NamespacedName { namespace: "ns", name: "p" };

    fn page(n: u64, started: u64) -> Page {
        let key = ContainerKey { namespace: "ns".into(), pod: "p".into(), container: "c".into() };
        let counters = |cpu| Counters { cpu_nanos: Some(cpu), memory: Some(7), started_nanos: Some(started) };
        Page { node: counters(n * 500_000_000), containers: [(key, counters(n * 100_000_000))].into() }
    }

    #[tokio::test]
    async fn the_first_question_looks_twice_and_a_hurried_one_not_at_all() {
        let (histories, looks) = (Histories::default(), AtomicU64::new(0));
        let ask = async || {
            let look =
                || Box::pin(async { Ok::<_, ()>(page(looks.fetch_add(1, Ordering::Relaxed), 1)) }) as BoxFuture<'_, _>;
            histories.pair("n", look, || Timestamp::UNIX_EPOCH).await.unwrap()
        };
        let pair = ask().await;
        assert!(pair.window() >= SPAN_MIN);
        // Half a second of CPU in a little more than a second.
        assert!(pair.node().is_some_and(|used| (250_000_000..=500_000_000).contains(&used.cpu) && used.memory == 7));
        assert_eq!(pair.containers(POD).len(), 1);
        ask().await;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
        histories.keep(|_| false);
        ask().await;
        assert_eq!(looks.load(Ordering::Relaxed), 4, "a node that was forgotten is a new one");
    }

    #[test]
    fn a_container_that_began_between_is_measured_from_its_start() {
        let look = |page| Look { at: Instant::now(), wall: Timestamp::from_second(100).unwrap(), page: Arc::new(page) };
        let pair = |before, last| Pair { before: look(before), last: look(last) };
        let young = pair(Page::default(), page(4, 98_000_000_000));
        assert_eq!(young.containers(POD)[0].1.cpu, 200_000_000);
        assert!(pair(Page::default(), page(4, 99_900_000_000)).containers(POD).is_empty(), "too young");
        assert_eq!(pair(page(9, 5), page(4, 98_000_000_000)).containers(POD)[0].1.cpu, 200_000_000, "restarted");
    }
}
