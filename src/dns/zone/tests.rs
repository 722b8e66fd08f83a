//! The names of Services, endpoints and pods, and what others' changes do to them.

use k8s_openapi::api::core::v1::{ObjectReference, PodIP, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointConditions, EndpointPort};
use model::pod::PodStatus;

use super::*;

/// Objects from a few words, since JSON would need a crate here.
pub(crate) fn service(name: &str, ip: &str) -> Arc<Service> {
    let mut service = Service::default();
    service.metadata.name = Some(name.to_owned());
    service.metadata.namespace = Some("default".to_owned());
    let port = ServicePort { name: Some("http".to_owned()), port: 80, ..ServicePort::default() };
    service.spec =
        Some(ServiceSpec { cluster_ip: Some(ip.to_owned()), ports: Some(vec![port]), ..ServiceSpec::default() });
    Arc::new(service)
}

pub(crate) fn slice(service: &str, endpoints: &[(&str, Option<&str>, bool)]) -> Arc<EndpointSlice> {
    let mut slice = EndpointSlice::default();
    slice.metadata.namespace = Some("default".to_owned());
    slice.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), service.to_owned())].into());
    slice.ports =
        Some(vec![EndpointPort { name: Some("http".to_owned()), port: Some(8080), ..EndpointPort::default() }]);
    let convert = |(ip, host, ready): &(&str, Option<&str>, bool)| ApiEndpoint {
        addresses: vec![(*ip).to_owned()],
        hostname: host.map(str::to_owned),
        conditions: Some(EndpointConditions { ready: Some(*ready), ..EndpointConditions::default() }),
        ..ApiEndpoint::default()
    };
    slice.endpoints = Some(endpoints.iter().map(convert).collect());
    Arc::new(slice)
}

pub(crate) fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// `web` with a cluster address, `db` without one, and `empty` without endpoints; all in `default`.
pub(crate) fn index() -> Index {
    let mut index = Index::default();
    index.set_namespaces(["default".to_owned()].into());
    index.set(
        &key("web"),
        Some(&service("web", "10.43.0.80")),
        &[slice("web", &[("10.42.0.5", None, true)])],
        EndpointNames::Addresses,
    );
    let db = [("10.42.0.6", Some("db-0"), true), ("10.42.0.7", Some("db-1"), false), ("10.42.0.8", None, true)];
    index.set(&key("db"), Some(&service("db", "None")), &[slice("db", &db)], EndpointNames::Addresses);
    index.set(&key("empty"), Some(&service("empty", "None")), &[], EndpointNames::Addresses);
    index
}

fn ips(name: &str) -> Option<Vec<String>> {
    let labels: Vec<&str> = name.split('.').collect();
    index()
        .find(&labels, PodNames::Insecure, Wanted::Addresses)
        .map(|found| found.addresses.iter().map(IpAddr::to_string).collect())
}

fn list(ips: &[&str]) -> Option<Vec<String>> {
    Some(ips.iter().map(|ip| (*ip).to_owned()).collect())
}

#[test]
fn names_of_services_and_endpoints() {
    assert_eq!(ips("web.default.svc"), list(&["10.43.0.80"]));
    assert_eq!(ips("db.default.svc"), list(&["10.42.0.8", "10.42.0.6"]));
    assert_eq!(ips("db-0.db.default.svc"), list(&["10.42.0.6"]));
    assert_eq!(ips("10-42-0-8.db.default.svc"), list(&["10.42.0.8"]));
    assert_eq!(ips("db-1.db.default.svc"), None);
    assert_eq!(ips("_http._tcp.web.default.svc"), list(&["10.43.0.80"]));
    assert_eq!(ips("1-2-3-4.default.pod"), list(&["1.2.3.4"]));
}

#[test]
fn what_is_not_there_differs_from_what_is_empty() {
    assert_eq!(ips("default.svc"), list(&[]));
    assert_eq!(ips("svc"), list(&[]));
    assert_eq!(ips("nowhere.svc"), None);
    assert_eq!(ips("empty.default.svc"), None);
    assert_eq!(ips("1-2-3-4.nowhere.pod"), None);
    assert_eq!(ips("_https._tcp.web.default.svc"), None);
}

