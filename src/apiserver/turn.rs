//! Turns at giving out addresses: one service at a time in this server, and none beside another server's.

use bytes::Bytes;
use store::{Compare, Op, RangeRequest};
use tokio::sync::MutexGuard;

use crate::serve::ApiServer;
use crate::status::Status;
use crate::verbs::write::unchanged_since;

/// Changed whenever addresses are given out, whichever server does it.
const GUARD: &[u8] = b"/registry/ranges/services";

/// Held from the choice of addresses until they are stored.
pub struct Turn<'a> {
    _here: MutexGuard<'a, ()>,
    seen: u64,
}

impl ApiServer {
    /// Waits for a turn. Everything given out before it is in the cache then.
    ///
    /// Errors: the store has no leader and majority in time.
    pub(crate) async fn turn(&self) -> Result<Turn<'_>, Status> {
        let here = self.allocating.lock().await;
        let request = RangeRequest { key: Bytes::from_static(GUARD), keys_only: true, ..RangeRequest::default() };
        let reply = self.cache.storage().range(request).await?;
        if !self.cache.wait_for(reply.revision.0).await {
            return Err(store::error::Error::TimedOut.into());
        }
        Ok(Turn { _here: here, seen: reply.kvs.first().map_or(0, |kv| kv.mod_revision.0) })
    }
}

impl Turn<'_> {
    /// The condition that nobody gave out addresses since.
    pub fn still_ours(&self) -> Compare {
        unchanged_since(&Bytes::from_static(GUARD), self.seen)
    }

    /// What tells the others that addresses were given out.
    pub fn taken(&self) -> Op {
        Op::Put { key: Bytes::from_static(GUARD), value: Bytes::new(), lease: 0, prev_kv: false }
    }
}
