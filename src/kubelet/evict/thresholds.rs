//! Thresholds of eviction: which are met, for how long, and which are not resolved yet. Upstream's eviction manager
//! (pkg/kubelet/eviction/eviction_manager.go v1.36.2).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::time::Stopwatch;

use super::{OF_PODS, Observation};
use crate::pods::desired::Notice;
use crate::settings::Settings;

/// The two kinds of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Acted on at once.
    Hard,
    /// Acted on after its grace period.
    Soft,
}

/// A threshold, by its signal and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Met {
    pub(super) signal: &'static str,
    pub(super) kind: Kind,
}

impl Met {
    /// The amount below which the threshold is met. The memory of all pods has the hard one of the machine's.
    pub(super) fn threshold(self, settings: &Settings, capacity: u64) -> Option<u64> {
        let found = match (self.kind, self.signal) {
            (Kind::Hard, OF_PODS) => settings.eviction_hard.get("memory.available"),
            (Kind::Hard, signal) => settings.eviction_hard.get(signal),
            (Kind::Soft, signal) => settings.eviction_soft.get(signal),
        };
        found.map(|at| at.of(capacity))
    }

    /// The amount that is reclaimed beyond the threshold.
    fn reclaim(self, settings: &Settings, capacity: u64) -> u64 {
        let signal = if self.signal == OF_PODS { "memory.available" } else { self.signal };
        settings.eviction_reclaim.get(signal).map_or(0, |amount| amount.of(capacity))
    }

    /// How long it must be met before anything is done.
    fn grace(self, settings: &Settings) -> Duration {
        match self.kind {
            Kind::Hard => Duration::ZERO,
            Kind::Soft => settings.soft_grace(self.signal).unwrap_or_default(),
        }
    }

    /// The time that a pod gets.
    pub(super) fn notice(self, settings: &Settings) -> Notice {
        match self.kind {
            Kind::Hard => Notice::Hard,
            Kind::Soft => Notice::Soft(settings.eviction_grace_max_secs),
        }
    }
}

/// The thresholds that are met, from look to look.
#[derive(Default)]
pub(super) struct Tracker {
    first: BTreeMap<Met, Stopwatch>,
    /// Those that were acted on: they are met until the minimum is reclaimed, too.
    acting: BTreeSet<Met>,
}

impl Tracker {
    /// The thresholds that are met now. File systems without inodes (btrfs) tell 0 of 0.
    pub(super) fn met(&mut self, settings: &Settings, seen: &BTreeMap<&'static str, Observation>) -> Vec<Met> {
        let mut met = Vec::new();
        for (&signal, o) in seen {
            for kind in [Kind::Hard, Kind::Soft] {
                let at = Met { signal, kind };
                let Some(threshold) = at.threshold(settings, o.capacity).filter(|_| o.capacity > 0) else { continue };
                let more = if self.acting.contains(&at) { at.reclaim(settings, o.capacity) } else { 0 };
                if o.available < threshold.saturating_add(more) {
                    met.push(at);
                }
            }
        }
        self.first.retain(|at, _| met.contains(at));
        for at in &met {
            self.first.entry(*at).or_insert_with(Stopwatch::start);
        }
        self.acting.retain(|at| met.contains(at));
        met
    }

    /// Of those that are met, the one to act on, if it is time: memory before the rest, hard before soft.
    pub(super) fn due(&mut self, settings: &Settings, met: &[Met]) -> Option<Met> {
        let is_due = |at: &&Met| self.first.get(at).is_some_and(|first| first.elapsed() >= at.grace(settings));
        let due: Vec<Met> = met.iter().filter(is_due).copied().collect();
        self.acting = due.iter().copied().collect();
        due.into_iter().min_by_key(|at| (super::resource_of(at.signal) != "memory", at.kind))
    }
}
