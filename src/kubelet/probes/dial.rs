//! Addresses of probes and hooks, and upstream's texts for those that cannot be reached.

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A port by number or by the name that the container gives it.
pub(crate) fn port_of(port: &IntOrString, container: &Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name))?.container_port,
        },
    };
    u16::try_from(number).ok().filter(|p| *p > 0)
}

pub(crate) fn joined(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Go's words for a failed dial: people and tests search for them.
pub(crate) fn dial_text(host: &str, port: u16, err: &std::io::Error) -> String {
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
