//! Work that must run once in a cluster: it starts when this server leads, and stops, not the process, when it leads no
//! more.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use base::time::Stopwatch;
use store::error::Error;
use store::member::Leadership;
use store::store::Store;
use store::{Compare, CompareOp, EventKind, Op, RangeRequest, Revision, Storage, Txn, WatchRequest};
use tokio::sync::watch;
use tracing::{info, warn};

/// On a store that is somebody else's: the leader's key, which hangs on a lease of its own.
const KEY: &str = "/kedge/leader";
/// The key goes so long after the leader's last sign of life.
const LEASE_SECS: u64 = 15;
/// Between two signs of life, and after a failure.
const KEEP_EVERY: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_secs(1);
/// A leader that could not give a sign for so long stops leading: before its key can go.
const CERTAIN: Duration = Duration::from_secs(11);
/// For giving the key back when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);

const _: () = assert!(CERTAIN.as_secs() + 2 < LEASE_SECS);

/// The leader, as the embedded store says, or as servers agree upon over a store that is somebody else's.
pub(crate) fn leadership(
    embedded: Option<&Arc<Store>>,
    storage: &Arc<dyn Storage>,
    name: &str,
    rng: &Rng,
    group: &Group,
) -> watch::Receiver<Leadership> {
    if let Some(store) = embedded {
        return store.leadership();
    }
    let (tell, leadership) = watch::channel(Leadership::default());
    let elector = Elector { storage: Arc::clone(storage), name: name.to_owned(), rng: rng.clone(), tell };
    let stop = group.token();
    group.spawn_graceful("election", async move {
        tokio::select! {
            () = elector.stand() => {}
            () = stop.cancelled() => elector.leave().await,
        }
    });
    leadership
}

/// Stands for the leader's key.
struct Elector {
    storage: Arc<dyn Storage>,
    name: String,
    rng: Rng,
    tell: watch::Sender<Leadership>,
}

impl Elector {
    /// For ever: waits for the key to be free, takes it, keeps it.
    async fn stand(&self) {
        loop {
            if let Err(err) = self.once().await {
                warn!(err = %Chain(&err), "cannot stand for the cluster's leader, trying again");
            }
            self.tell.send_replace(Leadership::default());
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn once(&self) -> Result<(), Error> {
        let held = self.storage.range(RangeRequest { key: KEY.into(), ..RangeRequest::default() }).await?;
        if !held.kvs.is_empty() {
            return self.free(held.revision).await;
        }
        let (lease, begun) = (self.rng.below(u64::MAX >> 1) + 1, Stopwatch::start());
        self.storage.grant_lease(lease, LEASE_SECS).await?;
        let free = Compare::CreateRevision { key: KEY.into(), op: CompareOp::Equal, revision: Revision(0) };
        let take = Op::Put { key: KEY.into(), value: self.name.clone().into(), lease, prev_kv: false };
        let taken = self.storage.txn(Txn { compare: vec![free], success: vec![take], ..Txn::default() }).await?;
        // An answer that took long may be of a key that is gone.
        if taken.succeeded && begun.elapsed() < CERTAIN {
            self.tell.send_replace(Leadership { leader: Some(1), is_me: true, term: taken.revision.0 });
            self.keep(lease, begun).await;
        }
        Ok(())
    }

    /// Returns when the key, which was there at `seen`, is free.
    async fn free(&self, seen: Revision) -> Result<(), Error> {
        let request = WatchRequest {
            key: KEY.into(),
            range_end: Default::default(),
            start: Revision(seen.0 + 1),
            prev_kv: false,
        };
        let mut changes = self.storage.watch(request).await?;
        while changes.next().await?.events.iter().all(|event| event.kind != EventKind::Delete) {}
        Ok(())
    }

    /// Gives signs of life; returns when this server cannot be sure of the key any more. `sign`: the last sign that
    /// came through.
    async fn keep(&self, lease: u64, mut sign: Stopwatch) {
        loop {
            tokio::time::sleep(KEEP_EVERY.min(CERTAIN.saturating_sub(sign.elapsed()))).await;
            let begun = Stopwatch::start();
            match tokio::time::timeout(CERTAIN.saturating_sub(sign.elapsed()), self.storage.keep_lease(lease)).await {
                Ok(Ok(())) => sign = begun,
                Ok(Err(Error::LeaseNotFound { .. })) | Err(_) => return,
                Ok(Err(err)) => warn!(err = %Chain(&err), "cannot tell the others that this server leads"),
            }
            if sign.elapsed() >= CERTAIN {
                return;
            }
        }
    }

    /// Gives the key back, so that another leads at once.
    async fn leave(&self) {
        let now = *self.tell.borrow();
        if !now.is_me {
            return;
        }
        let ours = Compare::CreateRevision { key: KEY.into(), op: CompareOp::Equal, revision: Revision(now.term) };
        let give = Op::Delete { key: KEY.into(), range_end: Default::default(), prev_kv: false };
        let given = self.storage.txn(Txn { compare: vec![ours], success: vec![give], ..Txn::default() });
        if !matches!(tokio::time::timeout(FAREWELL, given).await, Ok(Ok(_))) {
            info!("another server leads when this one's lease is over");
        }
    }
}

/// Calls `begin` with a group of its own each time this server comes to lead; the group stops when it leads no more.
pub(crate) fn while_leading(
    mut leadership: watch::Receiver<Leadership>,
    group: &Group,
    begin: impl Fn(&Group) + Send + 'static,
) {
    let own = group.clone();
    group.spawn("leader", async move {
        loop {
            wait_for(&mut leadership, |now| now.is_me).await;
            let leading = own.child("leading");
            info!(term = leadership.borrow().term, "this server leads: controllers and scheduler run here");
            begin(&leading);
            wait_for(&mut leadership, |now| !now.is_me).await;
            info!("this server leads no more: controllers and scheduler stop here");
            leading.shutdown().await;
        }
    });
}

async fn wait_for(leadership: &mut watch::Receiver<Leadership>, holds: impl FnMut(&Leadership) -> bool) {
    // A sender that is gone will never say otherwise.
    let lost = leadership.wait_for(holds).await.is_err();
    if lost {
        std::future::pending::<()>().await;
    }
}
