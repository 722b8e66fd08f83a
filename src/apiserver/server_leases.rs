//! The keys by which the servers of a cluster know one another: each notes itself under its address, with a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;
use store::error::Error;
use store::{RangeRequest, Storage};

/// Where servers note themselves, as upstream's.
pub(crate) const ROOT: &str = "/registry/masterleases/";
/// Which configuration of encryption each server that lives has; empty if it does not say.
///
/// Errors: the store fails.
pub(crate) async fn hashes(storage: &dyn Storage) -> Result<BTreeMap<String, String>, Error> {
    let range =
        RangeRequest { key: ROOT.into(), range_end: store::prefix_end(ROOT.as_bytes()), ..RangeRequest::default() };
    let found = storage.range(range).await?;
    let told = |kv: &store::KeyValue| {
        let address = std::str::from_utf8(&kv.key).ok()?.strip_prefix(ROOT)?.to_owned();
        let value: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
        Some((address, value["encryption"].as_str().unwrap_or_default().to_owned()))
    };
    Ok(found.kvs.iter().filter_map(told).collect())
}

/// The servers that live.
///
/// Errors: the store fails.
pub(crate) async fn addresses(storage: &dyn Storage) -> Result<BTreeSet<IpAddr>, Error> {
    let range = RangeRequest {
        key: ROOT.into(),
        range_end: store::prefix_end(ROOT.as_bytes()),
        keys_only: true,
        ..RangeRequest::default()
    };
    let found = storage.range(range).await?;
    let address = |key: &[u8]| std::str::from_utf8(key).ok()?.strip_prefix(ROOT)?.parse().ok();
    Ok(found.kvs.iter().filter_map(|kv| address(&kv.key)).collect())
}
