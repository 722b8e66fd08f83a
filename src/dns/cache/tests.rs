//! Claims about what is kept, how long, and what is fetched again.

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::RecordType;

use super::*;
use crate::question::Transport;

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

fn stale_cache(mode: config::StaleMode, recheck_secs: u64) -> Cache {
    let stale = config::Stale {
        up_to: Duration::from_secs(3600),
        mode,
        ttl_secs: 30,
        recheck: Duration::from_secs(recheck_secs),
    };
    Cache::new(config::Cache { stale: Some(stale), ..config::Cache::usual() })
}

fn grow_older(cache: &Cache, secs: u64) {
    for shelf in [&cache.success, &cache.denial] {
        for entry in shelf.lock().entries.values_mut() {
            let age = Duration::from_secs(secs);
            entry.stored -= age;
            entry.expires -= age;
            entry.last_hit -= age;
            entry.next_refresh -= age;
        }
    }
}

#[test]
fn an_expired_answer_is_served_for_an_hour_and_one_question_fetches_it_again() {
    let cache = stale_cache(config::StaleMode::Immediate, 0);
    cache.put(&question("a."), &mut found("a."));
    assert!(!cache.get(&question("a.")).unwrap().stale);
    grow_older(&cache, 100);
    let first = cache.get(&question("a.")).unwrap();
    assert_eq!((first.stale, first.refresh, first.answer.answers[0].ttl), (true, true, 30));
    assert!((0..1000).all(|_| !cache.get(&question("a.")).unwrap().refresh), "one refresh at a time");
    cache.refreshed(&question("a."));
    assert!(cache.get(&question("a.")).unwrap().refresh, "it failed, and is tried again");
    grow_older(&cache, 3600);
    assert!(cache.get(&question("a.")).is_none());
}

#[test]
fn after_a_refresh_that_failed_there_is_a_pause() {
    let cache = stale_cache(config::StaleMode::Verify(None), 10);
    cache.put(&question("a."), &mut found("a."));
    grow_older(&cache, 100);
    assert!(cache.get(&question("a.")).unwrap().refresh);
    cache.refreshed(&question("a."));
    assert!(!cache.get(&question("a.")).unwrap().refresh);
    grow_older(&cache, 11);
    assert!(cache.get(&question("a.")).unwrap().refresh);
    assert!(!Cache::replaces_stale(&Answer::new(ResponseCode::ServFail, "forward")));
}

#[test]
fn a_failure_does_not_hide_what_was_known() {
    let cache = stale_cache(config::StaleMode::Immediate, 0);
    cache.put(&question("a."), &mut found("a."));
    cache.put(&question("a."), &mut Answer::new(ResponseCode::ServFail, "forward"));
    assert_eq!(cache.get(&question("a.")).unwrap().answer.code, ResponseCode::NoError);
    grow_older(&cache, 100);
    assert_eq!(cache.get(&question("a.")).unwrap().answer.code, ResponseCode::NoError);
}

#[test]
fn popular_answers_are_fetched_before_they_expire() {
    let prefetch = config::Prefetch { n_hits: 3, pause: Duration::from_secs(60), percent: 20 };
    let cache = Cache::new(config::Cache { prefetch: Some(prefetch), ..config::Cache::usual() });
    cache.put(&question("a."), &mut found("a."));
    assert!((0..5).all(|_| !cache.get(&question("a.")).unwrap().refresh), "there is time left");
    grow_older(&cache, 55);
    let asked: Vec<bool> = (0..100).map(|_| cache.get(&question("a.")).unwrap().refresh).collect();
    assert_eq!(asked.iter().filter(|refresh| **refresh).count(), 1, "a flood of questions fetches once");
    cache.put(&question("b."), &mut found("b."));
    grow_older(&cache, 55);
    assert!(!cache.get(&question("b.")).unwrap().refresh, "it is not popular");
}

#[test]
fn parts_of_the_cache_are_switched_off_and_times_are_kept() {
    let zone = |text: &str| vec![Name::from_ascii(text).unwrap()];
    let config = config::Cache { no_success: zone("off."), keep_ttl: true, ..config::Cache::usual() };
    let cache = Cache::new(config);
    cache.put(&question("a.off."), &mut found("a.off."));
    cache.put(&question("a.on."), &mut found("a.on."));
    assert!(cache.get(&question("a.off.")).is_none());
    grow_older(&cache, 20);
    assert_eq!(cache.get(&question("a.on.")).unwrap().answer.answers[0].ttl, 60);
}
