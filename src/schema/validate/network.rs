//! Services, endpoints, network policies.

use std::collections::BTreeSet;

use model::names;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, cidr, invalid_each, ip, label_selector};
use crate::validate::container::port;
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::{metadata, service_addresses};

pub(crate) fn service(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let kind = read::text(spec, "type");
    let ports = read::list(spec, "ports");
    let cluster_ip = read::text(spec, "clusterIP");
    let headless = cluster_ip == "None";
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let message = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", message));
        }
        "ExternalName" => {
            let name = read::text(spec, "externalName");
            match name {
                "" => errors.push(FieldError::required("spec.externalName", "")),
                _ => {
                    let messages = names::dns_subdomain_errors(name.trim_end_matches('.'));
                    invalid_each(Path("spec.externalName"), name, messages, errors);
                }
            }
        }
        "ClusterIP" | "LoadBalancer" | "NodePort" => {}
        other => {
            errors.push(FieldError::not_supported(
                "spec.type",
                other,
                &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
            ));
        }
    }
    service_addresses::check(object, errors);
    service_ports(ports, kind, errors);
    if let Some(selector) = read::map(spec, "selector") {
        metadata::labels(selector, Path("spec.selector"), errors);
    }
    for (idx, address) in read::texts(spec, "externalIPs").iter().enumerate() {
        ip(address, Path(&format!("spec.externalIPs[{idx}]")), errors);
    }
    balancer(object, spec, kind, errors);
    traffic(spec, kind, errors);
    affinity(spec, errors);
    if read::text(spec, "sessionAffinity") == "None" && read::at(spec, "sessionAffinityConfig").is_some() {
        let message = "must not be set when session affinity is None";
        errors.push(FieldError::forbidden("spec.sessionAffinityConfig", message));
    }
}

/// Fields that only balancers have.
fn balancer(object: &Value, spec: &Value, kind: &str, errors: &mut Errors) {
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = read::texts(spec, "loadBalancerSourceRanges");
    // Upstream spells this path with a capital.
    let path = "spec.LoadBalancerSourceRanges";
    if !ranges.is_empty() && kind != "LoadBalancer" {
        errors.push(FieldError::forbidden(path, only));
    }
    for (idx, range) in ranges.iter().enumerate() {
        cidr(range.trim(), Path(&format!("{path}[{idx}]")), errors);
    }
    let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
    if let Some(text) = model::meta::annotation(object, key).filter(|_| ranges.is_empty()) {
        let path = format!("metadata.annotations[{key}]");
        if kind != "LoadBalancer" {
            errors.push(FieldError::forbidden(path.as_str(), only));
        }
        for range in text.trim().split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            cidr(range, Path(&path), errors);
        }
    }
    if read::at(spec, "allocateLoadBalancerNodePorts").is_some() && kind != "LoadBalancer" {
        errors.push(FieldError::forbidden("spec.allocateLoadBalancerNodePorts", only));
    }
    if let Some(class) = read::at(spec, "loadBalancerClass").and_then(Value::as_str) {
        match kind {
            "LoadBalancer" => {
                invalid_each(Path("spec.loadBalancerClass"), class, names::qualified_name_errors(class), errors)
            }
            _ => errors.push(FieldError::forbidden("spec.loadBalancerClass", only)),
        }
    }
}

/// Where packets go: policies for traffic from outside and inside, and which endpoints are preferred.
fn traffic(spec: &Value, kind: &str, errors: &mut Errors) {
    let external = read::text(spec, "externalTrafficPolicy");
    let outside = matches!(kind, "LoadBalancer" | "NodePort")
        || (matches!(kind, "ClusterIP" | "") && !read::list(spec, "externalIPs").is_empty());
    if !outside && !external.is_empty() {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid("spec.externalTrafficPolicy", external, why));
    } else if outside && !matches!(external, "Cluster" | "Local" | "") {
        errors.push(FieldError::not_supported("spec.externalTrafficPolicy", external, &["Cluster", "Local"]));
    }
    let port = read::number(spec, "healthCheckNodePort");
    if port != 0 && !(kind == "LoadBalancer" && external == "Local") {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid("spec.healthCheckNodePort", port, why));
    }
    let internal = read::at(spec, "internalTrafficPolicy").and_then(Value::as_str);
    if let Some(internal) = internal.filter(|policy| !matches!(*policy, "Cluster" | "Local")) {
        errors.push(FieldError::not_supported("spec.internalTrafficPolicy", internal, &["Cluster", "Local"]));
    }
    if let Some(near) = read::at(spec, "trafficDistribution").and_then(Value::as_str) {
        let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        if !supported.contains(&near) {
            errors.push(FieldError::not_supported("spec.trafficDistribution", near, &supported));
        }
    }
}

