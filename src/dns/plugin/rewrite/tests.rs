//! Questions on their way in and answers on their way out, by the manual's own examples.

use std::net::Ipv4Addr;
use std::path::Path;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::{A, CNAME};

use super::*;
use crate::corefile;
use crate::question::Transport;

fn rules(lines: &str) -> Rules {
    let blocks = corefile::parse(Path::new("Corefile"), &format!(". {{\n{lines}\n}}\n"), &|_| None).unwrap();
    let mut rules = Rules::default();
    blocks[0].directives.iter().for_each(|directive| rules.add(directive).unwrap());
    rules
}

fn question(name: &str) -> Question {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    Question::of(&message, Transport::Udp).unwrap()
}

/// The name that plugins see, and the answer's first owner as the client sees it.
fn there_and_back(lines: &str, name: &str) -> (String, String) {
    let mut question = question(name);
    let reverts = rules(lines).apply(&mut question).unwrap();
    let mut answer = Answer::new(ResponseCode::NoError, "test");
    answer.add(&question.name.clone(), 300, RData::A(A(Ipv4Addr::LOCALHOST)));
    revert(&mut answer, &reverts);
    (question.text(), answer.answers[0].name.to_ascii())
}

#[test]
fn names_are_rewritten_as_the_manual_says() {
    for (lines, name, asked, told) in [
        ("rewrite name red.test. blue.test.", "RED.test.", "blue.test.", "red.test."),
        ("rewrite name exact red.test blue.test", "a.red.test.", "a.red.test.", "a.red.test."),
        ("rewrite name suffix .coredns.rocks .svc", "a.coredns.rocks.", "a.svc.", "a.svc."),
        ("rewrite name suffix .coredns.rocks. .svc. answer auto", "a.coredns.rocks.", "a.svc.", "a.coredns.rocks."),
        ("rewrite name prefix www. web. answer auto", "www.a.test.", "web.a.test.", "www.a.test."),
        ("rewrite name substring us-west eu answer auto", "a.us-west.test.", "a.eu.test.", "a.us-west.test."),
        (
            "rewrite stop {\n name regex (.*)-(us-west-1)\\.rocks {1}.service.{2}.consul\n \
             answer name (.*)\\.service\\.(us-west-1)\\.consul {1}-{2}.rocks\n }",
            "ftp-us-west-1.rocks.",
            "ftp.service.us-west-1.consul.",
            "ftp-us-west-1.rocks.",
        ),
        // The rest of the name behind a match is not kept: the replacement is the whole name.
        ("rewrite name regex ^a\\. b.", "a.test.", "b.", "b."),
        ("rewrite continue name a.test b.test\nrewrite name b.test c.test", "a.test.", "c.test.", "a.test."),
        ("rewrite name a.test b.test\nrewrite name b.test c.test", "a.test.", "b.test.", "a.test."),
    ] {
        assert_eq!(there_and_back(lines, name), (asked.to_owned(), told.to_owned()), "{lines}");
    }
}

#[test]
fn types_values_times_and_codes_are_rewritten() {
    let mut asked = question("a.test.");
    rules("rewrite type A AAAA\nrewrite class IN CH").apply(&mut asked).unwrap();
    assert_eq!((asked.kind, asked.class), (RecordType::AAAA, DNSClass::IN), "the first rule that fits stops");
    let reverts = rules(
        "rewrite continue ttl suffix test 30-60\nrewrite continue rcode regex .* SERVFAIL NXDOMAIN\n\
         rewrite {\n name suffix .test .inner\n answer auto\n answer value (.*)\\.deep\\.inner\\. {1}.shown.\n }",
    )
    .apply(&mut asked)
    .unwrap();
    let mut answer = Answer::new(ResponseCode::ServFail, "test");
    let target = Name::from_ascii("x.deep.inner.").unwrap();
    answer.add(&asked.name.clone(), 3600, RData::CNAME(CNAME(target)));
    revert(&mut answer, &reverts);
    let record = &answer.answers[0];
    assert_eq!((answer.code, record.ttl), (ResponseCode::NXDomain, 60));
    // The way back of the suffix comes first, so the later rule finds its name no more.
    assert_eq!(record.to_string(), "a.test. 60 IN CNAME x.deep.test.");
}

#[test]
fn a_name_that_grows_out_of_its_octets_is_no_name() {
    let grow = rules(&format!("rewrite name regex (.*)\\. {}{{1}}.", "{1}.".repeat(9)));
    let long = format!("{}.{}.", "a".repeat(60), "b".repeat(60));
    assert!(grow.apply(&mut question(&long)).is_err());
    let label = rules(&format!("rewrite name prefix a {}", "a".repeat(70)));
    assert!(label.apply(&mut question("a.test.")).is_err());
    let whole = format!("{0}.{0}.{0}.{1}.", "c".repeat(63), "d".repeat(61));
    assert!(Name::from_ascii(&whole).is_ok() && Name::from_ascii(format!("d{whole}")).is_err());
    assert!(rules("rewrite name suffix d. dd.").apply(&mut question(&whole)).is_err());
}

#[test]
fn expressions_cost_time_in_proportion_to_the_name() {
    let began = base::time::Stopwatch::start();
    let slow = rules("rewrite name regex (a*)*(a|aa)+b(x+x+)+y {1}.test");
    let name = format!("{0}.{0}.{0}.", "a".repeat(63));
    for _ in 0..200 {
        assert!(slow.apply(&mut question(&name)).unwrap().is_empty());
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    let huge = "rewrite name regex ((((a{100}){100}){100}){100}) b";
    let blocks = corefile::parse(Path::new("Corefile"), &format!(". {{\n{huge}\n}}\n"), &|_| None).unwrap();
    let why = Rules::default().add(&blocks[0].directives[0]).unwrap_err();
    assert!(why.what.starts_with("not a regular expression: "), "{why}");
}

#[test]
fn options_of_edns_are_set_and_taken_away() {
    let mut asked = question("a.test.");
    asked.client = "192.0.2.77:4000".parse().unwrap();
    rules(
        "rewrite continue edns0 local set 0xffee 0x6162\nrewrite continue edns0 local append 0xffee zz\n\
         rewrite continue edns0 subnet set 24 56\nrewrite continue edns0 nsid set\n\
         rewrite continue edns0 nsid unset\nrewrite continue edns0 local replace 0xffef y\n\
         rewrite edns0 local set 0xfff0 {client_ip}",
    )
    .apply(&mut asked)
    .unwrap();
    let shown: Vec<String> = asked.options.iter().map(|option| format!("{option:?}")).collect();
    assert!(asked.edns && shown.len() == 3, "{shown:?}");
    assert_eq!(shown[0], "Unknown(65518, [97, 98])");
    assert!(shown[1].contains("192.0.2.0") && shown[1].contains("24"), "{}", shown[1]);
    assert_eq!(shown[2], "Unknown(65520, [192, 0, 2, 77])");
}
