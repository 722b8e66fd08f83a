//! Old revisions are let go: what is older than five minutes need not be readable any more, or the database would grow
//! for ever.
//!
//! As upstream's API server does with etcd (`apiserver/pkg/storage/etcd3/compact.go`), but quiet when nothing was
//! written. Several servers may do it side by side: each keeps its own last five minutes, and what is compacted twice
//! is compacted once.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::limits::HISTORY_SECS;
use base::task::Group;
use registry::cache::Cache;
use store::error::Error;
use store::{Revision, Storage};
use tracing::{debug, warn};

/// Compacts for as long as `group` lives, and lets the cache forget as much.
pub(crate) fn keep(cache: Arc<Cache>, group: &Group) {
    group.spawn("compaction", async move {
        let mut seen = cache.storage().current_revision();
        loop {
            tokio::time::sleep(Duration::from_secs(HISTORY_SECS)).await;
            cache.forget_until(seen.0);
            seen = round(cache.storage().as_ref(), seen).await;
        }
    });
}

/// Compacts up to what was the newest revision a round ago, if anything came after it. Returns what is the newest now.
async fn round(storage: &dyn Storage, before: Revision) -> Revision {
    let now = storage.current_revision();
    if now.0 > before.0 && before.0 > 0 {
        match storage.compact(before).await {
            Ok(()) => debug!(rev = before.0, "compacted"),
            // Another server was here first.
            Err(Error::Compacted { .. }) => {}
            Err(err) => warn!(rev = before.0, err = %Chain(&err), "cannot compact"),
        }
    }
    now
}