fn affinity(spec: &Value, errors: &mut Errors) {
    match read::text(spec, "sessionAffinity") {
        "" | "None" => {}
        "ClientIP" => {
            let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            if let Some(secs) = read::integer(spec, "sessionAffinityConfig.clientIP.timeoutSeconds")
                .filter(|s| !(1..=86400).contains(s))
            {
                errors.push(FieldError::invalid(path, secs, "must be greater than 0 and less than 86400"));
            }
        }
        other => errors.push(FieldError::not_supported("spec.sessionAffinity", other, &["ClientIP", "None"])),
    }
}

fn service_ports(ports: &[Value], kind: &str, errors: &mut Errors) {
    let (mut port_names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (idx, entry) in ports.iter().enumerate() {
        let path = format!("spec.ports[{idx}]");
        match read::text(entry, "name") {
            "" if ports.len() > 1 => errors.push(FieldError::required(format!("{path}.name"), "")),
            "" => {}
            name => {
                invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors);
                if !port_names.insert(name) {
                    errors.push(FieldError::duplicate(format!("{path}.name"), name));
                }
            }
        }
        let (number, protocol) = (read::number(entry, "port"), read::text(entry, "protocol"));
        invalid_each(Path(&format!("{path}.port")), number, names::port_number_errors(number), errors);
        if let Some(target) = read::at(entry, "targetPort") {
            port(Some(target), Path(&format!("{path}.targetPort")), errors);
        }
        if !matches!(protocol, "" | "SCTP" | "TCP" | "UDP") {
            errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"]));
        }
        if let Some(application) = read::at(entry, "appProtocol").and_then(Value::as_str) {
            invalid_each(
                Path(&format!("{path}.appProtocol")),
                application,
                names::qualified_name_errors(application),
                errors,
            );
        }
        if !numbers.insert((number, protocol)) {
            // Upstream shows a port of its own type with nothing else in it.
            let shown = json!({"Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0,
                "NodePort": 0});
            errors.push(FieldError::duplicate(path.as_str(), shown));
        }
        let node_port = read::number(entry, "nodePort");
        if node_port != 0 {
            if matches!(kind, "ClusterIP" | "") {
                let message = "may not be used when `type` is 'ClusterIP'";
                errors.push(FieldError::forbidden(format!("{path}.nodePort"), message));
            }
            if !node_ports.insert((node_port, protocol)) {
                errors.push(FieldError::duplicate(format!("{path}.nodePort"), node_port));
            }
        }
    }
}

pub(crate) fn network_policy(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    if let Some(selector) = read::at(spec, "podSelector") {
        label_selector(selector, Path("spec.podSelector"), errors);
    }
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (idx, rule) in read::list(spec, rules).iter().enumerate() {
            let path = format!("spec.{rules}[{idx}]");
            for (at, entry) in read::list(rule, "ports").iter().enumerate() {
                policy_port(entry, Path(&format!("{path}.ports[{at}]")), errors);
            }
            for (at, peer) in read::list(rule, peers).iter().enumerate() {
                policy_peer(peer, Path(&format!("{path}.{peers}[{at}]")), errors);
            }
        }
    }
    let kinds = read::texts(spec, "policyTypes");
    if kinds.len() > 2 {
        errors.push(FieldError::invalid("spec.policyTypes", kinds, "may not specify more than two policyTypes"));
        return;
    }
    for (idx, kind) in kinds.into_iter().enumerate().filter(|(_, k)| !["Ingress", "Egress"].contains(k)) {
        errors.push(FieldError::not_supported(format!("spec.policyTypes[{idx}]"), kind, &["Ingress", "Egress"]));
    }
}

fn policy_port(entry: &Value, path: Path<'_>, errors: &mut Errors) {
    let protocol = read::at(entry, "protocol").and_then(Value::as_str);
    if let Some(protocol) = protocol.filter(|p| !["TCP", "UDP", "SCTP"].contains(p)) {
        errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &["TCP", "UDP", "SCTP"]));
    }
    let given = read::at(entry, "port");
    if let Some(given) = given {
        port(Some(given), Path(&format!("{path}.port")), errors);
    }
    if let Some(end) = read::integer(entry, "endPort") {
        match given.map(Value::as_i64) {
            Some(Some(start)) => {
                if end < start {
                    // Upstream shows the port here.
                    errors.push(FieldError::invalid(
                        format!("{path}.endPort"),
                        start,
                        "must be greater than or equal to `port`",
                    ));
                }
                invalid_each(Path(&format!("{path}.endPort")), end, names::port_number_errors(end), errors);
            }
            Some(None) => {
                errors.push(FieldError::invalid(
                    format!("{path}.endPort"),
                    end,
                    "may not be specified when `port` is non-numeric",
                ));
            }
            None => errors.push(FieldError::invalid(
                format!("{path}.endPort"),
                end,
                "may not be specified when `port` is not specified",
            )),
        }
    }
}

