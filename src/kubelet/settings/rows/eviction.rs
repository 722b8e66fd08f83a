//! Rows about what happens when memory, disk or processes run out.

use super::super::form::Form::{Bool, Duration, Int, Less, Map};
use super::super::form::{I32, Take as _, put};
use super::super::row::{Row, done, fixed};
use super::super::value;

pub(in super::super) const ROWS: &[Row] = &[
    done(("evictionHard", "eviction-hard"), "", Less, |s, v| {
        for (signal, at) in value::thresholds(v)? {
            match at {
                Some(at) => s.eviction_hard.insert(signal, at),
                // `0%` or `100%`: the signal is switched off.
                None => s.eviction_hard.remove(&signal),
            };
        }
        Ok(())
    }),
    done(("evictionSoft", "eviction-soft"), "", Less, |s, v| {
        let all = value::thresholds(v)?;
        s.eviction_soft = all.into_iter().filter_map(|(signal, at)| Some((signal, at?))).collect();
        Ok(())
    }),
    done(("evictionSoftGracePeriod", "eviction-soft-grace-period"), "", Map, |s, v| {
        s.eviction_soft_grace = value::graces(v)?;
        Ok(())
    }),
    done(("evictionMinimumReclaim", "eviction-minimum-reclaim"), "", Map, |s, v| {
        s.eviction_reclaim = value::reclaims(v)?;
        Ok(())
    }),
    done(("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period"), "0", Int(-I32, I32), |s, v| {
        put(&mut s.eviction_grace_max_secs, v)
    }),
    done(("evictionPressureTransitionPeriod", "eviction-pressure-transition-period"), "5m", Duration, |s, v| {
        put(&mut s.pressure_transition, v)
    }),
    fixed(
        ("mergeDefaultEvictionSettings", ""),
        "true",
        Bool,
        "signals that evictionHard does not name keep their defaults; 0% switches one off",
    ),
    done(("kernelMemcgNotification", "kernel-memcg-notification"), "true", Bool, |s, v| {
        s.memory_alarm = bool::take(v)?;
        Ok(())
    }),
];
