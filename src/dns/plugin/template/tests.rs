//! The examples of the manual, and templates that make no record.

use std::path::Path;

use hickory_proto::op::{Message, Query};

use super::*;
use crate::corefile;
use crate::question::Transport;

fn template(text: &str) -> Template {
    let blocks = corefile::parse(Path::new("Corefile"), &format!(". {{\n{text}\n}}\n"), &|_| None).unwrap();
    Template::parse(&blocks[0].directives[0], &[Name::root()]).unwrap()
}

fn question(name: &str, kind: RecordType) -> Question {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    Question::of(&message, Transport::Udp).unwrap()
}

#[test]
fn addresses_and_names_are_made_of_groups() {
    let to_address = template(
        "template IN A example {\n \
         match (^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$\n \
         answer \"{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}\"\n fallthrough\n }",
    );
    let answer = to_address.answer(&question("IP-10-1-2-3.example.", RecordType::A)).unwrap();
    assert_eq!(answer.answers[0].to_string(), "ip-10-1-2-3.example. 60 IN A 10.1.2.3");
    assert!(answer.authoritative);
    assert!(to_address.answer(&question("other.example.", RecordType::A)).is_none(), "it falls through");
    assert!(to_address.answer(&question("ip-10-1-2-3.example.", RecordType::AAAA)).is_none(), "another type");
    assert!(to_address.answer(&question("ip-10-1-2-3.test.", RecordType::A)).is_none(), "another zone");
    let wrong = to_address.answer(&question("ip-10-1-2-300.example.", RecordType::A)).unwrap();
    assert_eq!(wrong.code, ResponseCode::ServFail);
    assert!(wrong.fault.unwrap().starts_with("not a record: "));
}

#[test]
fn a_zone_is_denied_with_a_reason() {
    let denied = template(
        "template ANY ANY invalid {\n rcode NXDOMAIN\n \
         authority \"invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)\"\n \
         ederror 21 \"Blocked\"\n }",
    );
    let answer = denied.answer(&question("a.invalid.", RecordType::MX)).unwrap();
    assert_eq!((answer.code, answer.authorities.len()), (ResponseCode::NXDomain, 1));
    assert_eq!(answer.extra.unwrap().options.len(), 1);
    let strict = template("template IN A {\n match ^only\\.\n answer \"{{ .Name }} A 192.0.2.1\"\n }");
    assert_eq!(strict.answer(&question("b.", RecordType::A)).unwrap().code, ResponseCode::ServFail);
}
