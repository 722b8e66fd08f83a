//! Values of flags: lists, switches, numbers, times, files and names.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use admission::names;
use schema::table::GroupVersion;

use super::error::FlagError;

/// Authorizers, as `authorization-mode` names them.
const MODES: &[&str] = &["AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook", "RBAC", "Node"];

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration such as 1h30m")]
pub struct NoDuration(pub String);

pub(super) fn path(value: &str) -> Result<PathBuf, FlagError> {
    if value.is_empty() { Err(FlagError::NoFile) } else { Ok(PathBuf::from(value)) }
}

/// The texts between commas.
pub(super) fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
}

pub(super) fn switch(value: &str) -> Result<bool, FlagError> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Ok(true),
        "false" | "0" | "f" => Ok(false),
        _ => Err(FlagError::NoSwitch(value.to_owned())),
    }
}

/// The text of a file of certificates.
pub(super) fn authorities(path: &str) -> Result<String, FlagError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| FlagError::Unreadable { path: path.to_owned(), source })?;
    match pki::bundle::Bundle::from_pem(&text) {
        Ok(_) => Ok(text),
        Err(source) => Err(FlagError::NoCertificates { path: path.to_owned(), source }),
    }
}

pub(super) fn one_of(value: &str, of: &'static [&'static str]) -> Result<String, FlagError> {
    if of.contains(&value) { Ok(value.to_owned()) } else { Err(FlagError::NoneOf { value: value.to_owned(), of }) }
}

/// Authorizers in order, each once.
pub(super) fn modes(value: &str) -> Result<Vec<String>, FlagError> {
    let modes = list(value);
    for (at, mode) in modes.iter().enumerate() {
        if !MODES.contains(&mode.as_str()) {
            return Err(FlagError::UnknownMode { mode: mode.clone(), known: MODES });
        }
        if modes[..at].contains(mode) {
            return Err(FlagError::TwiceTheMode(mode.clone()));
        }
    }
    if modes.is_empty() { Err(FlagError::NoMode) } else { Ok(modes) }
}

/// Names of admission plugins, each of which must exist here.
pub(super) fn plugins(value: &str) -> Result<Vec<String>, FlagError> {
    let names = list(value);
    names.iter().try_for_each(|name| names::known(name)).map_err(FlagError::of)?;
    Ok(names)
}

/// Which APIs are served: all of them, always. What asks for that is satisfied.
pub(super) fn runtime_config(value: &str) -> Result<(), FlagError> {
    for pair in list(value) {
        let (what, wanted) = pair.split_once('=').unwrap_or((&pair, "true"));
        let groups = schema::catalog::Catalog::builtin().groups();
        let is_asked = |group: &str, version: &str| GroupVersion { group, version }.to_string() == what;
        let served = groups.iter().any(|g| g.versions.iter().any(|v| is_asked(&g.name, v)));
        if !served && !matches!(what, "api/all" | "api/ga" | "api/beta" | "api/alpha" | "api/legacy") {
            return Err(FlagError::UnknownApi(what.to_owned()));
        }
        if !switch(wanted)? {
            return Err(FlagError::AlwaysServed(what.to_owned()));
        }
    }
    Ok(())
}

pub(super) fn number<N: FromStr>(value: &str) -> Result<N, FlagError> {
    value.parse().map_err(|_| FlagError::NoNumber(value.to_owned()))
}

/// Go's durations: `1h30m`, `90s`, `1500ms`.
///
/// Errors: it is none, or longer than can be counted.
pub fn duration(value: &str) -> Result<Duration, NoDuration> {
    let bad = || NoDuration(value.to_owned());
    let mut total = Duration::ZERO;
    let mut rest = value;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let amount: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let part = Duration::try_from_secs_f64(amount * seconds).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = &rest[unit..];
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, millis) in
            [("1h30m", 5_400_000), ("90s", 90_000), ("1500ms", 1_500), ("1.5s", 1_500), ("2m0.5s", 120_500), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "1x", "1s ", "-1s", "1.2.3s", "1d", "999999999999999h999999999999999h9e9h"] {
            assert_eq!(duration(text), Err(NoDuration(text.to_owned())));
        }
    }

    #[test]
    fn times_that_cannot_be_counted_together_are_refused() {
        let half = "2600000000000000h";
        assert!(duration(half).is_ok());
        assert_eq!(duration(&half.repeat(2)), Err(NoDuration(half.repeat(2))));
    }

    #[test]
    fn a_switch_is_on_or_off() {
        for (text, on) in [("true", true), ("1", true), ("T", true), ("False", false), ("0", false), ("f", false)] {
            assert_eq!(switch(text).ok(), Some(on), "{text}");
        }
        assert_eq!(switch("yes").unwrap_err().to_string(), "\"yes\" is not true or false");
        assert_eq!(switch("").unwrap_err().to_string(), "\"\" is not true or false");
    }

    #[test]
    fn a_list_has_no_empty_texts() {
        assert_eq!(list(" a, b,,c ,"), ["a", "b", "c"]);
        assert!(list("").is_empty());
    }

    #[test]
    fn authorizers_are_known_and_named_once() {
        assert_eq!(modes("Node, RBAC").ok(), Some(vec!["Node".to_owned(), "RBAC".to_owned()]));
        let refused = |text: &str| modes(text).unwrap_err().to_string();
        assert_eq!(refused("RBAC,Node,RBAC"), "RBAC is specified more than once");
        assert_eq!(
            refused("Oracle"),
            "\"Oracle\" is not a valid mode: want some of AlwaysAllow,AlwaysDeny,ABAC,Webhook,RBAC,Node"
        );
        assert_eq!(refused(","), "at least one authorization-mode must be passed");
    }

    #[test]
    fn every_api_is_served_and_none_is_switched_off() {
        for text in ["", "api/all=true", "batch/v1", "v1=true,apps/v1=1", "api/beta=true"] {
            assert!(runtime_config(text).is_ok(), "{text}");
        }
        let refused = |text: &str| runtime_config(text).unwrap_err().to_string();
        assert_eq!(refused("batch/v9=true"), "unknown api groups batch/v9");
        assert_eq!(refused("v1=false"), "kedge serves every version of v1.36, v1 cannot be switched off");
        assert_eq!(refused("v1=maybe"), "\"maybe\" is not true or false");
    }

    #[test]
    fn choices_and_numbers_say_what_they_want() {
        assert_eq!(one_of("v2", &["v1", "v1beta1"]).unwrap_err().to_string(), "\"v2\" is none of v1, v1beta1");
        assert_eq!(number::<usize>("7").ok(), Some(7));
        assert_eq!(number::<usize>("-7").unwrap_err().to_string(), "\"-7\" is not a number");
        assert_eq!(path("").unwrap_err().to_string(), "wants a file");
    }
}
