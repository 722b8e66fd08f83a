//! The share that each pod holds of the node, and whose wish for more is granted first when there is room.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::spec::requests;
use crate::cgroups::limits;
use crate::pods::admission::Host;
use crate::pods::resizing::{Grant, grant};

/// The part of one pod that was admitted and has not ended.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// With the resources that its spec asks for.
    pub(super) wanted: Arc<Pod>,
    /// With those that it was granted: nobody else has them.
    pub(super) granted: Arc<Pod>,
    /// Since when its wish for more is deferred.
    pub(super) deferred: Option<Timestamp>,
}

impl Share {
    fn is_of(&self, pod: &Pod) -> bool {
        self.wanted.metadata.uid == pod.metadata.uid
    }
}

/// Whose turn it is, least first: the priority, guaranteed pods, who waits longest. Spec: `sortPendingResizes` of
/// upstream's pkg/kubelet/allocation (v1.36).
fn turn(pod: &Pod, deferred: Option<Timestamp>) -> (Reverse<i32>, bool, Timestamp) {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    (Reverse(priority), limits::qos(pod) != limits::Qos::Guaranteed, deferred.unwrap_or(Timestamp::MAX))
}

/// Whether the node can give `pod` what it asks for now, beside what all were granted and what those before it in turn
/// will get.
pub(super) fn grant_in_turn(host: &Host<'_>, pod: &Pod, shares: &[Share]) -> Grant {
    let own = shares.iter().find(|share| share.is_of(pod));
    let grows =
        own.is_none_or(|own| ["cpu", "memory"].iter().any(|name| requests(pod, name) > requests(&own.granted, name)));
    let turn_of_pod = turn(pod, own.and_then(|own| own.deferred));
    let mut granted: Vec<Arc<Pod>> = shares.iter().map(|share| Arc::clone(&share.granted)).collect();
    // Who asks for less waits for nobody.
    let is_before = |share: &Share| {
        grows && !share.is_of(pod) && share.deferred.is_some() && turn(&share.wanted, share.deferred) < turn_of_pod
    };
    let mut before: Vec<usize> = (0..shares.len()).filter(|i| is_before(&shares[*i])).collect();
    before.sort_by_key(|i| turn(&shares[*i].wanted, shares[*i].deferred));
    let beside = |granted: &[Arc<Pod>], i: Option<usize>| -> Vec<Arc<Pod>> {
        granted.iter().enumerate().filter(|(j, _)| Some(*j) != i).map(|(_, pod)| Arc::clone(pod)).collect()
    };
    for i in before {
        if grant(host, &shares[i].wanted, &beside(&granted, Some(i))) == Grant::Granted {
            granted[i] = Arc::clone(&shares[i].wanted);
        }
    }
    let own = shares.iter().position(|share| share.is_of(pod));
    let in_turn = grant(host, pod, &beside(&granted, own));
    if in_turn != Grant::Granted {
        return in_turn;
    }
    // One before it that will shrink has its share until then.
    let now: Vec<Arc<Pod>> = shares.iter().map(|share| Arc::clone(&share.granted)).collect();
    grant(host, pod, &beside(&now, own))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::Settings;

    fn pod(uid: &str, cpu: &str, priority: i32, guaranteed: bool) -> Arc<Pod> {
        let mut resources = json!({"requests": {"cpu": cpu, "memory": "1Mi"}});
        if guaranteed {
            resources["limits"] = resources["requests"].clone();
        }
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]});
        Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap())
    }

    fn share(uid: &str, wanted: &str, priority: i32, guaranteed: bool, waits_since: Option<i64>) -> Share {
        let deferred = waits_since.map(|secs| Timestamp::from_second(secs).unwrap());
        Share {
            wanted: pod(uid, wanted, priority, guaranteed),
            granted: pod(uid, "125m", priority, guaranteed),
            deferred,
        }
    }

    fn verdict(shares: &[Share], uid: &str) -> Grant {
        let settings = Settings::default();
        let host = Host::with(&[("cpu", 2000), ("memory", 1 << 30)], &settings);
        let wanted = &shares.iter().find(|share| share.wanted.metadata.uid.as_deref() == Some(uid)).unwrap().wanted;
        grant_in_turn(&host, wanted, shares)
    }

    // seen in upstream's pod-resize-retry-deferred-test-2: each one's deferred wish was held against all the others,
    // for ever
    #[test]
    fn what_is_only_wished_for_is_no_others_and_room_goes_by_priority_class_and_time() {
        let mut shares = vec![
            share("early", "1266m", 0, false, Some(4)),
            share("guaranteed", "1266m", 0, true, Some(5)),
            share("first", "1266m", 1000, false, Some(6)),
            share("late", "1266m", 0, false, Some(7)),
        ];
        for expected in ["first", "guaranteed", "early", "late"] {
            for share in &shares {
                let uid = share.wanted.metadata.uid.as_deref().unwrap();
                let has_turn = matches!(verdict(&shares, uid), Grant::Granted);
                assert_eq!(has_turn, uid == expected, "{uid}, when it is {expected}'s turn");
            }
            // It gets its share, uses it, and is gone.
            shares.retain(|share| share.wanted.metadata.uid.as_deref() != Some(expected));
        }
    }

    // seen in upstream's pod-resize-retry-deferred-test-3: the last in turn was given what the one before was only
    // going to give up, and the first one's wish never fitted again
    #[test]
    fn what_one_before_will_give_up_is_not_given_before_it_is_given_up() {
        let mut shares = vec![
            share("grows", "900m", 0, false, Some(1)),
            share("shrinks", "100m", 0, false, Some(2)),
            share("last", "900m", 0, false, Some(3)),
        ];
        shares[1].granted = pod("shrinks", "1000m", 0, false);
        // It asks for more memory, which is why it waits for its turn, too.
        assert!(matches!(verdict(&shares, "last"), Grant::Deferred(_)));
        shares[1] = share("shrinks", "100m", 0, false, None);
        shares[1].granted = Arc::clone(&shares[1].wanted);
        assert_eq!(verdict(&shares, "grows"), Grant::Granted);
        shares[0].granted = Arc::clone(&shares[0].wanted);
        assert_eq!(verdict(&shares, "last"), Grant::Granted);
    }

    #[test]
    fn one_that_asks_for_less_or_fits_beside_the_first_waits_for_nobody() {
        let mut shares = vec![
            share("first", "1500m", 1000, false, Some(1)),
            share("small", "300m", 0, false, Some(2)),
            share("less", "100m", 0, false, None),
        ];
        assert_eq!(verdict(&shares, "less"), Grant::Granted);
        assert_eq!(verdict(&shares, "small"), Grant::Granted, "1500 and 300 and 125 fit");
        // The first one's wish does not fit whatever happens: the others need not wait for it.
        shares[0] = share("first", "1900m", 1000, false, Some(1));
        assert!(matches!(verdict(&shares, "first"), Grant::Deferred(_)));
        assert_eq!(verdict(&shares, "small"), Grant::Granted);
    }
}