#[test]
fn ports_of_endpoints_are_told_to_those_who_ask_for_them() {
    let find = |name: &str, wanted: Wanted| {
        index().find(&name.split('.').collect::<Vec<_>>(), PodNames::Insecure, wanted).unwrap()
    };
    let said = |found: Found| {
        let srv: Vec<String> = found.srv.iter().map(|srv| format!("{} {}", srv.port, srv.target)).collect();
        let hosts: Vec<String> = found.hosts.iter().map(|(host, ip)| format!("{host} {ip}")).collect();
        (srv.join(","), hosts.join(","))
    };
    let both = "8080 10-42-0-8.db.default.svc,8080 db-0.db.default.svc";
    let hosts = "10-42-0-8.db.default.svc 10.42.0.8,db-0.db.default.svc 10.42.0.6";
    for name in ["db.default.svc", "_http._tcp.db.default.svc"] {
        assert_eq!(said(find(name, Wanted::Services)), (both.to_owned(), hosts.to_owned()), "{name}");
    }
    let web = ("80 web.default.svc".to_owned(), "web.default.svc 10.43.0.80".to_owned());
    assert_eq!(said(find("web.default.svc", Wanted::Services)), web);
    assert_eq!(said(find("db.default.svc", Wanted::Addresses)), (String::new(), String::new()));
}

