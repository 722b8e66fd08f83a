//! Settings of a cgroup, in the words of both hierarchies and of systemd.

use super::limits::{PERIOD_USEC, SHARES_MAX, SHARES_MIN};

/// The kernel rounds limits of memory down to pages. Where pages are larger, a limit is set once more each time, to the
/// same.
const PAGE_BYTES: i64 = 4096;

/// One setting of a group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Knob {
    /// Weight among its neighbours, as v1 counts it.
    Shares(i64),
    /// Microseconds of CPU in each period.
    Quota(Option<i64>),
    /// Bytes.
    Memory(Option<i64>),
    Pids(i64),
}

impl Knob {
    /// File and value on v2, as the kernel gives it back.
    pub(super) fn unified(self) -> (&'static str, String) {
        let or_max = |value: Option<i64>| value.map_or("max".to_owned(), |value| value.to_string());
        match self {
            Knob::Shares(shares) => ("cpu.weight", weight(shares).to_string()),
            Knob::Quota(quota) => ("cpu.max", format!("{} {PERIOD_USEC}", or_max(quota))),
            // The kernel counts pages.
            Knob::Memory(bytes) => ("memory.max", or_max(bytes.map(|bytes| bytes - bytes % PAGE_BYTES))),
            Knob::Pids(max) => ("pids.max", max.to_string()),
        }
    }

    /// Controllers, files and values on v1.
    pub(super) fn legacy(self) -> Vec<(&'static str, &'static str, String)> {
        let or_none = |value: Option<i64>| value.unwrap_or(-1).to_string();
        match self {
            Knob::Shares(shares) => vec![("cpu", "cpu.shares", shares.to_string())],
            Knob::Quota(quota) => {
                vec![("cpu", "cpu.cfs_period_us", PERIOD_USEC.to_string()), ("cpu", "cpu.cfs_quota_us", or_none(quota))]
            }
            Knob::Memory(bytes) => vec![("memory", "memory.limit_in_bytes", or_none(bytes))],
            Knob::Pids(max) => vec![("pids", "pids.max", max.to_string())],
        }
    }

    /// A slice's property for systemd. Spec: systemd.resource-control(5).
    pub(super) fn property(self) -> String {
        match self {
            Knob::Shares(shares) => format!("CPUWeight={}", weight(shares)),
            // A hundredth of a CPU is 1000 of a period's microseconds; not all versions know more than one digit behind
            // the point.
            Knob::Quota(Some(quota)) => format!("CPUQuota={}.{}%", quota / 1000, quota % 1000 / 100),
            Knob::Quota(None) => "CPUQuota=".to_owned(),
            Knob::Memory(bytes) => {
                format!("MemoryMax={}", bytes.map_or("infinity".to_owned(), |bytes| bytes.to_string()))
            }
            Knob::Pids(max) => format!("TasksMax={}", max.max(1)),
        }
    }
}

/// v1 shares as v2 weight; KEP-2254's formula, the same that runc uses.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(SHARES_MIN, SHARES_MAX) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md S2
    #[test]
    fn systemd_is_told_what_the_kernel_is() {
        let properties = |knobs: &[Knob]| knobs.iter().map(|knob| knob.property()).collect::<Vec<_>>().join(" ");
        let some = [Knob::Shares(1024), Knob::Quota(Some(25_500)), Knob::Memory(Some(64 << 20)), Knob::Pids(64)];
        assert_eq!(properties(&some), "CPUWeight=39 CPUQuota=25.5% MemoryMax=67108864 TasksMax=64");
        assert_eq!(
            properties(&[Knob::Quota(None), Knob::Memory(None), Knob::Pids(0)]),
            "CPUQuota= MemoryMax=infinity TasksMax=1"
        );
        let unified = |knob: Knob| knob.unified().1;
        assert_eq!(
            (unified(Knob::Quota(None)).as_str(), unified(Knob::Memory(Some(5000))).as_str()),
            ("max 100000", "4096")
        );
    }

    #[test]
    fn shares_become_weights_at_both_ends() {
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
    }
}
