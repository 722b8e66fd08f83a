//! News of nftables: who else changed a table of ours. A firewall's restart begins with `flush ruleset`, which empties
//! everybody's tables, and nothing in the API tells of it.
//!
//! The kernel sends every change with the netlink port of who made it, and we know those of our own sockets.
//! Spec: `linux/netfilter/nf_tables.h`, `NFNLGRP_NFTABLES`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::sync::{Mutex, MutexGuard};
use base::task::Group;
use netfilter::{attributes, is_ours, messages};
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket, protocols::NETLINK_NETFILTER};
use tokio::sync::Notify;
use tracing::warn;

use crate::error::NetworkError;
use crate::nft;
use crate::table::Table;

const NFNLGRP_NFTABLES: u32 = 7;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_DELTABLE: u16 = 2;
/// Messages of tables, chains, rules, sets and elements begin with the table's name; the generation's has none.
const NFT_MSG_NEWGEN: u16 = 15;
const NFTA_TABLE_NAME: u16 = 1;
/// Changes come in bursts, and whoever flushes goes on to write.
const GATHER: Duration = Duration::from_millis(200);
/// Bytes that a burst may hold until some of it is lost; then the tables themselves are looked at.
const RECEIVE_BYTES: usize = 4 * 1024 * 1024;
/// Between two tries to listen.
const RETRY: Duration = Duration::from_secs(5);

/// Changes of tables by somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Tables that were changed.
    pub(crate) changed: BTreeSet<Table>,
    /// Tables that were deleted, or are not there any more; they are among the changed ones.
    pub(crate) deleted: BTreeSet<Table>,
}

/// A subscription to news of some tables.
pub(crate) struct Watched(Arc<Inbox>);

#[derive(Default)]
struct Inbox {
    news: Mutex<News>,
    heard: Notify,
}

impl Watched {
    /// Waits until somebody else has changed one of the tables, and a moment for what follows. Cancel safe: what was
    /// heard is not lost.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            if !self.0.news().changed.is_empty() {
                tokio::time::sleep(GATHER).await;
                return std::mem::take(&mut *self.0.news());
            }
            self.0.heard.notified().await;
        }
    }
}

impl Inbox {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock()
    }
}

/// Whom to tell.
#[derive(Default)]
pub(crate) struct Monitor {
    watchers: Vec<Watcher>,
}

struct Watcher {
    tables: BTreeSet<Table>,
    inbox: Arc<Inbox>,
}

impl Monitor {
    /// News of these tables.
    pub(crate) fn watch(&mut self, tables: impl IntoIterator<Item = Table>) -> Watched {
        let inbox = Arc::<Inbox>::default();
        self.watchers.push(Watcher { tables: tables.into_iter().collect(), inbox: Arc::clone(&inbox) });
        Watched(inbox)
    }

    /// Listens as long as the group lives.
    pub(crate) fn start(self, group: &Group) {
        group.spawn("nft-monitor", async move {
            loop {
                if let Err(err) = self.listen().await {
                    warn!(err = %Chain(&err), "cannot hear who changes nftables, trying again");
                }
                tokio::time::sleep(RETRY).await;
                self.missing().await;
            }
        });
    }

    async fn listen(&self) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::Io { doing: "cannot listen to nftables", source };
        let socket = open().map_err(failed)?;
        loop {
            match socket.recv_from_full().await {
                Ok((bytes, _)) => self.tell(&heard(&bytes, is_ours)),
                // The burst was too large to be told.
                Err(err) if err.raw_os_error() == Some(ENOBUFS) => {
                    tokio::time::sleep(GATHER).await;
                    self.missing().await;
                }
                Err(err) => return Err(failed(err)),
            }
        }
    }

    /// Tells of each watched table that is not there.
    async fn missing(&self) {
        match nft::tables().await {
            Ok(there) => {
                let watched = self.watchers.iter().flat_map(|watcher| &watcher.tables).copied();
                let gone: BTreeSet<Table> = watched.filter(|table| !there.contains(table)).collect();
                self.tell(&News { changed: gone.clone(), deleted: gone });
            }
            Err(err) => warn!(err = %Chain(&err), "cannot look at nftables"),
        }
    }

    fn tell(&self, news: &News) {
        for watcher in &self.watchers {
            let own =
                |tables: &BTreeSet<Table>| tables.intersection(&watcher.tables).copied().collect::<BTreeSet<Table>>();
            let (changed, deleted) = (own(&news.changed), own(&news.deleted));
            if !changed.is_empty() {
                let mut news = watcher.inbox.news();
                news.changed.extend(changed);
                news.deleted.extend(deleted);
                drop(news);
                watcher.inbox.heard.notify_one();
            }
        }
    }
}