#[test]
fn ten_thousand_ports_of_thousands_of_endpoints_cost_what_an_answer_holds() {
    let ports: Vec<EndpointPort> = (1..=10_000)
        .map(|n| EndpointPort { name: Some(format!("p{n}")), port: Some(n), ..EndpointPort::default() })
        .collect();
    // Half of the endpoints have names of their own, the others one together.
    let slices: Vec<Arc<EndpointSlice>> = (0..40)
        .map(|n| {
            let ips: Vec<String> = (1..=100).map(|i| format!("10.42.{n}.{i}")).collect();
            let endpoints: Vec<_> = ips.iter().map(|ip| (ip.as_str(), (n % 2 == 0).then_some("one"), true)).collect();
            let mut slice = EndpointSlice::clone(&slice("big", &endpoints));
            slice.ports = Some(ports.clone());
            Arc::new(slice)
        })
        .collect();
    let mut index = Index::default();
    index.set_namespaces(["default".to_owned()].into());
    index.set(&key("big"), Some(&service("big", "None")), &slices, EndpointNames::Addresses);
    let began = base::time::Stopwatch::start();
    for name in ["big.default.svc", "one.big.default.svc", "_p9999._tcp.big.default.svc"] {
        let labels: Vec<&str> = name.split('.').collect();
        for wanted in [Wanted::Addresses, Wanted::Services].into_iter().cycle().take(4) {
            let found = index.find(&labels, PodNames::Disabled, wanted).unwrap();
            assert!(found.addresses.len() >= 2000, "{name}: {}", found.addresses.len());
            assert!(found.srv.len() <= SRV_MAX && found.hosts.len() <= SRV_MAX, "{name}");
            assert_eq!(found.srv.is_empty(), wanted == Wanted::Addresses, "{name}");
        }
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn addresses_have_names() {
    assert_eq!(index().reverse("10.43.0.80".parse().unwrap()), ["web.default.svc"]);
    assert_eq!(index().reverse("10.42.0.6".parse().unwrap()), ["db-0.db.default.svc"]);
}

#[test]
fn an_address_of_several_services_has_each_ones_name_once() {
    let endpoints: &[(&str, Option<&str>, bool)] = &[("10.42.0.9", None, true)];
    let other_ports = {
        let mut slice = EndpointSlice::clone(&slice("b", endpoints));
        slice.ports.as_mut().unwrap()[0].port = Some(9090);
        Arc::new(slice)
    };
    let mut index = Index::default();
    index.set(&key("a"), Some(&service("a", "10.43.0.1")), &[slice("a", endpoints)], EndpointNames::Addresses);
    index.set(
        &key("b"),
        Some(&service("b", "10.43.0.2")),
        &[slice("b", endpoints), other_ports],
        EndpointNames::Addresses,
    );
    assert_eq!(index.reverse("10.42.0.9".parse().unwrap()), ["10-42-0-9.a.default.svc", "10-42-0-9.b.default.svc"]);
}

#[test]
fn what_a_service_was_is_forgotten_and_what_others_have_is_not() {
    let mut index = index();
    let shared: IpAddr = "10.42.0.5".parse().unwrap();
    index.set(
        &key("also"),
        Some(&service("also", "10.43.0.81")),
        &[slice("also", &[("10.42.0.5", None, true)])],
        EndpointNames::Addresses,
    );
    assert_eq!(index.reverse(shared), ["10-42-0-5.also.default.svc", "10-42-0-5.web.default.svc"]);
    index.set(
        &key("web"),
        Some(&service("web", "10.43.0.90")),
        &[slice("web", &[("10.42.0.9", None, true)])],
        EndpointNames::Addresses,
    );
    assert_eq!(index.reverse(shared), ["10-42-0-5.also.default.svc"]);
    assert!(index.reverse("10.43.0.80".parse().unwrap()).is_empty());
    assert_eq!(index.reverse("10.43.0.90".parse().unwrap()), ["web.default.svc"]);
    index.set(&key("also"), None, &[], EndpointNames::Addresses);
    assert!(index.reverse(shared).is_empty());
    assert_eq!(index.find(&["also", "default", "svc"], PodNames::Disabled, Wanted::Addresses), None);
    assert_eq!(index.keys().count(), 3);
}

/// The dashes of an address may stand for dots or colons: upstream's `TestEndpointHostname` and the specification's
/// example of a pod's name.
#[test]
fn a_pods_name_is_its_address_with_dashes() {
    for (label, wanted) in [
        ("10-42-0-5", Some("10.42.0.5")),
        ("fd00--5", Some("fd00::5")),
        ("1-2-3-4-5-6-7-8", Some("1:2:3:4:5:6:7:8")),
        ("--1", Some("::1")),
        ("1-2-3", None),
        ("10-42-0-500", None),
        ("10-42-0-5-6", None),
        ("web", None),
        ("", None),
    ] {
        assert_eq!(undashed(label), wanted.map(|ip| ip.parse().unwrap()), "{label}");
        if let Some(ip) = wanted {
            assert_eq!(dashed(ip.parse().unwrap()), label);
        }
    }
}

#[test]
fn pods_have_names_as_the_corefile_says() {
    let mut index = index();
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("default".to_owned());
    let address = PodIP { ip: "10.42.0.9".to_owned() };
    pod.status = Some(PodStatus { pod_ips: Some([address].into()), ..PodStatus::default() });
    index.set_pods(&[Arc::new(pod)]);
    let ips = |name: &str, pods: PodNames| {
        let labels: Vec<&str> = name.split('.').collect();
        index.find(&labels, pods, Wanted::Addresses).map(|found| found.addresses.len())
    };
    for (name, disabled, insecure, verified) in [
        ("pod", None, Some(0), Some(0)),
        ("default.pod", None, Some(0), Some(0)),
        ("10-42-0-9.default.pod", None, Some(1), Some(1)),
        ("10-42-0-8.default.pod", None, Some(1), None),
        ("web.default.pod", None, None, None),
        ("a.10-42-0-9.default.pod", None, None, None),
        ("10-42-0-9.elsewhere.pod", None, None, None),
    ] {
        let said = [PodNames::Disabled, PodNames::Insecure, PodNames::Verified].map(|pods| ips(name, pods));
        assert_eq!(said, [disabled, insecure, verified], "{name}");
    }
}

#[test]
fn an_endpoint_is_named_by_its_hostname_its_pod_or_its_address() {
    let named = |hostname: Option<&str>, kind: &str, names: EndpointNames| {
        let mut slice = EndpointSlice::clone(&slice("db", &[("10.42.0.6", hostname, true)]));
        let target = ObjectReference {
            kind: Some(kind.to_owned()),
            name: Some("Web-7".to_owned()),
            ..ObjectReference::default()
        };
        slice.endpoints.as_mut().unwrap()[0].target_ref = Some(target);
        endpoints(&slice, names).remove(0).host
    };
    assert_eq!(named(Some("DB-0"), "Pod", EndpointNames::Pods), "db-0");
    assert_eq!(named(None, "Pod", EndpointNames::Pods), "web-7");
    assert_eq!(named(Some(""), "Pod", EndpointNames::Pods), "10-42-0-6");
    assert_eq!(named(None, "VirtualMachine", EndpointNames::Pods), "10-42-0-6");
    assert_eq!(named(None, "Pod", EndpointNames::Addresses), "10-42-0-6");
}
