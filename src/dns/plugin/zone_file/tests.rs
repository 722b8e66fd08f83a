//! Names of a zone: records, wildcards, aliases, delegations, and what is not there.

use hickory_proto::op::{Message, Query};

use super::*;
use crate::question::Transport;

const ZONE: &str = "$TTL 300
@ SOA ns host 7 2 3 4 60
@ NS ns
@ MX 10 mail
ns A 192.0.2.1
mail AAAA 2001:db8::25
www CNAME web
web A 192.0.2.2
out CNAME elsewhere.test.
*.wild TXT any
here.wild A 192.0.2.3
a.deep.wild A 192.0.2.4
*.alias CNAME web
sub NS ns.sub
sub NS other.test.
ns.sub A 192.0.2.5
loop1 CNAME loop2
loop2 CNAME loop1
_s._tcp SRV 0 0 80 web
";

fn zones() -> Zones {
    let origin = Name::from_ascii("example.org.").unwrap();
    let zone = Arc::new(Zone::parse(ZONE, &origin).unwrap());
    Zones {
        zones: vec![(origin.clone(), ArcSwap::new(Arc::clone(&zone)))],
        config: ZoneFile {
            path: "/nowhere".into(),
            zones: vec![(origin, zone)],
            reload: Duration::ZERO,
            by_mtime: false,
            fall: Fall::default(),
        },
    }
}

fn answer(name: &str, kind: RecordType) -> String {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let question = Question::of(&message, Transport::Udp).unwrap();
    let (answer, target) = match zones().answer(&question) {
        None => return "next".to_owned(),
        Some(Told::Whole(answer)) => (answer, None),
        Some(Told::Alias(alias)) => (alias.answer, Some(alias.target)),
    };
    let kinds = |records: &[Record]| -> String {
        let texts: Vec<String> = records.iter().map(|r| format!("{} {} {}", r.name, r.record_type(), r.data)).collect();
        texts.join(", ")
    };
    let sections = [kinds(&answer.answers), kinds(&answer.authorities), kinds(&answer.additionals)].join(" | ");
    let aa = if answer.authoritative { "aa " } else { "" };
    format!("{aa}{} {sections}{}", answer.code, target.map(|name| format!(" -> {name}")).unwrap_or_default())
}

#[test]
fn a_zone_answers_as_its_file_says() {
    let soa = "example.org. SOA ns.example.org. host.example.org. 7 2 3 4 60";
    let ns = "example.org. NS ns.example.org.";
    for (name, kind, wanted) in [
        ("WEB.example.org.", RecordType::A, format!("aa No Error WEB.example.org. A 192.0.2.2 | {ns} | ")),
        ("web.example.org.", RecordType::AAAA, format!("aa No Error  | {soa} | ")),
        ("none.example.org.", RecordType::A, format!("aa Non-Existent Domain  | {soa} | ")),
        (
            "www.example.org.",
            RecordType::A,
            format!("aa No Error www.example.org. CNAME web.example.org., web.example.org. A 192.0.2.2 | {ns} | "),
        ),
        (
            "www.example.org.",
            RecordType::CNAME,
            format!("aa No Error www.example.org. CNAME web.example.org. | {ns} | "),
        ),
        (
            "out.example.org.",
            RecordType::A,
            "aa No Error out.example.org. CNAME elsewhere.test. |  |  -> elsewhere.test.".to_owned(),
        ),
        ("x.y.wild.example.org.", RecordType::TXT, format!("aa No Error x.y.wild.example.org. TXT any | {ns} | ")),
        ("here.wild.example.org.", RecordType::TXT, format!("aa No Error  | {soa} | ")),
        // `deep.wild` exists, though it has no records: no wildcard is for it or for what is below it.
        ("deep.wild.example.org.", RecordType::TXT, format!("aa No Error  | {soa} | ")),
        ("b.deep.wild.example.org.", RecordType::TXT, format!("aa Non-Existent Domain  | {soa} | ")),
        (
            "q.alias.example.org.",
            RecordType::A,
            format!("aa No Error q.alias.example.org. CNAME web.example.org., web.example.org. A 192.0.2.2 | {ns} | "),
        ),
        (
            "host.sub.example.org.",
            RecordType::A,
            "No Error  | sub.example.org. NS ns.sub.example.org., sub.example.org. NS other.test. | \
             ns.sub.example.org. A 192.0.2.5"
                .to_owned(),
        ),
        ("example.org.", RecordType::SOA, format!("aa No Error {soa} | {ns} | ")),
        ("example.org.", RecordType::NS, format!("aa No Error {ns} |  | ns.example.org. A 192.0.2.1")),
        (
            "example.org.",
            RecordType::MX,
            format!("aa No Error example.org. MX 10 mail.example.org. | {ns} | mail.example.org. AAAA 2001:db8::25"),
        ),
        (
            "_s._tcp.example.org.",
            RecordType::SRV,
            format!(
                "aa No Error _s._tcp.example.org. SRV 0 0 80 web.example.org. | {ns} | web.example.org. A 192.0.2.2"
            ),
        ),
        ("_tcp.example.org.", RecordType::A, format!("aa No Error  | {soa} | ")),
        ("example.net.", RecordType::A, "next".to_owned()),
        ("example.org.", RecordType::AXFR, "Query Refused  |  | ".to_owned()),
    ] {
        assert_eq!(answer(name, kind), wanted, "{name} {kind}");
    }
    assert!(answer("loop1.example.org.", RecordType::A).contains("Server Failure"));
}

#[test]
fn a_zone_needs_a_soa_record_of_its_own() {
    let origin = Name::from_ascii("example.org.").unwrap();
    assert!(Zone::parse("a 1 A 192.0.2.1\n", &origin).unwrap_err().to_string().starts_with("no SOA record"));
    let other = "example.net. 1 SOA a b 1 2 3 4 5\n";
    assert!(Zone::parse(other, &origin).is_err());
    let below = "sub 1 SOA a b 1 2 3 4 5\n";
    assert!(Zone::parse(below, &origin).unwrap_err().to_string().contains("sub.example.org"));
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_a_wrong_one_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut zones = zones();
    zones.config.path = path.clone();
    let serial = |zones: &Zones| zones.zones[0].1.load().serial;
    std::fs::write(&path, ZONE.replace("host 7", "host 8")).unwrap();
    zones.read();
    assert_eq!(serial(&zones), 8);
    std::fs::write(&path, "nonsense").unwrap();
    zones.read();
    std::fs::remove_file(&path).unwrap();
    zones.read();
    assert_eq!(serial(&zones), 8);
}
