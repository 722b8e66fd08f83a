//! The etcd v3 API: the store for `etcdctl` and whatever else speaks etcd's protocol, with etcd's codes and texts.
//!
//! A [`wire::Handler`] over HTTP/2. It trusts its callers: who mounts it lets in only root (unix socket) or holders of
//! a client certificate of the etcd authority.

pub mod bolt;
pub mod client;
pub mod cluster;
pub mod context;
pub mod convert;
pub mod export;
pub mod kv;
pub mod lease;
pub mod maintenance;
pub mod watch;

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use base::rng::Rng;
use base::task::Group;
use http::{Request, Response};
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use wire::{Body, ConnInfo, Handler};

use crate::etcd::context::Context;
use crate::store::Store;

/// Bytes of a request at most: etcd's 1.5 MiB and some room.
const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// etcd's API over a store.
#[derive(Clone)]
pub struct Service(pub(crate) Arc<Context>);

impl Service {
    /// Over a store; `client_url` is what `member list` shows for this member.
    pub fn new(store: Arc<Store>, rng: Rng, client_url: &str, group: &Group) -> Service {
        Service(Arc::new(Context { store, rng, group: group.child("etcd"), client_url: client_url.to_owned() }))
    }
}

/// One call with one answer.
async fn unary<Q, A, F>(req: Request<Body>, answer: impl Fn(Q) -> F + Send + Sync + Clone + 'static) -> Response<Body>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let service = tower::service_fn(move |req: tonic::Request<Q>| {
        let answer = answer(req.into_inner());
        async move { answer.await.map(tonic::Response::new) }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(REQUEST_BYTES_MAX);
    grpc.unary(service, req).await.map(wire::body::from_http)
}

macro_rules! calls {
    ($context:expr, $req:expr, { $($path:literal => $call:path),+ $(,)? }) => {
        match $req.uri().path() {
            $($path => {
                let context = Arc::clone($context);
                unary($req, move |message| $call(Arc::clone(&context), message)).await
            })+
            path if path.starts_with("/etcdserverpb.Auth/") => {
                refused(Status::failed_precondition("etcdserver: authentication is not enabled"))
            }
            _ => refused(Status::unimplemented("etcdserver: this call is not served by kedge")),
        }
    };
}

fn refused(status: Status) -> Response<Body> {
    status.into_http::<tonic::body::Body>().map(wire::body::from_http)
}

#[async_trait]
impl Handler for Service {
    async fn handle(&self, req: Request<Body>, conn: Arc<ConnInfo>) -> Response<Body> {
        // Over TCP a certificate of the etcd authority is a must; a unix socket says by its mode who may come.
        if conn.client_certs.is_empty() && conn.identity.is_none() {
            return refused(Status::unauthenticated("etcdserver: a client certificate is needed"));
        }
        let context = &self.0;
        match req.uri().path() {
            "/etcdserverpb.Watch/Watch" => return watch::serve(Arc::clone(context), req).await,
            "/etcdserverpb.Lease/LeaseKeepAlive" => return lease::keep_alive(Arc::clone(context), req).await,
            "/etcdserverpb.Maintenance/Snapshot" => return maintenance::snapshot(Arc::clone(context), req).await,
            _ => {}
        }
        calls!(context, req, {
            "/etcdserverpb.KV/Range" => kv::range,
            "/etcdserverpb.KV/Put" => kv::put,
            "/etcdserverpb.KV/DeleteRange" => kv::delete,
            "/etcdserverpb.KV/Txn" => kv::txn,
            "/etcdserverpb.KV/Compact" => kv::compact,
            "/etcdserverpb.Lease/LeaseGrant" => lease::grant,
            "/etcdserverpb.Lease/LeaseRevoke" => lease::revoke,
            "/etcdserverpb.Lease/LeaseTimeToLive" => lease::time_to_live,
            "/etcdserverpb.Lease/LeaseLeases" => lease::leases,
            "/etcdserverpb.Cluster/MemberList" => cluster::list,
            "/etcdserverpb.Cluster/MemberAdd" => cluster::add,
            "/etcdserverpb.Cluster/MemberRemove" => cluster::remove,
            "/etcdserverpb.Cluster/MemberUpdate" => cluster::update,
            "/etcdserverpb.Cluster/MemberPromote" => cluster::promote,
            "/etcdserverpb.Maintenance/Alarm" => maintenance::alarm,
            "/etcdserverpb.Maintenance/Status" => maintenance::status,
            "/etcdserverpb.Maintenance/Defragment" => maintenance::defragment,
            "/etcdserverpb.Maintenance/Hash" => maintenance::hash,
            "/etcdserverpb.Maintenance/HashKV" => maintenance::hash_kv,
            "/etcdserverpb.Maintenance/MoveLeader" => maintenance::move_leader,
        })
    }
}
