//! The allocation lock: addresses are given out to one service at a time in this server, and to none beside another
//! server's, which is told by one key of the store.

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::sync::Mutex;
use bytes::Bytes;
use ipnet::IpNet;
use serde_json::Value;
use store::{Compare, Op, RangeRequest, Txn};
use tokio::sync::MutexGuard;

use super::assign;
use super::ledger::Ledger;
use crate::keys::unchanged_since;
use crate::objects::Objects;
use crate::status::Status;

/// Changed whenever addresses are given out, whichever server does it.
const GUARD: &[u8] = b"/registry/ranges/services";

/// Gives out cluster IPs and node ports.
pub struct Allocator {
    pub(super) objects: Arc<Objects>,
    /// The cluster's own ranges, the primary family first.
    pub(super) service_cidrs: Vec<IpNet>,
    pub(super) node_ports: RangeInclusive<u16>,
    /// Which service holds which address and port.
    pub(super) ledger: Mutex<Ledger>,
    /// Only one service is given addresses at a time.
    allocating: tokio::sync::Mutex<()>,
}

/// The lock, held from the choice of addresses until they are stored.
pub struct Turn<'a> {
    _here: MutexGuard<'a, ()>,
    seen: u64,
}

impl Allocator {
    /// From these ranges.
    pub fn new(objects: Arc<Objects>, service_cidrs: Vec<IpNet>, node_ports: RangeInclusive<u16>) -> Allocator {
        let (ledger, allocating) = (Mutex::default(), tokio::sync::Mutex::default());
        Allocator { objects, service_cidrs, node_ports, ledger, allocating }
    }

    /// Waits for the lock. Everything given out before it is in the cache then.
    ///
    /// Errors: the store has no leader and majority in time.
    pub async fn turn(&self) -> Result<Turn<'_>, Status> {
        let here = self.allocating.lock().await;
        let request = RangeRequest { key: Bytes::from_static(GUARD), keys_only: true, ..RangeRequest::default() };
        let cache = &self.objects.cache;
        let reply = cache.storage().range(request).await?;
        if !cache.wait_for(reply.revision.0).await {
            return Err(store::error::Error::TimedOut.into());
        }
        Ok(Turn { _here: here, seen: reply.kvs.first().map_or(0, |kv| kv.mod_revision.0) })
    }

    /// Gives a new service its addresses. The caller holds a turn until the service is stored.
    ///
    /// Errors: 422 when an address asked for is taken or outside its range, or none is left.
    pub fn on_create(&self, service: &mut Value) -> Result<(), Status> {
        assign::complete(self, service, None)
    }

    /// The same for a changed service: what it has stays, what a new type does not need goes.
    pub fn on_update(&self, service: &mut Value, old: &Value) -> Result<(), Status> {
        assign::complete(self, service, Some(old))
    }
}

impl Turn<'_> {
    /// Makes the transaction that stores a service fail if another server gave out addresses since, and tells the
    /// others that this one did.
    pub fn join(&self, txn: &mut Txn) {
        txn.compare.push(self.still_ours());
        txn.success.push(Turn::taken());
    }

    fn still_ours(&self) -> Compare {
        unchanged_since(&Bytes::from_static(GUARD), self.seen)
    }

    fn taken() -> Op {
        Op::Put { key: Bytes::from_static(GUARD), value: Bytes::new(), lease: 0, prev_kv: false }
    }
}
