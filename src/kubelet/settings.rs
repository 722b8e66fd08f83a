//! The kubelet's own settings, as `--kubelet-arg` spells them (upstream's flags without the dashes).

mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::quantity::Quantity;

use self::value::ValueError;
use crate::providers::{Providers, ReadError};

/// The settings that an operator may tune. The defaults are upstream's, but for the disk's thresholds, which are k3s's
/// 5 %: small machines run full.
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

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SettingsError(#[from] Fault);

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{word:?}: expected name=value")]
    NotAssigned { word: String },
    #[error("{name}")]
    Value { name: String, source: ValueError },
    #[error("image-credential-provider-config")]
    Providers(#[source] ReadError),
    #[error("image-credential-provider-config and image-credential-provider-bin-dir are given together")]
    HalfOfProviders,
    #[error("image-gc-low-threshold: must not be above image-gc-high-threshold")]
    Thresholds,
}

/// One setting, as it is written.
#[derive(Clone, Copy)]
struct Setting<'a> {
    name: &'a str,
    value: &'a str,
}

impl Settings {
    /// Reads `name=value` words.
    ///
    /// Errors: a name that this kubelet does not have, a value that does not fit, for the operator.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        let (mut config, mut bin_dir) = (None, None);
        for word in words {
            let (name, value) = word
                .trim_start_matches("--")
                .split_once('=')
                .ok_or_else(|| Fault::NotAssigned { word: word.to_owned() })?;
            match name {
                "image-credential-provider-config" => config = Some(value),
                "image-credential-provider-bin-dir" => bin_dir = Some(value),
                _ => {
                    let setting = Setting { name, value };
                    settings.set(setting).map_err(|source| Fault::Value { name: name.to_owned(), source })?;
                }
            }
        }
        settings.providers = match (config, bin_dir) {
            (None, None) => None,
            (Some(config), Some(bin_dir)) => {
                let read = Providers::read(Path::new(config), Path::new(bin_dir));
                Some(Arc::new(read.map_err(Fault::Providers)?))
            }
            _ => return Err(Fault::HalfOfProviders.into()),
        };
        if settings.image_gc_low_percent > settings.image_gc_high_percent {
            return Err(Fault::Thresholds.into());
        }
        Ok(settings)
    }

    fn set(&mut self, Setting { name, value }: Setting<'_>) -> Result<(), ValueError> {
        match name {
            "max-pods" => self.max_pods = value::number(value)?,
            "pods-per-core" => self.pods_per_core = value::number(value)?,
            "pod-max-pids" => self.pod_max_pids = Some(value::number::<i64>(value)?).filter(|n| *n > 0),
            "image-gc-high-threshold" => self.image_gc_high_percent = value::percent(value)?,
            "image-gc-low-threshold" => self.image_gc_low_percent = value::percent(value)?,
            "serialize-image-pulls" => {
                if value::boolean(value)? {
                    self.parallel_pulls = 1;
                }
            }
            "max-parallel-image-pulls" => self.parallel_pulls = value::at_least(1, value)?,
            "minimum-image-ttl-duration" => self.image_age_min = value::duration(value)?,
            "eviction-hard" => self.eviction_hard = value::thresholds(value)?,
            "eviction-pressure-transition-period" => self.pressure_transition = value::duration(value)?,
            "container-log-max-size" => self.log_bytes_max = value::bytes(value)?,
            "container-log-max-files" => self.log_files_max = value::at_least(2, value)?,
            "allowed-unsafe-sysctls" => {
                self.unsafe_sysctls.extend(value.split(',').filter(|s| !s.is_empty()).map(str::to_owned))
            }
            "protect-kernel-defaults" => self.protect_kernel_defaults = value::boolean(value)?,
            "kernel-memcg-notification" => self.memory_alarm = value::boolean(value)?,
            "enforce-node-allocatable" => {
                self.enforce_allocatable = match value {
                    "pods" => true,
                    "none" | "" => false,
                    _ => return Err(ValueError::NoControlGroup),
                }
            }
            "root-dir" if !value.starts_with('/') => return Err(ValueError::RelativePath),
            "root-dir" => self.root_dir = Some(PathBuf::from(value)),
            "kube-reserved" | "system-reserved" => {
                for (resource, amount) in value::amounts(value)? {
                    let sum = self.reserved.remove(resource).map_or(amount, |have| have.add(amount));
                    self.reserved.insert(resource.to_owned(), sum);
                }
            }
            _ => return Err(ValueError::Unknown),
        }
        Ok(())
    }

    /// Pods that a machine of so many CPUs takes.
    pub(crate) fn pods_max(&self, cpus: i64) -> u32 {
        let by_core = self.pods_per_core.saturating_mul(u32::try_from(cpus).unwrap_or(u32::MAX));
        if by_core == 0 { self.max_pods } else { self.max_pods.min(by_core) }
    }

    /// The amount of a resource that is set aside.
    pub(crate) fn reserved_of(&self, resource: &str) -> i64 {
        self.reserved.get(resource).map_or(0, |q| if resource == "cpu" { q.milli_value() } else { q.value() })
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

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
    }

    #[test]
    fn settings_that_cannot_be_used_say_why() {
        let both = "image-credential-provider-config and image-credential-provider-bin-dir are given together";
        for (words, text) in [
            (&["max-pods"][..], "\"max-pods\": expected name=value"),
            (&["warp-speed=1"], "warp-speed: this kubelet has no such setting"),
            (&["--max-pods=many"], "max-pods: \"many\" is not a number"),
            (&["serialize-image-pulls=maybe"], "serialize-image-pulls: want true or false"),
            (&["max-parallel-image-pulls=0"], "max-parallel-image-pulls: must be at least 1"),
            (&["container-log-max-files=1"], "container-log-max-files: must be at least 2"),
            (&["root-dir=var/lib"], "root-dir: must be an absolute path"),
            (
                &["enforce-node-allocatable=pods,system-reserved"],
                "enforce-node-allocatable: pods or none: \
                 kube-reserved and system-reserved have no control group here",
            ),
            (
                &["image-gc-high-threshold=70", "image-gc-low-threshold=80"],
                "image-gc-low-threshold: must not be above image-gc-high-threshold",
            ),
            (&["image-credential-provider-config=/x"], both),
            (&["image-credential-provider-bin-dir=/x"], both),
            (
                &["image-credential-provider-config=/no/such", "image-credential-provider-bin-dir=/x"],
                "image-credential-provider-config: /no/such: No such file or directory (os error 2)",
            ),
        ] {
            let err = Settings::parse(words.iter().copied()).unwrap_err();
            assert_eq!(Chain(&err).to_string(), text);
        }
    }

    #[test]
    fn images_are_pulled_one_after_another_where_that_is_wanted() {
        let pulls = |words: &[&str]| Settings::parse(words.iter().copied()).unwrap().parallel_pulls;
        assert_eq!(pulls(&["serialize-image-pulls=true"]), 1);
        assert_eq!(pulls(&["serialize-image-pulls=false"]), Settings::default().parallel_pulls);
        assert_eq!(pulls(&["max-parallel-image-pulls=9"]), 9);
    }

    #[test]
    fn a_small_machine_takes_fewer_pods() {
        let pods = |per_core, cpus| Settings { pods_per_core: per_core, ..Settings::default() }.pods_max(cpus);
        assert_eq!((pods(0, 2), pods(10, 2), pods(100, 2)), (110, 20, 110));
        assert_eq!(pods(u32::MAX, i64::MAX), 110, "as many as it likes");
    }

    #[test]
    fn thresholds_are_told_as_they_are_written() {
        for (at, text) in
            [(Threshold::Amount(7), "7"), (Threshold::Share(5_000), "5%"), (Threshold::Share(500), "0.500%")]
        {
            assert_eq!(at.to_string(), text);
        }
        assert_eq!(Threshold::Share(100_000).of(u64::MAX), u64::MAX);
        assert_eq!(Threshold::Share(1).of(99_999), 0, "rounded down");
    }
}
