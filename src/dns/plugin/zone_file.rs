//! `file DBFILE [ZONES...] { … }`: zones of master files, with wildcards, aliases and delegations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base::task::Group;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{LowerName, Name, RData, Record, RecordType};
use tracing::{info, warn};

use crate::args::{Parsed, absent, duration, names_or, none, one, unknown, wrong_count};
use crate::around::{Fall, Surroundings};
use crate::corefile::Directive;
use crate::plugin::master_file::{self, MasterError};
use crate::question::{Answer, Question};
use crate::text_file;

/// Aliases that are followed within a zone, as CoreDNS does.
const ALIASES_MAX: usize = 8;

/// One `file` of a Corefile.
#[derive(Clone, Debug)]
pub(crate) struct ZoneFile {
    path: PathBuf,
    /// By name; all from the one file.
    zones: Vec<(Name, Arc<Zone>)>,
    reload: Duration,
    by_mtime: bool,
    fall: Fall,
}

/// A text that is not the file of a zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZoneError {
    /// An entry is wrong.
    #[error(transparent)]
    Entry(#[from] MasterError),
    /// The SOA record belongs to another zone.
    #[error("the SOA record is {owner}'s, not {origin}'s")]
    OtherSoa {
        /// Its name.
        owner: Name,
        /// The zone.
        origin: Name,
    },
    /// There is none.
    #[error("no SOA record for {0}")]
    NoSoa(Name),
}

/// The records of a zone.
#[derive(Debug)]
pub(crate) struct Zone {
    origin: Name,
    serial: u32,
    soa: Record,
    /// Owners by name from the right, as `LowerName` orders them: what is below a name follows it.
    nodes: BTreeMap<LowerName, Vec<Record>>,
}

/// A zone's part of an answer.
enum Found {
    Answer(Answer),
    /// An alias that leads out of the zone: the rest of the answer is elsewhere.
    Elsewhere(Answer, Name),
    NoName,
}

impl ZoneFile {
    pub(crate) fn parse(directive: &Directive, around: &Surroundings<'_>) -> Parsed<ZoneFile> {
        let Some((file, zones)) = directive.args.split_first() else { return Err(wrong_count(directive)) };
        let path = around.path(file);
        let mut reload = Duration::from_secs(60);
        let (mut by_mtime, mut fall) = (false, Fall::default());
        for option in &directive.body {
            match option.name.as_str() {
                "reload" => reload = duration(option, one(option)?)?,
                "reload_by_mtime" => {
                    none(option)?;
                    by_mtime = true;
                }
                "fallthrough" => fall = Fall::parse(option)?,
                "upstream" => {}
                "transfer" | "no_reload" => return Err(absent(directive, option)),
                _ => return Err(unknown(directive, option)),
            }
        }
        let text = (around.read)(&path.display().to_string(), text_file::TABLE_BYTES_MAX)
            .map_err(|err| directive.error(format!("cannot read the zone file {}: {err}", path.display())))?;
        let names = names_or(directive, zones, &around.zones)?;
        let zones = names.into_iter().map(|name| {
            let zone = Zone::parse(&text, &name);
            let zone = zone.map_err(|why| directive.error(format!("the zone file {}: {why}", path.display())))?;
            Ok((name, Arc::new(zone)))
        });
        Ok(ZoneFile { zones: zones.collect::<Parsed<_>>()?, path, reload, by_mtime, fall })
    }
}

impl Zone {
    pub(crate) fn parse(text: &str, origin: &Name) -> Result<Zone, ZoneError> {
        let mut nodes: BTreeMap<LowerName, Vec<Record>> = BTreeMap::new();
        let mut soa = None;
        for record in master_file::records(text, origin)? {
            if !origin.zone_of(&record.name) {
                continue;
            }
            if matches!(record.data, RData::SOA(_)) {
                if record.name != *origin {
                    return Err(ZoneError::OtherSoa { owner: record.name, origin: origin.clone() });
                }
                soa = Some(record);
                continue;
            }
            nodes.entry(LowerName::new(&record.name)).or_default().push(record);
        }
        let Some(soa) = soa else { return Err(ZoneError::NoSoa(origin.clone())) };
        let serial = if let RData::SOA(data) = &soa.data { data.serial } else { 0 };
        nodes.entry(LowerName::new(origin)).or_default();
        Ok(Zone { origin: origin.clone(), serial, soa, nodes })
    }

    fn node(&self, name: &Name) -> Option<&Vec<Record>> {
        self.nodes.get(&LowerName::new(name))
    }

    fn of_kind(node: &[Record], kind: RecordType) -> impl Iterator<Item = &Record> {
        node.iter().filter(move |record| record.record_type() == kind)
    }

