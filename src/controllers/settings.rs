//! `--kube-controller-manager-arg`: upstream's flags of the controller manager, those that mean something here. All others are refused
//! by name.

use std::time::Duration;

/// What may be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `node-monitor-grace-period`: silence of this length makes a node unreachable.
    pub node_grace: Duration,
    /// `terminated-pod-gc-threshold`: ended pods that are kept; 0 keeps all.
    pub ended_pods_max: usize,
    /// `horizontal-pod-autoscaler-*`
    pub autoscaler: Autoscaler,
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
        Autoscaler { period: secs(15), down_window: secs(300), tolerance: 0.1, cpu_start: secs(300), first_ready: secs(30) }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { node_grace: Duration::from_secs(50), ended_pods_max: 12500, autoscaler: Autoscaler::default() }
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
    "attach-detach-reconcile-sync-period",
    "authentication-kubeconfig",
    "authorization-kubeconfig",
    "cidr-allocator-type",
    "client-ca-file",
    "cloud-config",
    "cloud-provider",
    "cluster-cidr",
    "cluster-name",
    "cluster-signing-cert-file",
    "cluster-signing-duration",
    "cluster-signing-key-file",
    "concurrent-deployment-syncs",
    "concurrent-endpoint-syncs",
    "concurrent-gc-syncs",
    "concurrent-namespace-syncs",
    "concurrent-replicaset-syncs",
    "concurrent-resource-quota-syncs",
    "concurrent-service-endpoint-syncs",
    "concurrent-serviceaccount-token-syncs",
    "concurrent-statefulset-syncs",
    "enable-dynamic-provisioning",
    "enable-hostpath-provisioner",
    "flex-volume-plugin-dir",
    "kube-api-burst",
    "kube-api-qps",
    "kubeconfig",
    "large-cluster-size-threshold",
    "leader-elect",
    "master",
    "min-resync-period",
    "namespace-sync-period",
    "node-cidr-mask-size",
    "node-eviction-rate",
    "node-monitor-period",
    "node-startup-grace-period",
    "pvclaimbinder-sync-period",
    "resource-quota-sync-period",
    "root-ca-file",
    "route-reconciliation-period",
    "secondary-node-eviction-rate",
    "secure-port",
    "service-account-private-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-cipher-suites",
    "tls-min-version",
    "tls-private-key-file",
    "unhealthy-zone-threshold",
    "v",
    "vmodule",
];

impl Settings {
    /// Reads `name=value` texts, with or without dashes; a later one of the same name wins.
    ///
    /// Errors: a text that names the flag.
    pub fn parse(args: &[String]) -> Result<Settings, String> {
        let mut out = Settings::default();
        for arg in args {
            let arg = arg.trim_start_matches('-');
            let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
            out.set(name, value).map_err(|why| format!("--kube-controller-manager-arg={name}: {why}"))?;
        }
        Ok(out)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "node-monitor-grace-period" => self.node_grace = duration(value)?,
            "horizontal-pod-autoscaler-sync-period" => self.autoscaler.period = duration(value)?,
            "horizontal-pod-autoscaler-downscale-stabilization" => self.autoscaler.down_window = duration(value)?,
            "horizontal-pod-autoscaler-cpu-initialization-period" => self.autoscaler.cpu_start = duration(value)?,
            "horizontal-pod-autoscaler-initial-readiness-delay" => self.autoscaler.first_ready = duration(value)?,
            "horizontal-pod-autoscaler-tolerance" => {
                let tolerance = value.parse().ok().filter(|t: &f64| t.is_finite() && *t >= 0.0);
                self.autoscaler.tolerance = tolerance.ok_or_else(|| format!("{value:?} is not a number of at least 0"))?;
            }
            "terminated-pod-gc-threshold" => {
                let count: i64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
                self.ended_pods_max = usize::try_from(count).unwrap_or(0);
            }
            "feature-gates" => return schema::gates::check(value),
            _ if FIXED.iter().any(|(n, v)| *n == name && v.eq_ignore_ascii_case(value)) => {}
            _ if NOT_HERE.contains(&name) || FIXED.iter().any(|(n, _)| *n == name) => {
                return Err("kube-controller-manager knows this flag, kedge has no such setting; remove it".to_owned());
            }
            _ => return Err("unknown flag".to_owned()),
        }
        Ok(())
    }
}

/// Go's durations in whole seconds and larger: `40s`, `1m30s`. None is shorter than a second here.
fn duration(value: &str) -> Result<Duration, String> {
    let bad = || format!("{value:?} is no duration such as 40s");
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
    use super::*;

    #[test]
    fn known_flags_act_and_others_are_refused_by_name() {
        let parse = |args: &[&str]| Settings::parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        let all = parse(&["node-monitor-grace-period=1m30s", "--terminated-pod-gc-threshold=10", "profiling=false"]).unwrap();
        assert_eq!((all.node_grace, all.ended_pods_max), (Duration::from_secs(90), 10));
        assert_eq!(parse(&["nonsense=1"]).unwrap_err(), "--kube-controller-manager-arg=nonsense: unknown flag");
        assert!(parse(&["leader-elect=true"]).unwrap_err().contains("kedge has no such setting"));
        assert!(parse(&["node-monitor-grace-period=fast"]).is_err());
        let tuned = parse(&["horizontal-pod-autoscaler-tolerance=0.2", "horizontal-pod-autoscaler-downscale-stabilization=1m"]).unwrap();
        assert_eq!((tuned.autoscaler.tolerance, tuned.autoscaler.down_window), (0.2, Duration::from_secs(60)));
        assert!(parse(&["horizontal-pod-autoscaler-tolerance=-1"]).is_err());
    }
}
