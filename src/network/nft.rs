//! Handing scripts to the kernel (`netfilter`), beside the async threads. One call is one transaction: all of it is in
//! force, or nothing changed.

use std::collections::BTreeSet;
use std::time::Duration;

use base::task::Group;
use netfilter::{look, nft};

use crate::error::NetworkError;
use crate::table::Table;

/// A script of ten thousand services takes a second; a kernel that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Characters of a refusal that are shown.
const TEXT_CHARS_MAX: usize = 2000;

/// Applies a script; an empty one costs nothing.
pub(crate) async fn apply(script: &str) -> Result<(), NetworkError> {
    if script.is_empty() {
        return Ok(());
    }
    let script = script.to_owned();
    ask(move || nft::apply(&script)).await
}

/// Whether the kernel would take a script. Nothing is changed.
pub(crate) async fn would_take(script: &str) -> Result<(), NetworkError> {
    let script = script.to_owned();
    ask(move || nft::would_take(&script)).await
}

/// The tables that are there, of those that we look after.
pub(crate) async fn tables() -> Result<BTreeSet<Table>, NetworkError> {
    let all = ask(look::tables).await?;
    Ok(all.iter().filter_map(|table| Table::known(table.family, &table.name)).collect())
}

/// Whether the kernel has nftables, and we may speak to it.
pub(crate) async fn check() -> Result<(), NetworkError> {
    ask(look::tables).await.map(drop)
}

/// Asks the kernel something, which blocks.
///
/// Cancel safety: what was begun goes on.
pub(crate) async fn ask<T, F>(question: F) -> Result<T, NetworkError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, netfilter::NetfilterError> + Send + 'static,
{
    match tokio::time::timeout(LIMIT, Group::blocking(question)).await {
        Err(_) => Err(NetworkError::NftHangs),
        Ok(Err(fatal)) => {
            Err(NetworkError::Io { doing: "cannot speak to netfilter", source: std::io::Error::other(fatal) })
        }
        Ok(Ok(answer)) => answer.map_err(judge),
    }
}

fn judge(err: netfilter::NetfilterError) -> NetworkError {
    if !err.is_of_the_script() {
        return NetworkError::Netfilter { source: err };
    }
    NetworkError::NftRefused { text: base::chain::Chain(&err).to_string().chars().take(TEXT_CHARS_MAX).collect() }
}
