//! Namespaces whose policies are too much for nft: on some scripts it hangs, or refuses them, and one namespace must not keep the policies of
//! all others from being in force. The heaviest one is judged to be why: its policies let nothing through until they are lighter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tracing::{error, info};

use crate::NetworkError;
use crate::policy::model::{Policy, World};
use crate::policy::rules;
use crate::service::rules::Family;
use crate::table;

/// Namespaces that are held to be why, at most. When nft fails without them, too, none of them was.
const HEAVY_MAX: usize = 8;
/// After a failure that no namespace is the reason of, the whole table is tried again this much later, then twice as much later each time.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// The whole table is tried this often before anybody is blamed: a stalled machine, or a table that somebody takes away meanwhile, is nobody's
/// fault.
const TRIES: u32 = 3;
/// Bytes of script of a namespace that is never why.
const LIGHT: usize = 2 << 10;

/// The namespaces with their weights when they were too much, and what came of tries without them.
#[derive(Debug, Default)]
pub(crate) struct Heavy {
    weights: BTreeMap<String, usize>,
    /// Of the whole table, in a row, since it was made lighter.
    failures: u32,
    /// nft failed without the heavy namespaces, too.
    is_nobodys: bool,
}

impl Heavy {
    /// Has policies of the heavy namespaces let nothing through. A namespace that has lost half of its weight is not heavy any more.
    pub(crate) fn lighten(&mut self, world: &mut World, families: &BTreeSet<Family>) {
        if self.weights.is_empty() {
            return;
        }
        let now = weights(world, families);
        self.weights.retain(|ns, then| {
            let stays = now.get(ns).is_some_and(|now| *now > *then / 2);
            if !stays {
                info!(ns, "NetworkPolicies of this namespace are lighter: they are tried again");
            }
            stays
        });
        for policy in world.policies.iter_mut().filter(|policy| self.weights.contains_key(&policy.ns)) {
            policy.ingress = policy.ingress.take().map(|_| Vec::new());
            policy.egress = policy.egress.take().map(|_| Vec::new());
        }
    }

    /// nft did not take what was made of this world, the whole table or a change of it: says how long to wait until the whole table is
    /// tried, without one namespace more if the script may be why.
    pub(crate) fn failed(&mut self, err: &NetworkError, is_whole: bool, world: &mut World, families: &BTreeSet<Family>) -> Duration {
        if !is_whole {
            return RETRY;
        }
        self.failures += 1;
        let is_of_the_script = matches!(err, NetworkError::NftRefused { .. } | NetworkError::NftHangs);
        if is_of_the_script && self.failures >= TRIES && !self.is_nobodys {
            // Those that let nothing through weigh little.
            let heavy = weights(world, families).into_iter().filter(|(ns, bytes)| *bytes >= LIGHT && !self.weights.contains_key(ns));
            let heaviest = heavy.max_by_key(|(_, bytes)| *bytes).filter(|_| self.weights.len() < HEAVY_MAX);
            self.failures = 0;
            if let Some((ns, bytes)) = heaviest {
                error!(
                    ns,
                    bytes,
                    "nft does not take the rules of network policies, most of which are this namespace's: its policies let nothing through until they are half as many"
                );
                self.weights.insert(ns, bytes);
                return RETRY;
            }
            error!(namespaces = ?self.weights.keys(), "nft takes no rules of network policies without these namespaces either: they are not why");
            self.weights.clear();
            self.is_nobodys = true;
        }
        RETRY.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(RETRY_MAX)
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
            Pod { facts: Arc::new(facts), ips: vec![format!("10.42.0.{n}").parse().unwrap()], local: true, ..Pod::default() }
        };
        let policy = |(ns, n): &(&str, u8)| {
            let block = |n: u8| Peer::Block { cidr: format!("10.{n}.0.0/24").parse().unwrap(), except: Vec::new() };
            let rule = Rule { peers: (0..*n).map(block).collect(), ports: Vec::new() };
            Policy { ns: (*ns).to_owned(), name: "p".to_owned(), pods: Default::default(), ingress: Some(vec![rule]), egress: None }
        };
        World { pods: blocks.iter().enumerate().map(pod).collect(), policies: blocks.iter().map(policy).collect(), ..World::default() }
    }

    // (Blocks that touch would become one.) A table on which nft hung was tried again for ever, whole, and no pod that came later was guarded, or began.
    #[test]
    fn the_heaviest_namespace_lets_nothing_through_until_it_is_lighter_and_no_other_one_is_held_up() {
        let (families, mut heavy) = ([Family::V4].into(), Heavy::default());
        let opens = |world: &World| -> Vec<String> {
            let open = world.policies.iter().filter(|policy| policy.ingress.as_ref().is_some_and(|rules| !rules.is_empty()));
            open.map(|policy| policy.ns.clone()).collect()
        };
        let mut all = world(&[("a", 2), ("evil", 200), ("z", 3)]);
        heavy.lighten(&mut all, &families);
        assert_eq!(opens(&all), ["a", "evil", "z"]);
        assert_eq!(heavy.failed(&NetworkError::NftHangs, false, &mut all, &families), RETRY);
        let waits = [0; 3].map(|_| heavy.failed(&NetworkError::NftHangs, true, &mut all, &families).as_secs());
        assert_eq!(waits, [2, 4, 2]);
        for more in [200, 150] {
            let mut all = world(&[("a", 2), ("evil", more), ("z", 3)]);
            heavy.lighten(&mut all, &families);
            assert_eq!(opens(&all), ["a", "z"]);
            assert!(all.policies.iter().all(|policy| policy.ingress.is_some()), "its pods stay isolated");
            heavy.succeeded();
        }
        let mut light = world(&[("a", 2), ("evil", 20), ("z", 3)]);
        heavy.lighten(&mut light, &families);
        assert_eq!(opens(&light), ["a", "evil", "z"]);
    }

    #[test]
    fn when_nft_fails_whatever_it_is_given_nobody_is_blamed_and_tries_become_rare() {
        let (families, mut heavy) = ([Family::V4].into(), Heavy::default());
        let blocks: Vec<(String, u8)> = (0..20).map(|n| (format!("ns{n}"), 180 + n)).collect();
        let blocks: Vec<(&str, u8)> = blocks.iter().map(|(ns, n)| (ns.as_str(), *n)).collect();
        let mut waits = Vec::new();
        for _ in 0..40 {
            let mut all = world(&blocks);
            heavy.lighten(&mut all, &families);
            waits.push(heavy.failed(&NetworkError::NftHangs, true, &mut all, &families).as_secs());
        }
        let (blaming, after) = waits.split_at(HEAVY_MAX * 3);
        assert!(blaming.chunks(3).all(|round| round == [2, 4, 2]));
        assert_eq!(after[..12], [2, 4, 2, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!(heavy.weights.is_empty());
    }

    #[test]
    fn a_table_that_somebody_took_away_and_light_namespaces_are_nobodys_fault() {
        let (families, mut heavy) = ([Family::V4].into(), Heavy::default());
        let refused = || NetworkError::NftRefused { text: "No such file or directory".to_owned() };
        for _ in 0..10 {
            heavy.failed(&refused(), false, &mut world(&[("a", 200)]), &families);
            heavy.failed(&refused(), true, &mut world(&[("a", 2)]), &families);
            heavy.failed(&NetworkError::NoNft, true, &mut world(&[("a", 200)]), &families);
            assert!(heavy.weights.is_empty());
        }
        heavy.succeeded();
        heavy.failed(&refused(), true, &mut world(&[("a", 200)]), &families);
        assert!(heavy.weights.is_empty(), "once is chance");
    }
}
