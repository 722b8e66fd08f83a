//! How a server that holds the cluster's secrets becomes a member of the store: it asks a member, with the supervisor's
//! certificate.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use store::error::Error;
use store::member::Peer;
use store::store::Store;
use tracing::info;
use wire::{body, dial};

use crate::protocol::{BODY_BYTES_MAX, MEMBERS, NewMember};
use crate::refusal::Refusal;
use crate::tunnel::split;

/// One attempt: the store takes its time to agree.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(40);

/// A member that lives answers by then.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Takes a server in. The machine that has its name already and another number lost its store: its old self goes, as
/// soon as the new one is in.
///
/// Errors: `Twin` while the old self answers at another address: then one is a copy of the other.
pub(crate) async fn admit(store: &Store, new: &NewMember) -> Result<(), Refusal> {
    let members = store.members().await.map_err(|err| refusal(&err))?;
    if members.iter().any(|member| member.id == new.id && !member.name.is_empty() && member.name != new.name) {
        return Err(Refusal::Invalid {
            why: format!(
                "the store has a member {:x} already, of another name: remove server/db of the joining server",
                new.id
            ),
        });
    }
    let mut old = members.iter().filter(|member| member.name == new.name && member.id != new.id);
    if old.clone().any(|old| old.voter && members.iter().filter(|member| member.voter).count() == 1) {
        return Err(refusal(&Error::LastMember));
    }
    for other in old.clone().filter(|other| other.address != new.address) {
        if answers(&other.address).await {
            return Err(Refusal::Twin { name: new.name.clone(), address: other.address.clone() });
        }
    }
    // The new one first: it is asked at its address before it is taken in. If it does not answer there, nothing has
    // changed.
    let peer = Peer { addr: new.address.clone(), name: new.name.clone() };
    store.add_learner(new.id, peer).await.map_err(|err| refusal(&err))?;
    for old in &mut old {
        info!(name = new.name, peer = old.id, "a server comes back without its store: its old self is removed");
        store.remove(old.id).await.map_err(|err| refusal(&err))?;
    }
    Ok(())
}

/// Whether somebody is at a member's address: a copy of a machine that lives is not that machine.
async fn answers(address: &str) -> bool {
    let Some((host, port)) = split(address) else { return false };
    let dialled = tokio::time::timeout(ALIVE_TIMEOUT, dial::tcp(host, port, host, None)).await;
    dialled.is_ok_and(|dialled| dialled.is_ok())
}

fn refusal(err: &Error) -> Refusal {
    match err {
        Error::MemberUnreachable { address } => Refusal::Unheard { address: address.clone() },
        Error::NoNetwork => Refusal::NoMembers { why: "its store was opened without a network".to_owned() },
        Error::LastMember => Refusal::NoMembers {
            why: "its only voting member has the name of the joining one: choose another with --node-name".to_owned(),
        },
        other => Refusal::NotReady { why: Chain(other).to_string() },
    }
}

/// Asks the servers one after the other (`host:port`) to take this one in.
///
/// Errors: the verdict of the first that answers, or why the first could not be reached.
pub async fn ask(
    servers: &[String],
    new: &NewMember,
    tls: &Arc<rustls::ClientConfig>,
    group: &Group,
) -> Result<(), Refusal> {
    let mut first = None;
    for server in servers {
        let unreachable = |why: String| Refusal::Unreachable { url: format!("https://{server}"), why };
        let timed_out = |_| Err(unreachable("it did not answer in time".to_owned()));
        match tokio::time::timeout(ATTEMPT_TIMEOUT, ask_one(server, new, tls, group)).await.unwrap_or_else(timed_out) {
            Err(refusal @ Refusal::Unreachable { .. }) => drop(first.get_or_insert(refusal)),
            verdict => return verdict,
        }
    }
    Err(first.unwrap_or(Refusal::Invalid { why: "no server is known: name one with --server".to_owned() }))
}

