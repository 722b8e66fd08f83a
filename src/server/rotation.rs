//! Join tokens that were rotated: one Secret holds the passwords as `kedge token rotate` set them, and every server
//! takes them from there at once and at each start. Nothing else hangs on them: nodes and servers that are in show keys
//! of their own.
//!
//! Others may write Secrets, so the passwords in it are sealed with what servers alone have, and a server never goes
//! back to older ones.

use std::collections::BTreeMap;

use base::chain::Chain;
use base::files::{self, FileError};
use base::layout::ServerFolder;
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use client::informer::Informers;
use cluster::credentials::{Credentials, Passwords};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use pki::seal::{AmongServers, Purpose};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::server::listener;

/// Where the Secret lies, and its name.
pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const NAME: &str = "kedge-join-tokens";
const TYPE: &str = "kedge.io/join-tokens";
const SEALED: &str = "sealed";
/// Fields of a Secret from before passwords were sealed.
const SERVER: &str = "server";
const AGENT: &str = "agent";

/// The passwords that were set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rotated {
    pub(crate) passwords: Passwords,
    /// When: later ones count.
    pub(crate) at_ms: i64,
}

/// Contents of a Secret of that name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Sealed by a server.
    Sealed(Rotated),
    /// Written by an earlier kedge, or by anybody else.
    Open(Passwords),
}

/// The purpose of the seal over passwords.
const PURPOSE: Purpose = Purpose { name: "tokens", context: "kedge join tokens" };

/// The seal of a server's passwords.
pub(crate) fn seal(server: &ServerFolder) -> Result<AmongServers, FileError> {
    let path = pki::folder::service_key(&server.tls());
    let key = std::fs::read_to_string(&path).map_err(FileError::at("cannot read", &path))?;
    Ok(AmongServers::new(PURPOSE, &key))
}

impl Held {
    /// Reads the Secret; `None` if it is not one of ours, or no server of this cluster sealed it.
    pub(crate) fn of(secret: &KubeSecret, seal: &AmongServers) -> Option<Held> {
        if secret.type_.as_deref() != Some(TYPE) {
            return None;
        }
        let data = secret.data.as_ref()?;
        let hidden = |text: String| (!text.is_empty()).then(|| Secret::new(text));
        if let Some(sealed) = data.get(SEALED) {
            let plain: Value = serde_json::from_slice(&seal.open(&sealed.0)?).ok()?;
            let field = |name: &str| hidden(plain[name].as_str()?.to_owned());
            let passwords = Passwords { server: field(SERVER)?, agent: field(AGENT)? };
            return Some(Held::Sealed(Rotated { passwords, at_ms: plain["at"].as_i64()? }));
        }
        let field = |name: &str| hidden(String::from_utf8(data.get(name)?.0.clone()).ok()?);
        let server = field(SERVER)?;
        let agent = field(AGENT).unwrap_or_else(|| pki::token::derived_password(&server));
        Some(Held::Open(Passwords { server, agent }))
    }
}

impl Rotated {
    /// The Secret; `version` is of the one that it replaces. `None`: it cannot be sealed.
    pub(crate) fn secret(&self, version: Option<String>, seal: &AmongServers, rng: &Rng) -> Option<KubeSecret> {
        let Passwords { server, agent } = &self.passwords;
        let plain = json!({ (SERVER): server.expose(), (AGENT): agent.expose(), "at": self.at_ms }).to_string();
        let data = BTreeMap::from([(SEALED.to_owned(), ByteString(seal.seal(plain.as_bytes(), rng)?))]);
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            resource_version: version,
            ..ObjectMeta::default()
        };
        Some(KubeSecret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), ..KubeSecret::default() })
    }
}

/// Parts that follow the Secret.
pub(crate) struct Follower {
    /// Credentials by which joining machines are judged.
    pub(crate) credentials: Credentials,
    /// Holds the files with the tokens.
    pub(crate) server_folder: ServerFolder,
    /// The authority, PEM, for the full tokens in the files.
    pub(crate) ca: String,
    /// The servers' password as the file held it when this server started: whoever wrote a Secret with it knew it
    /// before.
    pub(crate) known: Option<Secret<String>>,
    /// Seals what an earlier kedge left open.
    pub(crate) client: kube::Client,
    pub(crate) rng: Rng,
    pub(crate) now_ms: i64,
}

