//! `--kube-controller-manager-arg`: upstream's flags of the controller manager. Each acts, or asks for what is so, or
//! is refused by name; `table` has all of them.

pub mod masks;
pub mod table;

use std::error::Error;
use std::time::Duration;

use base::flags::{self, Given, Refusal, Verdict};

use crate::names::{Chosen, NameError};
use crate::settings::masks::Masks;
use crate::settings::table::{CONCURRENT, TABLE};

/// A year: the longest life that the signers give.
const SIGNING_LIFE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Each key that a controller works on at once is a task.
const WORKERS_MAX: usize = 1000;

/// Settings that may be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `controllers` and `concurrent-*-syncs`.
    pub chosen: Chosen,
    /// `node-cidr-mask-size*`
    pub masks: Masks,
    /// `node-monitor-grace-period`: silence of this length makes a node unreachable.
    pub node_grace: Duration,
    /// `node-startup-grace-period`: the same of a node that never said how it is.
    pub node_start_grace: Duration,
    /// `node-monitor-period`: how often a node that is not ready is looked at.
    pub node_monitor_period: Duration,
    /// How fast silent nodes lose their pods.
    pub evictions: Evictions,
    /// `terminated-pod-gc-threshold`: ended pods that are kept; 0 keeps all.
    pub ended_pods_max: usize,
    /// `legacy-service-account-token-clean-up-period`: for how long a token that a service account names in its Secrets
    /// may rest.
    pub legacy_token_life: Duration,
    /// `cluster-signing-duration`: what the signers of certificate requests give at most, and without a wish; a year
    /// where nothing is said.
    pub signing_life: Option<Duration>,
    /// `horizontal-pod-autoscaler-*`
    pub autoscaler: Autoscaler,
    /// Flags that were taken and have nothing to tune here, and why.
    pub moot: Vec<(String, &'static str)>,
}

/// Where volumes of the class `local-path` lie and what makes their folders.
#[derive(Clone, Debug)]
pub struct LocalPath {
    /// The folder on every node that holds the volumes.
    pub dir: String,
    /// The image of the helper pod; it has the program `/local-path`.
    pub image: String,
}

/// How fast silent nodes lose their pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evictions {
    /// `node-eviction-rate`: nodes a second, of each zone.
    pub rate: f64,
    /// `secondary-node-eviction-rate`: the same in a large zone that is unhealthy.
    pub rate_when_unhealthy: f64,
    /// `unhealthy-zone-threshold`: a zone with this share of silent nodes is unhealthy.
    pub unhealthy_share: f64,
    /// `large-cluster-size-threshold`: a zone with more nodes is large; a smaller one loses no pods while it is
    /// unhealthy.
    pub large_zone: usize,
}

impl Default for Evictions {
    fn default() -> Evictions {
        Evictions { rate: 0.1, rate_when_unhealthy: 0.01, unhealthy_share: 0.55, large_zone: 50 }
    }
}

/// How horizontal pod autoscalers behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autoscaler {
    /// `sync-period`
    pub period: Duration,
    /// `downscale-stabilization`: fewer pods only if so few were enough all this time.
    pub down_window: Duration,
    /// `tolerance`: a difference smaller than this is none.
    pub tolerance: f64,
    /// `cpu-initialization-period`: a pod's readings of CPU within it tell of its start.
    pub cpu_start: Duration,
    /// `initial-readiness-delay`: a pod that was never ready within it is not ready yet.
    pub first_ready: Duration,
}

impl Default for Autoscaler {
    fn default() -> Autoscaler {
        let secs = Duration::from_secs;
        Autoscaler {
            period: secs(15),
            down_window: secs(300),
            tolerance: 0.1,
            cpu_start: secs(300),
            first_ready: secs(30),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            chosen: Chosen::default(),
            masks: Masks::default(),
            node_grace: Duration::from_secs(50),
            node_start_grace: Duration::from_secs(60),
            node_monitor_period: Duration::from_secs(5),
            evictions: Evictions::default(),
            ended_pods_max: 12500,
            legacy_token_life: Duration::from_secs(365 * 86_400),
            signing_life: None,
            autoscaler: Autoscaler::default(),
            moot: Vec::new(),
        }
    }
}

/// A flag of the controller manager's that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("--kube-controller-manager-arg={name}")]
pub struct FlagError {
    name: String,
    source: Fault,
}

/// The fault of a flag or of its value.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Flag(#[from] Refusal),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{0:?} is too long: kedge signs for a year (8760h) at most")]
    TooLong(String),
    #[error("{0:?} is not a number from 1 to {WORKERS_MAX}")]
    Workers(String),
    #[error("{0:?} is shorter than a second")]
    NoTime(String),
    #[error("{0:?} is no length of a prefix, 1 to 126")]
    Mask(String),
    #[error(transparent)]
    Gates(Box<dyn Error + Send + Sync>),
}

