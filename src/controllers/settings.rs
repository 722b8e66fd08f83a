//! `--kube-controller-manager-arg`: upstream's flags of the controller manager, those that mean something here. All
//! others are refused by name.

use std::error::Error;
use std::time::Duration;

/// A year: the longest life that the signers give.
const SIGNING_LIFE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Settings that may be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `node-monitor-grace-period`: silence of this length makes a node unreachable.
    pub node_grace: Duration,
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
            node_grace: Duration::from_secs(50),
            evictions: Evictions::default(),
            ended_pods_max: 12500,
            legacy_token_life: Duration::from_secs(365 * 86_400),
            signing_life: None,
            autoscaler: Autoscaler::default(),
        }
    }
}

/// Flags with the one value that is true here anyway.
const FIXED: &[(&str, &str)] = &[
    ("profiling", "false"),
    ("use-service-account-credentials", "true"),
    ("bind-address", "127.0.0.1"),
    ("allocate-node-cidrs", "true"),
    ("configure-cloud-routes", "false"),
    ("controllers", "*"),
    ("enable-garbage-collector", "true"),
];

/// Flags of upstream's v1.36 that kedge decides itself or has no part for.
const NOT_HERE: &[&str] = &[
    "attach-detach-reconcile-max-wait-unmount-duration",
    "attach-detach-reconcile-sync-period",
    "authentication-kubeconfig",
    "authentication-skip-lookup",
    "authentication-token-webhook-cache-ttl",
    "authentication-tolerate-lookup-failure",
    "authorization-always-allow-paths",
    "authorization-kubeconfig",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "cert-dir",
    "cidr-allocator-type",
    "client-ca-file",
    "cloud-config",
    "cloud-provider",
    "cluster-cidr",
    "cluster-name",
    "cluster-signing-cert-file",
    "cluster-signing-key-file",
    "cluster-signing-kube-apiserver-client-cert-file",
    "cluster-signing-kube-apiserver-client-key-file",
    "cluster-signing-kubelet-client-cert-file",
    "cluster-signing-kubelet-client-key-file",
    "cluster-signing-kubelet-serving-cert-file",
    "cluster-signing-kubelet-serving-key-file",
    "cluster-signing-legacy-unknown-cert-file",
    "cluster-signing-legacy-unknown-key-file",
    "concurrent-cron-job-syncs",
    "concurrent-daemonset-syncs",
    "concurrent-deployment-syncs",
    "concurrent-device-taint-eviction-syncs",
    "concurrent-endpoint-syncs",
    "concurrent-ephemeralvolume-syncs",
    "concurrent-gc-syncs",
    "concurrent-horizontal-pod-autoscaler-syncs",
    "concurrent-job-syncs",
    "concurrent-namespace-syncs",
    "concurrent-node-syncs",
    "concurrent-rc-syncs",
    "concurrent-replicaset-syncs",
    "concurrent-resource-claim-syncs",
    "concurrent-resource-quota-syncs",
    "concurrent-service-endpoint-syncs",
    "concurrent-service-syncs",
    "concurrent-serviceaccount-token-syncs",
    "concurrent-statefulset-syncs",
    "concurrent-ttl-after-finished-syncs",
    "concurrent-validating-admission-policy-status-syncs",
    "contention-profiling",
    "controller-start-interval",
    "disable-attach-detach-reconcile-sync",
    "disable-force-detach-on-timeout",
    "disable-http2-serving",
    "disabled-metrics",
    "emulated-version",
    "enable-dynamic-provisioning",
    "enable-hostpath-provisioner",
    "enable-leader-migration",
    "endpoint-updates-batch-period",
    "endpointslice-updates-batch-period",
    "external-cloud-volume-plugin",
    "flex-volume-plugin-dir",
    "http2-max-streams-per-connection",
    "kube-api-burst",
    "kube-api-content-type",
    "kube-api-qps",
    "kubeconfig",
    "leader-elect",
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-resource-lock",
    "leader-elect-resource-name",
    "leader-elect-resource-namespace",
    "leader-elect-retry-period",
    "leader-migration-config",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-json-split-stream",
    "log-text-info-buffer-size",
    "log-text-split-stream",
    "logging-format",
    "master",
    "max-endpoints-per-slice",
    "min-compatibility-version",
    "min-resync-period",
    "mirroring-concurrent-service-endpoint-syncs",
    "mirroring-endpointslice-updates-batch-period",
    "mirroring-max-endpoints-per-subset",
    "namespace-sync-period",
    "node-cidr-mask-size",
    "node-cidr-mask-size-ipv4",
    "node-cidr-mask-size-ipv6",
    "node-monitor-period",
    "node-startup-grace-period",
    "node-sync-period",
    "permit-address-sharing",
    "permit-port-sharing",
    "pv-recycler-increment-timeout-nfs",
    "pv-recycler-minimum-timeout-hostpath",
    "pv-recycler-minimum-timeout-nfs",
    "pv-recycler-pod-template-filepath-hostpath",
    "pv-recycler-pod-template-filepath-nfs",
    "pv-recycler-timeout-increment-hostpath",
    "pvclaimbinder-sync-period",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-uid-headers",
    "requestheader-username-headers",
    "resource-quota-sync-period",
    "root-ca-file",
    "route-reconciliation-period",
    "secure-port",
    "service-account-private-key-file",
    "service-cluster-ip-range",
    "show-hidden-metrics-for-version",
    "tls-cert-file",
    "tls-cipher-suites",
    "tls-min-version",
    "tls-private-key-file",
    "tls-sni-cert-key",
    "v",
    "vmodule",
];

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
    #[error("unknown flag")]
    Unknown,
    #[error("kube-controller-manager knows this flag, kedge has no such setting; remove it")]
    NoSetting,
    #[error("{0:?} is not a number")]
    NoNumber(String),
    #[error("{0:?} is not a number of at least 0")]
    Negative(String),
    #[error("{0:?} is no duration such as 40s")]
    NoDuration(String),
    #[error("{0:?} is too long: kedge signs for a year (8760h) at most")]
    TooLong(String),
    #[error(transparent)]
    Gates(Box<dyn Error + Send + Sync>),
}

