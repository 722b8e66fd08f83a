//! Objects that every namespace holds from its first moment: the ServiceAccount `default` and the ConfigMap
//! `kube-root-ca.crt`.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};

use crate::driver::{Context, Error, Next, Reconcile, objects_of};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
/// Upstream's note on the published ConfigMap.
const ROOT_CA_NOTE: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

struct Accounts {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

/// Starts both controllers; `root_ca_pem` is what pods verify the API server with.
pub(crate) fn start(context: &Context, root_ca_pem: String) {
    start_accounts(context);
    start_root_ca(context, root_ca_pem);
}

/// Starts the controller that gives each namespace its default ServiceAccount.
fn start_accounts(context: &Context) {
    let (namespaces, accounts) = (context.informers.get::<Namespace>(), context.informers.get::<ServiceAccount>());
    let queue = Arc::new(Queue::default());
    context.feed_own(&namespaces, &queue);
    context.feed(&accounts, &queue, |change| removed(change, ACCOUNT));
    let client = context.client("service-account-controller");
    let controller = Accounts { client, namespaces: namespaces.clone(), accounts: accounts.clone() };
    context.start("service-account-controller", &queue, controller, async move {
        namespaces.synced().await;
        accounts.synced().await;
    });
}

/// The namespace that lost the object `name`.
fn removed<K: client::informer::Kind>(change: &Change<K>, name: &str) -> Vec<Key> {
    match change {
        Change::Deleted(object) if object.name_any() == name => {
            vec![Key::new("", &object.namespace().unwrap_or_default())]
        }
        _ => Vec::new(),
    }
}

/// The namespace, if things may still be made in it.
fn active(namespaces: &Informer<Namespace>, name: &str) -> bool {
    namespaces.get("", name).is_some_and(|ns| ns.metadata.deletion_timestamp.is_none())
}

/// Somebody was faster, or the namespace is going: both are fine.
fn unless_late<T>(made: Result<T, kube::Error>) -> Result<Next, Error> {
    match made {
        Ok(_) => Ok(Next::Wait),
        Err(kube::Error::Api(status))
            if status.reason == "AlreadyExists" || matches!(status.code, 403 | 404) && terminating(&status) =>
        {
            Ok(Next::Wait)
        }
        Err(err) => Err(err.into()),
    }
}

fn terminating(status: &kube::core::Status) -> bool {
    status.code == 404
        || status.details.iter().flat_map(|d| &d.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

#[async_trait::async_trait]
impl Reconcile for Accounts {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if !active(&self.namespaces, &key.name) || self.accounts.get(&key.name, ACCOUNT).is_some() {
            return Ok(Next::Wait);
        }
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(ACCOUNT.to_owned());
        account.metadata.namespace = Some(key.name.clone());
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.name);
        unless_late(api.create(&PostParams::default(), &account).await)
    }
}

struct RootCa {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    maps: Informer<ConfigMap>,
    bundle_pem: String,
}

/// Starts the controller that publishes the CA of the API server in each namespace.
fn start_root_ca(context: &Context, bundle_pem: String) {
    // Only the published maps are watched, not everybody's configuration.
    let maps = context.informers.selected::<ConfigMap>(&format!("metadata.name={ROOT_CA}"));
    let namespaces = context.informers.get::<Namespace>();
    let queue = Arc::new(Queue::default());
    context.feed_own(&namespaces, &queue);
    context.feed(&maps, &queue, |change| {
        objects_of(change).iter().map(|map| Key::new("", &map.namespace().unwrap_or_default())).collect()
    });
    let client = context.client("root-ca-cert-publisher");
    let controller = RootCa { client, namespaces: namespaces.clone(), maps: maps.clone(), bundle_pem };
    context.start("root-ca-cert-publisher", &queue, controller, async move {
        namespaces.synced().await;
        maps.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for RootCa {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if !active(&self.namespaces, &key.name) {
            return Ok(Next::Wait);
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.name);
        let wanted = BTreeMap::from([("ca.crt".to_owned(), self.bundle_pem.clone())]);
        let Some(map) = self.maps.get(&key.name, ROOT_CA) else {
            let mut map = ConfigMap { data: Some(wanted), ..ConfigMap::default() };
            map.metadata.name = Some(ROOT_CA.to_owned());
            map.metadata.annotations = Some(BTreeMap::from([(ROOT_CA_NOTE.0.to_owned(), ROOT_CA_NOTE.1.to_owned())]));
            return unless_late(api.create(&PostParams::default(), &map).await);
        };
        let noted = map
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(ROOT_CA_NOTE.0))
            .is_some_and(|note| note == ROOT_CA_NOTE.1);
        if map.data.as_ref() == Some(&wanted) && noted {
            return Ok(Next::Wait);
        }
        // Keys that a user added go, as with upstream. The role may update, not patch.
        let mut updated = (*map).clone();
        updated.data = Some(wanted);
        updated.annotations_mut().insert(ROOT_CA_NOTE.0.to_owned(), ROOT_CA_NOTE.1.to_owned());
        api.replace(ROOT_CA, &PostParams::default(), &updated).await?;
        Ok(Next::Wait)
    }
}
