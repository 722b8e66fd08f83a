//! Attribute-based access control: a file of policies, one JSON object a line.

use std::path::Path;

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};
use serde_json::Value;

use super::{Authorizer, Decision};

/// One policy; `*` means all, empty means nothing of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Policy {
    user: String,
    group: String,
    api_group: String,
    namespace: String,
    resource: String,
    path: String,
    readonly: bool,
}

/// The policies of a file that was read at the start.
pub struct Abac(Vec<Policy>);

impl Abac {
    /// Reads the file.
    ///
    /// Errors: a text with the file's name and the line.
    pub fn read(path: &Path) -> Result<Abac, String> {
        let text = std::fs::read_to_string(path).map_err(|err| format!("cannot read {}: {err}", path.display()))?;
        Abac::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Abac, String> {
        let mut policies = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |why: String| format!("error reading policy file, line {}: {why}", number + 1);
            let value: Value = serde_json::from_str(line).map_err(|err| bad(err.to_string()))?;
            policies.push(policy(&value).map_err(bad)?);
        }
        Ok(Abac(policies))
    }
}

fn policy(value: &Value) -> Result<Policy, String> {
    let versioned = value["apiVersion"] == "abac.authorization.kubernetes.io/v1beta1" && value["kind"] == "Policy";
    if !versioned && !value["apiVersion"].is_null() {
        return Err(format!("unrecognized {} {}", value["apiVersion"], value["kind"]));
    }
    let from = if versioned { &value["spec"] } else { value };
    let text = |field: &str| from[field].as_str().unwrap_or_default().to_owned();
    let mut policy = Policy {
        user: text("user"),
        group: text("group"),
        api_group: text("apiGroup"),
        namespace: text("namespace"),
        resource: text("resource"),
        path: text("nonResourcePath"),
        readonly: from["readonly"].as_bool().unwrap_or(false),
    };
    if !versioned {
        // The unversioned form: what is absent means everything, in every group.
        for field in [&mut policy.namespace, &mut policy.resource, &mut policy.api_group] {
            if field.is_empty() {
                "*".clone_into(field);
            }
        }
        if policy.user.is_empty() && policy.group.is_empty() {
            GROUP_AUTHENTICATED.clone_into(&mut policy.group);
        }
    }
    // Upstream's conversion of v1beta1: everybody means everybody with credentials.
    if policy.user == "*" || policy.group == "*" {
        policy.user = if policy.user == "*" { String::new() } else { policy.user };
        GROUP_AUTHENTICATED.clone_into(&mut policy.group);
    }
    Ok(policy)
}

impl Policy {
    fn allows(&self, a: &Attributes) -> bool {
        self.subject(a) && self.verb(a) && self.what(a)
    }

    fn subject(&self, a: &Attributes) -> bool {
        let named = if self.user.is_empty() { !self.group.is_empty() } else { self.user == a.user.name };
        named
            && (self.group.is_empty()
                || a.user.in_group(&self.group)
                || (self.group == GROUP_UNAUTHENTICATED && a.user.in_group(GROUP_UNAUTHENTICATED)))
    }

    fn verb(&self, a: &Attributes) -> bool {
        !self.readonly || a.is_read_only()
    }

    fn what(&self, a: &Attributes) -> bool {
        if a.is_resource {
            let fits = |have: &str, asked: &str| have == "*" || have == asked;
            return fits(&self.namespace, &a.namespace)
                && fits(&self.resource, &a.resource)
                && fits(&self.api_group, &a.group);
        }
        match self.path.strip_suffix('*') {
            Some(prefix) => a.path.starts_with(prefix),
            None => !self.path.is_empty() && self.path == a.path,
        }
    }
}

#[async_trait]
impl Authorizer for Abac {
    async fn authorize(&self, a: &Attributes) -> Decision {
        match self.0.iter().any(|policy| policy.allows(a)) {
            true => Decision::Allow { reason: String::new() },
            false => Decision::NoOpinion { reason: "No policy matched.".to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::user::UserInfo;

    #[tokio::test]
    async fn a_reader_reads_and_writes_nothing() {
        let line = concat!(
            r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":"#,
            r#"{"user":"bob","namespace":"*","resource":"pods","apiGroup":"*","readonly":true}}"#
        );
        let abac = Abac::parse(&format!("# who may\n{line}\n")).unwrap();
        let ask = |user: &str, verb: &str| Attributes {
            user: UserInfo::new(user, &[]).into(),
            verb: verb.into(),
            resource: "pods".into(),
            namespace: "n".into(),
            is_resource: true,
            ..Attributes::default()
        };
        assert!(matches!(abac.authorize(&ask("bob", "list")).await, Decision::Allow { .. }));
        assert!(matches!(abac.authorize(&ask("bob", "create")).await, Decision::NoOpinion { .. }));
        assert!(matches!(abac.authorize(&ask("eve", "list")).await, Decision::NoOpinion { .. }));
        assert!(Abac::parse("{").err().unwrap().contains("line 1"));
    }
}