    fn ns(&self) -> Vec<Record> {
        self.node(&self.origin).map(|node| Zone::of_kind(node, RecordType::NS).cloned().collect()).unwrap_or_default()
    }

    /// Whether something is below the name: it exists, though it has no records.
    fn is_parent(&self, name: &Name) -> bool {
        let lower = LowerName::new(name);
        let next = self.nodes.range((std::ops::Bound::Excluded(&lower), std::ops::Bound::Unbounded)).next();
        next.is_some_and(|(next, _)| lower.zone_of(next))
    }

    fn find(&self, question: &Question) -> Found {
        let (mut answer, mut name) = (authoritative(), question.name.clone());
        for _ in 0..=ALIASES_MAX {
            if name == self.origin && question.kind == RecordType::SOA {
                answer.answers.push(renamed(&self.soa, &name));
                answer.authorities = self.ns();
                return Found::Answer(answer);
            }
            if let Some(referral) = self.delegation(&name, question.kind) {
                answer.authoritative &= !answer.answers.is_empty();
                answer.authorities = referral;
                answer.additionals = self.glue(&answer.authorities);
                return Found::Answer(answer);
            }
            let Some(node) = self.node(&name).or_else(|| self.wildcard(&name)) else {
                if self.is_parent(&name) {
                    answer.authorities = vec![self.soa.clone()];
                    return Found::Answer(answer);
                }
                // What an alias leads to may be another plugin's, also a name of this zone.
                return if answer.answers.is_empty() { Found::NoName } else { Found::Elsewhere(answer, name) };
            };
            let owned = |record: &Record| renamed(record, &name);
            let records: Vec<Record> = Zone::of_kind(node, question.kind).map(owned).collect();
            let alias = node.iter().find(|record| record.record_type() == RecordType::CNAME);
            match alias {
                Some(alias) if records.is_empty() => {
                    answer.answers.push(owned(alias));
                    let RData::CNAME(target) = &alias.data else { break };
                    if !self.origin.zone_of(&target.0) {
                        let target = target.0.clone();
                        return Found::Elsewhere(answer, target);
                    }
                    name = target.0.clone();
                }
                _ => return Found::Answer(self.filled(answer, records, question.kind)),
            }
        }
        // Aliases in a circle, or nearly.
        Found::Answer(Answer::failed("file", format!("more than {ALIASES_MAX} aliases behind {}", question.name)))
    }

    fn filled(&self, mut answer: Answer, records: Vec<Record>, kind: RecordType) -> Answer {
        if records.is_empty() {
            answer.authorities = vec![self.soa.clone()];
            return answer;
        }
        answer.answers.extend(records);
        answer.additionals = self.glue(&answer.answers);
        if kind != RecordType::NS || answer.answers[0].name != self.origin {
            answer.authorities = self.ns();
        }
        answer
    }

    /// Name servers of a zone below this one that holds the name.
    fn delegation(&self, name: &Name, kind: RecordType) -> Option<Vec<Record>> {
        let below = usize::from(name.num_labels().saturating_sub(self.origin.num_labels()));
        // From the top: the delegation that is nearest to this zone counts.
        for n in 1..=below {
            let at = name.trim_to(usize::from(self.origin.num_labels()) + n);
            let Some(node) = self.node(&at) else { continue };
            let servers: Vec<Record> = Zone::of_kind(node, RecordType::NS).cloned().collect();
            // A DS record is the parent's to tell.
            let is_parents = kind == RecordType::DS && at == *name;
            if !servers.is_empty() && !is_parents {
                return Some(servers);
            }
        }
        None
    }

    /// Records of the wildcard that the name falls under (RFC 4592): the one of its closest encloser.
    fn wildcard(&self, name: &Name) -> Option<&Vec<Record>> {
        if self.is_parent(name) {
            return None;
        }
        let mut encloser = name.base_name();
        while self.origin.zone_of(&encloser) {
            let star = encloser.prepend_label("*").ok();
            if let Some(node) = star.and_then(|star| self.nodes.get(&LowerName::new(&star))) {
                return Some(node);
            }
            if self.node(&encloser).is_some() || self.is_parent(&encloser) || encloser.is_root() {
                return None;
            }
            encloser = encloser.base_name();
        }
        None
    }

    /// Addresses of the servers that records name, as far as this zone has them.
    fn glue(&self, records: &[Record]) -> Vec<Record> {
        let mut glue: Vec<Record> = Vec::new();
        for record in records {
            let target = match &record.data {
                RData::NS(ns) => &ns.0,
                RData::MX(mx) => &mx.exchange,
                RData::SRV(srv) => &srv.target,
                _ => continue,
            };
            let node = self.node(target).into_iter().flatten();
            let addresses = node.filter(|r| matches!(r.record_type(), RecordType::A | RecordType::AAAA));
            for address in addresses {
                if !glue.contains(address) {
                    glue.push(address.clone());
                }
            }
        }
        glue
    }
}

