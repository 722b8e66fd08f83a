//! Resources of the machine, and the part of them that pods may use.

use std::collections::BTreeMap;

use crate::devices::registry::Devices;
use crate::machine::Machine;
use crate::node_object::NodeObject;
use crate::settings::Settings;

/// No machine keeps more from its pods unless it is told to.
const SYSTEM_BYTES_MAX: i64 = 256 << 20;
/// Pods leave an eighth of the machine's processes to the system, and no more than this: without one nobody can end a
/// fork bomb.
const PIDS_KEPT_MAX: i64 = 1024;

/// Resources of the machine, by what they follow from.
#[derive(Clone, Copy)]
pub(crate) struct Capacity<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) machine: &'a Machine,
    pub(crate) devices: &'a Devices,
    pub(crate) own: &'a NodeObject,
}

impl Capacity<'_> {
    /// Resources of the machine: CPU in milli-units, the rest in bytes or pieces.
    pub(crate) fn all(&self) -> BTreeMap<String, i64> {
        let machine = self.machine;
        let mut all: BTreeMap<String, i64> = [
            ("cpu", machine.cpus * 1000),
            ("memory", machine.memory),
            ("ephemeral-storage", machine.storage),
            ("pods", i64::from(self.settings.pods_max(machine.cpus))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        all.extend(machine.huge.clone());
        all.extend(self.devices.amounts().into_iter().map(|(name, (all, _))| (name, all)));
        all
    }

    /// Resources that pods may use: less what is set aside for the system and what eviction keeps free. Resources that
    /// somebody else advertises on the Node object pass as they are.
    pub(crate) fn allocatable(&self) -> BTreeMap<String, i64> {
        let settings = self.settings;
        let kept = |signal: &str, capacity: i64| {
            let threshold =
                settings.eviction_hard.get(signal).map_or(0, |t| t.of(u64::try_from(capacity).unwrap_or(0)));
            i64::try_from(threshold).unwrap_or(i64::MAX)
        };
        let mut all = self.all();
        let huge: i64 = self.machine.huge.values().sum();
        for (name, value) in &mut all {
            let aside = match name.as_str() {
                "memory" => kept("memory.available", *value) + huge,
                "ephemeral-storage" => kept("nodefs.available", *value),
                _ => 0,
            };
            *value = value.saturating_sub(aside).saturating_sub(settings.reserved_of(name)).max(0);
        }
        all.extend(self.extended());
        all.extend(self.devices.amounts().into_iter().map(|(name, (_, healthy))| (name, healthy)));
        all
    }

    /// Bounds of all pods together: CPU in milli-units, bytes of memory, processes if the machine bounds them.
    pub(crate) fn of_pods(&self) -> (i64, i64, Option<i64>) {
        let pids_max = crate::machine::processes_max().and_then(|max| i64::try_from(max).ok());
        let pids = pids_max.map(|max| self.left_of("pid", max.saturating_sub((max / 8).min(PIDS_KEPT_MAX))));
        (self.left_of("cpu", self.machine.cpus * 1000), self.memory_of_pods(), pids)
    }

    /// The limit of all pods together, in bytes. The Node's allocatable memory, by which pods are placed, is
    /// upstream's: only what is set aside in so many words lowers it.
    pub(crate) fn memory_of_pods(&self) -> i64 {
        let (settings, machine) = (self.settings, self.machine.memory);
        if settings.enforce_allocatable && settings.reserved_of("memory") == 0 {
            return machine.saturating_sub(system_needs(machine));
        }
        self.left_of("memory", machine)
    }

    fn left_of(&self, name: &str, all: i64) -> i64 {
        let settings = self.settings;
        if settings.enforce_allocatable { all.saturating_sub(settings.reserved_of(name)).max(0) } else { all }
    }

    /// Resources with a domain of their own in the Node's capacity, e.g. `example.com/dongle`, that no plugin here has.
    pub(crate) fn extended(&self) -> BTreeMap<String, i64> {
        let object = self.own.object();
        let capacity = object.iter().flat_map(|n| n.status.iter()).flat_map(|s| s.capacity.iter().flatten());
        let ours = self.devices.amounts();
        let foreign = capacity
            .filter(|(name, _)| name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io")))
            .filter(|(name, _)| !ours.contains_key(*name));
        foreign.map(|(name, quantity)| (name.clone(), crate::cgroups::limits::parse(quantity).value())).collect()
    }
}

/// Bytes that no pod gets where nobody has set any aside: what is kept for kedge and containerd (`shelter.rs`), and
/// something for the kernel and its services. Where pods may take all memory the kernel finds some cache to drop again
/// and again, kills nobody, and the machine stands still.
fn system_needs(machine: i64) -> i64 {
    (machine / 16).saturating_mul(5).min(SYSTEM_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_together_never_get_all_memory() {
        let mib = |n: i64| n << 20;
        assert_eq!(
            (system_needs(mib(480)), system_needs(mib(1024)), system_needs(mib(65_536))),
            (mib(150), mib(256), mib(256))
        );
    }
}
