//! The kubelet's own settings, as `--kubelet-arg` spells them (upstream's flags without the dashes).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::quantity::Quantity;

use crate::providers::Providers;

/// What an operator may tune; the defaults are upstream's, but for the disk's thresholds, which are k3s's 5 %: small
/// machines run full.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `max-pods`.
    pub max_pods: u32,
    /// `pods-per-core`, 0 is no limit.
    pub pods_per_core: u32,
    /// `pod-max-pids`: processes of one pod; `None` is no limit of the pod's own.
    pub pod_max_pids: Option<i64>,
    /// `image-gc-high-threshold`: per cent of the disk above which images go.
    pub image_gc_high_percent: u64,
    /// `image-gc-low-threshold`: down to which they go.
    pub image_gc_low_percent: u64,
    /// `minimum-image-ttl-duration`.
    pub image_age_min: Duration,
    /// Images pulled at a time.
    pub(crate) parallel_pulls: usize,
    /// `eviction-hard`: signal → threshold.
    pub eviction_hard: BTreeMap<String, Threshold>,
    /// `kernel-memcg-notification`: the kernel wakes the eviction manager when memory runs short.
    pub memory_alarm: bool,
    /// `enforce-node-allocatable`: all pods together are held to what is not set aside.
    pub enforce_allocatable: bool,
    /// `eviction-pressure-transition-period`.
    pub pressure_transition: Duration,
    /// `container-log-max-size` in bytes.
    pub log_bytes_max: u64,
    /// `container-log-max-files`.
    pub log_files_max: usize,
    /// `allowed-unsafe-sysctls`: names, or prefixes that end in `*`.
    pub unsafe_sysctls: Vec<String>,
    /// `protect-kernel-defaults`: refuse to run where the kernel's settings are not upstream's.
    pub protect_kernel_defaults: bool,
    /// `root-dir`: where volumes and plugins lie.
    pub root_dir: Option<PathBuf>,
    /// `kube-reserved` and `system-reserved` together: resource → amount.
    pub reserved: BTreeMap<String, Quantity>,
    /// `image-credential-provider-config` and `image-credential-provider-bin-dir`.
    pub providers: Option<Arc<Providers>>,
}

/// When a signal says that something runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Less than this is left, in bytes or pieces.
    Amount(u64),
    /// Less than this part of all is left, in thousandths of a per cent.
    Share(u64),
}

