//! Service.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use model::names;
use serde_json::{Map, Value, json};

use crate::behaviour::{Behaviour, Creation, Deletion, Object, Owners, Prepare, Printer, Rules, ServerPart, kind};
use crate::defaults::{each, is_empty, make, put, put_zero, text};
use crate::print::cells::{age, labels_text, load_balancer, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::strategy::keep::struct_at;
use crate::validate;

/// The row.
pub(crate) static SERVICE: Behaviour = Behaviour {
    selectable: &["spec.clusterIP", "spec.type"],
    defaults,
    owners: Owners::CLIENTS.with_status(),
    prepare: Prepare { update: prepare_update, ..Prepare::NONE },
    rules: Rules {
        name: names::label,
        always: validate::network::service,
        update: validate::service_addresses::update,
        status: |new, _, errors| validate::status::service(new, errors),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Type"),
            column::text("Cluster-IP"),
            column::text("External-IP"),
            column::text("Port(s)"),
            AGE,
            column::wide("Selector"),
        ],
        cells,
    },
    deletion: Deletion::RETURNED,
    creation: Creation::CreateOrUpdate,
    server: ServerPart::Addresses,
    ..kind("", "Service")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    } else if text(spec, "sessionAffinity") == "ClientIP" {
        put(make(make(spec, "sessionAffinityConfig"), "clientIP"), "timeoutSeconds", 10800);
    }
    put_zero(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        put_zero(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        put_zero(port, "targetPort", number);
    }
    let kind = text(spec, "type").to_owned();
    let outside = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    if outside || (kind == "ClusterIP" && !is_empty(spec, "externalIPs")) {
        put_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if outside || kind == "ClusterIP" {
        put(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        put(spec, "allocateLoadBalancerNodePorts", true);
    }
    let balancer = make(make(object, "status"), "loadBalancer");
    for ingress in each(balancer, "ingress") {
        if !text(ingress, "ip").is_empty() {
            put(ingress, "ipMode", "VIP");
        }
    }
}

/// A client that sends a Service without the values allocated for it means to keep them.
fn prepare_update(new: &mut Value, old: &Value) {
    let kind = |v: &Value| v.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (now, before) = (kind(new), kind(old));
    let needs_ip = |k: &str| matches!(k, "ClusterIP" | "NodePort" | "LoadBalancer");
    let absent = |v: &Value, key: &str| v["spec"][key].as_str().unwrap_or_default().is_empty();
    if needs_ip(&now) && needs_ip(&before) {
        let none_said = new["spec"]["clusterIPs"].as_array().is_none_or(Vec::is_empty);
        if absent(new, "clusterIP") && none_said {
            for key in ["clusterIP", "clusterIPs"] {
                copy_in(struct_at(new, &["spec"]), &old["spec"], key);
            }
        } else if none_said && new["spec"]["clusterIP"] == old["spec"]["clusterIP"] {
            copy_in(struct_at(new, &["spec"]), &old["spec"], "clusterIPs");
        }
    }
    let needs_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if needs_port(&now) && needs_port(&before) {
        keep_node_ports(new, old);
    }
    let health = |v: &Value| kind(v) == "LoadBalancer" && v["spec"]["externalTrafficPolicy"] == "Local";
    if health(new) && health(old) && new["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0) == 0 {
        copy_in(struct_at(new, &["spec"]), &old["spec"], "healthCheckNodePort");
    }
    drop_dependent(new, old, &now, &before);
}

/// Fields that only the type before needed go with it, unless the client changed it too: then validation speaks.
fn drop_dependent(new: &mut Value, old: &Value, now: &str, before: &str) {
    let balancer = |k: &str| k == "LoadBalancer";
    let outside = |v: &Value, k: &str| {
        matches!(k, "NodePort" | "LoadBalancer")
            || (k == "ClusterIP" && v["spec"]["externalIPs"].as_array().is_some_and(|l| !l.is_empty()))
    };
    let mut stale = Vec::new();
    if balancer(before) && !balancer(now) {
        stale.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if outside(old, before) && !outside(new, now) {
        stale.push("externalTrafficPolicy");
    }
    for field in stale {
        if new["spec"][field] == old["spec"][field]
            && let Some(spec) = new["spec"].as_object_mut()
        {
            spec.remove(field);
        }
    }
}

fn copy_in(to: &mut Map<String, Value>, from: &Value, key: &str) {
    if let Some(value) = from.get(key) {
        to.insert(key.to_owned(), value.clone());
    }
}

fn keep_node_ports(new: &mut Value, old: &Value) {
    let Some(ports) = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut) else { return };
    let before = old.pointer("/spec/ports").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut by_port: HashMap<[&Value; 2], &Value> = HashMap::new();
    for port in before {
        by_port.entry([&port["port"], &port["protocol"]]).or_insert(port);
    }
    let taken: HashSet<Value> = ports.iter().filter_map(|p| p.get("nodePort")).cloned().collect();
    for port in ports.iter_mut().filter(|p| p["nodePort"].as_i64().unwrap_or(0) == 0) {
        let kept = by_port.get(&[&port["port"], &port["protocol"]]).and_then(|b| b.get("nodePort"));
        if let Some(number) = kept.filter(|n| !taken.contains(*n)) {
            port["nodePort"] = number.clone();
        }
    }
}

fn external_ip(object: &Value) -> String {
    let mut ips = read::texts(object, "spec.externalIPs");
    match read::text(object, "spec.type") {
        "ExternalName" => read::text(object, "spec.externalName").to_owned(),
        "LoadBalancer" => {
            let mut balanced = load_balancer(object);
            balanced.append(&mut ips);
            if balanced.is_empty() { "<pending>".to_owned() } else { balanced.join(",") }
        }
        _ if ips.is_empty() => "<none>".to_owned(),
        _ => ips.join(","),
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let cluster_ip =
        read::texts(object, "spec.clusterIPs").first().copied().or(read::some_text(object, "spec.clusterIP"));
    let ports = read::list(object, "spec.ports").iter().map(|p| {
        let (port, protocol) = (read::number(p, "port"), read::text(p, "protocol"));
        match read::number(p, "nodePort") {
            0 => format!("{port}/{protocol}"),
            node => format!("{port}:{node}/{protocol}"),
        }
    });
    let ports = ports.collect::<Vec<_>>().join(",");
    vec![
        name(object),
        json!(read::text(object, "spec.type")),
        json!(cluster_ip.unwrap_or("<none>")),
        json!(external_ip(object)),
        json!(if ports.is_empty() { "<none>" } else { &ports }),
        age(object, now),
        json!(labels_text(read::map(object, "spec.selector"))),
    ]
}