const ENOBUFS: i32 = 105;

fn open() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    let raw = socket.socket_mut();
    raw.bind_auto()?;
    raw.set_rx_buf_sz(RECEIVE_BYTES)?;
    raw.add_membership(NFNLGRP_NFTABLES)?;
    Ok(socket)
}

/// News of a datagram about others' changes.
fn heard(bytes: &[u8], is_ours: impl Fn(u32) -> bool) -> News {
    let mut news = News::default();
    for message in messages(bytes) {
        let what = message.kind & 0xff;
        if message.kind >> 8 != NFNL_SUBSYS_NFTABLES || what >= NFT_MSG_NEWGEN || is_ours(message.port) {
            continue;
        }
        let Some(table) = table_of(message.body) else { continue };
        news.changed.insert(table);
        if what == NFT_MSG_DELTABLE {
            news.deleted.insert(table);
        }
    }
    news
}

/// The table that a message is about, if it is one that we look after.
fn table_of(body: &[u8]) -> Option<Table> {
    let family = match body.first()? {
        1 => "inet",
        2 => "ip",
        7 => "bridge",
        10 => "ip6",
        _ => return None,
    };
    let (_, name) = attributes(body.get(4..)?).find(|(kind, _)| *kind == NFTA_TABLE_NAME)?;
    let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    Table::known(family, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfilter::put;

    pub(super) fn message(kind: u16, port: u32, family: u8, table: &str) -> Vec<u8> {
        let mut body = vec![family, 0, 0, 0];
        put(&mut body, NFTA_TABLE_NAME, format!("{table}\0").as_bytes());
        let mut out = Vec::new();
        out.extend(u32::try_from(16 + body.len()).unwrap().to_ne_bytes());
        out.extend((NFNL_SUBSYS_NFTABLES << 8 | kind).to_ne_bytes());
        out.extend([0; 6]);
        out.extend(port.to_ne_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn what_others_do_to_our_tables_is_news_and_what_we_do_is_none() {
        let proxy = Table::known("ip", "kedge-proxy").unwrap();
        let policy = Table::known("inet", "kedge-policy").unwrap();
        let flush = [
            message(NFT_MSG_DELTABLE, 7, 2, "kedge-proxy"),
            message(8, 7, 1, "kedge-policy"),
            message(0, 7, 2, "somebody"),
        ]
        .concat();
        let news = heard(&flush, |port| port == 9);
        assert_eq!((news.changed, news.deleted), ([policy, proxy].into(), [proxy].into()));
        assert_eq!(heard(&flush, |port| port == 7), News::default());
    }

    #[test]
    fn a_message_that_was_cut_says_nothing() {
        let whole = message(NFT_MSG_DELTABLE, 7, 2, "kedge-proxy");
        for cut in 0..whole.len() {
            assert_eq!(heard(&whole[..cut], |_| false), News::default());
        }
    }

    #[tokio::test]
    async fn a_watcher_hears_of_its_own_tables_and_once() {
        let mut monitor = Monitor::default();
        let (proxy, policy) =
            (Table::known("ip", "kedge-proxy").unwrap(), Table::known("inet", "kedge-policy").unwrap());
        let mut watched = monitor.watch([policy]);
        monitor.tell(&News { changed: [proxy].into(), deleted: [proxy].into() });
        monitor.tell(&News { changed: [proxy, policy].into(), deleted: [].into() });
        assert_eq!(watched.next().await, News { changed: [policy].into(), deleted: [].into() });
    }
}

#[cfg(test)]
mod fuzz_tests {
    use super::tests::message;
    use super::*;
    use base::fuzz;

    #[test]
    fn messages_of_any_bytes_are_read_or_passed_over() {
        let (rng, whole) = (fuzz::rng(12), message(NFT_MSG_DELTABLE, 7, 2, "kedge-proxy"));
        for _ in fuzz::rounds(5_000) {
            // It must only end.
            let _any = heard(&fuzz::mutated(&rng, &whole), |_| false);
        }
    }
}
