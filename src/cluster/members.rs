//! How a server that holds the cluster's secrets becomes a member of the store: it asks a member, with the supervisor's certificate.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use store::error::Error;
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

/// Takes a server in. The machine that has its name already and another number lost its store: its old self goes, as soon as the new
/// one is in.
///
/// Errors: `Twin` while the old self answers at another address: then one is a copy of the other.
pub(crate) async fn admit(store: &Store, new: &NewMember) -> Result<(), Refusal> {
    let members = store.members().await.map_err(|err| refusal(&err))?;
    if members.iter().any(|member| member.id == new.id && !member.name.is_empty() && member.name != new.name) {
        return Err(Refusal::Invalid {
            why: format!("the store has a member {:x} already, of another name: remove server/db of the joining server", new.id),
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
    // The new one first: it is asked at its address before it is taken in. If it does not answer there, nothing has changed.
    store.add_learner(new.id, &new.name, &new.address).await.map_err(|err| refusal(&err))?;
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
        Error::LastMember => {
            Refusal::NoMembers { why: "its only voting member has the name of the joining one: choose another with --node-name".to_owned() }
        }
        other => Refusal::NotReady { why: Chain(other).to_string() },
    }
}

/// Asks the servers one after the other (`host:port`) to take this one in.
///
/// Errors: the verdict of the first that answers, or why the first could not be reached.
pub async fn ask(servers: &[String], new: &NewMember, tls: &Arc<rustls::ClientConfig>, group: &Group) -> Result<(), Refusal> {
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
    let req = Request::builder().method(Method::POST).uri(MEMBERS).header(HOST, server).header(CONTENT_TYPE, "application/json");
    let req = req.body(body::full(bytes)).map_err(|err| invalid(err.to_string()))?;
    let stream = dial::tcp(host, port, host, Some(Arc::clone(tls))).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    let answer = dial::request(stream, server, req, group).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    let status = answer.status();
    let bytes = body::collect(answer.into_body(), BODY_BYTES_MAX).await.map_err(|err| unreachable(Chain(&err).to_string()))?;
    if status == StatusCode::OK {
        return Ok(());
    }
    let odd = || Refusal::NotKedge { url: format!("https://{server}"), why: format!("it answered {status} to {MEMBERS}") };
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| odd()))
}
