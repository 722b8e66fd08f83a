//! Which servers there are. Each keeps a key on a lease that ends soon after it; every server keeps the endpoints of
//! the service `kubernetes` as the keys say (upstream's lease reconciler, `pkg/controlplane/reconcilers/lease.go`).
//!
//! Keeping a lease alive writes nothing to the disk, so an idle server stays quiet.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use bytes::Bytes;
use registry::registrar::Registrar;
use registry::status::Status;
use serde_json::{Value, json};
use store::error::Error;
use store::{Op, Revision, Storage, Txn, WatchRequest};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::crypt::sealed::EncryptionKeys;
use crate::crypt::shared::State;
use crate::server_leases::{ROOT, addresses};

/// A server that is silent for so long is none.
const LEASE_SECS: u64 = 15;
/// Between two signs of life.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// After a failure, before the next try.
const RETRY: Duration = Duration::from_secs(1);
/// For taking oneself off when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// This server as an endpoint of the service `kubernetes`.
pub(crate) struct Endpoint {
    pub(crate) registrar: Arc<Registrar>,
    /// Where clients reach this server now.
    pub(crate) address: watch::Receiver<IpAddr>,
    /// Its port.
    pub(crate) port: u16,
    /// The keys that it encrypts with, where encryption is configured.
    pub(crate) encryption_keys: Option<Arc<EncryptionKeys>>,
}

impl Endpoint {
    fn storage(&self) -> &dyn Storage {
        self.registrar.objects.cache.storage().as_ref()
    }
}

/// Notes this server, and makes the endpoints fit. Answers with the lease.
///
/// Errors: the store fails.
pub(crate) async fn begin(endpoint: &Endpoint) -> Result<u64, Status> {
    let id = endpoint.registrar.objects.rng.below(u64::MAX >> 1) + 1;
    let storage = endpoint.storage();
    storage.grant_lease(id, LEASE_SECS).await?;
    let op = Op::Put { key: key(own(endpoint)), value: noted(endpoint), lease: id, prev_kv: false };
    storage.txn(Txn { success: vec![op], ..Txn::default() }).await?;
    let address = own(endpoint);
    if !is_endpoint(&address) {
        let remedy = "give it another --advertise-address or --node-ip";
        warn!(address = %address,
            "pods cannot reach this server's address, so the service kubernetes leads nowhere: {remedy}");
    }
    reconcile(endpoint).await?;
    Ok(id)
}

/// A server's word about itself: where it answers, and which keys it encrypts with.
fn noted(endpoint: &Endpoint) -> Bytes {
    let hash = endpoint.encryption_keys.as_ref().map(|encryption_keys| encryption_keys.state().hash());
    Bytes::from(json!({ "port": endpoint.port, "encryption": hash }).to_string())
}

/// Whether pods could reach a server there; upstream's validation refuses the other addresses.
fn is_endpoint(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || link_local)
}

/// Stays noted and keeps the endpoints, for as long as the group lives; then takes this server off.
pub(crate) fn keep(endpoint: &Arc<Endpoint>, lease: u64, group: &Group) {
    let keeper = Arc::clone(endpoint);
    group.spawn("server-lease", async move {
        let (mut lease, mut address) = (lease, keeper.address.clone());
        let mut noted = *address.borrow_and_update();
        let mut encryption = keeper.encryption_keys.as_ref().map(|encryption_keys| encryption_keys.changes());
        loop {
            tokio::select! {
                () = tokio::time::sleep(KEEP_EVERY) => {}
                Some(()) = changed(&mut encryption) => {
                    if let Err(status) = moved(&keeper, lease, noted, noted).await {
                        warn!(why = %status, "cannot note which keys this server encrypts with, trying again");
                        tokio::time::sleep(RETRY).await;
                        encryption.iter_mut().for_each(watch::Receiver::mark_changed);
                        continue;
                    }
                }
                Ok(()) = address.changed() => {
                    let new = *address.borrow_and_update();
                    if let Err(status) = moved(&keeper, lease, noted, new).await {
                        warn!(why = %status, "cannot note this server's new address, trying again");
                        tokio::time::sleep(RETRY).await;
                        address.mark_changed();
                        continue;
                    }
                    noted = new;
                }
            }
            match keeper.storage().keep_lease(lease).await {
                Ok(()) => {}
                // This process was asleep for too long.
                Err(Error::LeaseNotFound { .. }) => match begin(&keeper).await {
                    Ok(new) => lease = new,
                    Err(status) => warn!(why = %status, "cannot note this server among the servers"),
                },
                Err(err) => warn!(err = %Chain(&err), "cannot tell the others that this server lives"),
            }
        }
    });
    let follower = Arc::clone(endpoint);
    group.spawn("server-endpoints", async move {
        loop {
            if let Err(err) = follow(&follower).await {
                warn!(err = %Chain(&err), "cannot follow the list of servers");
            }
            tokio::time::sleep(RETRY).await;
        }
    });
    let (leaver, stop) = (Arc::clone(endpoint), group.token());
    group.spawn_graceful("server-farewell", async move {
        stop.cancelled().await;
        if !matches!(tokio::time::timeout(FAREWELL, leave(&leaver)).await, Ok(Ok(()))) {
            info!("this server's endpoint goes with its lease");
        }
    });
}