async fn ask_one(server: &str, new: &NewMember, tls: &Arc<rustls::ClientConfig>, group: &Group) -> Result<(), Refusal> {
    let unreachable = |why: String| Refusal::Unreachable { url: format!("https://{server}"), why };
    let invalid = |why: String| Refusal::Invalid { why };
    let (host, port) = split(server).ok_or_else(|| invalid(format!("'{server}' is not host:port")))?;
    let bytes = serde_json::to_vec(new).map_err(|err| invalid(err.to_string()))?;
    let req = Request::builder()
        .method(Method::POST)
        .uri(MEMBERS)
        .header(HOST, server)
        .header(CONTENT_TYPE, "application/json");
    let req = req.body(body::full(bytes)).map_err(|err| invalid(err.to_string()))?;
    let stream =
        dial::tcp(host, port, host, Some(Arc::clone(tls))).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    let answer = dial::request(stream, server, req, group).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    let status = answer.status();
    let bytes =
        body::collect(answer.into_body(), BODY_BYTES_MAX).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    if status == StatusCode::OK {
        return Ok(());
    }
    let odd =
        || Refusal::NotKedge { url: format!("https://{server}"), why: format!("it answered {status} to {MEMBERS}") };
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| odd()))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use base::rng::Rng;
    use base::time::Stopwatch;
    use store::Config;
    use store::bounds::Bounds;
    use store::member::{Bootstrap, Dial, Network};
    use tokio::net::{TcpListener, TcpStream};
    use wire::ConnInfo;
    use wire::dial::Stream;

    use super::*;

    /// How long a group may take to agree on a machine that others use, too.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Members of one process need no TLS.
    struct Plain;

    #[async_trait::async_trait]
    impl Dial for Plain {
        async fn dial(&self, address: &str) -> io::Result<Box<dyn Stream>> {
            Ok(Box::new(TcpStream::connect(address).await?))
        }
    }

    /// A server's store, and where it answers other members.
    struct Peer {
        store: Arc<Store>,
        address: String,
        group: Group,
        door: Group,
    }

    impl Peer {
        async fn open(dir: &Path, name: &str, bootstrap: Bootstrap) -> Peer {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let ((group, _), (door, _)) = (Group::root("store"), Group::root("door"));
            let network = Network { name: name.to_owned(), address: address.clone(), dial: Arc::new(Plain) };
            let dir = dir.join(address.replace(':', "-"));
            let config =
                Config { dir, bootstrap, network: Some(network), rng: Rng::from_os(), bounds: Bounds::SHIPPED };
            let store = Store::open(config, &group).await.unwrap();
            let (handler, callers) = (store.peer_handler(), door.clone());
            door.spawn("accept", async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (conn, handler) = (ConnInfo::in_process(Arc::new(())), Arc::clone(&handler));
                    callers.spawn_short("peer", async move {
                        let _ended = wire::serve::serve_stream(stream, conn, handler).await;
                    });
                }
            });
            Peer { store, address, group, door }
        }

        fn named(&self, name: &str) -> NewMember {
            NewMember { id: self.store.member_id(), name: name.to_owned(), address: self.address.clone() }
        }

        /// As when its machine goes.
        async fn end(self) {
            self.group.shutdown().await;
            self.door.shutdown().await;
        }
    }

    /// Number, name and address of each member.
    async fn members(store: &Store) -> Vec<(u64, String, String)> {
        let members = store.members().await.unwrap();
        members.into_iter().map(|member| (member.id, member.name, member.address)).collect()
    }

    async fn until_they_vote(store: &Store, n: usize) {
        let begun = Stopwatch::start();
        while store.members().await.unwrap().iter().filter(|member| member.voter).count() < n {
            assert!(begun.elapsed() < PATIENCE, "{:?}", store.members().await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    #[test]
    fn an_error_of_the_store_is_a_refusal_that_says_what_to_do() {
        let unheard = Refusal::Unheard { address: "a:1".to_owned() };
        assert_eq!(refusal(&Error::MemberUnreachable { address: "a:1".to_owned() }), unheard);
        let words = |err: Error| match refusal(&err) {
            Refusal::NoMembers { why } => format!("no members: {why}"),
            Refusal::NotReady { why } => format!("not ready: {why}"),
            other => panic!("{other}"),
        };
        for (err, want) in [
            (Error::NoNetwork, "no members: its store was opened without a network"),
            (
                Error::LastMember,
                "no members: its only voting member has the name of the joining one: choose another with --node-name",
            ),
            (Error::TimedOut, "not ready: the store's members did not agree in time"),
            (Error::NotLeader { leader: None }, "not ready: this member does not lead"),
        ] {
            assert_eq!(words(err), want);
        }
    }

    // security.md S5 and L3.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_of_a_server_that_lives_is_refused_and_an_old_self_goes_when_the_new_one_is_in() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = vec![Peer::open(dir.path(), "s1", Bootstrap::First).await];
        let first = Arc::clone(&all[0].store);
        for name in ["s2", "s3"] {
            let new = Peer::open(dir.path(), name, Bootstrap::Joining).await;
            // Under its own address the one that is alone takes in others.
            admit(&first, &new.named(name)).await.unwrap();
            new.store.ready().await.unwrap();
            all.push(new);
            until_they_vote(&first, all.len()).await;
        }
        let before = members(&first).await;
        let copy = Peer::open(dir.path(), "s3", Bootstrap::Joining).await;
        let twin = Refusal::Twin { name: "s3".to_owned(), address: all[2].address.clone() };
        assert_eq!(admit(&first, &copy.named("s3")).await, Err(twin));
        assert_eq!(members(&first).await, before);
        // The machine is gone, and another self of it says where nobody answers: the old one keeps its vote.
        let gone = all.pop().unwrap();
        let old = gone.store.member_id();
        gone.end().await;
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let unheard = NewMember { id: 7, name: "s3".to_owned(), address: closed.clone() };
        assert_eq!(admit(&first, &unheard).await, Err(Refusal::Unheard { address: closed }));
        assert_eq!(members(&first).await, before, "the old self went before the new one was in");
        // One that answers takes its place.
        assert_eq!(admit(&first, &copy.named("s3")).await, Ok(()));
        let mut after: Vec<_> = before.into_iter().filter(|(id, ..)| *id != old).collect();
        after.push((copy.store.member_id(), "s3".to_owned(), copy.address.clone()));
        after.sort();
        let mut now = members(&first).await;
        now.sort();
        assert_eq!(now, after);
        copy.store.ready().await.unwrap();
        drop(first);
        for peer in all.into_iter().chain([copy]) {
            peer.end().await;
        }
    }
}
