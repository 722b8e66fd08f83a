//! Services, endpoints, ingresses, network policies.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, cidr, immutable, invalid_each, ip, label_selector};
use crate::validate::container::port;
use crate::validate::error::FieldError;
use crate::validate::{metadata, names};

pub(super) fn service(object: &Value, errors: &mut Errors) {
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
            let message = "may not be set for ExternalName services";
            if !cluster_ip.is_empty() {
                errors.push(FieldError::forbidden("spec.clusterIPs", message));
            }
            for field in ["ipFamilies", "ipFamilyPolicy"] {
                if read::at(spec, field).is_some_and(|v| v.as_array().is_none_or(|l| !l.is_empty())) {
                    errors.push(FieldError::forbidden(format!("spec.{field}"), message));
                }
            }
            let name = read::text(spec, "externalName");
            match name {
                "" => errors.push(FieldError::required("spec.externalName", "")),
                _ => {
                    let messages = names::dns_subdomain_errors(name.trim_end_matches('.'));
                    invalid_each("spec.externalName", name, messages, errors);
                }
            }
        }
        _ => {}
    }
    if !cluster_ip.is_empty() && !headless {
        ip(cluster_ip, "spec.clusterIPs[0]", errors);
    }
    service_ports(ports, kind, errors);
    if let Some(selector) = read::map(spec, "selector") {
        metadata::labels(selector, "spec.selector", errors);
    }
    for (idx, address) in read::texts(spec, "externalIPs").iter().enumerate() {
        ip(address, &format!("spec.externalIPs[{idx}]"), errors);
    }
    balancer(object, spec, kind, errors);
    traffic(spec, kind, errors);
    affinity(spec, errors);
    if read::text(spec, "sessionAffinity") == "None" && read::at(spec, "sessionAffinityConfig").is_some() {
        let message = "must not be set when session affinity is None";
        errors.push(FieldError::forbidden("spec.sessionAffinityConfig", message));
    }
}

/// What only balancers have.
fn balancer(object: &Value, spec: &Value, kind: &str, errors: &mut Errors) {
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = read::texts(spec, "loadBalancerSourceRanges");
    // Upstream spells this path with a capital.
    let path = "spec.LoadBalancerSourceRanges";
    if !ranges.is_empty() && kind != "LoadBalancer" {
        errors.push(FieldError::forbidden(path, only));
    }
    for (idx, range) in ranges.iter().enumerate() {
        cidr(range.trim(), &format!("{path}[{idx}]"), errors);
    }
    let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
    if let Some(text) = crate::meta::annotation(object, key).filter(|_| ranges.is_empty()) {
        let path = format!("metadata.annotations[{key}]");
        if kind != "LoadBalancer" {
            errors.push(FieldError::forbidden(path.as_str(), only));
        }
        for range in text.trim().split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            cidr(range, &path, errors);
        }
    }
    if read::at(spec, "allocateLoadBalancerNodePorts").is_some() && kind != "LoadBalancer" {
        errors.push(FieldError::forbidden("spec.allocateLoadBalancerNodePorts", only));
    }
    if let Some(class) = read::some_text(spec, "loadBalancerClass") {
        if kind != "LoadBalancer" {
            errors.push(FieldError::forbidden("spec.loadBalancerClass", "may only be used when `type` is 'LoadBalancer'"));
        }
        invalid_each("spec.loadBalancerClass", class, names::qualified_name_errors(class), errors);
    }
}

