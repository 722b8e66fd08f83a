//! Whose name a node's name is: the public key that first joined under it, kept in a Secret that goes when the Node goes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::chain::Chain;
use base::task::Group;
use client::informer::Informers;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Error, ResourceExt as _};
use serde_json::json;
use tracing::{info, warn};

use crate::refusal::Refusal;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "kedge.dev/node-identity";

/// A machine that claims a name; its proof was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node's name.
    pub name: String,
    /// The machine's public key.
    pub public_key: String,
    /// `/etc/machine-id`, may be empty.
    pub machine_id: String,
    /// Where it called from.
    pub address: IpAddr,
}

/// What is known of the claimed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has it.
    Free,
    /// This very machine has it.
    Own,
    /// Another machine has it.
    Taken {
        /// Which seems to be the same machine with another key.
        same_machine: bool,
    },
}

fn secret_name(node: &str) -> String {
    format!("{node}.node-identity.kedge")
}

fn text(secret: &Secret, field: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(field)).map(|bytes| bytes.0.clone()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

fn judge(record: Option<&Secret>, claim: &Claim) -> Standing {
    let Some(record) = record else { return Standing::Free };
    if text(record, "public-key") == claim.public_key {
        return Standing::Own;
    }
    Standing::Taken { same_machine: !claim.machine_id.is_empty() && text(record, "machine-id") == claim.machine_id }
}

/// The book of names, in the cluster's Secrets.
#[derive(Clone)]
pub struct Identities {
    client: kube::Client,
}

fn not_ready(err: &Error) -> Refusal {
    Refusal::NotReady { why: format!("it cannot look up nodes: {}", Chain(err)) }
}

impl Identities {
    /// `client` may read and write Secrets of kube-system and read Nodes.
    pub fn new(client: kube::Client) -> Identities {
        Identities { client }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Whose the name is.
    pub async fn standing(&self, claim: &Claim) -> Result<Standing, Refusal> {
        let record = self.secrets().get_opt(&secret_name(&claim.name)).await.map_err(|err| not_ready(&err))?;
        Ok(judge(record.as_ref(), claim))
    }

    /// Writes the name down as this machine's. A race for one name is lost by the second.
    pub async fn record(&self, claim: &Claim) -> Result<(), Refusal> {
        let fields =
            [("public-key", claim.public_key.clone()), ("machine-id", claim.machine_id.clone()), ("address", claim.address.to_string())];
        let data: BTreeMap<String, ByteString> = fields.into_iter().map(|(k, v)| (k.to_owned(), ByteString(v.into_bytes()))).collect();
        let metadata = ObjectMeta { name: Some(secret_name(&claim.name)), ..ObjectMeta::default() };
        let secret = Secret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), immutable: Some(true), ..Secret::default() };
        match self.secrets().create(&PostParams::default(), &secret).await {
            Ok(_) => {
                info!(node = %claim.name, peer = %claim.address, "node name recorded");
                Ok(())
            }
            Err(Error::Api(status)) if status.code == 409 => match self.standing(claim).await? {
                Standing::Taken { same_machine } => Err(self.taken(claim, same_machine).await),
                Standing::Own | Standing::Free => Ok(()),
            },
            Err(err) => Err(not_ready(&err)),
        }
    }

    /// Frees a name.
    pub async fn forget(&self, node: &str) -> Result<(), Refusal> {
        match self.secrets().delete(&secret_name(node), &DeleteParams::default()).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            Err(err) => Err(not_ready(&err)),
            Ok(_) => Ok(()),
        }
    }

    /// The refusal that says where the owner of the name is.
    pub async fn taken(&self, claim: &Claim, same_machine: bool) -> Refusal {
        let node = Api::<Node>::all(self.client.clone()).get_opt(&claim.name).await.ok().flatten();
        let addresses = node.and_then(|node| node.status).and_then(|status| status.addresses).unwrap_or_default();
        let internal = addresses.into_iter().find(|a| a.type_ == "InternalIP").map(|a| a.address);
        let address = match internal {
            Some(address) => address,
            None => match self.secrets().get_opt(&secret_name(&claim.name)).await {
                Ok(Some(record)) => text(&record, "address"),
                _ => "an unknown address".to_owned(),
            },
        };
        Refusal::NameTaken { name: claim.name.clone(), address, same_machine }
    }
}

/// Ties each record to its Node, so that deleting the Node frees the name.
pub fn tie_to_nodes(identities: Identities, informers: &Informers, group: &Group) {
    let nodes = informers.get::<Node>();
    group.spawn("node-identities", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        let mut tied: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let all = nodes.list();
            tied.retain(|name, _| all.iter().any(|node| node.name_any() == *name));
            for node in &all {
                let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
                if tied.get(&name) == Some(&uid) {
                    continue;
                }
                match tie(&identities, &name, &uid).await {
                    Ok(()) => drop(tied.insert(name, uid)),
                    Err(err) => warn!(node = %name, err = %Chain(&err), "cannot tie a node's identity to it"),
                }
            }
            changes.next().await;
            changes.drain();
        }
    });
}

async fn tie(identities: &Identities, name: &str, uid: &str) -> Result<(), Error> {
    let api = identities.secrets();
    let Some(record) = api.get_opt(&secret_name(name)).await? else { return Ok(()) };
    if record.owner_references().iter().any(|owner| owner.uid == uid) {
        return Ok(());
    }
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    api.patch(&secret_name(name), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_the_key_that_came_first() {
        let claim = |key: &str, machine: &str| Claim {
            name: "n".to_owned(),
            public_key: key.to_owned(),
            machine_id: machine.to_owned(),
            address: IpAddr::from([192, 0, 2, 1]),
        };
        let data = [("public-key", "k1"), ("machine-id", "m1")].map(|(k, v)| (k.to_owned(), ByteString(v.as_bytes().to_vec())));
        let record = Secret { data: Some(data.into()), ..Secret::default() };
        assert_eq!(judge(None, &claim("k1", "")), Standing::Free);
        assert_eq!(judge(Some(&record), &claim("k1", "m2")), Standing::Own);
        assert_eq!(judge(Some(&record), &claim("k2", "m1")), Standing::Taken { same_machine: true });
        assert_eq!(judge(Some(&record), &claim("k2", "")), Standing::Taken { same_machine: false });
    }
}
