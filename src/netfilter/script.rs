//! From a script to the messages of one transaction.

use std::collections::HashMap;

use crate::declaration::{self, Declaration, Hook, Place, hook};
use crate::elements::{self, Element, Entry, Interval, Use, entries, joined, lists};
use crate::error::{Misread, NetfilterError};
use crate::rule::{self, Anonymous, Content};
use crate::wire::{
    APPEND, BRIDGE, CREATE, Head, INET, IP, IP6, REQUEST, put, put_message, put_nested, put_text, put_u32,
};
use crate::words::{Misplaced, Words};

pub(crate) const SUBSYSTEM: u16 = 10;
/// Kinds of messages. Spec: `linux/netfilter/nf_tables.h`.
pub(crate) const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(crate) const GET_TABLE: u16 = NEW_TABLE | 1;
pub(crate) const DEL_TABLE: u16 = NEW_TABLE | 2;
pub(crate) const NEW_CHAIN: u16 = NEW_TABLE | 3;
pub(crate) const GET_CHAIN: u16 = NEW_TABLE | 4;
pub(crate) const DEL_CHAIN: u16 = NEW_TABLE | 5;
pub(crate) const NEW_RULE: u16 = NEW_TABLE | 6;
pub(crate) const GET_RULE: u16 = NEW_TABLE | 7;
pub(crate) const DEL_RULE: u16 = NEW_TABLE | 8;
pub(crate) const NEW_SET: u16 = NEW_TABLE | 9;
pub(crate) const GET_SET: u16 = NEW_TABLE | 10;
pub(crate) const DEL_SET: u16 = NEW_TABLE | 11;
pub(crate) const NEW_ELEMENT: u16 = NEW_TABLE | 12;
pub(crate) const GET_ELEMENT: u16 = NEW_TABLE | 13;
pub(crate) const DEL_ELEMENT: u16 = NEW_TABLE | 14;
pub(crate) const GET_GENERATION: u16 = NEW_TABLE | 16;

/// Longer names the kernel does not take, nor does nft.
const NAME_BYTES_MAX: usize = 127;

/// Messages of one transaction, without its begin and its end.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// The script's line of each message. Their numbers begin with 1.
    lines: Vec<u32>,
    /// Where the last message begins.
    pub(crate) last: usize,
}

impl Batch {
    /// Adds a message for a line.
    pub(crate) fn message(&mut self, line: u32, head: (u16, u16, u8), fill: impl FnOnce(&mut Vec<u8>)) {
        self.lines.push(line);
        self.last = self.bytes.len();
        let (kind, flags, family) = head;
        let seq = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        put_message(&mut self.bytes, Head { kind, flags: flags | REQUEST, seq, family, resource: 0 }, fill);
    }

    /// The line of the message of this number.
    pub(crate) fn line_of(&self, seq: u32) -> Option<usize> {
        let at = usize::try_from(seq).ok()?.checked_sub(1)?;
        usize::try_from(*self.lines.get(at)?).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Reads the `type` of a table's family.
pub(crate) fn family(word: &str) -> Result<u8, Misread> {
    match word {
        "inet" => Ok(INET),
        "ip" => Ok(IP),
        "ip6" => Ok(IP6),
        "bridge" => Ok(BRIDGE),
        other => Err(other.in_place_of("ip, ip6, inet or bridge")),
    }
}

/// Elements that go into a set that joins its intervals by itself: the set is read before they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merge<'a> {
    pub(crate) line: u32,
    pub(crate) place: Place<'a>,
    pub(crate) intervals: Vec<Interval>,
}

/// Messages of a script.
#[derive(Debug, Default)]
pub(crate) struct Compiled<'a> {
    pub(crate) batch: Batch,
    /// To be added to the batch's end when the sets were read.
    pub(crate) merges: Vec<Merge<'a>>,
}

/// Reads the whole script.
pub(crate) fn compile(script: &str) -> Result<Compiled<'_>, NetfilterError> {
    let mut compiler = Compiler::default();
    for (idx, line) in script.lines().enumerate() {
        compiler.line = u32::try_from(idx).unwrap_or(u32::MAX);
        compiler.command(line).map_err(|why| NetfilterError::Language { line: cut(line), why })?;
    }
    Ok(compiler.out)
}

/// A line as it is shown.
pub(crate) fn cut(line: &str) -> String {
    line.chars().take(200).collect()
}

#[derive(Default)]
struct Compiler<'a> {
    line: u32,
    set_id: u32,
    sets: HashMap<Place<'a>, Declaration>,
    out: Compiled<'a>,
}

impl<'a> Compiler<'a> {
    fn message(&mut self, head: (u16, u16, u8), fill: impl FnOnce(&mut Vec<u8>)) {
        self.out.batch.message(self.line, head, fill);
    }

