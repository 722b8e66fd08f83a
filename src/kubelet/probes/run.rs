//! One try of a probe, by its kind.

use std::time::Duration;

use base::chain::Chain;
use k8s_openapi::api::core::v1::Probe;
use tokio::net::TcpStream;

use super::{grpc, http};
use crate::probes::dial::{DialFailed, joined, port_of};
use crate::probes::target::Target;
use crate::probes::verdict::Verdict;

/// Bytes of a probe's output in an event, as upstream.
const OUTPUT_BYTES_MAX: usize = 10 * 1024;

pub(super) async fn once(target: &Target, probe: &Probe, timeout: Duration) -> Verdict {
    if let Some(exec) = &probe.exec {
        return run_exec(target, exec.command.clone().unwrap_or_default(), timeout).await;
    }
    if let Some(get) = &probe.http_get {
        let host = get.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(&target.ip);
        return match http::get(get, &target.container, host, timeout, &target.node.group).await {
            Ok(None) => Verdict::Success,
            Ok(Some(text)) => Verdict::Warning(text),
            Err(err) => Verdict::Failure(Chain(&err).to_string()),
        };
    }
    if let Some(socket) = &probe.tcp_socket {
        let host = socket.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(&target.ip);
        let Some(port) = port_of(&socket.port, &target.container) else {
            return Verdict::Error(format!("couldn't extract TCP port: {:?}", socket.port));
        };
        return match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
            Ok(Ok(_)) => Verdict::Success,
            Ok(Err(err)) => Verdict::Failure(DialFailed::new(host, port, err).to_string()),
            Err(_) => Verdict::Failure(format!("dial tcp {}: i/o timeout", joined(host, port))),
        };
    }
    if let Some(call) = &probe.grpc {
        let Ok(port) = u16::try_from(call.port) else { return Verdict::Error(format!("bad port {}", call.port)) };
        return grpc::check(&target.ip, port, call.service.clone().unwrap_or_default(), timeout).await;
    }
    Verdict::Error("missing probe handler".to_owned())
}

async fn run_exec(target: &Target, command: Vec<String>, timeout: Duration) -> Verdict {
    match target.node.runtime.cri.exec_sync(&target.id, command.clone(), timeout).await {
        Ok(answer) if answer.exit_code == 0 => Verdict::Success,
        Ok(answer) => {
            let mut output = [answer.stdout, answer.stderr].concat();
            output.truncate(OUTPUT_BYTES_MAX);
            Verdict::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Err(err) if err.status.code() == tonic::Code::DeadlineExceeded => Verdict::Failure(format!(
            "command timed out: \"{}\" timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(err) => Verdict::Error(err.to_string()),
    }
}
