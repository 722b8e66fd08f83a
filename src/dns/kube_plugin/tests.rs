//! Answers about a small cluster, record by record, as the specification of Kubernetes' names (1.1.0) has them.

use client::informer::Key;
use hickory_proto::op::{Message, Query};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::*;
use crate::around::Fall;
use crate::question::Transport;
use crate::zone::EndpointNames;
use crate::zone::tests::{index, key, service, slice};

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// The cluster of [`index`], with an external name and both families.
fn plugin(fall: Fall) -> Kubernetes {
    let mut index = index();
    let external = ServiceSpec {
        type_: Some("ExternalName".to_owned()),
        external_name: Some("db.example.org.".to_owned()),
        ..ServiceSpec::default()
    };
    let external = Service { spec: Some(external), ..Service::default() };
    index.set(&key("out"), Some(&external), &[], EndpointNames::Addresses);
    let mut dual = Service::clone(&service("dual", "10.43.0.7"));
    dual.spec.as_mut().unwrap().cluster_ips = Some(vec!["10.43.0.7".to_owned(), "fd00:43::7".to_owned()]);
    index.set(&key("dual"), Some(&dual), &[slice("dual", &[("10.42.0.11", None, true)])], EndpointNames::Addresses);
    index.set(&Key::new("kept-secret", "web"), Some(&service("web", "10.43.0.99")), &[], EndpointNames::Addresses);
    let zones = ["cluster.local.", "in-addr.arpa.", "ip6.arpa."].map(name).to_vec();
    let config = config::Kubernetes { zones, pods: PodNames::Insecure, ttl_secs: 30, fall, ..Default::default() };
    Kubernetes { config, index: RwLock::new(index), synced: AtomicBool::new(true) }
}

fn question(asked: &str, kind: RecordType) -> Question {
    let mut message = Message::query();
    message.add_query(Query::query(name(asked), kind));
    Question::of(&message, Transport::Udp).unwrap()
}

/// The code, then each section's records as a zone file writes them.
fn said(plugin: &Kubernetes, asked: &str, kind: RecordType) -> String {
    let Some(answer) = plugin.answer(&question(asked, kind)) else { return "passed on".to_owned() };
    assert!(answer.authoritative || answer.code == ResponseCode::ServFail, "{asked}");
    let mut out = format!("{:?}", answer.code);
    for (mark, section) in [("=", &answer.answers), ("!", &answer.authorities), ("+", &answer.additionals)] {
        for record in section {
            out += &format!(" {mark} {} {} {} {}", record.name, record.ttl, record.record_type(), record.data);
        }
    }
    out
}

const SOA: &str = " ! cluster.local. 30 SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30";

#[test]
fn answers_are_those_of_the_specification() {
    let plugin = plugin(Fall::default());
    let none = |code: &str| format!("{code}{SOA}");
    let srv = "= _http._tcp.web.default.svc.cluster.local. 30 SRV 0 100 80 web.default.svc.cluster.local. \
               + web.default.svc.cluster.local. 30 A 10.43.0.80";
    let halves = "= db.default.svc.cluster.local. 30 SRV 0 50 8080 10-42-0-8.db.default.svc.cluster.local. \
                  = db.default.svc.cluster.local. 30 SRV 0 50 8080 db-0.db.default.svc.cluster.local. \
                  + 10-42-0-8.db.default.svc.cluster.local. 30 A 10.42.0.8 \
                  + db-0.db.default.svc.cluster.local. 30 A 10.42.0.6";
    let cases: [(&str, RecordType, String); 20] = [
        ("web.default.svc", RecordType::A, "NoError = web.default.svc.cluster.local. 30 A 10.43.0.80".to_owned()),
        (
            "dual.default.svc",
            RecordType::AAAA,
            "NoError = dual.default.svc.cluster.local. 30 AAAA fd00:43::7".to_owned(),
        ),
        ("_http._tcp.web.default.svc", RecordType::SRV, format!("NoError {srv}")),
        ("db.default.svc", RecordType::SRV, format!("NoError {halves}")),
        (
            "db-0.db.default.svc",
            RecordType::A,
            "NoError = db-0.db.default.svc.cluster.local. 30 A 10.42.0.6".to_owned(),
        ),
        (
            "out.default.svc",
            RecordType::A,
            "NoError = out.default.svc.cluster.local. 30 CNAME db.example.org.".to_owned(),
        ),
        (
            "out.default.svc",
            RecordType::CNAME,
            "NoError = out.default.svc.cluster.local. 30 CNAME db.example.org.".to_owned(),
        ),
        ("1-2-3-4.default.pod", RecordType::A, "NoError = 1-2-3-4.default.pod.cluster.local. 30 A 1.2.3.4".to_owned()),
        ("dns-version", RecordType::TXT, "NoError = dns-version.cluster.local. 30 TXT 1.1.0".to_owned()),
        // The name exists and has no such records: RFC 2308 wants NOERROR and the SOA.
        ("web.default.svc", RecordType::AAAA, none("NoError")),
        ("web.default.svc", RecordType::MX, none("NoError")),
        ("dns-version", RecordType::A, none("NoError")),
        ("_tcp.web.default.svc", RecordType::SRV, none("NoError")),
        ("default.svc", RecordType::A, none("NoError")),
        ("svc", RecordType::A, none("NoError")),
        // The name does not exist.
        ("none.default.svc", RecordType::A, none("NXDomain")),
        ("_https._tcp.web.default.svc", RecordType::SRV, none("NXDomain")),
        ("empty.default.svc", RecordType::A, none("NXDomain")),
        ("db-1.db.default.svc", RecordType::A, none("NXDomain")),
        // A namespace that is not told about hides what is in it.
        ("web.kept-secret.svc", RecordType::A, none("NXDomain")),
    ];
    for (labels, kind, wanted) in cases {
        assert_eq!(said(&plugin, &format!("{labels}.cluster.local."), kind), wanted, "{labels} {kind}");
    }
}