    fn command(&mut self, line: &'a str) -> Result<(), Misread> {
        let mut words = Words::of(line);
        let Some(verb) = words.next() else { return Ok(()) };
        let object = words.need("table, chain, rule, set, map or element")?;
        let family = family(words.need("a family")?)?;
        let table = name(words.need("a table")?)?;
        if object == "table" {
            words.end()?;
            let head = match verb {
                "add" => (NEW_TABLE, CREATE, family),
                "delete" => (DEL_TABLE, 0, family),
                other => return Err(other.in_place_of("add or delete")),
            };
            self.message(head, |out| put_text(out, 1, table));
            return Ok(());
        }
        let place = Place { family, table, name: name(words.need("a name")?)? };
        match (verb, object) {
            ("add", "chain") => self.chain(place, &mut words)?,
            ("delete", "chain") => self.message((DEL_CHAIN, 0, family), |out| {
                put_text(out, 1, table);
                put_text(out, 3, place.name);
            }),
            ("flush", "chain") => self.message((DEL_RULE, 0, family), |out| {
                put_text(out, 1, table);
                put_text(out, 2, place.name);
            }),
            ("add", "rule") => self.rule(place, &mut words)?,
            ("add", "set" | "map") => self.set(place, &mut words)?,
            ("delete", "set" | "map") => self.message((DEL_SET, 0, family), |out| {
                put_text(out, 1, table);
                put_text(out, 2, place.name);
            }),
            ("add", "element") => self.elements(place, &mut words, Use::Add)?,
            ("delete", "element") => self.elements(place, &mut words, Use::Delete)?,
            (verb, object) => return Err(format!("{verb} {object}").in_place_of("a command")),
        }
        words.end()
    }

    /// `[{ type KIND hook HOOK priority N; [policy accept;] }]`
    fn chain(&mut self, place: Place<'_>, words: &mut Words<'_>) -> Result<(), Misread> {
        let hook = words.take("{").then(|| hook(place.family, words)).transpose()?;
        self.message((NEW_CHAIN, CREATE, place.family), |out| {
            put_text(out, 1, place.table);
            put_text(out, 3, place.name);
            let Some(Hook { kind, number, priority }) = hook else { return };
            put_text(out, 7, kind);
            put_nested(out, 4, |out| {
                put_u32(out, 1, number);
                put(out, 2, &priority.to_be_bytes());
            });
        });
        Ok(())
    }

    fn rule(&mut self, place: Place<'_>, words: &mut Words<'_>) -> Result<(), Misread> {
        let rule = rule::read(words, place.family, &mut self.set_id)?;
        for set in &rule.sets {
            self.anonymous(place, set);
        }
        self.message((NEW_RULE, CREATE | APPEND, place.family), |out| {
            put_text(out, 1, place.table);
            put_text(out, 2, place.name);
            put_nested(out, 4, |out| rule.expressions.iter().for_each(|expression| expression.write(out)));
        });
        Ok(())
    }

    /// A set of a rule, with its elements.
    fn anonymous(&mut self, place: Place<'_>, set: &Anonymous) {
        let entries = match &set.of {
            Content::Intervals(intervals) => entries(intervals, Use::Add),
            Content::Set(all) | Content::Verdicts(all) | Content::Values(all, _) => all.iter().map(Entry::of).collect(),
        };
        let (place, declaration) = (Place { name: set.name(), ..place }, Declaration::of(set, entries.len()));
        self.message((NEW_SET, CREATE, place.family), |out| declaration.write(place, set.id, out));
        self.put_elements(place, (&entries, Some(set.id)), Use::Add);
    }

    fn set(&mut self, place: Place<'a>, words: &mut Words<'_>) -> Result<(), Misread> {
        let set = declaration::read(words)?;
        self.set_id += 1;
        let id = self.set_id;
        self.message((NEW_SET, CREATE, place.family), |out| set.write(place, id, out));
        self.sets.insert(place, set);
        Ok(())
    }

    fn elements(&mut self, place: Place<'a>, words: &mut Words<'_>, use_of: Use) -> Result<(), Misread> {
        let declared = self.sets.get(&place).cloned();
        let all = elements::list(words, declared.as_ref().map(|set| &set.key))?;
        let is_interval = declared
            .as_ref()
            .map_or_else(|| all.iter().any(|element| element.last.is_some()), Declaration::is_interval);
        if !is_interval {
            if let Some(Element { .. }) = all.iter().find(|element| element.last.is_some()) {
                return Err("an interval".in_place_of("a key of a set without intervals"));
            }
            let entries: Vec<Entry<'_>> = all.iter().map(Entry::of).collect();
            self.put_elements(place, (&entries, None), use_of);
            return Ok(());
        }
        if all.iter().any(|element| element.comment.is_some() || element.data.is_some()) {
            return Err("a comment or value".in_place_of("an interval alone"));
        }
        let intervals = joined(&all);
        if declared.is_some_and(|set| set.is_merged) && use_of == Use::Add {
            self.out.merges.push(Merge { line: self.line, place, intervals });
        } else {
            self.put_elements(place, (&entries(&intervals, use_of), None), use_of);
        }
        Ok(())
    }

    fn put_elements(&mut self, place: Place<'_>, (entries, id): (&[Entry<'_>], Option<u32>), use_of: Use) {
        let line = self.line;
        put_elements(&mut self.out.batch, line, place, (entries, id), use_of);
    }
}

/// Adds the messages of elements.
pub(crate) fn put_elements(
    batch: &mut Batch,
    line: u32,
    place: Place<'_>,
    (entries, id): (&[Entry<'_>], Option<u32>),
    use_of: Use,
) {
    let head = match use_of {
        Use::Add => (NEW_ELEMENT, CREATE, place.family),
        Use::Delete => (DEL_ELEMENT, 0, place.family),
    };
    lists(entries, |list| {
        batch.message(line, head, |out| {
            put_text(out, 1, place.table);
            put_text(out, 2, place.name);
            if let Some(id) = id {
                put_u32(out, 4, id);
            }
            out.extend(list);
        });
    });
}

/// A name that the kernel takes.
fn name(word: &str) -> Result<&str, Misread> {
    let fits = word.len() <= NAME_BYTES_MAX
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    if fits { Ok(word) } else { Err(word.in_place_of("a name of letters, digits, - _ . and /, of 127 bytes at most")) }
}
