//! Services, endpoints, ingresses, policies.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, labels_text, name, or_none, three_and_more};
use super::column::{AGE, NAME, Printer, printer, text, wide};
use crate::read;
use model::labels::format_label_selector;

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "Service",
        &[NAME, text("Type"), text("Cluster-IP"), text("External-IP"), text("Port(s)"), AGE, wide("Selector")],
        service,
    ),
    printer("", "Endpoints", &[NAME, text("Endpoints"), AGE], endpoints),
    printer(
        "discovery.k8s.io",
        "EndpointSlice",
        &[NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE],
        slice,
    ),
    printer(
        "networking.k8s.io",
        "Ingress",
        &[NAME, text("Class"), text("Hosts"), text("Address"), text("Ports"), AGE],
        ingress,
    ),
    printer("networking.k8s.io", "IngressClass", &[NAME, text("Controller"), text("Parameters"), AGE], ingress_class),
    printer("networking.k8s.io", "NetworkPolicy", &[NAME, text("Pod-Selector"), AGE], network_policy),
    printer("networking.k8s.io", "ServiceCIDR", &[NAME, text("CIDRs"), AGE], service_cidr),
    printer("networking.k8s.io", "IPAddress", &[NAME, text("ParentRef"), AGE], ip_address),
];

fn load_balancer(object: &Value) -> Vec<&str> {
    let ingress = read::list(object, "status.loadBalancer.ingress");
    ingress.iter().filter_map(|i| read::some_text(i, "ip").or(read::some_text(i, "hostname"))).collect()
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

fn service(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in read::list(object, "subsets") {
        let ips = || read::list(subset, "addresses").iter().map(|a| read::text(a, "ip"));
        let ports = read::list(subset, "ports");
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            all.extend(ips().map(|ip| host_port(ip, read::number(port, "port"))));
        }
    }
    vec![name(object), json!(three_and_more(&all)), age(object, now)]
}

fn slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = read::list(object, "ports")
        .iter()
        .map(|p| read::integer(p, "port").map_or_else(|| "*".to_owned(), |n| n.to_string()))
        .collect();
    let addresses: Vec<String> =
        read::list(object, "endpoints").iter().flat_map(|e| read::texts(e, "addresses")).map(str::to_owned).collect();
    let unset = |list: &[String]| if list.is_empty() { "<unset>".to_owned() } else { three_and_more(list) };
    vec![
        name(object),
        json!(read::text(object, "addressType")),
        json!(unset(&ports)),
        json!(unset(&addresses)),
        age(object, now),
    ]
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<String> =
        read::list(object, "spec.rules").iter().filter_map(|r| read::some_text(r, "host")).map(str::to_owned).collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { three_and_more(&hosts) };
    let ports = if read::list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name(object),
        or_none(object, "spec.ingressClassName"),
        json!(hosts),
        json!(load_balancer(object).join(",")),
        json!(ports),
        age(object, now),
    ]
}

fn ingress_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let parameters = match read::at(object, "spec.parameters") {
        None => "<none>".to_owned(),
        Some(p) => {
            let group = read::some_text(p, "apiGroup").map(|g| format!(".{g}")).unwrap_or_default();
            format!("{}{group}/{}", read::text(p, "kind"), read::text(p, "name"))
        }
    };
    vec![name(object), json!(read::text(object, "spec.controller")), json!(parameters), age(object, now)]
}

fn network_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(format_label_selector(read::at(object, "spec.podSelector"))), age(object, now)]
}

fn service_cidr(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::texts(object, "spec.cidrs").join(",")), age(object, now)]
}

fn ip_address(object: &Value, now: Timestamp) -> Vec<Value> {
    let parent = match read::at(object, "spec.parentRef") {
        None => "<none>".to_owned(),
        Some(p) => {
            let parts = [read::text(p, "resource"), read::text(p, "group")];
            let resource = parts.iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join(".");
            let parts = [&resource, read::text(p, "namespace"), read::text(p, "name")];
            parts.iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join("/")
        }
    };
    vec![name(object), json!(parent), age(object, now)]
}
