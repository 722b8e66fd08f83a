//! Declarations: sets and maps with their types, and the hooks of base chains.

use crate::elements;
use crate::error::Misread;
use crate::kinds::{Kind, Kinds};
use crate::rule::{Anonymous, Content};
use crate::wire::{BRIDGE, put, put_nested, put_text, put_u32, put_u64};
use crate::words::{Misplaced, Words};

/// A thing in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place<'a> {
    pub(crate) family: u8,
    pub(crate) table: &'a str,
    pub(crate) name: &'a str,
}

/// Flags of sets.
pub(crate) const ANONYMOUS: u32 = 1;
const CONSTANT: u32 = 2;
pub(crate) const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const TIMEOUT: u32 = 16;
const DYNAMIC: u32 = 32;
/// A map's type of data that are verdicts.
const VERDICT_DATA: u32 = 0xffff_ff00;

/// A set or map as it is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declaration {
    pub(crate) key: Kinds,
    flags: u32,
    values: Option<Values>,
    timeout_ms: Option<u64>,
    size: Option<u32>,
    /// Intervals that touch or overlap become one.
    pub(crate) is_merged: bool,
}

/// Values of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    Verdicts,
    Of(Kinds),
}

/// Reads `{ type A . B [: C . D]; [flags F,G;] [timeout Ns;] [size N;] [auto-merge;] }`.
pub(crate) fn read(words: &mut Words<'_>) -> Result<Declaration, Misread> {
    words.expect("{")?;
    words.expect("type")?;
    let mut set = Declaration { key: kinds(words)?, ..Declaration::default() };
    if words.take(":") {
        set.flags |= MAP;
        set.values = Some(if words.take("verdict") { Values::Verdicts } else { Values::Of(kinds(words)?) });
    }
    words.expect(";")?;
    while !words.take("}") {
        match words.need("}")? {
            "flags" => {
                for flag in words.need("flags")?.split(',') {
                    set.flags |= match flag {
                        "interval" => INTERVAL,
                        "timeout" => TIMEOUT,
                        "dynamic" => DYNAMIC,
                        other => return Err(other.in_place_of("interval, timeout or dynamic")),
                    };
                }
            }
            "size" => set.size = Some(words.number("a number")?),
            "timeout" => set.timeout_ms = Some(elements::seconds(words)?),
            "auto-merge" => set.is_merged = true,
            other => return Err(other.in_place_of("flags, size, timeout or auto-merge")),
        }
        words.expect(";")?;
    }
    Ok(set)
}

/// `A . B`
fn kinds(words: &mut Words<'_>) -> Result<Kinds, Misread> {
    let mut all: Vec<Kind> = vec![Kind::by_name(words.need("a type")?)?];
    while words.take(".") {
        all.push(Kind::by_name(words.need("a type")?)?);
    }
    Ok(Kinds(all))
}

impl Declaration {
    /// The declaration of a rule's own set of so many elements.
    pub(crate) fn of(set: &Anonymous, n_elements: usize) -> Declaration {
        let (flags, values) = match &set.of {
            Content::Set(_) => (0, None),
            Content::Intervals(_) => (INTERVAL, None),
            Content::Verdicts(_) => (MAP, Some(Values::Verdicts)),
            Content::Values(_, kinds) => (MAP, Some(Values::Of(kinds.clone()))),
        };
        Declaration {
            key: set.key.clone(),
            flags: ANONYMOUS | CONSTANT | flags,
            values,
            timeout_ms: None,
            size: Some(u32::try_from(n_elements).unwrap_or(u32::MAX)),
            is_merged: flags == INTERVAL,
        }
    }

    pub(crate) fn is_interval(&self) -> bool {
        self.flags & INTERVAL != 0
    }

    /// Writes it under a name and a number of the batch.
    pub(crate) fn write(&self, place: Place<'_>, id: u32, out: &mut Vec<u8>) {
        put_text(out, 1, place.table);
        put_text(out, 2, place.name);
        put_u32(out, 3, self.flags);
        put_u32(out, 4, self.key.id());
        put_u32(out, 5, self.key.len());
        // nft's own notes about a set: the order of bytes in keys and values, and whether intervals are joined.
        let mut notes = note(0, self.key.byte_order());
        if let Some(values) = &self.values {
            let (kind, len, byte_order) = match values {
                Values::Verdicts => (VERDICT_DATA, 0, 0),
                Values::Of(kinds) => (kinds.id(), kinds.len(), kinds.byte_order()),
            };
            put_u32(out, 6, kind);
            put_u32(out, 7, len);
            notes.extend(note(1, byte_order));
        }
        if self.is_merged {
            notes.extend(note(2, 1));
        }
        put_u32(out, 10, id);
        if let Some(size) = self.size {
            put_nested(out, 9, |out| put_u32(out, 1, size));
        }
        if let Some(ms) = self.timeout_ms {
            put_u64(out, 11, ms);
        }
        put(out, 13, &notes);
    }
}

fn note(kind: u8, value: u32) -> Vec<u8> {
    let mut note = vec![kind, 4];
    note.extend(value.to_ne_bytes());
    note
}

/// Place of a base chain in a packet's way.
pub(crate) struct Hook {
    pub(crate) kind: &'static str,
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// Reads `type KIND hook HOOK priority N; }`.
pub(crate) fn hook(family: u8, words: &mut Words<'_>) -> Result<Hook, Misread> {
    words.expect("type")?;
    let kind = match words.need("a type of chains")? {
        "filter" => "filter",
        "nat" => "nat",
        other => return Err(other.in_place_of("filter or nat")),
    };
    words.expect("hook")?;
    let number = match words.need("a hook")? {
        "prerouting" => 0,
        "input" => 1,
        "forward" => 2,
        "output" => 3,
        "postrouting" => 4,
        other => return Err(other.in_place_of("a hook")),
    };
    words.expect("priority")?;
    let priority = match (words.need("a priority")?, family) {
        ("dstnat", BRIDGE) => -300,
        ("dstnat", _) => -100,
        ("srcnat", BRIDGE) => 300,
        ("srcnat", _) => 100,
        (number, _) => number.parse().map_err(|_| number.in_place_of("a priority"))?,
    };
    words.expect(";")?;
    words.expect("}")?;
    Ok(Hook { kind, number, priority })
}
