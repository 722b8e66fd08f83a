//! PodSecurityConfiguration: the levels of namespaces that say none, and who is exempt.

use schema::read;
use serde_json::Value;

use super::checks::Level;
use super::is_version;
use crate::admission::configuration::known;

const VERSIONS: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];
const MODES: [&str; 3] = ["enforce", "audit", "warn"];

/// The configuration, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSecurityConfiguration {
    /// Level and version of enforce, audit and warn; none said: privileged.
    defaults: [Option<(Level, String)>; 3],
    users: Vec<String>,
    runtime_classes: Vec<String>,
    namespaces: Vec<String>,
}

impl PodSecurityConfiguration {
    /// Reads it; `path` is where it stands.
    ///
    /// Errors: upstream's text about the first thing that is wrong.
    pub fn of(value: &Value, path: &str) -> Result<PodSecurityConfiguration, String> {
        let (version, kind) = (read::text(value, "apiVersion"), read::text(value, "kind"));
        if kind != "PodSecurityConfiguration" || !VERSIONS.contains(&version) {
            return Err(format!("{path}: no kind {kind:?} is registered for version {version:?}"));
        }
        known(value, path, &["apiVersion", "kind", "defaults", "exemptions"])?;
        let (defaults, exemptions) = (&value["defaults"], &value["exemptions"]);
        let versions = MODES.map(|mode| format!("{mode}-version"));
        let fields: Vec<&str> = MODES.into_iter().chain(versions.iter().map(String::as_str)).collect();
        known(defaults, &format!("{path}.defaults"), &fields)?;
        known(exemptions, &format!("{path}.exemptions"), &["usernames", "runtimeClasses", "namespaces"])?;
        let mut out = PodSecurityConfiguration::default();
        for (idx, mode) in MODES.into_iter().enumerate() {
            let level = read::some_text(defaults, mode).unwrap_or("privileged");
            let version = read::some_text(defaults, &versions[idx]).unwrap_or("latest");
            let wrong = |field: &str, text: &str, why: &str| format!("{path}.defaults.{field}: Invalid value: {text:?}: {why}");
            let level = Level::parse(level).ok_or_else(|| wrong(mode, level, "must be one of privileged, baseline, restricted"))?;
            if !is_version(version) {
                return Err(wrong(&versions[idx], version, "must be \"latest\" or \"v1.x\""));
            }
            out.defaults[idx] = Some((level, version.to_owned()));
        }
        let list = |field: &str| read::texts(exemptions, field).into_iter().map(str::to_owned).collect();
        (out.users, out.runtime_classes, out.namespaces) = (list("usernames"), list("runtimeClasses"), list("namespaces"));
        Ok(out)
    }

    /// Level and version of a mode (`enforce`, `audit` or `warn`) where a namespace says none.
    pub(super) fn default_of(&self, mode: &str) -> (Level, String) {
        let at = MODES.iter().position(|m| *m == mode);
        at.and_then(|at| self.defaults[at].clone()).unwrap_or((Level::Privileged, "latest".to_owned()))
    }

    /// Whether pods of this namespace are not judged.
    pub fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|n| n == name)
    }

    /// Why a pod is not judged, as the audit log says it.
    pub(super) fn exemption(&self, user: &str, namespace: &str, spec: &Value) -> Option<&'static str> {
        let class = read::text(spec, "runtimeClassName");
        if self.exempts_namespace(namespace) {
            Some("namespace")
        } else if self.users.iter().any(|u| u == user) {
            Some("user")
        } else if !class.is_empty() && self.runtime_classes.iter().any(|c| c == class) {
            Some("runtimeClass")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(defaults: Value, exemptions: Value) -> Result<PodSecurityConfiguration, String> {
        let value = json!({"apiVersion": VERSIONS[0], "kind": "PodSecurityConfiguration", "defaults": defaults, "exemptions": exemptions});
        PodSecurityConfiguration::of(&value, "c")
    }

    #[test]
    fn namespaces_that_say_nothing_get_the_defaults() {
        let made = of(json!({"enforce": "restricted", "warn-version": "v1.30"}), json!({})).unwrap();
        assert_eq!(made.default_of("enforce"), (Level::Restricted, "latest".to_owned()));
        assert_eq!(made.default_of("warn"), (Level::Privileged, "v1.30".to_owned()));
        assert_eq!(PodSecurityConfiguration::default().default_of("audit").0, Level::Privileged);
        assert!(of(json!({"enforce": "strict"}), json!({})).unwrap_err().starts_with("c.defaults.enforce: Invalid value: \"strict\""));
        assert!(of(json!({"audit-version": "1"}), json!({})).is_err());
    }

    #[test]
    fn users_classes_and_namespaces_may_be_exempt() {
        let made = of(json!({}), json!({"usernames": ["root"], "runtimeClasses": ["vm"], "namespaces": ["ops"]})).unwrap();
        assert_eq!(made.exemption("root", "n", &json!({})), Some("user"));
        assert_eq!(made.exemption("bob", "ops", &json!({})), Some("namespace"));
        assert_eq!(made.exemption("bob", "n", &json!({"runtimeClassName": "vm"})), Some("runtimeClass"));
        assert_eq!(made.exemption("bob", "n", &json!({})), None);
    }
}
