//! Endpoints and EndpointSlices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each, ip};
use crate::validate::error::FieldError;
use crate::validate::metadata;
use crate::validate::path::Path;

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const TOPOLOGY_MAX: usize = 16;
const HINTS_MAX: usize = 8;
const KINDS: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Endpoints.
pub(crate) fn endpoints(object: &Value, errors: &mut Errors) {
    for (idx, subset) in read::list(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{idx}]");
        let (ready, not_ready) = (read::list(subset, "addresses"), read::list(subset, "notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            let message = "must specify `addresses` or `notReadyAddresses`";
            errors.push(FieldError::required(path.as_str(), message));
        }
        for (field, list) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
            for (at, one) in list.iter().enumerate() {
                let path = format!("{path}.{field}[{at}]");
                address(read::text(one, "ip"), Path(&format!("{path}.ip")), errors);
                host_and_node(one, Path(&path), errors);
            }
        }
        let ports = read::list(subset, "ports");
        for (at, entry) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{at}]");
            match read::text(entry, "name") {
                "" if ports.len() > 1 => errors.push(FieldError::required(format!("{path}.name"), "")),
                "" => {}
                name => invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors),
            }
            let number = read::number(entry, "port");
            invalid_each(Path(&format!("{path}.port")), number, names::port_number_errors(number), errors);
            protocol(entry, Path(&path), errors);
        }
    }
}

fn protocol(entry: &Value, path: Path<'_>, errors: &mut Errors) {
    match read::text(entry, "protocol") {
        "" => errors.push(FieldError::required(format!("{path}.protocol"), "")),
        other if !PROTOCOLS.contains(&other) => {
            errors.push(FieldError::not_supported(format!("{path}.protocol"), other, &PROTOCOLS))
        }
        _ => {}
    }
    if let Some(application) = read::some_text(entry, "appProtocol") {
        invalid_each(
            Path(&format!("{path}.appProtocol")),
            application,
            names::qualified_name_errors(application),
            errors,
        );
    }
}

fn host_and_node(of: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(host) = read::some_text(of, "hostname") {
        invalid_each(Path(&format!("{path}.hostname")), host, names::dns_label_errors(host), errors);
    }
    if let Some(node) = read::at(of, "nodeName").and_then(Value::as_str) {
        invalid_each(Path(&format!("{path}.nodeName")), node, names::dns_subdomain_errors(node), errors);
    }
}

