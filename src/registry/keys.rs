//! Where objects live in the store: `/registry/<group>/<plural>/<namespace>/<name>`, `core` for the empty group.

use bytes::Bytes;
use model::reference::{GroupResource, NamespacedName};
use store::{Compare, CompareOp, Revision};

/// Everything the API server keeps.
pub const ROOT: &str = "/registry/";

/// The resource part of a key: what all objects of a resource start with, with the slash.
pub fn prefix(of: GroupResource<'_>) -> String {
    let group = if of.group.is_empty() { "core" } else { of.group };
    format!("{ROOT}{group}/{}/", of.resource)
}

/// `namespace/name`, or `name` in cluster scope: the part of a key below its resource.
pub fn local(named: NamespacedName<'_>) -> String {
    named.to_string()
}

/// The whole key of an object.
pub fn object(of: GroupResource<'_>, named: NamespacedName<'_>) -> String {
    format!("{}{named}", prefix(of))
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
        let pods = GroupResource::core("pods");
        let deployments = GroupResource { group: "apps", resource: "deployments" };
        let nodes = GroupResource::core("nodes");
        for (of, named, key, local) in [
            (pods, NamespacedName { namespace: "default", name: "web" }, "core/pods/default/web", "default/web"),
            (deployments, NamespacedName { namespace: "a", name: "b" }, "apps/deployments/a/b", "a/b"),
            (nodes, NamespacedName::cluster("n"), "core/nodes/n", "n"),
        ] {
            let whole = object(of, named);
            assert_eq!(whole, format!("/registry/{key}"));
            assert_eq!(parse(&whole), Some((of.group, of.resource, local)));
            assert_eq!(split_local(local), (named.namespace, named.name));
        }
        for key in ["/other/x", "/registry/core", "/registry/core/pods", ""] {
            assert_eq!(parse(key), None, "{key}");
        }
    }
}