/// Waits for other keys of encryption.
async fn changed(encryption: &mut Option<watch::Receiver<Arc<State>>>) -> Option<()> {
    encryption.as_mut()?.changed().await.ok()
}

/// The machine has another address: the endpoints change with the key.
async fn moved(endpoint: &Endpoint, lease: u64, from: IpAddr, to: IpAddr) -> Result<(), Status> {
    let put = Op::Put { key: key(to), value: noted(endpoint), lease, prev_kv: false };
    let delete = Op::Delete { key: key(from), range_end: Bytes::new(), prev_kv: false };
    let success = if from == to { vec![put] } else { vec![put, delete] };
    endpoint.storage().txn(Txn { success, ..Txn::default() }).await?;
    reconcile(endpoint).await
}

fn own(endpoint: &Endpoint) -> IpAddr {
    *endpoint.address.borrow()
}

fn key(address: IpAddr) -> Bytes {
    Bytes::from(format!("{ROOT}{address}"))
}

/// Makes the endpoints fit after each change of the keys, until the watch ends.
async fn follow(endpoint: &Endpoint) -> Result<(), Error> {
    let start = endpoint.storage().current_revision();
    let request = WatchRequest {
        key: ROOT.into(),
        range_end: store::prefix_end(ROOT.as_bytes()),
        start: Revision(start.0 + 1),
        prev_kv: false,
    };
    let mut stream = endpoint.storage().watch(request).await?;
    loop {
        // Also at the beginning: a change may have come between the last look and the watch.
        while let Err(status) = reconcile(endpoint).await {
            warn!(why = %status, "cannot write the endpoints of the service kubernetes, trying again");
            tokio::time::sleep(RETRY).await;
        }
        while stream.next().await?.events.is_empty() {}
    }
}

async fn reconcile(endpoint: &Endpoint) -> Result<(), Status> {
    let mut addresses = addresses(endpoint.storage()).await?;
    addresses.retain(is_endpoint);
    // Nobody at all is what a store tells whose servers all slept: the old list is the better one.
    if addresses.is_empty() {
        return Ok(());
    }
    for object in objects(&addresses, own(endpoint), endpoint.port) {
        endpoint.registrar.reconcile(object).await?;
    }
    Ok(())
}

/// The last server's endpoint stays: an empty list would help nobody.
async fn leave(endpoint: &Endpoint) -> Result<(), Error> {
    if addresses(endpoint.storage()).await?.iter().all(|address| *address == own(endpoint)) {
        return Ok(());
    }
    let op = Op::Delete { key: key(own(endpoint)), range_end: Bytes::new(), prev_kv: false };
    endpoint.storage().txn(Txn { success: vec![op], ..Txn::default() }).await.map(drop)
}

/// Endpoints and slice of the service `kubernetes`; a slice holds one family, this server's.
fn objects(all: &BTreeSet<IpAddr>, own: IpAddr, port: u16) -> [Value; 2] {
    let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let addresses: Vec<Value> = all.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
    let same = all.iter().filter(|ip| ip.is_ipv4() == own.is_ipv4());
    let endpoints: Vec<Value> =
        same.map(|ip| json!({ "addresses": [ip.to_string()], "conditions": { "ready": true } })).collect();
    [
        json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": { "name": "kubernetes", "namespace": "default",
                "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" } },
            "subsets": [{ "addresses": addresses, "ports": [{ "name": "https", "port": port, "protocol": "TCP" }] }],
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family(&own),
            "metadata": { "name": "kubernetes", "namespace": "default",
                "labels": { "kubernetes.io/service-name": "kubernetes" } },
            "endpoints": endpoints, "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_list_every_server_once_and_in_order() {
        let all = ["10.0.0.3", "10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).into();
        let [endpoints, slice] = objects(&all, "10.0.0.1".parse().unwrap(), 6443);
        let ips: Vec<&str> = endpoints["subsets"][0]["addresses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a["ip"].as_str().unwrap())
            .collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.3", "fd00::1"]);
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
        assert_eq!(slice["endpoints"][1]["addresses"], json!(["10.0.0.3"]));
    }

    #[test]
    fn an_address_of_this_machine_alone_is_no_endpoint() {
        let of = |ip: &str| is_endpoint(&ip.parse().unwrap());
        assert!(of("10.0.0.1") && of("fd00::1"));
        assert!(["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "fe80::1"].iter().all(|ip| !of(ip)));
    }
}
