//! Namespaces whose policies are too much for nftables: some scripts it refuses, or it does not end, and one namespace
//! must not keep the policies of all others from being in force. The heaviest one is judged to be why: its policies let
//! nothing through until they are lighter, and for a while at least: one that is heavy and light in turn would stop all
//! others each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info};

use crate::error::NetworkError;
use crate::family::Family;
use crate::policy::model::{Policy, World};
use crate::policy::rules;
use crate::table;

/// Namespaces that are held to be why, at most. When nft fails without them, too, none of them was.
const HEAVY_MAX: usize = 32;
/// Namespaces that were why and are lighter now, at most; the one that was let go first is forgotten first.
const REMEMBERED_MAX: usize = 256;
/// A namespace that is held to be why stays so for this long at least, and twice as long each time it is why again
/// while it is remembered.
const HOLD: Duration = Duration::from_secs(300);
/// HOLD is doubled this often at most: to five hours.
const DOUBLED_MAX: u32 = 6;
/// It is remembered this many times as long as it was held.
const REMEMBERED_HOLDS: u32 = 12;
/// After a failure that no namespace is the reason of, the whole table is tried again this much later, then twice as
/// much later each time.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// The whole table is tried this often before anybody is blamed: a stalled machine, or a table that somebody takes away
/// meanwhile, is nobody's fault.
const TRIES: u32 = 3;
/// Bytes of script of a namespace that is never why.
const LIGHT: usize = 2 << 10;

/// Record of a namespace that was too much.
#[derive(Debug)]
struct Blame {
    /// Its weight then.
    bytes: usize,
    /// How often it was why before.
    times: u32,
    /// Its policies let nothing through. If not, it is only remembered.
    is_shut: bool,
    /// It is shut until then at least, or remembered until then.
    until: Instant,
}

impl Blame {
    fn hold(times: u32) -> Duration {
        HOLD * (1 << times.min(DOUBLED_MAX))
    }
}

/// The part of the table that a script makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    Change,
}

/// The namespaces that were too much, and what came of tries without them.
#[derive(Debug, Default)]
pub(crate) struct Heavy {
    blamed: BTreeMap<String, Blame>,
    /// Of the whole table, in a row, since it was made lighter.
    failures: u32,
    /// nft failed without the heavy namespaces, too.
    is_nobodys: bool,
    /// When the next namespace that has become lighter is tried again.
    due: Option<Instant>,
}

impl Heavy {
    /// When the table is to be made anew though nothing has changed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Has policies of the heavy namespaces let nothing through. A namespace that has lost half of its weight is not
    /// heavy any more, after a while.
    pub(crate) fn lighten(&mut self, world: &mut World, families: &BTreeSet<Family>, now: Instant) {
        self.due = None;
        self.blamed.retain(|_, blame| blame.is_shut || now < blame.until);
        if !self.blamed.values().any(|blame| blame.is_shut) {
            return;
        }
        let weights = weights(world, families);
        for (ns, blame) in self.blamed.iter_mut().filter(|(_, blame)| blame.is_shut) {
            if weights.get(ns).is_some_and(|bytes| *bytes > blame.bytes / 2) {
                continue;
            }
            if now < blame.until {
                self.due = Some(self.due.map_or(blame.until, |due| due.min(blame.until)));
                continue;
            }
            info!(ns, "NetworkPolicies of this namespace are lighter: they are tried again");
            (blame.is_shut, blame.until) = (false, now + REMEMBERED_HOLDS * Blame::hold(blame.times));
        }
        let is_shut = |ns: &str| self.blamed.get(ns).is_some_and(|blame| blame.is_shut);
        for policy in world.policies.iter_mut().filter(|policy| is_shut(&policy.ns)) {
            policy.ingress = policy.ingress.take().map(|_| Vec::new());
            policy.egress = policy.egress.take().map(|_| Vec::new());
        }
    }

    /// nft did not take what was made of this world: says how long to wait until the
    /// whole table is tried, without one namespace more if the script may be why.
    pub(crate) fn failed(
        &mut self,
        err: &NetworkError,
        extent: Extent,
        world: &mut World,
        families: &BTreeSet<Family>,
        now: Instant,
    ) -> Duration {
        if extent == Extent::Change {
            return RETRY;
        }
        self.failures += 1;
        let is_of_the_script = matches!(err, NetworkError::NftRefused { .. } | NetworkError::NftHangs);
        if is_of_the_script && self.failures >= TRIES && !self.is_nobodys {
            self.failures = 0;
            if let Some((ns, bytes)) = self.heaviest(world, families) {
                self.blame(ns, bytes, now);
                return RETRY;
            }
            let shut: Vec<&String> = self.blamed.iter().filter(|(_, blame)| blame.is_shut).map(|(ns, _)| ns).collect();
            error!(
                namespaces = ?shut,
                "nft takes no rules of network policies without these namespaces either: they are not why"
            );
            self.blamed.clear();
            self.is_nobodys = true;
        }
        RETRY.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(RETRY_MAX)
    }

