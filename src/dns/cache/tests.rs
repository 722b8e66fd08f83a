//! Claims about what is kept, how long, and what is fetched again.

use super::*;
use crate::question::Transport;
use hickory_proto::op::{Message, Query};

fn question(name: &str) -> Question {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    Question::of(&message, Transport::Udp).unwrap()
}

fn cache(entries_max: usize) -> Cache {
    Cache::new(config::Cache {
        success_entries_max: entries_max,
        success_secs: (5, 3600),
        denial_entries_max: entries_max,
        denial_secs: (5, 1800),
        ..config::Cache::usual()
    })
}

fn found(name: &str) -> Answer {
    let mut answer = Answer::new(ResponseCode::NoError, "test");
    let address = std::net::Ipv4Addr::new(192, 0, 2, 1);
    answer.add(&Name::from_ascii(name).unwrap(), 60, RData::A(address.into()));
    answer
}

#[test]
fn a_full_cache_lets_the_oldest_go_whatever_its_name() {
    let cache = cache(3);
    for name in ["m.", "a.", "z.", "n."] {
        cache.put(&question(name), &mut found(name));
    }
    // Stored again: it is the youngest now.
    cache.put(&question("a."), &mut found("a."));
    cache.put(&question("b."), &mut found("b."));
    let kept: Vec<&str> =
        ["a.", "b.", "m.", "n.", "z."].into_iter().filter(|name| cache.get(&question(name)).is_some()).collect();
    assert_eq!(kept, ["a.", "b.", "n."]);
    assert_eq!(cache.sizes(), (3, 0));
}

#[test]
fn answers_of_many_records_do_not_fill_the_memory() {
    let cache = cache(10_000);
    let many = |name: &str, n: usize| {
        let mut answer = found(name);
        answer.answers = vec![answer.answers[0].clone(); n];
        answer
    };
    cache.put(&question("huge."), &mut many("huge.", RECORDS_OF_ENTRY_MAX + 1));
    assert!(cache.get(&question("huge.")).is_none());
    for n in 0..40 {
        let name = format!("a{n}.");
        cache.put(&question(&name), &mut many(&name, RECORDS_OF_ENTRY_MAX));
    }
    assert_eq!(cache.sizes(), (RECORDS_MAX / RECORDS_OF_ENTRY_MAX, 0));
    assert!(cache.get(&question("a0.")).is_none() && cache.get(&question("a39.")).is_some());
    let shelf = cache.success.lock();
    assert_eq!((shelf.n_records, shelf.order.len()), (RECORDS_MAX, shelf.entries.len()));
}

#[test]
fn a_failure_is_kept_for_five_seconds() {
    let cache = cache(3);
    cache.put(&question("a."), &mut Answer::new(ResponseCode::ServFail, "forward"));
    assert_eq!(cache.get(&question("a.")).map(|hit| hit.answer.code), Some(ResponseCode::ServFail));
    let shelf = cache.denial.lock();
    let entry = shelf.entries.values().next().unwrap();
    assert_eq!(entry.expires - entry.stored, Duration::from_secs(5));
}

fn soa(name: &str, ttl_secs: u32, minimum: u32) -> Record {
    let (zone, host) = (Name::from_ascii(name).unwrap(), Name::from_ascii("ns.").unwrap());
    let soa = hickory_proto::rr::rdata::SOA::new(host.clone(), host, 1, 7200, 1800, 86400, minimum);
    Record::from_rdata(zone, ttl_secs, RData::SOA(soa))
}

/// Seconds for which an answer is kept; `None` if it is not.
fn kept_secs(mut answer: Answer) -> Option<u64> {
    let cache = cache(3);
    cache.put(&question("a.test."), &mut answer);
    let shelves = [cache.success.lock(), cache.denial.lock()];
    let entry = shelves.iter().find_map(|shelf| shelf.entries.values().next())?;
    Some((entry.expires - entry.stored).as_secs())
}

/// RFC 2308: a denial lives as long as its SOA says, by time to live and MINIMUM, and without one it is not kept.
#[test]
fn a_denial_is_kept_as_long_as_its_soa_says() {
    let denial = |code: ResponseCode, soa: Option<Record>| {
        let mut answer = Answer::new(code, "test");
        answer.authorities.extend(soa);
        answer
    };
    let no_such_name = |ttl, minimum| denial(ResponseCode::NXDomain, Some(soa("test.", ttl, minimum)));
    assert_eq!(kept_secs(no_such_name(300, 60)), Some(60));
    assert_eq!(kept_secs(no_such_name(60, 300)), Some(60));
    assert_eq!(kept_secs(no_such_name(86_400, 86_400)), Some(1800), "at most as long as the Corefile says");
    assert_eq!(kept_secs(no_such_name(0, 0)), Some(5), "and at least so long");
    assert_eq!(kept_secs(denial(ResponseCode::NoError, Some(soa("test.", 300, 60)))), Some(60));
    assert_eq!(kept_secs(denial(ResponseCode::NXDomain, None)), None);
    assert_eq!(kept_secs(denial(ResponseCode::NoError, None)), None);
    // The name at the end of an alias is denied by the same rule (section 2.1).
    let mut alias = no_such_name(300, 60);
    let target = hickory_proto::rr::rdata::CNAME(Name::from_ascii("b.test.").unwrap());
    alias.add(&Name::from_ascii("a.test.").unwrap(), 200, RData::CNAME(target));
    assert_eq!(kept_secs(alias), Some(60));
}

#[test]
fn an_answer_is_kept_as_long_as_its_shortest_record() {
    let mut two = found("a.test.");
    let mut second = two.answers[0].clone();
    second.ttl = 40;
    two.answers.push(second);
    assert_eq!(kept_secs(two.clone()), Some(40));
    two.truncated = true;
    assert_eq!(kept_secs(two), None, "a part of an answer");
    assert_eq!(kept_secs(Answer::new(ResponseCode::Refused, "forward")), None);
}

#[test]
fn a_kept_answer_grows_old_and_has_the_letters_of_the_question() {
    let cache = cache(3);
    cache.put(&question("a.test."), &mut found("a.test."));
    let grow_older = |secs: u64| {
        for entry in cache.success.lock().entries.values_mut() {
            entry.stored -= Duration::from_secs(secs);
            entry.expires -= Duration::from_secs(secs);
        }
    };
    grow_older(20);
    let answer = cache.get(&question("A.Test.")).unwrap().answer;
    assert_eq!((answer.answers[0].ttl, answer.answers[0].name.to_ascii()), (40, "A.Test.".to_owned()));
    let mut secure = question("a.test.");
    secure.dnssec_ok = true;
    assert!(cache.get(&secure).is_none(), "signatures were not asked for");
    grow_older(40);
    assert!(cache.get(&question("a.test.")).is_none());
}