/// The record of a wildcard, under the name that was asked for.
fn renamed(record: &Record, name: &Name) -> Record {
    let mut record = record.clone();
    record.name = name.clone();
    record
}

fn authoritative() -> Answer {
    Answer { authoritative: true, ..Answer::new(ResponseCode::NoError, "file") }
}

/// The zones in force, and the file that they come from.
pub(crate) struct Zones {
    config: ZoneFile,
    zones: Vec<(Name, ArcSwap<Zone>)>,
}

/// An answer, or the alias with which it goes on elsewhere.
pub(crate) enum Told {
    Whole(Answer),
    Alias(Box<Alias>),
}

/// An answer that ends in an alias.
pub(crate) struct Alias {
    pub(crate) answer: Answer,
    pub(crate) target: Name,
    soa: Record,
    ns: Vec<Record>,
}

impl Alias {
    /// The whole answer, with what was found elsewhere: its code is the target's (RFC 6604).
    pub(crate) fn with(self, more: Answer) -> Answer {
        let mut answer = self.answer;
        answer.authorities = match more.code {
            ResponseCode::NXDomain => vec![self.soa],
            ResponseCode::NoError if more.answers.is_empty() => vec![self.soa],
            _ => self.ns,
        };
        answer.code = more.code;
        answer.answers.extend(more.answers);
        answer
    }
}

impl Zones {
    pub(crate) fn new(config: ZoneFile) -> Arc<Zones> {
        let zones = config.zones.iter().map(|(name, zone)| (name.clone(), ArcSwap::new(Arc::clone(zone))));
        Arc::new(Zones { zones: zones.collect(), config })
    }

    /// `None` passes the question on.
    pub(crate) fn answer(&self, question: &Question) -> Option<Told> {
        let holding = self.zones.iter().filter(|(name, _)| name.zone_of(&question.lower));
        let (_, zone) = holding.max_by_key(|(name, _)| name.num_labels())?;
        if matches!(question.kind, RecordType::AXFR | RecordType::IXFR) {
            return Some(Told::Whole(Answer::new(ResponseCode::Refused, "file")));
        }
        let zone = zone.load();
        Some(match zone.find(question) {
            Found::Answer(answer) => Told::Whole(answer),
            Found::Elsewhere(answer, target) => {
                Told::Alias(Box::new(Alias { answer, target, soa: zone.soa.clone(), ns: zone.ns() }))
            }
            Found::NoName if self.config.fall.through(&question.lower) => return None,
            Found::NoName => {
                let mut answer = authoritative();
                answer.code = ResponseCode::NXDomain;
                answer.authorities.push(zone.soa.clone());
                Told::Whole(answer)
            }
        })
    }

    /// Reads the file again and again; one that cannot be used leaves the last zones in force.
    pub(crate) async fn follow(self: Arc<Zones>) {
        if self.config.reload.is_zero() {
            return std::future::pending().await;
        }
        let mut last = stamp(&self.config.path);
        loop {
            tokio::time::sleep(self.config.reload).await;
            let now = stamp(&self.config.path);
            if now == last {
                continue;
            }
            last = now;
            let zones = Arc::clone(&self);
            // A zone of megabytes takes a while to read, and the one thread answers questions.
            if let Err(err) = Group::blocking(move || zones.read()).await {
                warn!(path = %self.config.path.display(), err = %err, "cannot read the zone file again");
            }
        }
    }

    fn read(&self) {
        let path = &self.config.path;
        let text = match text_file::read(path, text_file::TABLE_BYTES_MAX) {
            Ok(text) => text,
            Err(err) => {
                return warn!(path = %path.display(), err = %err, "cannot read the zone file, keeping the last zone");
            }
        };
        for (name, zone) in &self.zones {
            match Zone::parse(&text, name) {
                Err(why) => {
                    let path = path.display();
                    warn!(%path, zone = %name, err = %why, "the zone file is wrong, keeping the last zone");
                }
                Ok(fresh) if fresh.serial == zone.load().serial && !self.config.by_mtime => {}
                Ok(fresh) => {
                    info!(zone = %name, serial = fresh.serial, "the zone file has changed");
                    zone.store(Arc::new(fresh));
                }
            }
        }
    }
}

fn stamp(path: &Path) -> Option<(std::time::SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

#[cfg(test)]
mod tests;