impl Settings {
    /// Reads `name=value` texts, with or without dashes; a later one of the same name wins, lists excepted.
    ///
    /// Errors: the flag that cannot be taken.
    pub fn parse(args: &[String]) -> Result<Settings, FlagError> {
        let mut out = Settings::default();
        let mut controllers: Vec<&str> = Vec::new();
        for arg in args {
            let given = Given::of(arg);
            let refused = |source| FlagError { name: given.name.to_owned(), source };
            match flags::judge(TABLE, given).map_err(|err| refused(err.into()))? {
                Verdict::Follow if given.name == "controllers" => controllers.push(given.value),
                Verdict::Follow => out.set(given).map_err(refused)?,
                Verdict::Holds => {}
                Verdict::Moot(why) => out.moot.push((given.name.to_owned(), why)),
            }
        }
        if !controllers.is_empty() {
            let refused = |err: NameError| FlagError { name: "controllers".to_owned(), source: err.into() };
            out.chosen.choose(&controllers.join(",")).map_err(refused)?;
        }
        Ok(out)
    }

    fn set(&mut self, Given { name, value }: Given<'_>) -> Result<(), Fault> {
        match name {
            "node-monitor-grace-period" => self.node_grace = time(value)?,
            "node-startup-grace-period" => self.node_start_grace = time(value)?,
            "node-monitor-period" => self.node_monitor_period = time(value)?,
            "node-eviction-rate" => self.evictions.rate = flags::number(value)?,
            "secondary-node-eviction-rate" => self.evictions.rate_when_unhealthy = flags::number(value)?,
            "unhealthy-zone-threshold" => self.evictions.unhealthy_share = flags::number(value)?,
            "large-cluster-size-threshold" => self.evictions.large_zone = flags::count(value)?,
            "horizontal-pod-autoscaler-sync-period" => self.autoscaler.period = time(value)?,
            "horizontal-pod-autoscaler-downscale-stabilization" => {
                self.autoscaler.down_window = flags::duration(value)?
            }
            "horizontal-pod-autoscaler-cpu-initialization-period" => {
                self.autoscaler.cpu_start = flags::duration(value)?;
            }
            "horizontal-pod-autoscaler-initial-readiness-delay" => {
                self.autoscaler.first_ready = flags::duration(value)?;
            }
            "horizontal-pod-autoscaler-tolerance" => self.autoscaler.tolerance = flags::number(value)?,
            "terminated-pod-gc-threshold" => {
                // As upstream: a negative one keeps all, too.
                self.ended_pods_max = flags::count(value.strip_prefix('-').map_or(value, |_| "0"))?;
            }
            "legacy-service-account-token-clean-up-period" => self.legacy_token_life = time(value)?,
            "cluster-signing-duration" => {
                let life = time(value)?;
                if life > SIGNING_LIFE_MAX {
                    return Err(Fault::TooLong(value.to_owned()));
                }
                self.signing_life = Some(life);
            }
            "node-cidr-mask-size" => self.masks.any = Some(mask(value)?),
            "node-cidr-mask-size-ipv4" => self.masks.v4 = Some(mask(value)?),
            "node-cidr-mask-size-ipv6" => self.masks.v6 = Some(mask(value)?),
            "enable-garbage-collector" if flags::switch(value)? => {}
            "enable-garbage-collector" => self.chosen.leave_garbage(),
            "feature-gates" => schema::gates::check(value).map_err(|err| Fault::Gates(err.into()))?,
            _ => self.set_workers(Given { name, value })?,
        }
        Ok(())
    }

    fn set_workers(&mut self, Given { name, value }: Given<'_>) -> Result<(), Fault> {
        let (_, controller) = CONCURRENT.iter().find(|(flag, _)| *flag == name).ok_or(Refusal::Unknown)?;
        let n_workers = value.parse().ok().filter(|n| (1..=WORKERS_MAX).contains(n));
        self.chosen.set_workers(controller, n_workers.ok_or_else(|| Fault::Workers(value.to_owned()))?);
        Ok(())
    }
}

/// A duration that is some time.
fn time(value: &str) -> Result<Duration, Fault> {
    let duration = flags::duration(value)?;
    if duration.is_zero() { Err(Fault::NoTime(value.to_owned())) } else { Ok(duration) }
}

