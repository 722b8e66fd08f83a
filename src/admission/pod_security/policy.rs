//! Policy of a namespace for its pods, read from its labels: a level and a version of the standards for each mode.

use std::fmt;

use model::meta;
use registry::status::Cause;
use serde_json::Value;

use super::checks::Level;

/// First part of the labels' keys.
pub(super) const LABELS: &str = "pod-security.kubernetes.io";

/// A version of the standards; an older one comes before a newer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// `v1.N`
    Minor(u64),
    /// The newest that this server knows.
    #[default]
    Latest,
}

impl Version {
    /// As labels spell it: `latest` or `v1.N`.
    pub(super) fn parse(text: &str) -> Option<Version> {
        if text == "latest" {
            return Some(Version::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| plain).map(Version::Minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Minor(minor) => write!(f, "v1.{minor}"),
            Version::Latest => f.write_str("latest"),
        }
    }
}

/// Level and version of one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

/// Levels of all modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// Pods that break it are refused.
    pub(super) enforce: Asked,
    /// It is written to the audit log.
    pub(super) audit: Asked,
    /// The level whose breach is warned of.
    pub(super) warn: Asked,
}

impl Policy {
    /// The policy that a namespace's labels ask for, and the labels that cannot be read; `defaults` hold where it says
    /// nothing.
    ///
    /// A level that cannot be read enforces all there is, and neither warns nor audits (pod-security-admission
    /// `api/helpers.go`, 1.36.2).
    pub(super) fn of(namespace: &Value, defaults: &Policy) -> (Policy, Vec<Cause>) {
        let mut causes = Vec::new();
        let mut mode = |name: &str, default: Asked, unreadable: Level| {
            let (key, version_key) = (format!("{LABELS}/{name}"), format!("{LABELS}/{name}-version"));
            let said = meta::label(namespace, &key).map(|text| (text, Level::parse(text)));
            let version = meta::label(namespace, &version_key).map(|text| (text, Version::parse(text)));
            let mut refuse = |key: &str, text: &str, why: &str| {
                let message = format!("Invalid value: {text:?}: {why}");
                causes.push(Cause {
                    reason: "FieldValueInvalid".to_owned(),
                    message,
                    field: format!("metadata.labels[{key}]"),
                });
            };
            if let Some((text, None)) = said {
                refuse(&key, text, "must be one of privileged, baseline, restricted");
            }
            if let Some((text, None)) = version {
                refuse(&version_key, text, "must be \"latest\" or \"v1.x\"");
            }
            let asked = Asked {
                level: said.map_or(default.level, |(_, level)| level.unwrap_or(unreadable)),
                version: version.map_or(default.version, |(_, version)| version.unwrap_or_default()),
            };
            (asked, said.and_then(|(_, level)| level), said.is_some(), version.is_some())
        };
        let (enforce, enforced, ..) = mode("enforce", defaults.enforce, Level::Restricted);
        let (audit, ..) = mode("audit", defaults.audit, Level::Privileged);
        let (mut warn, _, says_level, says_version) = mode("warn", defaults.warn, Level::Privileged);
        // A workload's pods would be refused later, out of sight of whoever makes it: enforcing warns, too.
        if !says_level && enforced.is_some_and(|level| level > warn.level) {
            warn = Asked { level: enforce.level, version: if says_version { warn.version } else { enforce.version } };
        }
        (Policy { enforce, audit, warn }, causes)
    }

    /// Nothing is asked in any mode.
    pub(super) fn is_fully_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|asked| asked.level == Level::Privileged)
    }

    /// The two ask the same of every pod.
    pub(super) fn is_like(&self, other: &Policy) -> bool {
        let like = |a: Asked, b: Asked| a == b || a.level == Level::Privileged && b.level == Level::Privileged;
        like(self.enforce, other.enforce) && like(self.audit, other.audit) && like(self.warn, other.warn)
    }
}
