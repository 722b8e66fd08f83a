//! A plugin's socket: gRPC calls over it, each with a limit and upstream's text for a failure.

use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::runtime::cri;

/// Bytes of one answer at most.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A call that failed, in upstream's words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rpc error: code = {name} desc = {message}", name = name(*code))]
pub(crate) struct CallError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl CallError {
    /// Whether the plugin has surely stopped working on it. The others may still have an effect.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        )
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        CallError { code: status.code(), message: status.message().to_owned() }
    }
}

fn name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// A plugin. It is connected to by its first call, and again after it was away. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Link(Channel);

impl Link {
    pub(crate) fn new(socket: &Path) -> Link {
        Link(cri::channel(socket))
    }

    /// One call with one answer.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, message: Q, timeout: Duration) -> Result<A, CallError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let ask = async {
            let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
            grpc.ready().await.map_err(unreachable)?;
            let mut request = Request::new(message);
            request.set_timeout(timeout);
            let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await;
            answer.map(tonic::Response::into_inner).map_err(CallError::from)
        };
        let late = || CallError { code: Code::DeadlineExceeded, message: "context deadline exceeded".to_owned() };
        tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| Err(late()))
    }

    /// A call whose answers go on.
    pub(crate) async fn follow<Q, A>(&self, path: &'static str, message: Q) -> Result<Streaming<A>, CallError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        grpc.ready().await.map_err(unreachable)?;
        let answer = grpc
            .server_streaming(Request::new(message), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default())
            .await;
        answer.map(tonic::Response::into_inner).map_err(CallError::from)
    }
}

fn unreachable(err: tonic::transport::Error) -> CallError {
    CallError { code: Code::Unavailable, message: format!("connection error: desc = \"{}\"", base::chain::Chain(&err)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_failed_reads_as_upstream_writes_it() {
        let text = |code| CallError::from(Status::new(code, "why")).to_string();
        assert_eq!(text(Code::InvalidArgument), "rpc error: code = InvalidArgument desc = why");
        assert_eq!(text(Code::Cancelled), "rpc error: code = Canceled desc = why");
    }

    // As upstream's `isFinalError`, pkg/volume/csi/csi_client.go.
    #[test]
    fn a_call_that_may_still_have_an_effect_is_not_final() {
        let is_final = |code| CallError { code, message: String::new() }.is_final();
        for code in [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::ResourceExhausted, Code::Aborted]
        {
            assert!(!is_final(code), "{code:?}");
        }
        for code in [Code::InvalidArgument, Code::NotFound, Code::Internal, Code::Unknown] {
            assert!(is_final(code), "{code:?}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_is_not_there_is_unavailable() {
        let dir = tempfile::tempdir().unwrap();
        let link = Link::new(&dir.path().join("none.sock"));
        let answer: Result<proto::plugins::Empty, _> =
            link.call("/x/Y", proto::plugins::Empty {}, Duration::from_secs(30)).await;
        let err = answer.unwrap_err();
        assert_eq!(err.code, Code::Unavailable);
        assert!(err.message.contains("No such file or directory"), "{}", err.message);
    }
}
