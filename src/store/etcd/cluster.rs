//! Members: MemberList, MemberAdd, MemberRemove, MemberUpdate, MemberPromote.

use std::sync::Arc;

use proto::etcd as pb;
use tonic::Status;

use super::context::Context;
use super::convert;
use crate::error::Error;
use crate::member::Peer;

async fn members(context: &Context) -> Result<pb::MembersResponse, Status> {
    let members = context.store.members().await.map_err(|err| convert::status(&err))?;
    let member = |member: crate::member::Member| pb::Member {
        id: member.id,
        client_urls: if member.id == context.store.member_id() { vec![context.client_url.clone()] } else { Vec::new() },
        name: if member.name.is_empty() { "default".to_owned() } else { member.name },
        peer_urls: if member.address.is_empty() { Vec::new() } else { vec![format!("https://{}", member.address)] },
        is_learner: !member.voter,
    };
    Ok(pb::MembersResponse { header: context.header(None), members: members.into_iter().map(member).collect() })
}

/// Lists the members.
pub async fn list(context: Arc<Context>, _request: pb::Empty) -> Result<pb::MembersResponse, Status> {
    members(&context).await
}

/// Refused: a server joins by itself, and brings its number along.
pub async fn add(_inner: Arc<Context>, _request: pb::MemberAddRequest) -> Result<pb::HeaderOnly, Status> {
    Err(Status::failed_precondition(
        "etcdserver: members join by starting 'kedge server --server https://... --token ...'",
    ))
}

/// Lets a member go.
pub async fn remove(context: Arc<Context>, request: pb::MemberIdRequest) -> Result<pb::MembersResponse, Status> {
    context.store.remove(request.id).await.map_err(|err| convert::status(&err))?;
    members(&context).await
}

/// Moves a member to another address.
pub async fn update(context: Arc<Context>, request: pb::MemberUpdateRequest) -> Result<pb::MembersResponse, Status> {
    let known = context.store.members().await.map_err(|err| convert::status(&err))?;
    let member = known
        .iter()
        .find(|member| member.id == request.id)
        .ok_or_else(|| convert::status(&Error::MemberNotFound { id: request.id }))?;
    let bad = || Status::invalid_argument("etcdserver: given member URLs are invalid");
    let address = request.peer_urls.first().and_then(|url| url.strip_prefix("https://")).ok_or_else(bad)?;
    let peer = Peer { addr: address.to_owned(), name: member.name.clone() };
    context.store.add_learner(member.id, peer).await.map_err(|err| convert::status(&err))?;
    members(&context).await
}

/// Makes a learner a voter.
pub async fn promote(context: Arc<Context>, request: pb::MemberIdRequest) -> Result<pb::MembersResponse, Status> {
    let known = context.store.members().await.map_err(|err| convert::status(&err))?;
    if known.iter().any(|member| member.id == request.id && member.voter) {
        return Err(Status::failed_precondition("etcdserver: can only promote a learner member"));
    }
    context.store.promote(request.id).await.map_err(|err| convert::status(&err))?;
    members(&context).await
}
