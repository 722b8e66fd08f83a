//! The gRPC health check, grpc.health.v1.Health/Check.

use std::time::Duration;

use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::probes::dial::joined;
use crate::probes::verdict::Verdict;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

pub(super) async fn check(ip: &str, port: u16, service: String, timeout: Duration) -> Verdict {
    let addr = joined(ip, port);
    let ask = async {
        let endpoint =
            Endpoint::from_shared(format!("http://{addr}")).map_err(|err| Verdict::Error(err.to_string()))?;
        let unreachable = || {
            Verdict::Failure(format!(
                "timeout: failed to connect service \"{addr}\" within {timeout:?}: context deadline exceeded"
            ))
        };
        let channel = endpoint.connect().await.map_err(|_| unreachable())?;
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|_| unreachable())?;
        let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec: ProstCodec<HealthCheckRequest, HealthCheckResponse> = ProstCodec::default();
        let answer = grpc.unary(Request::new(HealthCheckRequest { service }), path, codec).await;
        answer.map(|a| a.into_inner().status).map_err(|status| match status.code() {
            tonic::Code::Unimplemented => Verdict::Failure(format!(
                "this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            )),
            _ => Verdict::Failure(format!(
                "health rpc failed: rpc error: code = {:?} desc = {}",
                status.code(),
                status.message()
            )),
        })
    };
    match tokio::time::timeout(timeout, ask).await {
        Ok(Ok(SERVING)) => Verdict::Success,
        Ok(Ok(status)) => {
            let name = match status {
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => "UNKNOWN",
            };
            Verdict::Failure(format!("service unhealthy (responded with \"{name}\")"))
        }
        Ok(Err(verdict)) => verdict,
        Err(_) => Verdict::Failure(format!(
            "timeout: failed to connect service \"{addr}\" within {timeout:?}: context deadline exceeded"
        )),
    }
}
