//! Which pods of the cluster the rules in force depend on. A cluster's pods come and go all the time, and most of them
//! are neither on this node nor named by a policy that isolates a pod here: their changes cost nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use kube::core::{Selector, SelectorExt as _};

use crate::policy::model::{Facts, Labels, Peer, Policy, Port, Rule, World};
use crate::table::Ruleset;

/// Parts of which rules were made, as far as other pods' changes can matter to them.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    node: String,
    peers: Vec<Peer>,
    /// Names of ports.
    ports: BTreeSet<String>,
    namespaces: BTreeMap<String, Labels>,
    /// Addresses in the rules.
    addresses: HashSet<IpAddr>,
    /// Two pods tell the same address: who has it depends on all of them.
    is_contested: bool,
}

impl Interest {
    /// Of the rules that `world` became on this node.
    pub(crate) fn of(world: &World, rules: &Ruleset, node: &str) -> Interest {
        let local: Vec<&Facts> = world.pods.iter().filter(|pod| pod.local).map(|pod| &*pod.facts).collect();
        let isolates =
            |policy: &&Policy| local.iter().any(|pod| pod.ns == policy.ns && policy.pods.matches(&pod.labels));
        let in_force = world.policies.iter().filter(isolates);
        let lists = in_force.flat_map(|policy| [policy.ingress.as_deref(), policy.egress.as_deref()]);
        let all: Vec<&Rule> = lists.flatten().flatten().collect();
        let names = all.iter().flat_map(|rule| &rule.ports).filter_map(|port| match port {
            Port::Named(_, name) => Some(name.clone()),
            Port::Any(_) | Port::Range(..) => None,
        });
        // A key is an address, or begins with one.
        let keys = rules.elements.values().flat_map(BTreeMap::keys);
        Interest {
            node: node.to_owned(),
            ports: names.collect(),
            peers: all.iter().flat_map(|rule| rule.peers.clone()).collect(),
            namespaces: world.namespaces.clone(),
            addresses: keys.filter_map(|key| key.split(" . ").next()?.parse().ok()).collect(),
            is_contested: world.is_contested,
        }
    }

    /// Whether the rules can change when the pod does, comes or goes.
    pub(crate) fn has(&self, pod: &Facts) -> bool {
        self.is_contested
            || pod.node.as_deref() == Some(&self.node)
            || pod.told.iter().any(|ip| self.addresses.contains(ip))
            || pod.ports.iter().any(|(name, ..)| self.ports.contains(name))
            || self.peers.iter().any(|peer| self.selects(peer, pod))
    }

    fn selects(&self, peer: &Peer, pod: &Facts) -> bool {
        let Peer::Pods { ns, namespaces, pods } = peer else { return false };
        let chosen = |selector: &Selector| self.namespaces.get(&pod.ns).is_some_and(|labels| selector.matches(labels));
        namespaces.as_ref().map_or(*ns == pod.ns, chosen) && pods.matches(&pod.labels)
    }
}

/// Whether rules can depend on what happened to a pod: `old` and `new` are what its object said and says.
pub(crate) fn matters(interest: Option<&Interest>, old: Option<&Facts>, new: Option<&Facts>) -> bool {
    old != new && [old, new].into_iter().flatten().any(|pod| interest.is_none_or(|interest| interest.has(pod)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::rng::Rng;

    use super::*;
    use crate::family::Family;
    use crate::policy::claims::Claims;
    use crate::policy::model::members;
    use crate::policy::rules::render;
    use crate::service::snapshot::Protocol;

    const NODE: &str = "n";

    fn pick<'a>(rng: &Rng, of: &[&'a str]) -> &'a str {
        of[usize::try_from(rng.below(of.len() as u64)).unwrap()]
    }

    fn labels(rng: &Rng) -> Labels {
        [("app".to_owned(), pick(rng, &["x", "y", "z"]).to_owned())].into()
    }

    fn selector(rng: &Rng) -> Selector {
        if rng.below(4) == 0 { Selector::default() } else { labels(rng).into_iter().collect() }
    }

    fn pod(rng: &Rng, name: usize) -> Arc<Facts> {
        let created = serde_json::json!(format!("2026-01-01T00:00:{:02}Z", rng.below(60)));
        Arc::new(Facts {
            ns: pick(rng, &["a", "b", "c"]).to_owned(),
            name: name.to_string(),
            labels: labels(rng),
            ports: if rng.below(4) == 0 {
                vec![(pick(rng, &["http", "dns"]).to_owned(), Protocol::Tcp, 80)]
            } else {
                Vec::new()
            },
            told: vec![format!("10.42.0.{}", rng.below(60)).parse().unwrap()],
            // The cluster has many nodes.
            node: Some(pick(rng, &[NODE, "m", "m", "m", "m"]).to_owned()),
            over: rng.below(8) == 0,
            created: Some(serde_json::from_value(created).unwrap()),
            ..Facts::default()
        })
    }

    fn policy(rng: &Rng, name: usize) -> Policy {
        let peer = || Peer::Pods {
            ns: pick(rng, &["a", "b", "c"]).to_owned(),
            namespaces: (rng.below(2) == 0).then(|| selector(rng)),
            pods: selector(rng),
        };
        let ports = || {
            if rng.below(3) == 0 {
                vec![Port::Named(Protocol::Tcp, pick(rng, &["http", "dns"]).to_owned())]
            } else {
                Vec::new()
            }
        };
        let rules = || (rng.below(3) > 0).then(|| vec![Rule { peers: vec![peer()], ports: ports() }]);
        Policy {
            ns: pick(rng, &["a", "b", "c"]).to_owned(),
            name: name.to_string(),
            pods: selector(rng),
            ingress: rules(),
            egress: rules(),
        }
    }

    // review node.md E4
    #[test]
    fn a_change_that_is_passed_over_changes_no_rule() {
        let rng = Rng::from_seed(4);
        let (mut passed, mut looked) = (0, 0);
        for _ in 0..60 {
            let mut pods: Vec<Arc<Facts>> = (0..20).map(|name| pod(&rng, name)).collect();
            let policies: Vec<Policy> = (0..3).map(|name| policy(&rng, name)).collect();
            let namespaces: BTreeMap<String, Labels> =
                ["a", "b"].into_iter().map(|ns| (ns.to_owned(), labels(&rng))).collect();
            let rules = |pods: &[Arc<Facts>]| {
                let (pods, is_contested) = members(pods, &Claims::default(), NODE);
                let world = World { pods, is_contested, namespaces: namespaces.clone(), policies: policies.clone() };
                let rules = render(&world, &[Family::V4].into());
                (Interest::of(&world, &rules, NODE), rules)
            };
            for _ in 0..60 {
                let (interest, before) = rules(&pods);
                let at = usize::try_from(rng.below(pods.len() as u64)).unwrap();
                let old = (rng.below(4) > 0).then(|| pods.swap_remove(at));
                let new = (old.is_none() || rng.below(4) > 0).then(|| pod(&rng, 100 + passed + looked));
                pods.extend(new.clone());
                if matters(Some(&interest), old.as_deref(), new.as_deref()) {
                    looked += 1;
                } else {
                    passed += 1;
                    assert_eq!(rules(&pods).1, before, "{old:?} became {new:?}");
                }
            }
        }
        assert!(passed > 100 && looked > 100, "{passed} were passed over, {looked} looked at");
    }
}
