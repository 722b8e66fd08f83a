//! The two sockets: where plugins of devices register, and where others ask who has which.

use std::sync::Arc;

use async_trait::async_trait;
use base::chain::Chain;
use base::task::Group;
use http::{Request, Response};
use model::reference::NamespacedName;
use proto::plugins as pb;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use wire::{Body, ConnInfo, Handler};

use super::follow;
use crate::node::Node;
use crate::pods::map::Pods;

/// Bytes of a request at most.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

struct Registration {
    node: Arc<Node>,
    group: Group,
}

struct PodResources {
    node: Arc<Node>,
    pods: Pods,
}

/// Where plugins register.
pub(super) fn registration(node: &Arc<Node>, group: &Group) -> Arc<dyn Handler> {
    Arc::new(Registration { node: Arc::clone(node), group: group.clone() })
}

/// Where others ask.
pub(super) fn pod_resources(node: &Arc<Node>, pods: &Pods) -> Arc<dyn Handler> {
    Arc::new(PodResources { node: Arc::clone(node), pods: pods.clone() })
}

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

fn unknown(path: &str) -> Response<Body> {
    Status::unimplemented(format!("unknown method {path}")).into_http::<tonic::body::Body>().map(wire::body::from_http)
}

#[async_trait]
impl Handler for Registration {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        match req.uri().path() {
            pb::REGISTER => {
                let (node, group) = (Arc::clone(&self.node), self.group.clone());
                unary(req, move |message: pb::RegisterRequest| {
                    let (node, group) = (Arc::clone(&node), group.clone());
                    async move {
                        let taken = follow::by_call(&node, &group, message).await;
                        taken.map(|()| pb::Empty {}).map_err(|err| Status::unknown(Chain(&err).to_string()))
                    }
                })
                .await
            }
            path => unknown(path),
        }
    }
}

#[async_trait]
impl Handler for PodResources {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        let node = Arc::clone(&self.node);
        match req.uri().path() {
            pb::LIST => {
                let all = self.pods.all();
                unary(req, move |_: pb::Empty| {
                    let pod_resources = all.iter().map(|(pod, _)| node.devices.of_pod(pod)).collect();
                    async move { Ok(pb::PodsResponse { pod_resources }) }
                })
                .await
            }
            pb::GET => {
                let pods = self.pods.clone();
                unary(req, move |asked: pb::PodRequest| {
                    let (ns, name) = (&asked.pod_namespace, &asked.pod_name);
                    let asked = NamespacedName { namespace: ns, name };
                    let found = pods.find(asked).map(|(pod, _)| node.devices.of_pod(&pod));
                    let found = found.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {ns} not found")));
                    async move { found.map(|pod| pb::PodResponse { pod_resources: Some(pod) }) }
                })
                .await
            }
            pb::GET_ALLOCATABLE_RESOURCES => {
                unary(req, move |_: pb::Empty| {
                    let cpus = 0..node.machine.cpus;
                    let answer = pb::AllocatableResponse { devices: node.devices.all(), cpu_ids: cpus.collect() };
                    async move { Ok(answer) }
                })
                .await
            }
            path => unknown(path),
        }
    }
}
