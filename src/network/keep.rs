//! The tables that the CNI plugins write (host ports, masquerade, bandwidth, pods' own addresses), remembered so that
//! they come back when somebody flushes them: the plugins themselves are only called when pods come and go.

use std::collections::BTreeMap;

use base::chain::Chain;
use base::task::Group;
use netfilter::look::TableRef;
use netfilter::replay::{self, TableCopy};
use tracing::{info, warn};

use crate::error::NetworkError;
use crate::monitor::Watched;
use crate::nft::ask;
use crate::table::Table;

/// The plugins' tables.
pub(crate) fn tables() -> impl Iterator<Item = Table> {
    base::traces::PLUGIN_TABLES.into_iter().map(|(family, name)| Table { family, name })
}

/// Keeps them as long as the group lives.
pub(crate) fn run(mut watched: Watched, group: &Group) {
    group.spawn("cni-tables", async move {
        let mut kept = BTreeMap::new();
        for table in tables() {
            look(table, &mut kept).await;
        }
        loop {
            let news = watched.next().await;
            for table in &news.changed {
                if news.deleted.contains(table)
                    && let Some(content) = kept.get(table)
                    && let Err(err) = restore(*table, content).await
                {
                    warn!(table = table.name, err = %Chain(&err), "cannot bring back a table that somebody deleted");
                }
                look(*table, &mut kept).await;
            }
        }
    });
}

/// Remembers what the table holds.
async fn look(table: Table, kept: &mut BTreeMap<Table, TableCopy>) {
    match ask(move || replay::copy(TableRef { family: table.family, name: table.name })).await {
        Ok(Some(content)) => drop(kept.insert(table, content)),
        // It has never been needed, or could not be brought back, which was said.
        Ok(None) => {}
        Err(err) => warn!(table = table.name, err = %Chain(&err), "cannot remember what a table holds"),
    }
}

/// A plugin may have made the table anew meanwhile: its elements, and the chains of pods that are new, stay beside
/// ours. A chain that is in both is written anew.
async fn restore(table: Table, content: &TableCopy) -> Result<(), NetworkError> {
    let content = content.clone();
    ask(move || replay::restore(&content)).await?;
    info!(table = table.name, family = table.family, "somebody deleted a table of the CNI plugins: it is back");
    Ok(())
}
