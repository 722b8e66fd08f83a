//! Claims about the chain as a whole: Corefiles, questions, answers.

use std::path::Path;

use hickory_proto::op::{Edns, Query};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption, NSIDPayload};
use hickory_proto::rr::{Name, RecordType};

use super::tests::server_of;
use super::*;
use crate::config::{self, Context};
use crate::corefile;
use crate::hosts::Hosts;

fn serving(text: &str, group: &Group) -> Arc<Server> {
    let blocks = corefile::parse(Path::new("Corefile"), text, &|_| None).unwrap();
    let read = |path: &str, _: u64| match path {
        "/search" => Ok("search inner.test outer.test\n".to_owned()),
        "/zone" => Ok("$TTL 60\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\nweb A 192.0.2.2\n".to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let blocks = config::understand(&blocks, &Context { file: "Corefile", port: 53, read: &read }).unwrap();
    let site = |block: Block| {
        let mut site = Site::of(block);
        site.hosts = site.block.hosts.clone().map(Hosts::new);
        Arc::new(site)
    };
    server_of(blocks.into_iter().map(site).collect(), group)
}

fn asking(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 7;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

async fn reply(server: &Arc<Server>, message: &Message) -> Option<Message> {
    let peer = "192.0.2.9:4000".parse().unwrap();
    let bytes = server.handle(&message.to_vec().unwrap(), peer, Transport::Udp).await?;
    Some(Message::from_vec(&bytes).unwrap())
}

/// The code and the answers' texts, after a Corefile's lines for all names.
async fn answers(lines: &str, name: &str, kind: RecordType) -> String {
    let (group, _reports) = Group::root("test");
    let server = serving(&format!(".:53 {{\n{lines}\n}}\n"), &group);
    let said = match reply(&server, &asking(name, kind)).await {
        None => "nothing".to_owned(),
        Some(reply) => {
            let texts: Vec<String> =
                reply.answers.iter().map(|r| format!("{} {} {}", r.name, r.record_type(), r.data)).collect();
            format!("{:?} {}", reply.metadata.response_code, texts.join(", "))
        }
    };
    group.shutdown().await;
    said
}

const HOSTS: &str = "hosts /nowhere {\n 192.0.2.5 a.outer.test b.test\n fallthrough\n }\n";

#[tokio::test]
async fn plugins_work_in_coredns_order_whatever_the_order_of_the_file() {
    use RecordType as T;
    for (lines, name, kind, wanted) in [
        // The rule is for the name before it is rewritten, or after: acl stands behind rewrite.
        (
            format!("acl new.test {{\n block\n }}\nrewrite name old.test new.test\n{HOSTS}"),
            "old.test.",
            T::A,
            "Refused ",
        ),
        (format!("acl {{\n drop\n }}\n{HOSTS}"), "b.test.", T::A, "nothing"),
        (format!("acl {{\n filter type A\n }}\n{HOSTS}"), "b.test.", T::A, "NoError "),
        (
            format!("acl {{\n allow net 192.0.2.0/24\n block\n }}\n{HOSTS}"),
            "b.test.",
            T::A,
            "NoError b.test. A 192.0.2.5",
        ),
        (
            format!("{HOSTS}\ntemplate IN A b.test {{\n answer \"{{{{ .Name }}}} 5 IN A 192.0.2.77\"\n }}"),
            "b.test.",
            T::A,
            "NoError b.test. A 192.0.2.77",
        ),
        (
            format!("autopath /search\n{HOSTS}template ANY ANY inner.test {{\n rcode NXDOMAIN\n }}"),
            "a.inner.test.",
            T::A,
            "NoError a.inner.test. CNAME a.outer.test., a.outer.test. A 192.0.2.5",
        ),
        (format!("local\n{HOSTS}"), "localhost.", T::A, "NoError localhost. A 127.0.0.1"),
        ("any\nwhoami".to_owned(), "x.", T::ANY, "NoError x. HINFO ANY obsoleted See RFC 8482"),
        ("file /zone z.test\nwhoami".to_owned(), "web.z.test.", T::A, "NoError web.z.test. A 192.0.2.2"),
        ("file /zone z.test\nwhoami".to_owned(), "no.z.test.", T::A, "NXDomain "),
        ("file /zone z.test\nwhoami".to_owned(), "other.", T::A, "NoError "),
        ("errors".to_owned(), "other.", T::A, "ServFail "),
    ] {
        let got = answers(&lines, name, kind).await;
        assert_eq!(got.trim_end().replace('"', ""), wanted.trim_end(), "{lines}");
    }
}

/// An alias to itself, or in a circle, by way of templates and rewrites: the answer ends, and so does the work.
#[tokio::test]
async fn aliases_in_a_circle_end() {
    let circle = "template IN A a.test {\n answer \"a.test. 5 IN CNAME b.test.\"\n }\n\
                  template IN A b.test {\n answer \"b.test. 5 IN CNAME c.test.\"\n }\nrewrite name c.test a.test";
    let got = answers(circle, "a.test.", RecordType::A).await;
    assert!(got.starts_with("NoError a.test. CNAME b.test.") && got.matches("CNAME").count() <= 10, "{got}");
    let itself = "template IN A {\n answer \"{{ .Name }} 5 IN CNAME {{ .Name }}\"\n }\nautopath /search";
    assert!(answers(itself, "x.inner.test.", RecordType::A).await.matches("CNAME").count() <= 12);
}

/// A name of 255 octets and one more label by a search path, a rewrite, a template.
#[tokio::test]
async fn names_of_all_octets_are_answered_or_refused() {
    let long = format!("{0}.{0}.{0}.{1}.", "c".repeat(63), "d".repeat(61));
    for lines in [
        "autopath /search\nwhoami",
        "rewrite name suffix . .more.test.\nwhoami",
        "rewrite name regex (.*) a{1}\nwhoami",
        "template IN ANY {\n answer \"x.{{ .Name }} 5 IN CNAME y.{{ .Name }}\"\n }",
        "local\nany\nwhoami",
    ] {
        let got = answers(lines, &long, RecordType::A).await;
        assert!(got.starts_with("ServFail") || got.starts_with("NoError"), "{lines}: {got}");
    }
}

#[tokio::test]
async fn header_nsid_bufsize_and_extended_errors_are_told_to_clients_that_speak_edns() {
    let (group, _reports) = Group::root("test");
    let text = ".:53 {\n nsid node-7\n bufsize 600\n header {\n response set ra\n response clear rd aa\n }\n \
                acl blocked.test {\n block\n }\n template IN TXT {\n answer \"{{ .Name }} 5 IN TXT x\"\n }\n}\n";
    let server = serving(text, &group);
    let mut asked = asking("a.blocked.test.", RecordType::TXT);
    let plain = reply(&server, &asked).await.unwrap();
    assert!(plain.edns.is_none() && plain.metadata.response_code == ResponseCode::Refused);
    let mut edns = Edns::new();
    edns.options_mut().insert(EdnsOption::NSID(NSIDPayload::new(Vec::new()).unwrap()));
    asked.set_edns(edns);
    let modern = reply(&server, &asked).await.unwrap().edns.unwrap();
    assert_eq!(modern.option(EdnsCode::NSID), Some(&EdnsOption::NSID(NSIDPayload::new("node-7").unwrap())));
    assert!(modern.options().as_ref().iter().any(|(code, _)| u16::from(*code) == 15));
    let open = reply(&server, &asking("b.test.", RecordType::TXT)).await.unwrap();
    let bits = (open.metadata.authoritative, open.metadata.recursion_available, open.metadata.recursion_desired);
    assert_eq!(bits, (false, true, false));
    group.shutdown().await;
}
