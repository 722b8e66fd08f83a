//! Which kinds the API has: for controllers that work on all of them.

use kube::Client;
use kube::api::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, Scope};

/// One kind of the API in the version that its group prefers.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// How to reach it.
    pub(crate) resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub(crate) namespaced: bool,
    /// Its verbs: `list`, `deletecollection`, …
    capabilities: ApiCapabilities,
}

impl Kind {
    /// Whether all these verbs work on the kind.
    pub(crate) fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.capabilities.supports_operation(verb))
    }
}

/// All kinds, by group and name.
pub(crate) async fn kinds(client: &Client) -> Result<Vec<Kind>, kube::Error> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let groups = discovery.groups_alphabetical();
    let all = groups.into_iter().flat_map(kube::discovery::ApiGroup::recommended_resources);
    Ok(all
        .map(|(resource, capabilities)| Kind {
            resource,
            namespaced: capabilities.scope == Scope::Namespaced,
            capabilities,
        })
        .collect())
}