impl Threshold {
    /// The amount, where `capacity` is all.
    pub(crate) fn of(self, capacity: u64) -> u64 {
        match self {
            Threshold::Amount(amount) => amount,
            Threshold::Share(share) => {
                u64::try_from(u128::from(capacity) * u128::from(share) / 100_000).unwrap_or(u64::MAX)
            }
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Threshold::Amount(amount) => write!(f, "{amount}"),
            Threshold::Share(share) if share % 1000 == 0 => write!(f, "{}%", share / 1000),
            Threshold::Share(share) => write!(f, "{}.{:03}%", share / 1000, share % 1000),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let hard = [
            ("memory.available", Threshold::Amount(100 << 20)),
            ("nodefs.available", Threshold::Share(5_000)),
            ("nodefs.inodesFree", Threshold::Share(5_000)),
            ("imagefs.available", Threshold::Share(5_000)),
            ("imagefs.inodesFree", Threshold::Share(5_000)),
        ];
        Settings {
            max_pods: 110,
            pods_per_core: 0,
            pod_max_pids: None,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            image_age_min: Duration::from_secs(120),
            parallel_pulls: 3,
            eviction_hard: hard.map(|(name, at)| (name.to_owned(), at)).into(),
            memory_alarm: true,
            enforce_allocatable: true,
            pressure_transition: Duration::from_secs(300),
            log_bytes_max: 10 << 20,
            log_files_max: 5,
            unsafe_sysctls: Vec::new(),
            protect_kernel_defaults: false,
            root_dir: None,
            reserved: BTreeMap::new(),
            providers: None,
        }
    }
}

impl Settings {
    /// Reads `name=value` words.
    ///
    /// Errors: a name that this kubelet does not have, a value that does not fit, as a sentence for the operator.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let (mut config, mut bin_dir) = (None, None);
        for word in words {
            let (name, value) = word
                .trim_start_matches("--")
                .split_once('=')
                .ok_or_else(|| format!("{word:?}: expected name=value"))?;
            match name {
                "image-credential-provider-config" => config = Some(value),
                "image-credential-provider-bin-dir" => bin_dir = Some(value),
                _ => settings.set(name, value).map_err(|why| format!("{name}: {why}"))?,
            }
        }
        settings.providers = match (config, bin_dir) {
            (None, None) => None,
            (Some(config), Some(bin_dir)) => {
                let read = Providers::read(Path::new(config), Path::new(bin_dir));
                Some(Arc::new(read.map_err(|why| format!("image-credential-provider-config: {why}"))?))
            }
            _ => {
                return Err(
                    "image-credential-provider-config and image-credential-provider-bin-dir are given together"
                        .to_owned(),
                );
            }
        };
        if settings.image_gc_low_percent > settings.image_gc_high_percent {
            return Err("image-gc-low-threshold: must not be above image-gc-high-threshold".to_owned());
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "max-pods" => self.max_pods = number(value)?,
            "pods-per-core" => self.pods_per_core = number(value)?,
            "pod-max-pids" => self.pod_max_pids = Some(number::<i64>(value)?).filter(|n| *n > 0),
            "image-gc-high-threshold" => self.image_gc_high_percent = percent(value)?,
            "image-gc-low-threshold" => self.image_gc_low_percent = percent(value)?,
            "serialize-image-pulls" if value == "true" => self.parallel_pulls = 1,
            "serialize-image-pulls" if value == "false" => {}
            "serialize-image-pulls" => return Err("want true or false".to_owned()),
            "max-parallel-image-pulls" => {
                self.parallel_pulls = number(value)?;
                if self.parallel_pulls == 0 {
                    return Err("must be at least 1".to_owned());
                }
            }
            "minimum-image-ttl-duration" => self.image_age_min = duration(value)?,
            "eviction-hard" => self.eviction_hard = thresholds(value)?,
            "eviction-pressure-transition-period" => self.pressure_transition = duration(value)?,
            "container-log-max-size" => self.log_bytes_max = bytes(value)?,
            "container-log-max-files" => {
                self.log_files_max = number(value)?;
                if self.log_files_max < 2 {
                    return Err("must be at least 2".to_owned());
                }
            }
            "allowed-unsafe-sysctls" => {
                self.unsafe_sysctls.extend(value.split(',').filter(|s| !s.is_empty()).map(str::to_owned))
            }
            "protect-kernel-defaults" => {
                self.protect_kernel_defaults = value.parse().map_err(|_| "want true or false".to_owned())?
            }
            "kernel-memcg-notification" => {
                self.memory_alarm = value.parse().map_err(|_| "want true or false".to_owned())?
            }
            "enforce-node-allocatable" => {
                self.enforce_allocatable = match value {
                    "pods" => true,
                    "none" | "" => false,
                    _ => {
                        return Err(
                            "pods or none: kube-reserved and system-reserved have no control group here".to_owned()
                        );
                    }
                }
            }
            "root-dir" if !value.starts_with('/') => return Err("must be an absolute path".to_owned()),
            "root-dir" => self.root_dir = Some(PathBuf::from(value)),
            "kube-reserved" | "system-reserved" => {
                for part in value.split(',').filter(|p| !p.is_empty()) {
                    let (resource, amount) =
                        part.split_once('=').ok_or_else(|| format!("{part:?}: expected resource=amount"))?;
                    let amount: Quantity = amount.parse().map_err(|_| format!("{amount:?} is not a quantity"))?;
                    let sum = self.reserved.remove(resource).map_or(amount, |have| have.add(amount));
                    self.reserved.insert(resource.to_owned(), sum);
                }
            }
            _ => return Err("this kubelet has no such setting".to_owned()),
        }
        Ok(())
    }

    /// Pods that a machine of so many CPUs takes.
    pub(crate) fn pods_max(&self, cpus: i64) -> u32 {
        let by_core = self.pods_per_core.saturating_mul(u32::try_from(cpus).unwrap_or(u32::MAX));
        if by_core == 0 { self.max_pods } else { self.max_pods.min(by_core) }
    }

