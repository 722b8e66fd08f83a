//! The tables that the CNI plugins write (host ports, masquerade, bandwidth), remembered so that they come back when somebody flushes
//! them: the plugins themselves are only called when pods come and go.

use std::collections::BTreeMap;

use base::chain::Chain;
use base::task::Group;
use tracing::{info, warn};

use crate::monitor::Watched;
use crate::table::Table;
use crate::{NetworkError, nft};

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
async fn look(table: Table, kept: &mut BTreeMap<Table, String>) {
    // A table that is not there has never been needed, or could not be brought back, which was said.
    if let Ok(content) = nft::run(&["list", "table", table.family, table.name], "").await {
        kept.insert(table, content);
    }
}

async fn restore(table: Table, content: &str) -> Result<(), NetworkError> {
    nft::apply(&script(table, content)).await?;
    info!(table = table.name, family = table.family, "somebody deleted a table of the CNI plugins: it is back");
    Ok(())
}

/// A plugin may have made the table anew meanwhile: its rules are ours, and its elements stay beside ours.
fn script(table: Table, content: &str) -> String {
    let Table { family, name } = table;
    format!("add table {family} {name}\nflush table {family} {name}\n{content}")
}
