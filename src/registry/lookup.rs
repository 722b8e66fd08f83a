//! Reading objects inside the server: what authorizers and admission plugins see of the watch cache.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use schema::table::Resource;
use serde_json::Value;
use tokio::sync::watch;

use crate::cache::Kind;
use crate::cache::change::Change;
use crate::cache::entry::Entry;
use crate::status::Status;

/// Objects in their storage version, from the watch cache. The newest write of this server is always visible.
#[async_trait]
pub trait Lookup: Send + Sync + 'static {
    /// Makes sure that the cache of a resource is filled; `get`, `list` and `changed` of one that is not see nothing.
    /// The resources in [`PRELOADED`] are filled before the first request.
    async fn load(&self, of: GroupResource<'_>);

    /// One object.
    fn get(&self, of: GroupResource<'_>, named: NamespacedName<'_>) -> Option<Arc<Value>>;

    /// The same, but what the cache does not have is looked for in the store: another server may have written it a
    /// moment ago. Whoever refuses, or lets pass, because an object is not there asks this way.
    async fn sure(&self, of: GroupResource<'_>, named: NamespacedName<'_>) -> Option<Arc<Value>> {
        self.get(of, named)
    }

    /// All objects of a resource, of one namespace or of all, by namespace and name.
    fn list(&self, of: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>>;

    /// The changes of a resource's objects in a namespace since a mark, and the objects of some names, all of one
    /// moment.
    ///
    /// Errors: `TimedOut` if the cache has to be filled first.
    fn since(
        &self,
        of: GroupResource<'_>,
        namespace: &str,
        mark: Option<&Mark>,
        names: &[&str],
    ) -> Result<Since, Status>;

    /// How many objects of a resource there are, as far as is known here. Asked for what nobody has heard of, it
    /// remembers nothing.
    fn count(&self, _of: GroupResource<'_>) -> usize {
        0
    }

    /// A counter that moves after each change of a resource (the store revision of the newest change).
    fn changed(&self, of: GroupResource<'_>) -> watch::Receiver<u64>;
}

/// Brings objects into other versions of their resource.
#[async_trait]
pub trait InVersion: Send + Sync + 'static {
    /// Brings an object from one version to another; custom ones may need a webhook for it.
    ///
    /// Errors: there is no way, or the webhook failed.
    async fn in_version(&self, object: Value, from: &Resource, to: &Resource) -> Result<Value, Status>;
}

/// Up to where somebody has followed the changes of a resource.
pub struct Mark {
    /// The cache that they came from: another one may read stored objects in another way.
    pub kind: Weak<Kind>,
    /// All changes up to here are known.
    pub revision: u64,
}

/// See [`Lookup::since`].
pub struct Since {
    /// Where to go on from; `None`: all objects have to be read the next time, too.
    pub mark: Option<Mark>,
    /// Changes of what is known.
    pub news: News,
    /// In the order of the names.
    pub named: Vec<Option<Arc<Entry>>>,
}

/// Changes of objects.
pub enum News {
    /// Forget what is known: these are all.
    All(Vec<Arc<Entry>>),
    /// These have changed, oldest change first.
    Changes(Vec<Arc<Change>>),
}

/// Resources whose cache is filled before the first request: `(group, resource)`.
pub const PRELOADED: &[(&str, &str)] = &[
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("", "limitranges"),
    ("", "resourcequotas"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("node.k8s.io", "runtimeclasses"),
    ("storage.k8s.io", "storageclasses"),
    ("networking.k8s.io", "ingressclasses"),
    ("", "nodes"),
    ("", "pods"),
    ("", "secrets"),
    ("apiregistration.k8s.io", "apiservices"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
];
