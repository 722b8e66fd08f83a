//! `--kube-scheduler-arg`: nothing of the scheduler can be chosen; flags that ask for what is are taken, others are
//! refused by name. `table` has all of them.

pub mod table;

use std::error::Error;

use base::flags::{self, Given, Refusal, Verdict};

use crate::settings::table::TABLE;

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
    #[error(transparent)]
    Flag(#[from] Refusal),
    #[error(transparent)]
    Gates(Box<dyn Error + Send + Sync>),
}

/// Checks `name=value` texts, with or without dashes. Answers with those that have nothing to tune here, and why.
///
/// Errors: the flag that cannot be taken.
pub fn check(args: &[String]) -> Result<Vec<(String, &'static str)>, FlagError> {
    let mut moot = Vec::new();
    for arg in args {
        let given = Given::of(arg);
        let refused = |source| FlagError { name: given.name.to_owned(), source };
        match flags::judge(TABLE, given).map_err(|err| refused(err.into()))? {
            Verdict::Follow => {
                schema::gates::check(given.value).map_err(|err| refused(Fault::Gates(err.into())))?;
            }
            Verdict::Holds => {}
            Verdict::Moot(why) => moot.push((given.name.to_owned(), why)),
        }
    }
    Ok(moot)
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    #[test]
    fn a_flag_is_taken_if_it_asks_for_what_is_and_else_refused_by_its_name() {
        let said = |arg: &str| super::check(&[arg.to_owned()]).map_err(|err| Chain(&err).to_string());
        let taken =
            ["--profiling=false", "profiling=False", "bind-address=127.0.0.1", "feature-gates=", "leader-elect"];
        assert!(taken.iter().all(|arg| said(arg).is_ok_and(|moot| moot.is_empty())));
        assert_eq!(said("kube-api-qps=100").unwrap().len(), 1, "it is told of");
        for (arg, wanted) in [
            ("odd", "odd: unknown flag"),
            (
                "config=/x",
                "config: there are no profiles of the scheduler yet: it has upstream's plugins with their default \
                 weights; remove it",
            ),
            ("profiling", "profiling: only false is taken: kedge is not a Go program; use perf"),
            (
                "--bind-address=0.0.0.0",
                "bind-address: only 127.0.0.1 is taken: the scheduler has no port of its own: what it would serve is \
                 on the API's",
            ),
            ("kube-api-burst=many", "kube-api-burst: \"many\" is not a whole number of at least 0"),
            ("feature-gates=Odd=true", "feature-gates: unrecognized feature gate: Odd"),
            ("feature-gates=Odd", "feature-gates: missing bool value for Odd"),
        ] {
            assert_eq!(said(arg), Err(format!("--kube-scheduler-arg={wanted}")));
        }
    }
}
