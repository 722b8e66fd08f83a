//! The cache plugin: answers are kept as long as their records live, within bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use base::sync::Mutex;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::time::Instant;

use crate::config;
use crate::question::{Answer, Question};

type Key = (Name, RecordType, bool, bool);

/// A failure is asked for again after this, as CoreDNS does: a dead uplink must not cost every client its patience.
const FAILURE_SECS: u32 = 5;

pub(crate) struct Cache {
    config: config::Cache,
    success: Mutex<Shelf>,
    denial: Mutex<Shelf>,
}

/// Records of all entries of a shelf. Each takes some 300 bytes, so names of thousands of records do not fill the
/// memory.
const RECORDS_MAX: usize = 65_536;
/// Of one entry; an answer with more is not kept.
const RECORDS_OF_ENTRY_MAX: usize = 4096;

#[derive(Default)]
struct Shelf {
    entries: BTreeMap<Key, Entry>,
    n_records: usize,
    /// Keys in the order in which they were stored: the oldest goes first when the shelf is full.
    order: BTreeMap<u64, Key>,
    next: u64,
}

impl Shelf {
    fn put(&mut self, key: Key, answer: Answer, secs: u32, entries_max: usize) {
        let (now, n_records) = (Instant::now(), n_records(&answer));
        let is_full = |shelf: &Shelf| shelf.entries.len() >= entries_max || shelf.n_records + n_records > RECORDS_MAX;
        self.remove(&key);
        if is_full(self) {
            let expired = self.entries.iter().filter(|(_, entry)| entry.expires <= now).map(|(key, _)| key.clone());
            for key in expired.collect::<Vec<Key>>() {
                self.remove(&key);
            }
        }
        while is_full(self)
            && let Some(oldest) = self.order.first_key_value().map(|(_, key)| key.clone())
        {
            self.remove(&oldest);
        }
        let turn = self.next;
        self.next += 1;
        self.n_records += n_records;
        self.order.insert(turn, key.clone());
        self.entries
            .insert(key, Entry { answer, turn, stored: now, expires: now + Duration::from_secs(u64::from(secs)) });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.turn);
            self.n_records -= n_records(&entry.answer);
        }
    }
}

struct Entry {
    answer: Answer,
    turn: u64,
    stored: Instant,
    expires: Instant,
}

/// Kind of an answer, as the cache sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Success,
    Denial,
    Failure,
    Neither,
}

impl Cache {
    pub(crate) fn new(config: config::Cache) -> Cache {
        Cache { config, success: Mutex::default(), denial: Mutex::default() }
    }

    pub(crate) fn wants(&self, question: &Question) -> bool {
        self.config.zones.iter().any(|zone| zone.zone_of(&question.lower))
    }

    /// A kept answer with what is left of its records' time.
    pub(crate) fn get(&self, question: &Question) -> Option<Answer> {
        let now = Instant::now();
        for shelf in [&self.success, &self.denial] {
            let shelf = shelf.lock();
            if let Some(entry) = shelf.entries.get(&key(question)).filter(|entry| entry.expires > now) {
                let age = u32::try_from(now.duration_since(entry.stored).as_secs()).unwrap_or(u32::MAX);
                let mut answer = entry.answer.clone();
                for record in answer.answers.iter_mut().chain(&mut answer.authorities).chain(&mut answer.additionals) {
                    record.ttl = record.ttl.saturating_sub(age);
                }
                // The letters' case is the asker's.
                for record in answer.answers.iter_mut().filter(|record| record.name == question.lower) {
                    record.name = question.name.clone();
                }
                return Some(answer);
            }
        }
        None
    }

    pub(crate) fn put(&self, question: &Question, answer: &mut Answer) {
        let (shelf, entries_max, (secs_min, secs_max)) = match kind(answer) {
            Kind::Success => (&self.success, self.config.success_entries_max, self.config.success_secs),
            Kind::Denial => (&self.denial, self.config.denial_entries_max, self.config.denial_secs),
            Kind::Failure => (&self.denial, self.config.denial_entries_max, (FAILURE_SECS, FAILURE_SECS)),
            Kind::Neither => return,
        };
        let secs = lifetime(answer).clamp(secs_min.min(secs_max), secs_max);
        // The client must not keep it longer than we do.
        for record in answer.answers.iter_mut().chain(&mut answer.authorities).chain(&mut answer.additionals) {
            record.ttl = record.ttl.min(secs);
        }
        if secs == 0 || entries_max == 0 || n_records(answer) > RECORDS_OF_ENTRY_MAX {
            return;
        }
        shelf.lock().put(key(question), answer.clone(), secs, entries_max);
    }

    /// Entries kept now: successes and denials.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let len = |shelf: &Mutex<Shelf>| shelf.lock().entries.len();
        (len(&self.success), len(&self.denial))
    }
}

fn n_records(answer: &Answer) -> usize {
    answer.answers.len() + answer.authorities.len() + answer.additionals.len()
}

fn key(question: &Question) -> Key {
    (question.lower.clone(), question.kind, question.dnssec_ok, question.checking_disabled)
}

fn kind(answer: &Answer) -> Kind {
    let soa = answer.authorities.iter().any(|record| matches!(record.data, RData::SOA(_)));
    match answer.code {
        _ if answer.truncated => Kind::Neither,
        ResponseCode::NoError if !answer.answers.is_empty() => Kind::Success,
        ResponseCode::NoError | ResponseCode::NXDomain if soa => Kind::Denial,
        ResponseCode::ServFail => Kind::Failure,
        _ => Kind::Neither,
    }
}

/// The shortest life among the records; a denial lives as its SOA says.
fn lifetime(answer: &Answer) -> u32 {
    let denies = answer.code == ResponseCode::NXDomain || answer.answers.is_empty();
    let ttl = |record: &Record| match &record.data {
        RData::SOA(soa) if denies => record.ttl.min(soa.minimum),
        _ => record.ttl,
    };
    answer.answers.iter().chain(&answer.authorities).chain(&answer.additionals).map(ttl).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
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
            zones: vec![Name::root()],
            success_entries_max: entries_max,
            success_secs: (5, 3600),
            denial_entries_max: entries_max,
            denial_secs: (5, 1800),
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
        assert_eq!(cache.get(&question("a.")).map(|answer| answer.code), Some(ResponseCode::ServFail));
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
        let answer = cache.get(&question("A.Test.")).unwrap();
        assert_eq!((answer.answers[0].ttl, answer.answers[0].name.to_ascii()), (40, "A.Test.".to_owned()));
        let mut secure = question("a.test.");
        secure.dnssec_ok = true;
        assert!(cache.get(&secure).is_none(), "signatures were not asked for");
        grow_older(40);
        assert!(cache.get(&question("a.test.")).is_none());
    }
}
