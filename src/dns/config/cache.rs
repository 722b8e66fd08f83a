//! `cache [TTL] [ZONES...] { … }`.

use std::time::Duration;

use hickory_proto::rr::Name;

use crate::args::{Parsed, absent, duration, names, names_or, none, number, one, unknown, wrong_count};
use crate::corefile::Directive;

/// Entries of each of the two shelves unless the Corefile says otherwise, and at most: an entry takes a few hundred
/// bytes.
const ENTRIES: usize = 9984;
const ENTRIES_MAX: usize = 200_000;
const SERVFAIL_SECS_MAX: u64 = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) zones: Vec<Name>,
    pub(crate) success_entries_max: usize,
    /// At least and at most.
    pub(crate) success_secs: (u32, u32),
    pub(crate) denial_entries_max: usize,
    pub(crate) denial_secs: (u32, u32),
    pub(crate) servfail_secs: u32,
    pub(crate) prefetch: Option<Prefetch>,
    pub(crate) stale: Option<Stale>,
    /// Zones of which nothing is kept: successes and denials.
    pub(crate) no_success: Vec<Name>,
    pub(crate) no_denial: Vec<Name>,
    pub(crate) keep_ttl: bool,
}

/// Answers that are asked for often are fetched again before they expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetch {
    /// Questions, with no longer pause between them than `pause`.
    pub(crate) n_hits: u32,
    pub(crate) pause: Duration,
    /// Of the time to live that is left.
    pub(crate) percent: u32,
}

/// Answers that have expired are used while no other can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale {
    pub(crate) up_to: Duration,
    pub(crate) mode: StaleMode,
    pub(crate) ttl_secs: u32,
    /// After a refresh that failed, until the next one.
    pub(crate) recheck: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleMode {
    /// The expired answer at once; the source is asked behind the client's back.
    Immediate,
    /// The source first, for so long if it is said.
    Verify(Option<Duration>),
}

impl Cache {
    /// CoreDNS's defaults, for all names.
    pub(crate) fn usual() -> Cache {
        Cache {
            zones: vec![Name::root()],
            success_entries_max: ENTRIES,
            success_secs: (5, 3600),
            denial_entries_max: ENTRIES,
            denial_secs: (5, 1800),
            servfail_secs: 5,
            prefetch: None,
            stale: None,
            no_success: Vec::new(),
            no_denial: Vec::new(),
            keep_ttl: false,
        }
    }

    pub(super) fn parse(directive: &Directive, zones: &[Name]) -> Parsed<Cache> {
        let mut args = directive.args.as_slice();
        let ttl: Option<u32> = args.first().and_then(|text| text.parse().ok());
        if ttl == Some(0) {
            return Err(directive.error("cache TTL can not be zero or negative: 0"));
        }
        if ttl.is_some() {
            args = &args[1..];
        }
        let mut cache = Cache { zones: names_or(directive, args, zones)?, ..Cache::usual() };
        if let Some(ttl) = ttl {
            cache.success_secs.1 = ttl;
            cache.denial_secs.1 = ttl;
        }
        for option in &directive.body {
            cache.set(directive, option)?;
        }
        Ok(cache)
    }

    fn set(&mut self, directive: &Directive, option: &Directive) -> Parsed<()> {
        match option.name.as_str() {
            "success" => shelf(option, &mut self.success_entries_max, &mut self.success_secs)?,
            "denial" => shelf(option, &mut self.denial_entries_max, &mut self.denial_secs)?,
            "prefetch" => self.prefetch = Some(prefetch(option)?),
            "serve_stale" => self.stale = Some(stale(option)?),
            "servfail" => {
                let lasts = duration(option, one(option)?)?;
                if lasts.as_secs() > SERVFAIL_SECS_MAX {
                    return Err(option.error("caching SERVFAIL responses over 5 minutes is not permitted"));
                }
                self.servfail_secs = u32::try_from(lasts.as_secs()).unwrap_or(0);
            }
            "disable" => {
                let Some((which, zones)) = option.args.split_first() else { return Err(wrong_count(option)) };
                let zones = names(option, zones)?;
                let zones = if zones.is_empty() { vec![Name::root()] } else { zones };
                match which.as_str() {
                    "success" => self.no_success = zones,
                    "denial" => self.no_denial = zones,
                    other => {
                        return Err(option.error(format!(
                            "cache type for disable must be \"success\" or \"denial\", not {other:?}"
                        )));
                    }
                }
            }
            "keepttl" => {
                none(option)?;
                self.keep_ttl = true;
            }
            "serve_stale_policy" => return Err(absent(directive, option)),
            _ => return Err(unknown(directive, option)),
        }
        Ok(())
    }
}

fn shelf(option: &Directive, entries_max: &mut usize, (at_least, at_most): &mut (u32, u32)) -> Parsed<()> {
    *entries_max = number(option, option.args.first().map_or("", String::as_str))?;
    if *entries_max > ENTRIES_MAX {
        return Err(option.error(format!("a cache has at most {ENTRIES_MAX} entries here: {entries_max}")));
    }
    if let Some(ttl) = option.args.get(1) {
        *at_most = number(option, ttl)?;
    }
    if let Some(ttl) = option.args.get(2) {
        *at_least = number(option, ttl)?;
    }
    if option.args.len() > 3 { Err(wrong_count(option)) } else { Ok(()) }
}

/// `prefetch AMOUNT [[DURATION] [PERCENTAGE%]]`.
fn prefetch(option: &Directive) -> Parsed<Prefetch> {
    let Some((amount, rest)) = option.args.split_first() else { return Err(wrong_count(option)) };
    let mut prefetch = Prefetch { n_hits: number(option, amount)?, pause: Duration::from_secs(60), percent: 10 };
    for word in rest {
        match word.strip_suffix('%') {
            Some(percent) => {
                prefetch.percent = number(option, percent)?;
                if !(10..=90).contains(&prefetch.percent) {
                    return Err(option.error(format!("percentage should fall in range [10%, 90%]: {word}")));
                }
            }
            None => prefetch.pause = duration(option, word)?,
        }
    }
    Ok(prefetch)
}

/// `serve_stale [DURATION] [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]`.
fn stale(option: &Directive) -> Parsed<Stale> {
    let mut words = option.args.iter().map(String::as_str);
    let mut stale =
        Stale { up_to: Duration::from_secs(3600), mode: StaleMode::Immediate, ttl_secs: 0, recheck: Duration::ZERO };
    let mut word = words.next();
    if let Some(text) = word.filter(|word| !matches!(word.to_ascii_lowercase().as_str(), "immediate" | "verify")) {
        stale.up_to = duration(option, text)?;
        word = words.next();
    }
    match word.map(str::to_ascii_lowercase).as_deref() {
        None | Some("immediate") => {}
        Some("verify") => {
            let timeout = words.next().map(|word| duration(option, word)).transpose()?;
            stale.mode = StaleMode::Verify(timeout.filter(|timeout| !timeout.is_zero()));
        }
        Some(other) => return Err(option.error(format!("invalid value for serve_stale refresh mode: {other}"))),
    }
    if let Some(word) = words.next() {
        let ttl = duration(option, word)?;
        if ttl.subsec_nanos() != 0 {
            return Err(option.error(format!("the TTL of stale answers must be whole seconds: {word}")));
        }
        stale.ttl_secs = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX >> 1);
    }
    stale.recheck = words.next().map_or(Ok(Duration::ZERO), |word| duration(option, word))?;
    if words.next().is_some() { Err(wrong_count(option)) } else { Ok(stale) }
}
