//! The user of a request: the result of authentication, as upstream's `user.Info`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of every request without credentials.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of every request with credentials.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Group that is always allowed everything.
pub const GROUP_MASTERS: &str = "system:masters";
/// Group of kubelets.
pub const GROUP_NODES: &str = "system:nodes";

/// A user: a name, an id, groups and whatever else the authenticator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    /// Unique name, e.g. `system:serviceaccount:default:web`.
    #[serde(rename = "username", default)]
    pub name: String,
    /// Id that changes when a name is used again; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups, without order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// More facts by the authenticator, e.g. the pod a token is bound to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with a name and groups; `system:authenticated` is added.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> UserInfo {
        let mut groups: Vec<String> = groups.iter().map(|&g| g.to_owned()).collect();
        if !groups.iter().any(|g| g == GROUP_AUTHENTICATED) {
            groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        UserInfo { name: name.into(), groups, ..UserInfo::default() }
    }

    /// The user of a request without credentials.
    pub fn anonymous() -> UserInfo {
        UserInfo { name: ANONYMOUS.to_owned(), groups: vec![GROUP_UNAUTHENTICATED.to_owned()], ..UserInfo::default() }
    }

    /// The node that the user is: `system:node:<name>` of the group `system:nodes`.
    pub fn node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.in_group(GROUP_NODES))
    }

    /// Whether the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
