//! Where objects live in the store: `/registry/<group>/<plural>/<namespace>/<name>`, `core` for the empty group.

use bytes::Bytes;
use store::{Compare, CompareOp, Revision};

/// Everything the API server keeps.
pub const ROOT: &str = "/registry/";

/// The resource part of a key: what all objects of a resource start with, with the slash.
pub fn prefix(group: &str, plural: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("{ROOT}{group}/{plural}/")
}

/// `namespace/name`, or `name` in cluster scope: the part of a key below its resource.
pub fn local(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The whole key of an object.
pub fn object(group: &str, plural: &str, namespace: &str, name: &str) -> String {
    format!("{}{}", prefix(group, plural), local(namespace, name))
}

/// Splits a key into group, plural and local part; `None` if it is not ours.
pub fn parse(key: &str) -> Option<(&str, &str, &str)> {
    let mut parts = key.strip_prefix(ROOT)?.splitn(3, '/');
    let (group, plural, local) = (parts.next()?, parts.next()?, parts.next()?);
    Some((if group == "core" { "" } else { group }, plural, local))
}

/// The condition that a key was last changed at `rv` (0: is not there).
pub fn unchanged_since(key: &Bytes, rv: u64) -> Compare {
    Compare::ModRevision { key: key.clone(), op: CompareOp::Equal, revision: Revision(rv) }
}

/// Namespace and name of a local part.
pub fn split_local(local: &str) -> (&str, &str) {
    local.split_once('/').unwrap_or(("", local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_apart_as_it_was_put_together() {
        assert_eq!(parse(&object("", "pods", "default", "web")), Some(("", "pods", "default/web")));
        assert_eq!(parse(&object("apps", "deployments", "a", "b")), Some(("apps", "deployments", "a/b")));
        assert_eq!(parse("/other/x"), None);
    }
}