fn policy_peer(peer: &Value, path: Path<'_>, errors: &mut Errors) {
    let block = read::at(peer, "ipBlock");
    let selectors = ["podSelector", "namespaceSelector"];
    let selected = selectors.iter().filter(|f| read::at(peer, f).is_some()).count();
    for field in selectors {
        if let Some(selector) = read::at(peer, field) {
            label_selector(selector, Path(&format!("{path}.{field}")), errors);
        }
    }
    if let Some(block) = block {
        ip_block(block, Path(&format!("{path}.ipBlock")), errors);
    }
    match block {
        None if selected == 0 => errors.push(FieldError::required(path, "must specify a peer")),
        Some(_) if selected > 0 => {
            errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"))
        }
        _ => {}
    }
}

fn ip_block(block: &Value, path: Path<'_>, errors: &mut Errors) {
    let whole = read::text(block, "cidr");
    if whole.is_empty() {
        errors.push(FieldError::required(format!("{path}.cidr"), ""));
        return;
    }
    cidr(whole, Path(&format!("{path}.cidr")), errors);
    let Ok(whole) = whole.parse::<ipnet::IpNet>() else { return };
    for (idx, except) in read::texts(block, "except").into_iter().enumerate() {
        let here = format!("{path}.except[{idx}]");
        cidr(except, Path(&here), errors);
        let Ok(part) = except.parse::<ipnet::IpNet>() else { continue };
        if !whole.contains(&part.network()) || whole.prefix_len() >= part.prefix_len() {
            errors.push(FieldError::invalid(here, except, "must be a strict subset of `cidr`"));
        }
    }
}

/// ServiceCIDR: one range, or one of each family.
pub(crate) fn service_cidr(object: &Value, errors: &mut Errors) {
    let ranges = read::texts(object, "spec.cidrs");
    if ranges.is_empty() {
        errors.push(FieldError::required("spec.cidrs", "at least one CIDR required"));
    } else if ranges.len() > 2 {
        errors.push(FieldError::invalid("spec.cidrs", json!({"cidrs": ranges}), "may only hold up to 2 values"));
        return;
    }
    for (idx, range) in ranges.iter().enumerate() {
        cidr(range, Path(&format!("spec.cidrs[{idx}]")), errors);
    }
    if let [first, second] = ranges.as_slice()
        && let (Ok(first), Ok(second)) = (first.parse::<ipnet::IpNet>(), second.parse::<ipnet::IpNet>())
        && matches!(first, ipnet::IpNet::V4(_)) == matches!(second, ipnet::IpNet::V4(_))
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid("spec.cidrs", ranges, why));
    }
}

/// A second range may come; nothing else changes.
pub(crate) fn service_cidr_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (read::texts(new, "spec.cidrs"), read::texts(old, "spec.cidrs"));
    if now.len() != before.len() && (before.len(), now.len()) != (1, 2) {
        errors.push(FieldError::invalid("spec.cidrs", now, IMMUTABLE));
        return;
    }
    for (idx, (now, before)) in now.into_iter().zip(before).enumerate() {
        if now != before {
            errors.push(FieldError::invalid(format!("spec.cidrs[{idx}]"), now, IMMUTABLE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::testing::wrong_spec as wrong;

    #[test]
    fn what_a_policy_excepts_is_part_of_its_block() {
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Sideways"], "ingress": [{
            "ports": [{"port": 80, "endPort": 70, "protocol": "ICMP"}],
            "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8", "11.0.0.0/16", "10.1.0.0/16"]}},
                {"ipBlock": {}}]}]});
        assert_eq!(
            wrong(network_policy, spec),
            [
                "spec.ingress[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \
                \"SCTP\"",
                "spec.ingress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`",
                "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of \
                `cidr`",
                "spec.ingress[0].from[0].ipBlock.except[1]: Invalid value: \"11.0.0.0/16\": must be a strict subset of \
                `cidr`",
                "spec.ingress[0].from[1].ipBlock.cidr: Required value",
                "spec.policyTypes[1]: Unsupported value: \"Sideways\": supported values: \"Ingress\", \"Egress\"",
            ]
        );
    }

    #[test]
    fn service_ranges_are_one_a_family_and_stay() {
        assert!(wrong(service_cidr, json!({"cidrs": ["10.0.0.0/16", "fd00::/112"]})).is_empty());
        assert_eq!(wrong(service_cidr, json!({"cidrs": ["10.0.0.0/16", "10.1.0.0/16"]})).len(), 1);
        let update = |new: Value, old: Value| {
            let mut errors = Vec::new();
            service_cidr_update(&json!({"spec": {"cidrs": new}}), &json!({"spec": {"cidrs": old}}), &mut errors);
            errors.len()
        };
        assert_eq!(update(json!(["a", "b"]), json!(["a"])), 0);
        assert_eq!(update(json!(["a"]), json!(["a", "b"])), 1);
        assert_eq!(update(json!(["b"]), json!(["a"])), 1);
    }
}
