//! `--kube-controller-manager-arg`: upstream's flags of the controller manager, those that mean something here. All others are refused
//! by name.

use std::time::Duration;

/// What may be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `node-monitor-grace-period`: silence of this length makes a node unreachable.
    pub node_grace: Duration,
    /// `terminated-pod-gc-threshold`: ended pods that are kept; 0 keeps all.
    pub ended_pods_max: usize,
    /// `horizontal-pod-autoscaler-sync-period`
    pub autoscaler_period: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { node_grace: Duration::from_secs(50), ended_pods_max: 12500, autoscaler_period: Duration::from_secs(15) }
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
    "horizontal-pod-autoscaler-cpu-initialization-period",
    "horizontal-pod-autoscaler-downscale-stabilization",
    "horizontal-pod-autoscaler-initial-readiness-delay",
    "horizontal-pod-autoscaler-tolerance",
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
            "horizontal-pod-autoscaler-sync-period" => self.autoscaler_period = duration(value)?,
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
    }
}