#[test]
fn the_zone_itself_has_an_soa_and_an_ns_record() {
    let plugin = plugin(Fall::default());
    let soa = format!("NoError{}", SOA.replace('!', "="));
    assert_eq!(said(&plugin, "cluster.local.", RecordType::SOA), soa);
    assert_eq!(said(&plugin, "cluster.local.", RecordType::NS), "NoError = cluster.local. 30 NS ns.dns.cluster.local.");
    assert_eq!(said(&plugin, "cluster.local.", RecordType::A), format!("NoError{SOA}"));
}

#[test]
fn an_address_leads_back_to_its_names() {
    let plugin = plugin(Fall::default());
    let soa = |zone: &str| format!(" ! {zone} 30 SOA ns.dns.{zone} hostmaster.{zone} 1 7200 1800 86400 30");
    for (asked, kind, wanted) in [
        (
            "80.0.43.10.in-addr.arpa.",
            RecordType::PTR,
            "NoError = 80.0.43.10.in-addr.arpa. 30 PTR web.default.svc.cluster.local.".to_owned(),
        ),
        (
            "6.0.42.10.in-addr.arpa.",
            RecordType::PTR,
            "NoError = 6.0.42.10.in-addr.arpa. 30 PTR db-0.db.default.svc.cluster.local.".to_owned(),
        ),
        ("80.0.43.10.in-addr.arpa.", RecordType::TXT, format!("NoError{}", soa("in-addr.arpa."))),
        ("81.0.43.10.in-addr.arpa.", RecordType::PTR, format!("NXDomain{}", soa("in-addr.arpa."))),
        // A part of an address is none.
        ("0.43.10.in-addr.arpa.", RecordType::PTR, format!("NXDomain{}", soa("in-addr.arpa."))),
        (
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.0.0.0.0.d.f.ip6.arpa.",
            RecordType::PTR,
            "NoError = 7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.0.0.0.0.d.f.ip6.arpa. 30 PTR \
             dual.default.svc.cluster.local."
                .to_owned(),
        ),
    ] {
        assert_eq!(said(&plugin, asked, kind), wanted, "{asked} {kind}");
    }
}

#[test]
fn an_answer_repeats_the_letters_of_the_question() {
    let plugin = plugin(Fall::default());
    assert_eq!(
        said(&plugin, "WEB.Default.svc.CLUSTER.local.", RecordType::A),
        "NoError = WEB.Default.svc.CLUSTER.local. 30 A 10.43.0.80"
    );
}

#[test]
fn names_of_others_and_those_that_fall_through_are_passed_on() {
    let all = plugin(Fall::all());
    for asked in ["example.org.", "none.default.svc.cluster.local.", "81.0.43.10.in-addr.arpa."] {
        let kind = if asked.ends_with("arpa.") { RecordType::PTR } else { RecordType::A };
        assert_eq!(said(&all, asked, kind), "passed on", "{asked}");
    }
    // A name that exists is never somebody else's, whatever it has.
    assert_eq!(said(&all, "web.default.svc.cluster.local.", RecordType::AAAA), format!("NoError{SOA}"));
    assert_eq!(said(&plugin(Fall::default()), "example.org.", RecordType::A), "passed on");
}

#[test]
fn no_name_is_denied_before_the_first_list_has_come() {
    let plugin = plugin(Fall::all());
    plugin.synced.store(false, Ordering::Release);
    assert_eq!(said(&plugin, "none.default.svc.cluster.local.", RecordType::A), "ServFail");
}
