//! `--kube-scheduler-arg`: nothing of the scheduler can be chosen; flags that ask for what is are taken, others are
//! refused by name.

use std::error::Error;

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

/// A flag of the scheduler's that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("--kube-scheduler-arg={name}")]
pub struct FlagError {
    name: String,
    source: Fault,
}

/// The fault of a flag.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("unknown flag")]
    Unknown,
    #[error("kube-scheduler knows this flag, kedge has no such setting; remove it")]
    NoSetting,
    #[error(transparent)]
    Gates(Box<dyn Error + Send + Sync>),
}

/// Checks `name=value` texts, with or without dashes.
///
/// Errors: the flag that cannot be taken.
pub fn check(args: &[String]) -> Result<(), FlagError> {
    for arg in args {
        let arg = arg.trim_start_matches('-');
        let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
        let verdict = match name {
            "feature-gates" => schema::gates::check(value).map_err(|err| Fault::Gates(err.into())),
            _ if FIXED.iter().any(|(n, v)| *n == name && v.eq_ignore_ascii_case(value)) => Ok(()),
            _ if NOT_HERE.contains(&name) || FIXED.iter().any(|(n, _)| *n == name) => Err(Fault::NoSetting),
            _ => Err(Fault::Unknown),
        };
        verdict.map_err(|source| FlagError { name: name.to_owned(), source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    #[test]
    fn a_flag_is_taken_if_it_asks_for_what_is_and_else_refused_by_its_name() {
        let said = |arg: &str| super::check(&[arg.to_owned()]).map_err(|err| Chain(&err).to_string());
        let taken = ["--profiling=false", "profiling=False", "bind-address=127.0.0.1", "feature-gates="];
        assert!(taken.iter().all(|arg| said(arg).is_ok()));
        let not_here = "kube-scheduler knows this flag, kedge has no such setting; remove it";
        for (arg, wanted) in [
            ("odd", "odd: unknown flag".to_owned()),
            ("config=/x", format!("config: {not_here}")),
            ("profiling", format!("profiling: {not_here}")),
            ("--bind-address=0.0.0.0", format!("bind-address: {not_here}")),
            ("feature-gates=Odd=true", "feature-gates: unrecognized feature gate: Odd".to_owned()),
            ("feature-gates=Odd", "feature-gates: missing bool value for Odd".to_owned()),
        ] {
            assert_eq!(said(arg), Err(format!("--kube-scheduler-arg={wanted}")));
        }
    }
}