/// An address that traffic may be sent to.
fn address(text: &str, path: Path<'_>, errors: &mut Errors) {
    let Ok(parsed) = text.parse::<IpAddr>() else { return ip(text, path, errors) };
    let (local, multicast) = match parsed {
        IpAddr::V4(a) => (a.is_link_local(), a.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(a) => (a.is_unicast_link_local(), a.segments()[0] & 0xff0f == 0xff02),
    };
    let mut wrong = |why: &str| errors.push(FieldError::invalid(path, text, why));
    if parsed.is_unspecified() {
        wrong(&format!("may not be unspecified ({text})"));
    }
    if parsed.is_loopback() {
        wrong("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if local {
        wrong("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        wrong("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// EndpointSlice.
pub(crate) fn slice(object: &Value, errors: &mut Errors) {
    let kind = read::text(object, "addressType");
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !KINDS.contains(&kind) {
        errors.push(FieldError::not_supported("addressType", kind, &KINDS));
    }
    ports(read::list(object, "ports"), errors);
    let endpoints = read::list(object, "endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), ENDPOINTS_MAX));
        return;
    }
    for (idx, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{idx}]");
        addresses(endpoint, kind, Path(&format!("{path}.addresses")), errors);
        let topology = read::map(endpoint, "deprecatedTopology");
        if let Some(n) = topology.map(serde_json::Map::len).filter(|n| *n > TOPOLOGY_MAX) {
            errors.push(FieldError::too_many(format!("{path}.deprecatedTopology"), n, TOPOLOGY_MAX));
        }
        if let Some(map) = topology {
            metadata::labels(map, Path(&format!("{path}.deprecatedTopology")), errors);
        }
        host_and_node(endpoint, Path(&path), errors);
        hints(endpoint, "forZones", names::label_value_errors, Path(&path), errors);
        hints(endpoint, "forNodes", names::dns_subdomain_errors, Path(&path), errors);
    }
}

fn addresses(endpoint: &Value, kind: &str, path: Path<'_>, errors: &mut Errors) {
    let addresses = read::texts(endpoint, "addresses");
    if addresses.is_empty() {
        errors.push(FieldError::required(path, "must contain at least 1 address"));
    } else if addresses.len() > ADDRESSES_MAX {
        errors.push(FieldError::too_many(path, addresses.len(), ADDRESSES_MAX));
    }
    for (idx, text) in addresses.into_iter().enumerate() {
        let here = format!("{path}[{idx}]");
        match kind {
            "IPv4" | "IPv6" => {
                let parsed = text.parse::<IpAddr>();
                if parsed.is_ok_and(|a| a.is_ipv4() != (kind == "IPv4")) {
                    errors.push(FieldError::invalid(path, text, format!("must be an {kind} address")));
                }
                address(text, Path(&here), errors);
            }
            "FQDN" => fqdn(text, Path(&here), errors),
            _ => {}
        }
    }
}

fn fqdn(text: &str, path: Path<'_>, errors: &mut Errors) {
    let name = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let wrong = names::dns_subdomain_errors(name);
    if wrong.is_empty() && !name.contains('.') {
        errors.push(FieldError::invalid(path, text, "should be a domain with at least two segments separated by dots"));
    }
    invalid_each(path, text, wrong, errors);
}

fn ports(ports: &[Value], errors: &mut Errors) {
    if ports.len() > PORTS_MAX {
        errors.push(FieldError::too_many("ports", ports.len(), PORTS_MAX));
        return;
    }
    let mut seen = BTreeSet::new();
    for (idx, entry) in ports.iter().enumerate() {
        let (name, path) = (read::text(entry, "name"), format!("ports[{idx}]"));
        if !name.is_empty() {
            invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors);
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        protocol(entry, Path(&path), errors);
    }
}

fn hints(endpoint: &Value, field: &str, check: fn(&str) -> Vec<String>, path: Path<'_>, errors: &mut Errors) {
    let (list, path) = (read::list(endpoint, &format!("hints.{field}")), format!("{path}.hints.{field}"));
    if list.len() > HINTS_MAX {
        errors.push(FieldError::too_many(path, list.len(), HINTS_MAX));
        return;
    }
    let mut seen = BTreeSet::new();
    for (idx, one) in list.iter().enumerate() {
        let (name, here) = (read::text(one, "name"), format!("{path}[{idx}].name"));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(here.as_str(), name));
        }
        invalid_each(Path(&here), name, check(name), errors);
    }
}

/// Of which sort its addresses are stays.
pub(crate) fn slice_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "addressType", errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::testing::wrong;
    use serde_json::json;

    #[test]
    fn addresses_are_of_the_slice_s_sort_and_can_be_sent_to() {
        let slice_of = |kind: &str, text: &str| json!({"addressType": kind, "endpoints": [{"addresses": [text]}]});
        assert!(wrong(slice, slice_of("IPv4", "10.0.0.1")).is_empty());
        assert!(wrong(slice, slice_of("FQDN", "a.example.com.")).is_empty());
        let cases = [
            ("IPv4", "fd00::1", "endpoints[0].addresses: Invalid value: \"fd00::1\": must be an IPv4 address"),
            (
                "IPv4",
                "127.0.0.1",
                "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
            ),
            (
                "IPv6",
                "fe80::1",
                "endpoints[0].addresses[0]: Invalid value: \"fe80::1\": may not be in the link-local range",
            ),
            ("FQDN", "host", "endpoints[0].addresses[0]: Invalid value: \"host\": should be a domain"),
            ("Odd", "x", "addressType: Unsupported value: \"Odd\": supported values: \"FQDN\", \"IPv4\", \"IPv6\""),
        ];
        for (kind, text, start) in cases {
            let said = wrong(slice, slice_of(kind, text));
            assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
        }
    }

    #[test]
    fn ports_say_their_protocol() {
        let ports = json!([{"name": "a", "port": 1, "protocol": "TCP"}, {"name": "a", "port": 2, "protocol": "ICMP"}]);
        assert_eq!(
            wrong(slice, json!({"addressType": "IPv4", "ports": ports})),
            [
                "ports[1].name: Duplicate value: \"a\"",
                "ports[1].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ]
        );
        let subset =
            json!({"addresses": [{"ip": "10.0.0.1", "hostname": "A"}], "ports": [{"port": 0, "protocol": "TCP"}]});
        let said = wrong(endpoints, json!({"subsets": [subset]}));
        assert!(said[0].starts_with("subsets[0].addresses[0].hostname: Invalid value: \"A\""), "{said:?}");
        assert_eq!(said[1], "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive");
    }
}
