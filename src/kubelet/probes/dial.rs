//! Addresses of probes and hooks, and upstream's texts for those that cannot be reached.

use std::io;

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

/// A dial that failed, in Go's words: people and tests search for them.
#[derive(Debug, thiserror::Error)]
#[error("dial tcp {to}: {why}", why = in_go(err))]
pub(crate) struct DialFailed {
    /// Host and port.
    to: String,
    err: io::Error,
}

impl DialFailed {
    pub(crate) fn new(host: &str, port: u16, err: io::Error) -> DialFailed {
        DialFailed { to: joined(host, port), err }
    }
}

fn in_go(err: &io::Error) -> String {
    match err.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => err.to_string(),
    }
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
        assert_eq!(port_of(&IntOrString::Int(0), &container), None);
        assert_eq!(port_of(&IntOrString::String("81".to_owned()), &container), Some(81), "a number in quotes");
    }

    #[test]
    fn a_failed_dial_is_told_in_gos_words() {
        for (kind, host, expected) in [
            (io::ErrorKind::ConnectionRefused, "10.0.0.1", "dial tcp 10.0.0.1:80: connect: connection refused"),
            (io::ErrorKind::HostUnreachable, "fd00::1", "dial tcp [fd00::1]:80: connect: no route to host"),
            (io::ErrorKind::NetworkUnreachable, "h", "dial tcp h:80: connect: network is unreachable"),
            (io::ErrorKind::TimedOut, "h", "dial tcp h:80: i/o timeout"),
        ] {
            assert_eq!(DialFailed::new(host, 80, kind.into()).to_string(), expected);
        }
        let other = DialFailed::new("h", 80, io::Error::other("reset"));
        assert_eq!(other.to_string(), "dial tcp h:80: reset");
    }
}
