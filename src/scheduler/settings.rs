//! `--kube-scheduler-arg`: nothing of the scheduler can be chosen; flags that ask for what is are taken, others are
//! refused by name.

/// Flags with the one value that is true here anyway.
const FIXED: &[(&str, &str)] = &[("profiling", "false"), ("bind-address", "127.0.0.1")];
/// Flags of upstream's v1.36 that kedge decides itself or has no part for.
const NOT_HERE: &[&str] = &[
    "authentication-kubeconfig",
    "authorization-kubeconfig",
    "client-ca-file",
    "config",
    "contention-profiling",
    "kube-api-burst",
    "kube-api-qps",
    "kubeconfig",
    "leader-elect",
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-retry-period",
    "master",
    "pod-max-in-unschedulable-pods-duration",
    "secure-port",
    "show-hidden-metrics-for-version",
    "tls-cert-file",
    "tls-cipher-suites",
    "tls-min-version",
    "tls-private-key-file",
    "v",
    "vmodule",
];

/// Checks `name=value` texts, with or without dashes.
///
/// Errors: a text that names the flag.
pub fn check(args: &[String]) -> Result<(), String> {
    for arg in args {
        let arg = arg.trim_start_matches('-');
        let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
        let verdict = match name {
            "feature-gates" => schema::gates::check(value).map_err(|err| err.to_string()),
            _ if FIXED.iter().any(|(n, v)| *n == name && v.eq_ignore_ascii_case(value)) => Ok(()),
            _ if NOT_HERE.contains(&name) || FIXED.iter().any(|(n, _)| *n == name) => {
                Err("kube-scheduler knows this flag, kedge has no such setting; remove it".to_owned())
            }
            _ => Err("unknown flag".to_owned()),
        };
        verdict.map_err(|why| format!("--kube-scheduler-arg={name}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_asks_for_nothing_new_is_taken() {
        let check = |arg: &str| check(&[arg.to_owned()]);
        assert_eq!(check("--profiling=false"), Ok(()));
        assert_eq!(check("odd").unwrap_err(), "--kube-scheduler-arg=odd: unknown flag");
        assert!(check("config=/x").unwrap_err().contains("kedge has no such setting"));
    }
}
