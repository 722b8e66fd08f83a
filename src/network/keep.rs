//! The tables that the CNI plugins write (host ports, masquerade, bandwidth, pods' own addresses), remembered so that
//! they come back when somebody flushes them: the plugins themselves are only called when pods come and go.

use std::collections::BTreeMap;

use base::chain::Chain;
use base::task::Group;
use tracing::{info, warn};

use crate::error::NetworkError;
use crate::monitor::Watched;
use crate::nft;
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

/// A plugin may have made the table anew meanwhile: its elements, and the chains of pods that are new, stay beside
/// ours. A chain that is in both is written anew.
fn script(table: Table, content: &str) -> String {
    let Table { family, name } = table;
    let (mut frame, mut flush, mut in_chain) = (String::new(), String::new(), false);
    for line in content.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("chain"), Some(chain)) => {
                in_chain = true;
                flush += &format!("flush chain {family} {name} {chain}\n");
                frame += &format!("add chain {family} {name} {chain}");
            }
            (Some("type"), Some(_)) if in_chain => frame += &format!(" {{ {} }}", line.trim()),
            (Some("}"), None) if in_chain => {
                in_chain = false;
                frame.push('\n');
            }
            _ => {}
        }
    }
    format!("add table {family} {name}\n{frame}{flush}{content}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plugin_wrote_since_the_flush_stays() {
        let content = "table bridge kedge-source {\n\tmap ports {\n\t\ttype ifname : verdict\n\
                       \t\telements = { \"v1\" : goto v1 }\n\t}\n\n\tchain prerouting {\n\
                       \t\ttype filter hook prerouting priority dstnat; policy accept;\n\t\tiifname vmap @ports\n\t}\n\
                       \n\tchain v1 {\n\t\tdrop\n\t}\n}\n";
        let table = Table::known("bridge", "kedge-source").unwrap();
        let wanted = "add table bridge kedge-source\n\
                      add chain bridge kedge-source prerouting { type filter hook prerouting priority dstnat; policy \
                      accept; }\nadd chain bridge kedge-source v1\nflush chain bridge kedge-source prerouting\n\
                      flush chain bridge kedge-source v1\n";
        assert_eq!(script(table, content), format!("{wanted}{content}"));
    }
}