/// One flag as it was given.
struct Flag<'a> {
    name: &'a str,
    value: &'a str,
}

impl Settings {
    /// Reads `name=value` texts, with or without dashes; a later one of the same name wins.
    ///
    /// Errors: the flag that cannot be taken.
    pub fn parse(args: &[String]) -> Result<Settings, FlagError> {
        let mut out = Settings::default();
        for arg in args {
            let arg = arg.trim_start_matches('-');
            let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
            out.set(Flag { name, value }).map_err(|source| FlagError { name: name.to_owned(), source })?;
        }
        Ok(out)
    }

    fn set(&mut self, Flag { name, value }: Flag<'_>) -> Result<(), Fault> {
        match name {
            "node-monitor-grace-period" => self.node_grace = duration(value)?,
            "node-eviction-rate" => self.evictions.rate = number(value)?,
            "secondary-node-eviction-rate" => self.evictions.rate_when_unhealthy = number(value)?,
            "unhealthy-zone-threshold" => self.evictions.unhealthy_share = number(value)?,
            "large-cluster-size-threshold" => {
                self.evictions.large_zone = value.parse().map_err(|_| Fault::NoNumber(value.to_owned()))?;
            }
            "horizontal-pod-autoscaler-sync-period" => self.autoscaler.period = duration(value)?,
            "horizontal-pod-autoscaler-downscale-stabilization" => self.autoscaler.down_window = duration(value)?,
            "horizontal-pod-autoscaler-cpu-initialization-period" => self.autoscaler.cpu_start = duration(value)?,
            "horizontal-pod-autoscaler-initial-readiness-delay" => self.autoscaler.first_ready = duration(value)?,
            "horizontal-pod-autoscaler-tolerance" => self.autoscaler.tolerance = number(value)?,
            "terminated-pod-gc-threshold" => {
                let count: i64 = value.parse().map_err(|_| Fault::NoNumber(value.to_owned()))?;
                self.ended_pods_max = usize::try_from(count).unwrap_or(0);
            }
            "legacy-service-account-token-clean-up-period" => self.legacy_token_life = duration(value)?,
            "cluster-signing-duration" => {
                let life = duration(value)?;
                if life > SIGNING_LIFE_MAX {
                    return Err(Fault::TooLong(value.to_owned()));
                }
                self.signing_life = Some(life);
            }
            "feature-gates" => schema::gates::check(value).map_err(|err| Fault::Gates(err.into()))?,
            _ if FIXED.iter().any(|(n, v)| *n == name && v.eq_ignore_ascii_case(value)) => {}
            _ if NOT_HERE.contains(&name) || FIXED.iter().any(|(n, _)| *n == name) => {
                return Err(Fault::NoSetting);
            }
            _ => return Err(Fault::Unknown),
        }
        Ok(())
    }
}

fn number(value: &str) -> Result<f64, Fault> {
    let number = value.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| Fault::Negative(value.to_owned()))
}

/// Go's durations in whole seconds and larger: `40s`, `1m30s`. None is shorter than a second here.
fn duration(value: &str) -> Result<Duration, Fault> {
    let bad = || Fault::NoDuration(value.to_owned());
    let (mut total, mut number) = (0_u64, String::new());
    for c in value.chars() {
        let factor = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(bad()),
        };
        let n: u64 = number.parse().map_err(|_| bad())?;
        total = n.checked_mul(factor).and_then(|n| n.checked_add(total)).ok_or_else(bad)?;
        number.clear();
    }
    if total == 0 || !number.is_empty() { Err(bad()) } else { Ok(Duration::from_secs(total)) }
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
        let not_here = "kube-controller-manager knows this flag, kedge has no such setting; remove it";
        let no_duration = "is no duration such as 40s";
        for (arg, wanted) in [
            ("nonsense=1", "nonsense: unknown flag".to_owned()),
            ("--nonsense", "nonsense: unknown flag".to_owned()),
            ("leader-elect=true", format!("leader-elect: {not_here}")),
            ("concurrent-job-syncs=9", format!("concurrent-job-syncs: {not_here}")),
            ("node-monitor-grace-period=fast", format!("node-monitor-grace-period: \"fast\" {no_duration}")),
            ("node-monitor-grace-period=40", format!("node-monitor-grace-period: \"40\" {no_duration}")),
            ("node-monitor-grace-period=0s", format!("node-monitor-grace-period: \"0s\" {no_duration}")),
            ("node-monitor-grace-period=1ms", format!("node-monitor-grace-period: \"1ms\" {no_duration}")),
            (
                "horizontal-pod-autoscaler-tolerance=-1",
                "horizontal-pod-autoscaler-tolerance: \"-1\" is not a number of at least 0".to_owned(),
            ),
            ("node-eviction-rate=inf", "node-eviction-rate: \"inf\" is not a number of at least 0".to_owned()),
            ("large-cluster-size-threshold=many", "large-cluster-size-threshold: \"many\" is not a number".to_owned()),
            (
                "cluster-signing-duration=87600h",
                "cluster-signing-duration: \"87600h\" is too long: kedge signs for a year (8760h) at most".to_owned(),
            ),
            ("feature-gates=Nonsense=true", "feature-gates: unrecognized feature gate: Nonsense".to_owned()),
        ] {
            assert_eq!(refusal(arg), wanted);
        }
    }
}