/// Where packets go: policies for traffic from outside and inside, and which endpoints are preferred.
fn traffic(spec: &Value, kind: &str, errors: &mut Errors) {
    let external = read::text(spec, "externalTrafficPolicy");
    let outside =
        matches!(kind, "LoadBalancer" | "NodePort") || (matches!(kind, "ClusterIP" | "") && !read::list(spec, "externalIPs").is_empty());
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
    let internal = read::text(spec, "internalTrafficPolicy");
    if !matches!(internal, "Cluster" | "Local" | "") {
        errors.push(FieldError::not_supported("spec.internalTrafficPolicy", internal, &["Cluster", "Local"]));
    }
    if let Some(near) = read::some_text(spec, "trafficDistribution") {
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
            if let Some(secs) = read::integer(spec, "sessionAffinityConfig.clientIP.timeoutSeconds").filter(|s| !(1..=86400).contains(s)) {
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
                invalid_each(&format!("{path}.name"), name, names::dns_label_errors(name), errors);
                if !port_names.insert(name) {
                    errors.push(FieldError::duplicate(format!("{path}.name"), name));
                }
            }
        }
        let (number, protocol) = (read::number(entry, "port"), read::text(entry, "protocol"));
        invalid_each(&format!("{path}.port"), number, names::port_number_errors(number), errors);
        if let Some(target) = read::at(entry, "targetPort") {
            port(Some(target), &format!("{path}.targetPort"), errors);
        }
        if !matches!(protocol, "" | "SCTP" | "TCP" | "UDP") {
            errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"]));
        }
        if let Some(application) = read::some_text(entry, "appProtocol") {
            invalid_each(&format!("{path}.appProtocol"), application, names::qualified_name_errors(application), errors);
        }
        if !numbers.insert((number, protocol)) {
            errors.push(FieldError::duplicate(path.as_str(), json!({"port": number, "protocol": protocol})));
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

pub(super) fn service_update(new: &Value, old: &Value, errors: &mut Errors) {
    let ip = |object: &Value| {
        let first = read::texts(object, "spec.clusterIPs").first().map(|s| (*s).to_owned());
        first.unwrap_or_else(|| read::text(object, "spec.clusterIP").to_owned())
    };
    let (now, before) = (ip(new), ip(old));
    let external = |object: &Value| read::text(object, "spec.type") == "ExternalName";
    // Leaving or entering ExternalName frees or allocates the address.
    if !external(new) && !external(old) && !before.is_empty() && now != before {
        errors.push(FieldError::invalid("spec.clusterIPs[0]", json!(read::texts(new, "spec.clusterIPs")), "may not change once set"));
    }
}

pub(super) fn endpoints(object: &Value, errors: &mut Errors) {
    for (idx, subset) in read::list(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{idx}]");
        let (ready, not_ready) = (read::list(subset, "addresses"), read::list(subset, "notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            let message = "must specify `addresses` or `notReadyAddresses`";
            errors.push(FieldError::required(path.as_str(), message));
        }
        for (field, list) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
            for (at, address) in list.iter().enumerate() {
                ip(read::text(address, "ip"), &format!("{path}.{field}[{at}].ip"), errors);
            }
        }
        let ports = read::list(subset, "ports");
        for (at, entry) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{at}]");
            if ports.len() > 1 && read::text(entry, "name").is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
            let number = read::number(entry, "port");
            invalid_each(&format!("{path}.port"), number, names::port_number_errors(number), errors);
        }
    }
}

pub(super) fn endpoint_slice(object: &Value, errors: &mut Errors) {
    let kind = read::text(object, "addressType");
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    }
    let endpoints = read::list(object, "endpoints");
    if endpoints.len() > 1000 {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), 1000));
    }
    for (idx, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{idx}].addresses");
        let addresses = read::texts(endpoint, "addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(path.as_str(), "must contain at least 1 address"));
        }
        if addresses.len() > 100 {
            errors.push(FieldError::too_many(path.as_str(), addresses.len(), 100));
        }
        for (at, address) in addresses.iter().enumerate().filter(|_| matches!(kind, "IPv4" | "IPv6")) {
            ip(address, &format!("{path}[{at}]"), errors);
        }
    }
    let mut seen = BTreeSet::new();
    for (idx, entry) in read::list(object, "ports").iter().enumerate() {
        if !seen.insert(read::text(entry, "name")) {
            errors.push(FieldError::duplicate(format!("ports[{idx}].name"), read::text(entry, "name")));
        }
    }
}

pub(super) fn endpoint_slice_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "addressType", errors);
}

pub(super) fn ingress(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let rules = read::list(spec, "rules");
    if rules.is_empty() && read::at(spec, "defaultBackend").is_none() {
        let message = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid("spec", rules.to_vec(), message));
    }
    if let Some(backend) = read::at(spec, "defaultBackend") {
        self::backend(backend, "spec.defaultBackend", errors);
    }
    for (idx, rule) in rules.iter().enumerate() {
        let path = format!("spec.rules[{idx}]");
        let host = read::text(rule, "host");
        if host.parse::<std::net::IpAddr>().is_ok() {
            errors.push(FieldError::invalid(format!("{path}.host"), host, "must be a DNS name, not an IP address"));
        } else if host.contains('*') {
            invalid_each(&format!("{path}.host"), host, names::wildcard_subdomain_errors(host), errors);
        } else if !host.is_empty() {
            invalid_each(&format!("{path}.host"), host, names::dns_subdomain_errors(host), errors);
        }
        if read::at(rule, "http").is_some() && read::list(rule, "http.paths").is_empty() {
            errors.push(FieldError::required(format!("{path}.http.paths"), ""));
        }
        for (at, entry) in read::list(rule, "http.paths").iter().enumerate() {
            ingress_path(entry, &format!("{path}.http.paths[{at}]"), errors);
        }
    }
}

