//! One try of a probe, by its kind.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::{Target, Verdict, grpc, http};

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
            Err(text) => Verdict::Failure(text),
        };
    }
    if let Some(socket) = &probe.tcp_socket {
        let host = socket.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(&target.ip);
        let Some(port) = port_of(&socket.port, &target.container) else {
            return Verdict::Error(format!("couldn't extract TCP port: {:?}", socket.port));
        };
        return match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
            Ok(Ok(_)) => Verdict::Success,
            Ok(Err(err)) => Verdict::Failure(dial_text(host, port, &err)),
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

/// A port by number or by the name that the container gives it.
pub(super) fn port_of(port: &IntOrString, container: &Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name))?.container_port,
        },
    };
    u16::try_from(number).ok().filter(|p| *p > 0)
}

pub(super) fn joined(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Go's words for a failed dial: people and tests search for them.
pub(super) fn dial_text(host: &str, port: u16, err: &std::io::Error) -> String {
    let why = match err.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => err.to_string(),
    };
    format!("dial tcp {}: {why}", joined(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_port_is_found_in_the_container() {
        let container: Container =
            serde_json::from_value(serde_json::json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}))
                .unwrap();
        assert_eq!(port_of(&IntOrString::String("web".to_owned()), &container), Some(8080));
        assert_eq!(port_of(&IntOrString::String("none".to_owned()), &container), None);
        assert_eq!(port_of(&IntOrString::Int(70000), &container), None);
    }
}
