//! PodSecurityConfiguration: the levels of namespaces that say none, and who is exempt.

use registry::strict::known;
use registry::user::UserInfo;
use schema::read;
use schema::validate::error::FieldError;
use serde_json::Value;

use super::checks::Level;
use super::policy::{Asked, Policy, Version};
use crate::error::ConfigurationError;

const VERSIONS: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];
const MODES: [&str; 3] = ["enforce", "audit", "warn"];

/// The configuration, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSecurityConfiguration {
    /// The policy where a namespace says nothing.
    pub(super) defaults: Policy,
    users: Vec<String>,
    runtime_classes: Vec<String>,
    namespaces: Vec<String>,
}

impl PodSecurityConfiguration {
    /// Reads it; `path` is where it stands.
    ///
    /// Errors: upstream's text about the first thing that is wrong.
    pub fn of(value: &Value, path: &str) -> Result<PodSecurityConfiguration, ConfigurationError> {
        let (version, kind) = (read::text(value, "apiVersion"), read::text(value, "kind"));
        if kind != "PodSecurityConfiguration" || !VERSIONS.contains(&version) {
            return Err(ConfigurationError::kind(value, path));
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
            let wrong =
                |field: &str, text: &str, why: &str| FieldError::invalid(format!("{path}.defaults.{field}"), text, why);
            let level = Level::parse(level)
                .ok_or_else(|| wrong(mode, level, "must be one of privileged, baseline, restricted"))?;
            let version = Version::parse(version)
                .ok_or_else(|| wrong(&versions[idx], version, "must be \"latest\" or \"v1.x\""))?;
            let places = [&mut out.defaults.enforce, &mut out.defaults.audit, &mut out.defaults.warn];
            if let Some(place) = places.into_iter().nth(idx) {
                *place = Asked { level, version };
            }
        }
        let list = |field: &str| read::texts(exemptions, field).into_iter().map(str::to_owned).collect();
        (out.users, out.runtime_classes, out.namespaces) =
            (list("usernames"), list("runtimeClasses"), list("namespaces"));
        Ok(out)
    }

    /// Whether pods of this namespace are not judged.
    pub fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|n| n == name)
    }

    /// Whether pods of this spec's runtime class are not judged.
    pub(super) fn exempts_class(&self, spec: &Value) -> bool {
        let class = read::text(spec, "runtimeClassName");
        !class.is_empty() && self.runtime_classes.iter().any(|c| c == class)
    }

    /// Why a pod is not judged, as the audit log says it.
    pub(super) fn exemption(&self, user: &UserInfo, namespace: &str, spec: &Value) -> Option<&'static str> {
        if self.exempts_namespace(namespace) {
            Some("namespace")
        } else if self.users.contains(&user.name) {
            Some("user")
        } else if self.exempts_class(spec) {
            Some("runtimeClass")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;
    use serde_json::json;

    use super::*;

    fn of(defaults: Value, exemptions: Value) -> Result<PodSecurityConfiguration, String> {
        let value = json!({"apiVersion": VERSIONS[0], "kind": "PodSecurityConfiguration", "defaults": defaults,
            "exemptions": exemptions});
        PodSecurityConfiguration::of(&value, "c").map_err(|err| Chain(&err).to_string())
    }

    #[test]
    fn namespaces_that_say_nothing_get_the_defaults() {
        let made = of(json!({"enforce": "restricted", "warn-version": "v1.30"}), json!({})).unwrap();
        assert_eq!(made.defaults.enforce, Asked { level: Level::Restricted, version: Version::Latest });
        assert_eq!(made.defaults.warn, Asked { level: Level::Privileged, version: Version::Minor(30) });
        assert_eq!(PodSecurityConfiguration::default().defaults.audit.level, Level::Privileged);
        assert!(
            of(json!({"enforce": "strict"}), json!({}))
                .unwrap_err()
                .starts_with("c.defaults.enforce: Invalid value: \"strict\"")
        );
        assert!(of(json!({"audit-version": "1"}), json!({})).is_err());
    }

    #[test]
    fn users_classes_and_namespaces_may_be_exempt() {
        let made =
            of(json!({}), json!({"usernames": ["root"], "runtimeClasses": ["vm"], "namespaces": ["ops"]})).unwrap();
        let (root, bob) = (UserInfo::new("root", &[]), UserInfo::new("bob", &[]));
        assert_eq!(made.exemption(&root, "n", &json!({})), Some("user"));
        assert_eq!(made.exemption(&bob, "ops", &json!({})), Some("namespace"));
        assert_eq!(made.exemption(&bob, "n", &json!({"runtimeClassName": "vm"})), Some("runtimeClass"));
        assert_eq!(made.exemption(&bob, "n", &json!({})), None);
    }
}