    /// The heaviest namespace that may be why, unless there are too many already.
    fn heaviest(&self, world: &mut World, families: &BTreeSet<Family>) -> Option<(String, usize)> {
        let is_shut = |ns: &String| self.blamed.get(ns).is_some_and(|blame| blame.is_shut);
        let n_shut = self.blamed.values().filter(|blame| blame.is_shut).count();
        // Those that let nothing through weigh little.
        let heavy = weights(world, families).into_iter().filter(|(ns, bytes)| *bytes >= LIGHT && !is_shut(ns));
        heavy.max_by_key(|(_, bytes)| *bytes).filter(|_| n_shut < HEAVY_MAX)
    }

    fn blame(&mut self, ns: String, bytes: usize, now: Instant) {
        let times = self.blamed.get(&ns).map_or(0, |before| before.times.saturating_add(1));
        let hold = Blame::hold(times);
        error!(
            ns,
            bytes,
            at_least = ?hold,
            "nft does not take the rules of network policies, most of which are this namespace's: its policies let \
             nothing through until they are half as many"
        );
        self.blamed.insert(ns, Blame { bytes, times, is_shut: true, until: now + hold });
        let remembered = || self.blamed.iter().filter(|(_, blame)| !blame.is_shut);
        if remembered().count() > REMEMBERED_MAX
            && let Some(first) = remembered().min_by_key(|(_, blame)| blame.until).map(|(ns, _)| ns.clone())
        {
            self.blamed.remove(&first);
        }
    }

    /// The table is in force.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.is_nobodys = false;
    }
}