    /// What is set aside of a resource.
    pub(crate) fn reserved_of(&self, resource: &str) -> i64 {
        self.reserved.get(resource).map_or(0, |q| if resource == "cpu" { q.milli_value() } else { q.value() })
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("{value:?} is not a number"))
}

fn percent(value: &str) -> Result<u64, String> {
    let percent = number(value)?;
    if percent <= 100 { Ok(percent) } else { Err(format!("{percent} is more than 100")) }
}

fn bytes(value: &str) -> Result<u64, String> {
    let quantity: Quantity = value.parse().map_err(|_| format!("{value:?} is not a quantity"))?;
    u64::try_from(quantity.value()).map_err(|_| format!("{value:?} is negative"))
}

/// Go's durations in whole units: `90s`, `1h30m`, `500ms`.
fn duration(value: &str) -> Result<Duration, String> {
    let bad = || format!("{value:?} is not a duration such as 5m or 1h30m");
    let (mut total, mut rest) = (Duration::ZERO, value);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let n: u64 = rest[..digits].parse().map_err(|_| bad())?;
        let after = &rest[digits..];
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        total += match &after[..end] {
            "ms" => Duration::from_millis(n),
            "s" => Duration::from_secs(n),
            "m" => Duration::from_secs(n * 60),
            "h" => Duration::from_secs(n * 3600),
            _ => return Err(bad()),
        };
        rest = &after[end..];
    }
    if value.is_empty() { Err(bad()) } else { Ok(total) }
}

fn thresholds(value: &str) -> Result<BTreeMap<String, Threshold>, String> {
    const SIGNALS: [&str; 6] = [
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
    ];
    let mut found = BTreeMap::new();
    for part in value.split(',').filter(|p| !p.is_empty()) {
        let (signal, at) = part.split_once('<').ok_or_else(|| format!("{part:?}: expected signal<threshold"))?;
        if !SIGNALS.contains(&signal) {
            return Err(format!("unknown signal {signal:?}; known are {}", SIGNALS.join(", ")));
        }
        let at = match at.strip_suffix('%') {
            Some(share) => {
                let share: f64 = number(share)?;
                if !(0.0..=100.0).contains(&share) {
                    return Err(format!("{at:?} is not between 0% and 100%"));
                }
                Threshold::Share(thousandths(share))
            }
            None => Threshold::Amount(bytes(at)?),
        };
        found.insert(signal.to_owned(), at);
    }
    Ok(found)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100 was checked")]
fn thousandths(percent: f64) -> u64 {
    (percent * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_upstream_spells_them_and_unknown_ones_are_refused() {
        let words = [
            "max-pods=50",
            "eviction-hard=memory.available<200Mi,nodefs.available<5%",
            "container-log-max-size=1Mi",
            "kube-reserved=cpu=100m,memory=64Mi",
            "system-reserved=cpu=100m",
            "eviction-pressure-transition-period=1m30s",
        ];
        let settings = Settings::parse(words).unwrap();
        assert_eq!((settings.max_pods, settings.log_bytes_max), (50, 1 << 20));
        assert_eq!(settings.eviction_hard["memory.available"], Threshold::Amount(200 << 20));
        assert_eq!(settings.eviction_hard["nodefs.available"].of(1000), 50);
        assert_eq!((settings.reserved_of("cpu"), settings.reserved_of("memory")), (200, 64 << 20));
        assert_eq!(settings.pressure_transition, Duration::from_secs(90));
        assert!(
            !Settings::parse(["enforce-node-allocatable=none", "kernel-memcg-notification=false"])
                .unwrap()
                .enforce_allocatable
        );
        assert!(
            Settings::parse(["enforce-node-allocatable=pods,system-reserved"])
                .unwrap_err()
                .contains("no control group")
        );
        assert_eq!(Settings::parse(["warp-speed=1"]).unwrap_err(), "warp-speed: this kubelet has no such setting");
        assert!(Settings::parse(["eviction-hard=moon.available<1"]).is_err());
    }
}