fn ingress_path(entry: &Value, path: &str, errors: &mut Errors) {
    let (kind, text) = (read::text(entry, "pathType"), read::text(entry, "path"));
    match kind {
        "" => errors.push(FieldError::required(format!("{path}.pathType"), "pathType must be specified")),
        "Exact" | "Prefix" if !text.starts_with('/') => {
            errors.push(FieldError::invalid(format!("{path}.path"), text, "must be an absolute path"));
        }
        "Exact" | "Prefix" => {
            for bad in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|bad| text.contains(**bad)) {
                errors.push(FieldError::invalid(format!("{path}.path"), text, format!("must not contain '{bad}'")));
            }
        }
        _ => {}
    }
    backend(read::at(entry, "backend").unwrap_or(&Value::Null), &format!("{path}.backend"), errors);
}

fn backend(backend: &Value, path: &str, errors: &mut Errors) {
    match (read::at(backend, "service"), read::at(backend, "resource")) {
        (Some(_), Some(_)) => {
            let message = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", message));
        }
        (None, None) => errors.push(FieldError::required(path, "resource or service backend is required")),
        (None, Some(_)) => {}
        (Some(service), None) => {
            let name = read::text(service, "name");
            match name {
                "" => errors.push(FieldError::required(format!("{path}.service.name"), "")),
                _ => invalid_each(&format!("{path}.service.name"), name, names::dns_1035_label_errors(name), errors),
            }
            match (read::some_text(service, "port.name"), read::number(service, "port.number")) {
                (Some(_), n) if n != 0 => {
                    errors.push(FieldError::invalid(path, "", "cannot set both port name & port number"));
                }
                (None, 0) => errors.push(FieldError::required(path, "port name or number is required")),
                (None, n) => invalid_each(&format!("{path}.service.port.number"), n, names::port_number_errors(n), errors),
                (Some(name), _) => invalid_each(&format!("{path}.service.port.name"), name, names::port_name_errors(name), errors),
            }
        }
    }
}

pub(super) fn ingress_class(object: &Value, errors: &mut Errors) {
    let controller = read::text(object, "spec.controller");
    if controller.is_empty() {
        errors.push(FieldError::required("spec.controller", ""));
    } else if !controller.split_once('/').is_some_and(|(host, path)| !host.is_empty() && !path.is_empty()) {
        let message = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid("spec.controller", controller, message));
    }
}

pub(super) fn ingress_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.controller", errors);
}

pub(super) fn network_policy(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    if let Some(selector) = read::at(spec, "podSelector") {
        label_selector(selector, "spec.podSelector", errors);
    }
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (idx, rule) in read::list(spec, rules).iter().enumerate() {
            let path = format!("spec.{rules}[{idx}]");
            for (at, entry) in read::list(rule, "ports").iter().enumerate() {
                policy_port(entry, &format!("{path}.ports[{at}]"), errors);
            }
            for (at, peer) in read::list(rule, peers).iter().enumerate() {
                policy_peer(peer, &format!("{path}.{peers}[{at}]"), errors);
            }
        }
    }
}

fn policy_port(entry: &Value, path: &str, errors: &mut Errors) {
    let given = read::at(entry, "port");
    if let Some(given) = given {
        port(Some(given), &format!("{path}.port"), errors);
    }
    if let Some(end) = read::integer(entry, "endPort") {
        match given.map(Value::as_i64) {
            Some(Some(start)) if end < start => {
                errors.push(FieldError::invalid(format!("{path}.endPort"), end, "must be greater than or equal to `port`"));
            }
            Some(Some(_)) => {}
            Some(None) => {
                errors.push(FieldError::invalid(format!("{path}.endPort"), end, "may not be specified when `port` is non-numeric"));
            }
            None => errors.push(FieldError::invalid(format!("{path}.endPort"), end, "may not be specified when `port` is not specified")),
        }
    }
}

fn policy_peer(peer: &Value, path: &str, errors: &mut Errors) {
    let block = read::at(peer, "ipBlock");
    let selectors = ["podSelector", "namespaceSelector"];
    let selected = selectors.iter().filter(|f| read::at(peer, f).is_some()).count();
    for field in selectors {
        if let Some(selector) = read::at(peer, field) {
            label_selector(selector, &format!("{path}.{field}"), errors);
        }
    }
    match block {
        None if selected == 0 => errors.push(FieldError::required(path, "must specify a peer")),
        Some(_) if selected > 0 => {
            let message = "may not specify both ipBlock and another peer";
            errors.push(FieldError::forbidden(path, message));
        }
        Some(block) => {
            cidr(read::text(block, "cidr"), &format!("{path}.ipBlock.cidr"), errors);
            for (idx, except) in read::texts(block, "except").iter().enumerate() {
                cidr(except, &format!("{path}.ipBlock.except[{idx}]"), errors);
            }
        }
        None => {}
    }
}