/// How long a script the policies of each namespace make, in bytes.
fn weights(world: &mut World, families: &BTreeSet<Family>) -> BTreeMap<String, usize> {
    let mut by_ns: BTreeMap<String, Vec<Policy>> = BTreeMap::new();
    for policy in std::mem::take(&mut world.policies) {
        by_ns.entry(policy.ns.clone()).or_default().push(policy);
    }
    let bytes = |world: &World| table::full(rules::TABLE, &rules::render(world, families)).len();
    let (mut weights, mut all, frame) = (BTreeMap::new(), Vec::new(), bytes(world));
    for (ns, policies) in by_ns {
        world.policies = policies;
        weights.insert(ns, bytes(world).saturating_sub(frame));
        all.append(&mut world.policies);
    }
    world.policies = all;
    weights
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::model::{Facts, Peer, Pod, Rule};

    fn world(blocks: &[(&str, u8)]) -> World {
        let pod = |(n, (ns, _)): (usize, &(&str, u8))| {
            let facts = Facts { ns: (*ns).to_owned(), name: "p".to_owned(), ..Facts::default() };
            Pod {
                facts: Arc::new(facts),
                ips: vec![format!("10.42.0.{n}").parse().unwrap()],
                local: true,
                ..Pod::default()
            }
        };
        let policy = |(ns, n): &(&str, u8)| {
            let block = |n: u8| Peer::Block { cidr: format!("10.{n}.0.0/24").parse().unwrap(), except: Vec::new() };
            let rule = Rule { peers: (0..*n).map(block).collect(), ports: Vec::new() };
            Policy {
                ns: (*ns).to_owned(),
                name: "p".to_owned(),
                pods: Default::default(),
                ingress: Some(vec![rule]),
                egress: None,
            }
        };
        World {
            pods: blocks.iter().enumerate().map(pod).collect(),
            policies: blocks.iter().map(policy).collect(),
            ..World::default()
        }
    }

    // (Blocks that touch would become one.) A table on which nft hung was tried again for ever, whole, and no pod that
    // came later was guarded, or began.
    #[test]
    fn the_heaviest_namespace_lets_nothing_through_until_it_is_lighter_and_no_other_one_is_held_up() {
        let (families, mut heavy, begin) = ([Family::V4].into(), Heavy::default(), Instant::now());
        let opens = |world: &World| -> Vec<String> {
            let open =
                world.policies.iter().filter(|policy| policy.ingress.as_ref().is_some_and(|rules| !rules.is_empty()));
            open.map(|policy| policy.ns.clone()).collect()
        };
        let mut all = world(&[("a", 2), ("evil", 200), ("z", 3)]);
        heavy.lighten(&mut all, &families, begin);
        assert_eq!(opens(&all), ["a", "evil", "z"]);
        assert_eq!(heavy.failed(&NetworkError::NftHangs, Extent::Change, &mut all, &families, begin), RETRY);
        let waits =
            [0; 3].map(|_| heavy.failed(&NetworkError::NftHangs, Extent::Whole, &mut all, &families, begin).as_secs());
        assert_eq!(waits, [2, 4, 2]);
        for more in [200, 150] {
            let mut all = world(&[("a", 2), ("evil", more), ("z", 3)]);
            heavy.lighten(&mut all, &families, begin);
            assert_eq!(opens(&all), ["a", "z"]);
            assert!(all.policies.iter().all(|policy| policy.ingress.is_some()), "its pods stay isolated");
            heavy.succeeded();
        }
        let mut light = world(&[("a", 2), ("evil", 20), ("z", 3)]);
        heavy.lighten(&mut light, &families, begin + HOLD);
        assert_eq!(opens(&light), ["a", "evil", "z"]);
    }

    // Each time it grew again, all others' policies stayed as they were for three minutes of a hanging nft.
    #[test]
    fn a_namespace_that_is_heavy_and_light_in_turn_is_held_longer_each_time() {
        let (families, mut heavy, begin) = ([Family::V4].into(), Heavy::default(), Instant::now());
        let is_open = |heavy: &mut Heavy, blocks: u8, secs: u64| {
            let mut all = world(&[("evil", blocks)]);
            heavy.lighten(&mut all, &families, begin + Duration::from_secs(secs));
            all.policies[0].ingress.as_ref().is_some_and(|rules| !rules.is_empty())
        };
        let blame = |heavy: &mut Heavy, secs: u64| {
            for _ in 0..TRIES {
                let (families, at) = ([Family::V4].into(), begin + Duration::from_secs(secs));
                heavy.failed(&NetworkError::NftHangs, Extent::Whole, &mut world(&[("evil", 200)]), &families, at);
            }
            heavy.succeeded();
        };
        blame(&mut heavy, 0);
        assert!(!is_open(&mut heavy, 20, 1), "light at once is too soon");
        assert_eq!(heavy.due(), Some(begin + HOLD), "nothing else may change until then");
        assert!(!is_open(&mut heavy, 200, 299));
        assert_eq!(heavy.due(), None);
        assert!(is_open(&mut heavy, 20, 300));
        blame(&mut heavy, 310);
        assert!(!is_open(&mut heavy, 20, 310 + 599));
        assert!(is_open(&mut heavy, 20, 310 + 600));
        blame(&mut heavy, 1000);
        assert!(!is_open(&mut heavy, 20, 1000 + 1199));
        // Of one that was light for twelve times as long as it was held nothing is known any more.
        assert!(is_open(&mut heavy, 20, 2200) && is_open(&mut heavy, 20, 2200 + 14_400));
        blame(&mut heavy, 20_000);
        assert!(!is_open(&mut heavy, 20, 20_299) && is_open(&mut heavy, 20, 20_300));
    }

    #[test]
    fn when_nft_fails_whatever_it_is_given_nobody_is_blamed_and_tries_become_rare() {
        let (families, mut heavy, now) = ([Family::V4].into(), Heavy::default(), Instant::now());
        // More than eight: a ninth heavy namespace had all of them tried again.
        const N: u8 = 12;
        let blocks: Vec<(String, u8)> = (0..N).map(|n| (format!("ns{n}"), 180 + n)).collect();
        let blocks: Vec<(&str, u8)> = blocks.iter().map(|(ns, n)| (ns.as_str(), *n)).collect();
        let mut waits = Vec::new();
        for _ in 0..60 {
            let mut all = world(&blocks);
            heavy.lighten(&mut all, &families, now);
            waits.push(heavy.failed(&NetworkError::NftHangs, Extent::Whole, &mut all, &families, now).as_secs());
        }
        let (blaming, after) = waits.split_at(usize::from(N) * 3);
        assert!(blaming.chunks(3).all(|round| round == [2, 4, 2]));
        assert_eq!(after[..12], [2, 4, 2, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!(heavy.blamed.is_empty());
    }

    #[test]
    fn a_table_that_somebody_took_away_and_light_namespaces_are_nobodys_fault() {
        let (families, mut heavy, now) = ([Family::V4].into(), Heavy::default(), Instant::now());
        let refused = || NetworkError::NftRefused { text: "No such file or directory".to_owned() };
        for _ in 0..10 {
            heavy.failed(&refused(), Extent::Change, &mut world(&[("a", 200)]), &families, now);
            heavy.failed(&refused(), Extent::Whole, &mut world(&[("a", 2)]), &families, now);
            heavy.failed(
                &NetworkError::Netfilter { source: netfilter::NetfilterError::Denied },
                Extent::Whole,
                &mut world(&[("a", 200)]),
                &families,
                now,
            );
            assert!(heavy.blamed.is_empty());
        }
        heavy.succeeded();
        heavy.failed(&refused(), Extent::Whole, &mut world(&[("a", 200)]), &families, now);
        assert!(heavy.blamed.is_empty(), "once is chance");
    }
}
