//! References to objects: a resource, and a place in it. Borrowed, so that to look something up costs no allocation.
//!
//! Two strings side by side can be swapped and the compiler nods; two fields with names cannot.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A resource of the API whatever its version, as upstream's `schema.GroupResource`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource<'a> {
    /// `apps`; empty for the core group.
    pub group: &'a str,
    /// The plural, `deployments`.
    pub resource: &'a str,
}

impl<'a> GroupResource<'a> {
    /// `resource` of the core group.
    #[must_use]
    pub const fn core(resource: &'a str) -> GroupResource<'a> {
        GroupResource { group: "", resource }
    }
}

/// `deployments.apps`, and `pods` in the core group, as error texts name a resource.
impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => out.write_str(self.resource),
            group => write!(out, "{}.{group}", self.resource),
        }
    }
}

/// A kind of the API whatever its version, as upstream's `schema.GroupKind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind<'a> {
    /// `apps`; empty for the core group.
    pub group: &'a str,
    /// `Deployment`.
    pub kind: &'a str,
}

/// `Deployment.apps`, and `Pod` in the core group, as error texts name a kind.
impl fmt::Display for GroupKind<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => out.write_str(self.kind),
            group => write!(out, "{}.{group}", self.kind),
        }
    }
}

/// Where an object stands among those of its resource, as upstream's `types.NamespacedName`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName<'a> {
    /// Empty in cluster scope.
    pub namespace: &'a str,
    pub name: &'a str,
}

impl<'a> NamespacedName<'a> {
    /// An object that stands in no namespace.
    #[must_use]
    pub const fn cluster(name: &'a str) -> NamespacedName<'a> {
        NamespacedName { namespace: "", name }
    }

    /// The name of the object that has this metadata; what is missing is empty.
    #[must_use]
    pub fn of(metadata: &'a ObjectMeta) -> NamespacedName<'a> {
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
        NamespacedName { namespace: text(&metadata.namespace), name: text(&metadata.name) }
    }
}

/// `default/web`, and `web` in cluster scope: the form of keys and logs.
impl fmt::Display for NamespacedName<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            "" => out.write_str(self.name),
            namespace => write!(out, "{namespace}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_read_as_upstream_writes_them() {
        let pods = GroupResource::core("pods");
        let deployments = GroupResource { group: "apps", resource: "deployments" };
        assert_eq!((pods.to_string(), deployments.to_string()), ("pods".to_owned(), "deployments.apps".to_owned()));
        let metadata =
            ObjectMeta { namespace: Some("default".to_owned()), name: Some("web".to_owned()), ..Default::default() };
        assert_eq!(NamespacedName::of(&metadata).to_string(), "default/web");
        assert_eq!(NamespacedName::cluster("node-1").to_string(), "node-1");
        assert_eq!(NamespacedName::of(&ObjectMeta::default()), NamespacedName::default());
        assert_eq!(GroupKind { group: "", kind: "Pod" }.to_string(), "Pod");
        assert_eq!(GroupKind { group: "apps", kind: "Deployment" }.to_string(), "Deployment.apps");
    }
}
