//! The cache plugin: answers are kept as long as their records live, within bounds; popular ones are fetched before
//! they expire, and expired ones are used while no others can be had.

use std::collections::BTreeMap;
use std::time::Duration;

use base::sync::Mutex;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record};
use tokio::time::Instant;

use crate::config;
use crate::question::{Answer, Question};

/// The question in bytes: they are compared at once, and names label by label.
type Key = Vec<u8>;

pub(crate) struct Cache {
    pub(crate) config: config::Cache,
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
    fn put(&mut self, key: Key, entry: Entry, entries_max: usize) {
        let (now, n_records) = (entry.stored, n_records(&entry.answer));
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
        self.entries.insert(key, Entry { turn, ..entry });
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
    /// Questions without a longer pause between them, for `prefetch`.
    n_hits: u32,
    last_hit: Instant,
    /// One refresh at a time, and none before this after one that failed.
    refreshing: bool,
    next_refresh: Instant,
}

/// Kind of an answer, as the cache sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Success,
    Denial,
    Failure,
    Neither,
}

/// A kept answer, and what is to be done for its successor.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) answer: Answer,
    /// `success` or `denial`, as the metrics name the shelves.
    pub(crate) shelf: &'static str,
    pub(crate) stale: bool,
    /// The caller has the turn to fetch it again, and ends it with [`Cache::refreshed`].
    pub(crate) refresh: bool,
}

impl Cache {
    pub(crate) fn new(config: config::Cache) -> Cache {
        Cache { config, success: Mutex::default(), denial: Mutex::default() }
    }

    pub(crate) fn wants(&self, question: &Question) -> bool {
        self.config.zones.iter().any(|zone| zone.zone_of(&question.lower))
    }

    fn shelves(&self) -> [(&'static str, &Mutex<Shelf>); 2] {
        [("success", &self.success), ("denial", &self.denial)]
    }

    /// A kept answer with what is left of its records' time; an expired one only where stale answers are served.
    pub(crate) fn get(&self, question: &Question) -> Option<Hit> {
        let (now, key) = (Instant::now(), key(question));
        let fresh = self.shelves().into_iter().find_map(|(name, shelf)| {
            let mut shelf = shelf.lock();
            let entry = shelf.entries.get_mut(&key).filter(|entry| entry.expires > now)?;
            let refresh = self.prefetches(entry, now);
            Some(Hit { answer: self.aged(entry, question, now), shelf: name, stale: false, refresh })
        });
        fresh.or_else(|| self.stale(question, &key, now))
    }

    fn stale(&self, question: &Question, key: &Key, now: Instant) -> Option<Hit> {
        let stale = self.config.stale?;
        self.shelves().into_iter().find_map(|(name, shelf)| {
            let mut shelf = shelf.lock();
            let entry = shelf.entries.get_mut(key).filter(|entry| entry.expires + stale.up_to > now)?;
            // A failure that has expired is no answer.
            if entry.answer.code == ResponseCode::ServFail {
                return None;
            }
            let mut answer = self.aged(entry, question, now);
            answer.records_mut().for_each(|record| record.ttl = stale.ttl_secs);
            let refresh = !entry.refreshing && entry.next_refresh <= now;
            entry.refreshing |= refresh;
            Some(Hit { answer, shelf: name, stale: true, refresh })
        })
    }

    /// Counts a question, and says whether it is the one with which the answer is fetched again.
    fn prefetches(&self, entry: &mut Entry, now: Instant) -> bool {
        let Some(prefetch) = self.config.prefetch else { return false };
        entry.n_hits =
            if now.duration_since(entry.last_hit) > prefetch.pause { 1 } else { entry.n_hits.saturating_add(1) };
        entry.last_hit = now;
        let (whole, left) = (entry.expires - entry.stored, entry.expires - now);
        let threshold = (whole * prefetch.percent / 100).max(Duration::from_secs(1));
        let due = entry.n_hits >= prefetch.n_hits && left <= threshold && !entry.refreshing;
        entry.refreshing |= due;
        due
    }

    fn aged(&self, entry: &Entry, question: &Question, now: Instant) -> Answer {
        let age = u32::try_from(now.duration_since(entry.stored).as_secs()).unwrap_or(u32::MAX);
        let age = if self.config.keep_ttl { 0 } else { age };
        let mut answer = entry.answer.clone();
        answer.records_mut().for_each(|record| record.ttl = record.ttl.saturating_sub(age));
        // The letters' case is the asker's.
        for record in answer.answers.iter_mut().filter(|record| record.name == question.lower) {
            record.name = question.name.clone();
        }
        answer
    }

    /// Ends a refresh. One that failed leaves the entry, and is tried again after a while.
    pub(crate) fn refreshed(&self, question: &Question) {
        let recheck = self.config.stale.map_or(Duration::ZERO, |stale| stale.recheck);
        let (key, next_refresh) = (key(question), Instant::now() + recheck);
        for (_, shelf) in self.shelves() {
            // An entry that was stored anew is not being refreshed.
            if let Some(entry) = shelf.lock().entries.get_mut(&key).filter(|entry| entry.refreshing) {
                entry.refreshing = false;
                entry.next_refresh = next_refresh;
            }
        }
    }

    /// Whether this answer may take the place of one that has expired.
    pub(crate) fn replaces_stale(answer: &Answer) -> bool {
        matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain)
    }

    pub(crate) fn put(&self, question: &Question, answer: &mut Answer) {
        let config = &self.config;
        let off = |zones: &[Name]| zones.iter().any(|zone| zone.zone_of(&question.lower));
        let (shelf, entries_max, (secs_min, secs_max)) = match kind(answer) {
            Kind::Success if off(&config.no_success) => return,
            Kind::Denial if off(&config.no_denial) => return,
            Kind::Success => (&self.success, config.success_entries_max, config.success_secs),
            Kind::Denial => (&self.denial, config.denial_entries_max, config.denial_secs),
            // A dead uplink must not cost every client its patience.
            Kind::Failure => (&self.denial, config.denial_entries_max, (config.servfail_secs, config.servfail_secs)),
            Kind::Neither => return,
        };
        let secs = lifetime(answer).clamp(secs_min.min(secs_max), secs_max);
        // The client must not keep it longer than we do.
        answer.records_mut().for_each(|record| record.ttl = record.ttl.min(secs));
        if secs == 0 || entries_max == 0 || n_records(answer) > RECORDS_OF_ENTRY_MAX {
            return;
        }
        let (now, key) = (Instant::now(), key(question));
        let n_hits = shelf.lock().entries.get(&key).map_or(0, |entry| entry.n_hits);
        let entry = Entry {
            answer: answer.clone(),
            turn: 0,
            stored: now,
            expires: now + Duration::from_secs(u64::from(secs)),
            n_hits,
            last_hit: now,
            refreshing: false,
            next_refresh: now,
        };
        // What is kept on the other shelf is older. A failure does not drive out what was known before it.
        if kind(answer) != Kind::Failure {
            let other = if std::ptr::eq(shelf, &self.success) { &self.denial } else { &self.success };
            other.lock().remove(&key);
        }
        shelf.lock().put(key, entry, entries_max);
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
    let mut key = Vec::with_capacity(64);
    for label in question.lower.iter() {
        // A label has 63 bytes at most.
        key.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        key.extend_from_slice(label);
    }
    key.push(0);
    key.extend(u16::from(question.kind).to_be_bytes());
    key.push(u8::from(question.dnssec_ok) << 1 | u8::from(question.checking_disabled));
    key
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
mod tests;
