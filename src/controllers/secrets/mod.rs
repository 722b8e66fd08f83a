//! Secrets that hold tokens: those of service accounts are filled and go with them, or when nobody has used them for
//! long (`legacy`); bootstrap tokens go when their time is over, and sign what a machine must know of the cluster
//! before it trusts it (`signer`).

mod legacy;
mod signer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use serde_json::json;

use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::signer::Signer;

const TOKEN_TYPE: &str = "type=kubernetes.io/service-account-token";
const BOOTSTRAP_TYPE: &str = "type=bootstrap.kubernetes.io/token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Upstream's tokens controller acts as the controller manager itself.
const TOKENS_USER: &str = "system:kube-controller-manager";
const CLEANER: &str = "token-cleaner";

struct Tokens {
    client: kube::Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    signer: Arc<dyn Signer>,
    root_ca_pem: String,
}

struct Cleaner {
    client: kube::Client,
    secrets: Informer<Secret>,
    clock: Clock,
}

/// Starts the controllers.
pub(crate) fn start(context: &Context, signer: Arc<dyn Signer>, root_ca_pem: String, legacy_life: Duration) {
    signer::start(context, Arc::clone(&signer));
    legacy::start(context, legacy_life);
    let secrets = context.informers.selected::<Secret>(TOKEN_TYPE);
    let accounts = context.informers.get::<ServiceAccount>();
    let tokens = Tokens {
        client: context.client_as(TOKENS_USER),
        secrets: secrets.clone(),
        accounts: accounts.clone(),
        signer,
        root_ca_pem,
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&secrets, &queue);
    let all = secrets.clone();
    context.feed(&accounts, &queue, move |change| {
        let of = |account: &ServiceAccount| -> Vec<Key> {
            let secrets = all.list_in(&account.namespace().unwrap_or_default());
            secrets
                .iter()
                .filter(|secret| account_of(secret) == Some(&account.name_any()))
                .map(|secret| Key::of(&**secret))
                .collect()
        };
        driver::objects_of(change).iter().flat_map(|account| of(account)).collect()
    });
    context.start("serviceaccount-token-controller", &queue, tokens, async move {
        secrets.synced().await;
        accounts.synced().await;
    });
    let secrets = context.informers.selected::<Secret>(BOOTSTRAP_TYPE);
    let queue = Arc::new(Queue::default());
    context.feed_own(&secrets, &queue);
    let cleaner = Cleaner { client: context.client(CLEANER), secrets: secrets.clone(), clock: context.clock.clone() };
    context.start(CLEANER, &queue, cleaner, async move { secrets.synced().await });
}

fn account_of(secret: &Secret) -> Option<&String> {
    secret.metadata.annotations.as_ref()?.get(ACCOUNT_NAME)
}

#[async_trait::async_trait]
impl Reconcile for Tokens {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(secret) = self.secrets.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let Some(name) = account_of(&secret).filter(|_| secret.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::Wait);
        };
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let cached = self.accounts.get(&key.namespace, name);
        let account = match cached {
            Some(account) => Some((*account).clone()),
            // A token is deleted on the server's word only, not on a cache's.
            None => Api::<ServiceAccount>::namespaced(self.client.clone(), &key.namespace).get_opt(name).await?,
        };
        let wanted_uid = secret.annotations().get(ACCOUNT_UID).filter(|uid| !uid.is_empty());
        let account = account.filter(|account| wanted_uid.is_none_or(|uid| account.uid().as_ref() == Some(uid)));
        let Some(account) = account else {
            let same = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
            driver::gone_is_fine(api.delete(&key.name, &DeleteParams::default().preconditions(same)).await)?;
            return Ok(Next::Wait);
        };
        if let Some(filled) = self.fill(&secret, &account)? {
            driver::gone_is_fine(api.replace(&key.name, &PostParams::default(), &filled).await)?;
        }
        Ok(Next::Wait)
    }
}

impl Tokens {
    /// The Secret with what it lacks; `None` if it lacks nothing.
    fn fill(&self, secret: &Secret, account: &ServiceAccount) -> Result<Option<Secret>, Error> {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), account.name_any());
        let uid = account.uid().unwrap_or_default();
        let mut filled = secret.clone();
        filled.annotations_mut().insert(ACCOUNT_UID.to_owned(), uid.clone());
        let data: &mut BTreeMap<String, ByteString> = filled.data.get_or_insert_default();
        data.insert("ca.crt".to_owned(), ByteString(self.root_ca_pem.clone().into_bytes()));
        data.insert("namespace".to_owned(), ByteString(namespace.clone().into_bytes()));
        if data.get("token").is_none_or(|token| token.0.is_empty()) {
            let claims = json!({
                "iss": "kubernetes/serviceaccount",
                "sub": format!("system:serviceaccount:{namespace}:{name}"),
                "kubernetes.io/serviceaccount/namespace": namespace,
                "kubernetes.io/serviceaccount/secret.name": secret.name_any(),
                "kubernetes.io/serviceaccount/service-account.name": name,
                "kubernetes.io/serviceaccount/service-account.uid": uid,
            });
            let token = self.signer.token(&claims).map_err(Error::Sign)?;
            data.insert("token".to_owned(), ByteString(token.into_bytes()));
        }
        Ok((filled != *secret).then_some(filled))
    }
}

#[async_trait::async_trait]
impl Reconcile for Cleaner {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(secret) = self.secrets.get(&key.namespace, &key.name).filter(|_| key.namespace == "kube-system")
        else {
            return Ok(Next::Wait);
        };
        let text = secret
            .data
            .as_ref()
            .and_then(|data| data.get("expiration"))
            .map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        // No time at all is for ever; what is no time has passed, as with upstream.
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Next::Wait) };
        let (now, end) = (self.clock.now(), text.parse::<jiff::Timestamp>().unwrap_or(jiff::Timestamp::UNIX_EPOCH));
        if end > now {
            return Ok(Next::After(end.duration_since(now).unsigned_abs()));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let same = Preconditions { uid: secret.uid(), resource_version: None };
        driver::gone_is_fine(api.delete(&key.name, &DeleteParams::default().preconditions(same)).await)?;
        Ok(Next::Wait)
    }
}