/// Takes over passwords that are set, for as long as the group lives.
pub(crate) fn follow(follower: Follower, informers: &Informers, group: &Group) -> Result<(), FileError> {
    let seal = seal(&follower.server_folder)?;
    let secrets = informers.selected::<KubeSecret>(&format!("metadata.name={NAME}"));
    group.spawn("join-tokens", async move {
        let mut changes = secrets.changes();
        secrets.synced().await;
        loop {
            if let Some(secret) = secrets.get(NAMESPACE, NAME) {
                match Held::of(&secret, &seal) {
                    Some(Held::Sealed(rotated)) => follower.take(&rotated),
                    Some(Held::Open(passwords)) => follower.close(&secret, passwords, &seal).await,
                    None => warn!(
                        "Secret {NAMESPACE}/{NAME} was not sealed by a server of this cluster: join tokens \
                        stay as they are"
                    ),
                }
            }
            changes.next().await;
            changes.drain();
        }
    });
    Ok(())
}

impl Follower {
    /// When the passwords in use were set, so that older ones are not taken again.
    fn set_at(&self) -> i64 {
        let text = std::fs::read_to_string(self.server_folder.tokens_set_at()).unwrap_or_default();
        text.trim().parse().unwrap_or(i64::MIN)
    }

    fn take(&self, rotated: &Rotated) {
        let before = self.set_at();
        if rotated.at_ms < before {
            return warn!(
                "Secret {NAMESPACE}/{NAME} holds join tokens from before the last rotation: they are not taken again"
            );
        }
        if rotated.at_ms == before && self.credentials.passwords() == rotated.passwords {
            return;
        }
        let Passwords { server, agent } = &rotated.passwords;
        let noted = || {
            files::create_private_dir(&self.server_folder.cred())?;
            files::write_atomic(&self.server_folder.tokens_set_at(), rotated.at_ms.to_string().as_bytes(), 0o600)
        };
        match listener::write_tokens(&self.ca, &self.server_folder, server, agent).and_then(|()| Ok(noted()?)) {
            Ok(()) => {
                info!("machines join with the token that 'kedge token rotate' set; what --token says here is older")
            }
            Err(err) => warn!(err = %Chain(&err), "cannot write the rotated join token down"),
        }
        self.credentials.replace(rotated.passwords.clone());
    }

    /// An earlier kedge left passwords open. They are taken if this server knew them already, and sealed; else anybody
    /// wrote them.
    async fn close(&self, secret: &KubeSecret, passwords: Passwords, seal: &AmongServers) {
        let known =
            self.known.as_ref() == Some(&passwords.server) || self.credentials.passwords().server == passwords.server;
        if !known {
            return warn!(
                "Secret {NAMESPACE}/{NAME} holds join tokens that no server sealed: they are not taken; see 'kedge \
                 token rotate'"
            );
        }
        let rotated = Rotated { passwords, at_ms: self.now_ms };
        self.take(&rotated);
        let Some(sealed) = rotated.secret(secret.metadata.resource_version.clone(), seal, &self.rng) else { return };
        let api: Api<KubeSecret> = Api::namespaced(self.client.clone(), NAMESPACE);
        // Another server may be faster.
        if let Err(err) = api.replace(NAME, &PostParams::default(), &sealed).await {
            info!(err = %Chain(&err), "the join tokens in Secret {NAMESPACE}/{NAME} are not sealed yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Secret<String> {
        Secret::new(text.to_owned())
    }

    fn sealer() -> AmongServers {
        AmongServers::new(PURPOSE, "a key")
    }

    #[test]
    fn passwords_come_out_of_the_secret_as_they_went_in_and_nobody_else_puts_them_there() {
        let rotated = Rotated { passwords: Passwords { server: text("big"), agent: text("small") }, at_ms: 7 };
        let secret = rotated.secret(None, &sealer(), &Rng::from_seed(1)).unwrap();
        assert!(!format!("{:?}", secret.data).contains("big"));
        assert_eq!(Held::of(&secret, &sealer()), Some(Held::Sealed(rotated)));
        assert_eq!(Held::of(&secret, &AmongServers::new(PURPOSE, "another")), None);
        let mut foreign = secret.clone();
        foreign.type_ = Some("Opaque".to_owned());
        assert_eq!(Held::of(&foreign, &sealer()), None);
    }

    #[test]
    fn what_anybody_can_write_is_told_apart_from_what_a_server_sealed() {
        let data = BTreeMap::from([(SERVER.to_owned(), ByteString(b"mine".to_vec()))]);
        let written = KubeSecret { data: Some(data), type_: Some(TYPE.to_owned()), ..KubeSecret::default() };
        let Some(Held::Open(passwords)) = Held::of(&written, &sealer()) else { panic!() };
        assert_eq!(passwords.server, text("mine"));
        assert_ne!(passwords.agent, passwords.server);
    }
}
