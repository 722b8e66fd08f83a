//! Attribute-based access control: a file of policies, one JSON object a line.

use std::io;
use std::path::{Path, PathBuf};

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

/// A file of policies that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AbacError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// One of its lines is no policy.
    #[error("{}", path.display())]
    Line { path: PathBuf, source: BadLine },
}

/// A line that is no policy; the first has the number 1.
#[derive(Debug, thiserror::Error)]
#[error("error reading policy file, line {number}")]
pub struct BadLine {
    number: usize,
    source: PolicyError,
}

/// Why a line is no policy.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    #[error("unrecognized {version} {kind}")]
    Kind { version: Value, kind: Value },
}

/// The policies of a file that was read at the start.
pub struct Abac(Vec<Policy>);

impl Abac {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Abac, AbacError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| AbacError::Unreadable { path: path.to_owned(), source })?;
        Abac::parse(&text).map_err(|source| AbacError::Line { path: path.to_owned(), source })
    }

    fn parse(text: &str) -> Result<Abac, BadLine> {
        let mut policies = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            policies.push(policy(line).map_err(|source| BadLine { number: number + 1, source })?);
        }
        Ok(Abac(policies))
    }
}

fn policy(line: &str) -> Result<Policy, PolicyError> {
    let value: Value = serde_json::from_str(line)?;
    let versioned = value["apiVersion"] == "abac.authorization.kubernetes.io/v1beta1" && value["kind"] == "Policy";
    if !versioned && !value["apiVersion"].is_null() {
        return Err(PolicyError::Kind { version: value["apiVersion"].clone(), kind: value["kind"].clone() });
    }
    let from = if versioned { &value["spec"] } else { &value };
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
    use base::chain::Chain;
    use registry::user::UserInfo;

    use super::*;

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
        let refused = |text: &str| Chain(&Abac::parse(text).err().unwrap()).to_string();
        assert!(refused("{").starts_with("error reading policy file, line 1: EOF while parsing"), "{}", refused("{"));
    }

    /// Upstream's conversion of both forms (pkg/apis/abac/v0 and v1beta1, v1.36).
    #[test]
    fn a_policy_without_a_version_means_everything_that_it_does_not_name() {
        let all = policy(r#"{"user": "bob"}"#).unwrap();
        assert_eq!((all.namespace.as_str(), all.resource.as_str(), all.api_group.as_str()), ("*", "*", "*"));
        assert_eq!((all.user.as_str(), all.group.as_str()), ("bob", ""));
        assert_eq!(policy("{}").unwrap().group, GROUP_AUTHENTICATED);
        let versioned = |spec: &str| {
            let head = r#""apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy""#;
            policy(&format!(r#"{{{head}, "spec": {spec}}}"#)).unwrap()
        };
        let everybody = versioned(r#"{"user": "*", "resource": "pods"}"#);
        assert_eq!((everybody.user.as_str(), everybody.group.as_str()), ("", GROUP_AUTHENTICATED));
        assert_eq!((everybody.namespace.as_str(), everybody.resource.as_str()), ("", "pods"));
        let refused = policy(r#"{"apiVersion": "v9", "kind": "Policy"}"#).unwrap_err();
        assert_eq!(refused.to_string(), r#"unrecognized "v9" "Policy""#);
    }

    #[test]
    fn a_path_is_allowed_whole_or_by_its_beginning() {
        let policy = |path: &str| Policy { path: path.to_owned(), ..Policy::default() };
        let asks = |path: &str| Attributes { path: path.into(), ..Attributes::default() };
        assert!(policy("/healthz").what(&asks("/healthz")) && !policy("/healthz").what(&asks("/healthz/etcd")));
        assert!(policy("/healthz*").what(&asks("/healthz/etcd")) && policy("*").what(&asks("/anything")));
        assert!(!policy("").what(&asks("")), "a policy about resources");
    }
}
