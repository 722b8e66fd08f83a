//! `nodes/proxy`: the way to a node, or to its kubelet.

use http::Response;
use registry::connect::Target;
use registry::status::Status;
use wire::Body;

use super::passing::{self, behind_proxy, node_of, proxyable, scheme_name_port};
use crate::verbs::Call;

/// `nodes/proxy`.
pub(super) async fn proxy(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let target = target(call)?;
    passing::proxy(call, target).await
}

fn target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (_, name, port) = scheme_name_port("node", &call.x.attributes.name)?;
    let node = node_of(call, &name)?;
    let (path_and_query, prefix) = behind_proxy(call)?;
    let kubelet = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        .as_u64()
        .unwrap_or(u64::from(base::ports::KUBELET));
    match port.parse::<u16>() {
        Ok(number) if u64::from(number) != kubelet => {
            let host = node["status"]["addresses"][0]["address"].as_str().unwrap_or(&name).to_owned();
            proxyable(&host)?;
            Ok(Target::Proxy {
                scheme: "http".to_owned(),
                host,
                port: number,
                path_and_query,
                node: Some(node),
                prefix,
            })
        }
        _ => Ok(Target::Kubelet { node, path_and_query }),
    }
}
