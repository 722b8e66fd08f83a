//! The cache plugin: answers are kept as long as their records live, within bounds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::time::Instant;

use crate::config;
use crate::question::{Answer, Question};

type Key = (Name, RecordType, bool, bool);

pub(crate) struct Cache {
    config: config::Cache,
    success: Mutex<BTreeMap<Key, Entry>>,
    denial: Mutex<BTreeMap<Key, Entry>>,
}

struct Entry {
    answer: Answer,
    stored: Instant,
    expires: Instant,
}

/// What an answer is to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Success,
    Denial,
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
            let shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = shelf.get(&key(question)).filter(|entry| entry.expires > now) {
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
            Kind::Neither => return,
        };
        let secs = lifetime(answer).clamp(secs_min.min(secs_max), secs_max);
        // The client must not keep it longer than we do.
        for record in answer.answers.iter_mut().chain(&mut answer.authorities).chain(&mut answer.additionals) {
            record.ttl = record.ttl.min(secs);
        }
        if secs == 0 || entries_max == 0 {
            return;
        }
        let now = Instant::now();
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.len() >= entries_max {
            shelf.retain(|_, entry| entry.expires > now);
        }
        if shelf.len() >= entries_max {
            // Full of living ones: any may go.
            shelf.pop_first();
        }
        shelf.insert(key(question), Entry { answer: answer.clone(), stored: now, expires: now + Duration::from_secs(u64::from(secs)) });
    }

    /// Entries kept now: successes and denials.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let len = |shelf: &Mutex<BTreeMap<Key, Entry>>| shelf.lock().unwrap_or_else(PoisonError::into_inner).len();
        (len(&self.success), len(&self.denial))
    }
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
        _ => Kind::Neither,
    }
}

/// The shortest life among the records; a denial lives as its SOA says.
fn lifetime(answer: &Answer) -> u32 {
    let ttl = |record: &Record| match &record.data {
        RData::SOA(soa) if answer.answers.is_empty() => record.ttl.min(soa.minimum),
        _ => record.ttl,
    };
    answer.answers.iter().chain(&answer.authorities).chain(&answer.additionals).map(ttl).min().unwrap_or(0)
}
