//! Join tokens that were rotated: one Secret holds the passwords as `kedge token rotate` set them, and every server takes them from
//! there at once and at each start. Nothing else hangs on them: nodes and servers that are in show keys of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base::chain::Chain;
use base::secret::Secret;
use base::task::Group;
use client::informer::Informers;
use cluster::credentials::{Credentials, Passwords};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tracing::{info, warn};

use crate::front;

/// Where the Secret lies, and its name.
pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const NAME: &str = "kedge-join-tokens";
const TYPE: &str = "kedge.io/join-tokens";
const SERVER: &str = "server";
const AGENT: &str = "agent";

/// The passwords that were set; agents have the servers' where there is no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rotated {
    pub(crate) server: Secret<String>,
    pub(crate) agent: Option<Secret<String>>,
}

impl Rotated {
    /// Reads the Secret; `None` if it is not one of ours, or empty.
    pub(crate) fn of(secret: &KubeSecret) -> Option<Rotated> {
        let field = |name: &str| {
            let text = String::from_utf8(secret.data.as_ref()?.get(name)?.0.clone()).ok()?;
            (!text.is_empty()).then(|| Secret::new(text))
        };
        let ours = secret.type_.as_deref() == Some(TYPE);
        ours.then(|| field(SERVER)).flatten().map(|server| Rotated { server, agent: field(AGENT) })
    }

    /// The Secret; `version` is of the one that it replaces.
    pub(crate) fn secret(&self, version: Option<String>) -> KubeSecret {
        let agent = self.agent.as_ref().map(|agent| (AGENT, agent));
        let fields = [(SERVER, &self.server)].into_iter().chain(agent);
        let data: BTreeMap<_, _> = fields.map(|(name, text)| (name.to_owned(), ByteString(text.expose().clone().into_bytes()))).collect();
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            resource_version: version,
            ..ObjectMeta::default()
        };
        KubeSecret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), ..KubeSecret::default() }
    }
}

/// Takes over passwords that are set, for as long as the group lives. `ca` is PEM, for the full tokens in the files.
pub(crate) fn follow(credentials: Credentials, server_dir: PathBuf, ca: String, informers: &Informers, group: &Group) {
    let secrets = informers.selected::<KubeSecret>(&format!("metadata.name={NAME}"));
    group.spawn("join-tokens", async move {
        let mut changes = secrets.changes();
        secrets.synced().await;
        loop {
            if let Some(rotated) = secrets.get(NAMESPACE, NAME).as_deref().and_then(Rotated::of) {
                let now = credentials.passwords();
                let agent = rotated.agent.as_ref().unwrap_or(&rotated.server);
                if now.server != rotated.server || now.agent != *agent {
                    match front::write_tokens(&ca, &server_dir, &rotated.server, rotated.agent.as_ref()) {
                        Ok(()) => info!("machines join with the token that 'kedge token rotate' set; what --token says here is older"),
                        Err(err) => warn!(err = %Chain(&err), "cannot write the rotated join token down"),
                    }
                    credentials.replace(Passwords { agent: agent.clone(), server: rotated.server });
                }
            }
            changes.next().await;
            changes.drain();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_come_out_of_the_secret_as_they_went_in() {
        let text = |text: &str| Secret::new(text.to_owned());
        for agent in [None, Some(text("small"))] {
            let rotated = Rotated { server: text("big"), agent };
            assert_eq!(Rotated::of(&rotated.secret(None)), Some(rotated));
        }
        let mut foreign = Rotated { server: text("big"), agent: None }.secret(None);
        foreign.type_ = Some("Opaque".to_owned());
        assert_eq!(Rotated::of(&foreign), None);
    }
}
