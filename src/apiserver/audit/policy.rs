//! Audit policies: how much is written about which requests.

use registry::attributes::Attributes;
use serde_json::Value;

/// How much is written; each level holds what the one before it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who, what, when.
    Metadata,
    /// And what was sent.
    Request,
    /// And what was answered.
    RequestResponse,
}

impl Level {
    /// As policies and events spell it.
    pub fn text(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }

    fn parse(text: &str) -> Option<Level> {
        [Level::None, Level::Metadata, Level::Request, Level::RequestResponse].into_iter().find(|l| l.text() == text)
    }
}

/// When in a request's life an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It came in.
    RequestReceived,
    /// A long answer (a watch) began.
    ResponseStarted,
    /// It was answered.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl Stage {
    /// As policies and events spell it.
    pub fn text(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// Verdict of a policy on one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How much.
    pub level: Level,
    /// Stages that are left out.
    pub omit_stages: Vec<String>,
    /// `metadata.managedFields` are left out of objects.
    pub omit_managed_fields: bool,
}

impl Verdict {
    /// Whether an event is written at a stage.
    pub fn writes(&self, stage: Stage) -> bool {
        self.level > Level::None && !self.omit_stages.iter().any(|s| s == stage.text())
    }
}

#[derive(Debug, Default)]
struct Rule {
    level: Level,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<(String, Vec<String>, Vec<String>)>,
    namespaces: Vec<String>,
    paths: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It is no YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(serde_saphyr::Error),
    /// It is something else.
    #[error("unknown policy {api_version} {kind}: want audit.k8s.io/v1 Policy")]
    Unknown {
        /// Its `apiVersion`, in JSON.
        api_version: Value,
        /// Its `kind`, in JSON.
        kind: Value,
    },
    /// It says nothing.
    #[error("loaded illegal policy with 0 rules")]
    NoRules,
    /// A rule has a level that is none.
    #[error("rules[{at}].level: Unsupported value: {level:?}")]
    Level {
        /// Position of the rule.
        at: usize,
        /// The text.
        level: String,
    },
}

/// A policy file.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