fn mask(value: &str) -> Result<u8, Fault> {
    value.parse().ok().filter(|bits| (1..=126).contains(bits)).ok_or_else(|| Fault::Mask(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    fn parse(args: &[&str]) -> Result<Settings, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Settings::parse(&args).map_err(|err| Chain(&err).to_string())
    }

    fn refusal(arg: &str) -> String {
        let text = parse(&[arg]).unwrap_err();
        text.strip_prefix("--kube-controller-manager-arg=").unwrap_or(&text).to_owned()
    }

    #[test]
    fn a_flag_changes_its_setting_and_the_last_one_counts() {
        let all = parse(&[
            "node-monitor-grace-period=1m30s",
            "--terminated-pod-gc-threshold=10",
            "profiling=false",
            "cluster-signing-duration=24h",
            "legacy-service-account-token-clean-up-period=48h",
            "terminated-pod-gc-threshold=20",
        ])
        .unwrap();
        assert_eq!((all.node_grace, all.ended_pods_max), (Duration::from_secs(90), 20));
        assert_eq!(all.signing_life, Some(Duration::from_secs(86_400)));
        assert_eq!(all.legacy_token_life, Duration::from_secs(172_800));
        assert_eq!(parse(&["terminated-pod-gc-threshold=-1"]).unwrap().ended_pods_max, 0, "no bound");
    }

    #[test]
    fn an_autoscaler_is_tuned_by_its_five_flags() {
        let tuned = parse(&[
            "horizontal-pod-autoscaler-tolerance=0.2",
            "horizontal-pod-autoscaler-downscale-stabilization=1m",
            "horizontal-pod-autoscaler-sync-period=30s",
            "horizontal-pod-autoscaler-cpu-initialization-period=10m",
            "horizontal-pod-autoscaler-initial-readiness-delay=1h",
        ])
        .unwrap()
        .autoscaler;
        assert_eq!(tuned.tolerance, 0.2);
        let durations = [tuned.down_window, tuned.period, tuned.cpu_start, tuned.first_ready];
        assert_eq!(durations.map(|duration| duration.as_secs()), [60, 30, 600, 3600]);
    }

    #[test]
    fn evictions_slow_down_by_their_flags() {
        let slow = parse(&["node-eviction-rate=0.5", "secondary-node-eviction-rate=0", "unhealthy-zone-threshold=0.8"])
            .unwrap()
            .evictions;
        assert_eq!((slow.rate, slow.rate_when_unhealthy, slow.unhealthy_share, slow.large_zone), (0.5, 0.0, 0.8, 50));
    }

    #[test]
    fn what_cannot_be_taken_is_refused_by_its_name_with_the_reason() {
        let no_duration = "is no duration such as 40s";
        for (arg, wanted) in [
            ("nonsense=1", "nonsense: unknown flag".to_owned()),
            ("--nonsense", "nonsense: unknown flag".to_owned()),
            (
                "leader-elect=false",
                "leader-elect: only true is taken: controllers run on the server that leads, and there alone"
                    .to_owned(),
            ),
            ("concurrent-job-syncs=0", "concurrent-job-syncs: \"0\" is not a number from 1 to 1000".to_owned()),
            (
                "concurrent-job-syncs=1000000000",
                "concurrent-job-syncs: \"1000000000\" is not a number from 1 to 1000".to_owned(),
            ),
            ("node-cidr-mask-size=0", "node-cidr-mask-size: \"0\" is no length of a prefix, 1 to 126".to_owned()),
            ("master=https://a", "master: controllers call the API in this process; remove it".to_owned()),
            (
                "controllers=*,route",
                "controllers: node-route-controller cannot be run: there is no cloud provider".to_owned(),
            ),
            ("node-monitor-grace-period=fast", format!("node-monitor-grace-period: \"fast\" {no_duration}")),
            ("node-monitor-grace-period=40", format!("node-monitor-grace-period: \"40\" {no_duration}")),
            ("node-monitor-grace-period=0s", "node-monitor-grace-period: \"0s\" is shorter than a second".to_owned()),
            ("node-monitor-grace-period=1ms", format!("node-monitor-grace-period: \"1ms\" {no_duration}")),
            (
                "horizontal-pod-autoscaler-tolerance=-1",
                "horizontal-pod-autoscaler-tolerance: \"-1\" is not a number of at least 0".to_owned(),
            ),
            ("node-eviction-rate=inf", "node-eviction-rate: \"inf\" is not a number of at least 0".to_owned()),
            (
                "large-cluster-size-threshold=many",
                "large-cluster-size-threshold: \"many\" is not a whole number of at least 0".to_owned(),
            ),
            (
                "cluster-signing-duration=87600h",
                "cluster-signing-duration: \"87600h\" is too long: kedge signs for a year (8760h) at most".to_owned(),
            ),
            ("feature-gates=Nonsense=true", "feature-gates: unrecognized feature gate: Nonsense".to_owned()),
        ] {
            assert_eq!(refusal(arg), wanted);
        }
    }

    #[test]
    fn controllers_are_chosen_over_all_flags_and_work_on_as_many_keys_as_is_said() {
        let chosen =
            parse(&["controllers=*,-cronjob", "controllers=-ttl", "concurrent-deployment-syncs=20"]).unwrap().chosen;
        assert!(!chosen.runs("cronjob-controller") && !chosen.runs("ttl-controller"));
        assert_eq!((chosen.n_workers("deployment-controller"), chosen.n_workers("job-controller")), (20, 5));
        assert!(!parse(&["enable-garbage-collector=false"]).unwrap().chosen.runs("garbage-collector-controller"));
    }

    #[test]
    fn a_flag_with_nothing_to_tune_is_told_of() {
        let moot = parse(&["kube-api-qps=100", "leader-elect-lease-duration=60s"]).unwrap().moot;
        assert_eq!(moot.len(), 2);
        assert!(moot.iter().all(|(_, why)| !why.is_empty()));
    }
}