impl Policy {
    /// Reads YAML or JSON.
    ///
    /// Errors: it is no policy, or a rule of it is wrong; the error says which.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let value: Value = serde_saphyr::from_str(text).map_err(PolicyError::Syntax)?;
        if value["kind"] != "Policy" || value["apiVersion"] != "audit.k8s.io/v1" {
            let (api_version, kind) = (value["apiVersion"].clone(), value["kind"].clone());
            return Err(PolicyError::Unknown { api_version, kind });
        }
        let rules = value["rules"].as_array().filter(|r| !r.is_empty()).ok_or(PolicyError::NoRules)?;
        let rule = |(at, rule): (usize, &Value)| {
            let level = rule["level"].as_str().unwrap_or_default();
            let resources = rule["resources"].as_array().into_iter().flatten();
            Ok(Rule {
                level: Level::parse(level).ok_or_else(|| PolicyError::Level { at, level: level.to_owned() })?,
                users: texts(&rule["users"]),
                groups: texts(&rule["userGroups"]),
                verbs: texts(&rule["verbs"]),
                resources: resources
                    .map(|r| {
                        (
                            r["group"].as_str().unwrap_or_default().to_owned(),
                            texts(&r["resources"]),
                            texts(&r["resourceNames"]),
                        )
                    })
                    .collect(),
                namespaces: texts(&rule["namespaces"]),
                paths: texts(&rule["nonResourceURLs"]),
                omit_stages: texts(&rule["omitStages"]),
                omit_managed_fields: rule["omitManagedFields"].as_bool(),
            })
        };
        Ok(Policy {
            rules: rules.iter().enumerate().map(rule).collect::<Result<_, PolicyError>>()?,
            omit_stages: texts(&value["omitStages"]),
            omit_managed_fields: value["omitManagedFields"].as_bool().unwrap_or(false),
        })
    }

    /// The first rule that fits decides; none is no event.
    pub fn judge(&self, a: &Attributes) -> Verdict {
        let Some(rule) = self.rules.iter().find(|rule| rule.fits(a)) else { return Verdict::default() };
        Verdict {
            level: rule.level,
            omit_stages: self.omit_stages.iter().chain(&rule.omit_stages).cloned().collect(),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn fits(&self, a: &Attributes) -> bool {
        let has = |list: &[String], word: &str| list.is_empty() || list.iter().any(|w| w == word);
        let grouped = self.groups.is_empty() || self.groups.iter().any(|g| a.user.in_group(g));
        has(&self.users, &a.user.name) && grouped && has(&self.verbs, &a.verb) && self.what(a)
    }

    fn what(&self, a: &Attributes) -> bool {
        if !self.resources.is_empty() || !self.namespaces.is_empty() {
            return a.is_resource && self.resource(a);
        }
        if self.paths.is_empty() {
            return true;
        }
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => a.path.starts_with(prefix),
            None => *pattern == a.path,
        };
        !a.is_resource && self.paths.iter().any(fits)
    }

    fn resource(&self, a: &Attributes) -> bool {
        if !self.namespaces.is_empty() && !self.namespaces.contains(&a.namespace) {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let path = a.resource_path();
        self.resources.iter().any(|(group, resources, names)| {
            let named = resources.is_empty()
                || resources.iter().any(|r| {
                    *r == path
                        || (r == "*" && a.subresource.is_empty())
                        || r.strip_prefix("*/").is_some_and(|sub| !sub.is_empty() && sub == a.subresource)
                        || r.strip_suffix("/*").is_some_and(|of| of == a.resource)
                });
            *group == a.group && named && (names.is_empty() || names.contains(&a.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::user::UserInfo;

    fn ask(verb: &str, resource: &str, sub: &str, namespace: &str) -> Attributes {
        Attributes {
            user: UserInfo::new("bob", &[]).into(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: sub.into(),
            namespace: namespace.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = of("omitStages: [RequestReceived]\n\
             rules:\n\
             - {level: None, verbs: [watch]}\n\
             - {level: Metadata, resources: [{group: '', resources: [secrets]}]}\n\
             - {level: RequestResponse, namespaces: [prod]}\n\
             - {level: Request, resources: [{group: '', resources: ['pods/*']}]}\n");
        for (request, level) in [
            (ask("watch", "secrets", "", "prod"), Level::None),
            (ask("get", "secrets", "", "prod"), Level::Metadata),
            (ask("get", "configmaps", "", "prod"), Level::RequestResponse),
            (ask("create", "pods", "exec", "x"), Level::Request),
            (ask("get", "nodes", "", ""), Level::None),
        ] {
            assert_eq!(policy.judge(&request).level, level, "{request:?}");
        }
        let verdict = policy.judge(&ask("get", "secrets", "", ""));
        assert!(!verdict.writes(Stage::RequestReceived) && verdict.writes(Stage::ResponseComplete));
    }

    fn of(rest: &str) -> Policy {
        Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rest}")).unwrap()
    }

    #[test]
    fn a_rule_fits_by_each_of_its_parts() {
        let bob = |groups: &[&str]| UserInfo::new("bob", groups).into();
        let pods = || ask("get", "pods", "", "default");
        let named = |name: &str| Attributes { name: name.into(), ..pods() };
        let path =
            |path: &str| Attributes { user: bob(&[]), verb: "get".into(), path: path.into(), ..Attributes::default() };
        for (rule, request, fits) in [
            ("users: [bob]", pods(), true),
            ("users: [alice]", pods(), false),
            ("userGroups: [dev, ops]", Attributes { user: bob(&["ops"]), ..pods() }, true),
            ("userGroups: [dev]", Attributes { user: bob(&["ops"]), ..pods() }, false),
            ("verbs: [list]", pods(), false),
            ("namespaces: [default]", pods(), true),
            ("namespaces: [kube-system]", pods(), false),
            ("namespaces: ['']", ask("get", "nodes", "", ""), true),
            ("namespaces: [default]", path("/healthz"), false),
            ("resources: [{group: ''}]", pods(), true),
            ("resources: [{group: apps}]", pods(), false),
            ("resources: [{resources: [pods]}]", ask("get", "pods", "log", "default"), false),
            ("resources: [{resources: [pods/log]}]", ask("get", "pods", "log", "default"), true),
            ("resources: [{resources: [pods/*]}]", ask("get", "pods", "log", "default"), true),
            ("resources: [{resources: [pods/*]}]", ask("get", "nodes", "log", ""), false),
            ("resources: [{resources: ['*/log']}]", ask("get", "pods", "log", "default"), true),
            ("resources: [{resources: ['*/']}]", pods(), false),
            ("resources: [{resources: ['*']}]", pods(), true),
            ("resources: [{resources: ['*']}]", ask("get", "pods", "log", "default"), false),
            ("resources: [{resources: [pods], resourceNames: [a, b]}]", named("b"), true),
            ("resources: [{resources: [pods], resourceNames: [a, b]}]", named("c"), false),
            ("nonResourceURLs: ['/healthz*']", path("/healthz/ping"), true),
            ("nonResourceURLs: ['/healthz']", path("/healthz/ping"), false),
            ("nonResourceURLs: ['*']", pods(), false),
        ] {
            let policy = of(&format!("rules: [{{level: Metadata, {rule}}}]"));
            assert_eq!(policy.judge(&request).level == Level::Metadata, fits, "{rule} {request:?}");
        }
    }

    #[test]
    fn a_rule_says_itself_whether_managed_fields_are_left_out() {
        for (rest, omitted) in [
            ("omitManagedFields: true\nrules: [{level: Request}]", true),
            ("omitManagedFields: true\nrules: [{level: Request, omitManagedFields: false}]", false),
            ("rules: [{level: Request, omitManagedFields: true}]", true),
            ("rules: [{level: Request}]", false),
        ] {
            assert_eq!(of(rest).judge(&ask("get", "pods", "", "")).omit_managed_fields, omitted, "{rest}");
        }
        let both = of("omitStages: [Panic]\nrules: [{level: Request, omitStages: [ResponseStarted]}]");
        assert_eq!(both.judge(&ask("get", "pods", "", "")).omit_stages, ["Panic", "ResponseStarted"]);
    }

    #[test]
    fn a_policy_that_cannot_be_used_says_why() {
        for (text, expected) in [
            ("kind: Policy\napiVersion: v1", "unknown policy \"v1\" \"Policy\": want audit.k8s.io/v1 Policy"),
            ("{}", "unknown policy null null: want audit.k8s.io/v1 Policy"),
            ("apiVersion: audit.k8s.io/v1\nkind: Policy", "loaded illegal policy with 0 rules"),
            ("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []", "loaded illegal policy with 0 rules"),
            (
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}, {level: Loud}]",
                "rules[1].level: Unsupported value: \"Loud\"",
            ),
        ] {
            assert_eq!(Policy::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
