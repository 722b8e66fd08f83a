//! Contents of the kernel's tables.

use crate::declaration::Place;
use crate::elements::{Interval, intervals_of};
use crate::error::NetfilterError;
use crate::script::{GET_CHAIN, GET_ELEMENT, GET_GENERATION, GET_SET, GET_TABLE, family};
use crate::socket::Conversation;
use crate::wire::{BRIDGE, INET, IP, IP6, attribute, attributes, number, put_nested, put_text, text};

/// A table of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub family: &'static str,
    /// Its name.
    pub name: String,
}

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct TableRef<'a> {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub family: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// A set or map of a table.
#[derive(Clone, Copy, Debug)]
pub struct SetRef<'a> {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub family: &'a str,
    /// The table.
    pub table: &'a str,
    /// The set.
    pub set: &'a str,
}

/// Facts about a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFacts {
    /// Its name.
    pub name: String,
    /// How long elements are known that do not say it themselves.
    pub timeout_ms: Option<u64>,
}

/// An element of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The bytes of its key.
    pub key: Vec<u8>,
    /// The comment that was written beside it.
    pub comment: Option<String>,
    /// For how long it is known in all, if that is said of this element.
    pub timeout_ms: Option<u64>,
    /// For how long from now.
    pub expires_ms: Option<u64>,
    /// It is not a member, but the first key behind an interval.
    pub ends_interval: bool,
}

/// The family of this number.
pub fn family_name(number: u8) -> Option<&'static str> {
    [(INET, "inet"), (IP, "ip"), (BRIDGE, "bridge"), (IP6, "ip6")]
        .into_iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| name)
}

pub(crate) fn number_of(family: &str) -> Result<u8, NetfilterError> {
    self::family(family).map_err(|why| NetfilterError::Language { line: family.to_owned(), why })
}

/// All tables of the families that this room knows.
///
/// Errors: the kernel has no nftables, or refuses to tell.
pub fn tables() -> Result<Vec<TableName>, NetfilterError> {
    Conversation::open()?.dump(
        (GET_TABLE, 0),
        |_| {},
        |family, attributes| Some(TableName { family: family_name(family)?, name: text(attributes, 1)?.to_owned() }),
    )
}

/// Whether there is such a chain.
///
/// Errors: the kernel refuses to tell.
pub fn has_chain(table: TableRef<'_>, chain: &str) -> Result<bool, NetfilterError> {
    let ask = |out: &mut Vec<u8>| {
        put_text(out, 1, table.name);
        put_text(out, 3, chain);
    };
    let found = Conversation::open()?.get((GET_CHAIN, number_of(table.family)?), ask, |_, _| Some(()));
    absent_is_none(found).map(|found| found.is_some())
}

/// The policy of a base chain (0 drops, 1 accepts); `None` if there is no such chain, or it has no hook.
///
/// Errors: the kernel refuses to tell.
pub fn chain_policy(table: TableRef<'_>, chain: &str) -> Result<Option<u32>, NetfilterError> {
    let ask = |out: &mut Vec<u8>| {
        put_text(out, 1, table.name);
        put_text(out, 3, chain);
    };
    let policy = |_, attributes: &[u8]| Some(number(attributes, 5));
    let found = Conversation::open()?.get((GET_CHAIN, number_of(table.family)?), ask, policy);
    absent_is_none(found).map(Option::flatten)
}

/// The elements of a set or map. One that is not there, or whose table is not, has none.
///
/// Errors: the kernel refuses to tell.
pub fn elements(set: SetRef<'_>) -> Result<Vec<Held>, NetfilterError> {
    let place = Place { family: number_of(set.family)?, table: set.table, name: set.set };
    held(&mut Conversation::open()?, place)
}

/// The sets and maps of a table. A table that is not there has none.
///
/// Errors: the kernel refuses to tell.
pub fn sets(table: TableRef<'_>) -> Result<Vec<SetFacts>, NetfilterError> {
    let found = Conversation::open()?.dump(
        (GET_SET, number_of(table.family)?),
        |out| put_text(out, 1, table.name),
        |_, attributes| {
            let timeout_ms = attribute(attributes, 11).and_then(|ms| Some(u64::from_be_bytes(ms.try_into().ok()?)));
            let is_of_table = text(attributes, 1) == Some(table.name);
            is_of_table.then_some(SetFacts { name: text(attributes, 2)?.to_owned(), timeout_ms })
        },
    );
    absent_is_none(found.map(Some)).map(Option::unwrap_or_default)
}

/// The comment of one element by the bytes of its key: `None` if there is no such element, or no such table.
///
/// Errors: the kernel refuses to tell.
pub fn comment_of(set: SetRef<'_>, key: &str) -> Result<Option<String>, NetfilterError> {
    let mut words = crate::words::Words::of(key);
    let strange = |why| NetfilterError::Language { line: key.to_owned(), why };
    let elements = crate::elements::list(&mut words, None).map_err(strange)?;
    let Some(element) = elements.first() else { return Ok(None) };
    let ask = |out: &mut Vec<u8>| {
        put_text(out, 1, set.table);
        put_text(out, 2, set.set);
        put_nested(out, 3, |out| put_nested(out, 1, |out| crate::expression::value(out, 1, &element.key)));
    };
    let found = Conversation::open()?
        .get((GET_ELEMENT, number_of(set.family)?), ask, |_, attributes| held_in(attributes).into_iter().next());
    Ok(absent_is_none(found)?.map(|held| held.comment.unwrap_or_default()))
}

/// The number of the tables' state: each change makes it another one.
pub(crate) fn generation(kernel: &mut Conversation) -> Result<u32, NetfilterError> {
    let found = kernel.get((GET_GENERATION, 0), |_| {}, |_, attributes| number(attributes, 1))?;
    found.ok_or(NetfilterError::NoNftables)
}

/// The intervals of a set.
pub(crate) fn intervals(kernel: &mut Conversation, place: Place<'_>) -> Result<Vec<Interval>, NetfilterError> {
    let keys = held(kernel, place)?.into_iter().map(|held| (held.key, held.ends_interval));
    Ok(intervals_of(keys.collect()))
}

fn held(kernel: &mut Conversation, place: Place<'_>) -> Result<Vec<Held>, NetfilterError> {
    let ask = |out: &mut Vec<u8>| {
        put_text(out, 1, place.table);
        put_text(out, 2, place.name);
    };
    let found = kernel.dump((GET_ELEMENT, place.family), ask, |_, attributes| Some(held_in(attributes)));
    let lists = absent_is_none(found.map(Some))?.unwrap_or_default();
    Ok(lists.into_iter().flatten().collect())
}

/// The elements of one message.
pub(crate) fn held_in(message: &[u8]) -> Vec<Held> {
    let list = attribute(message, 3).unwrap_or_default();
    attributes(list).filter_map(|(_, element)| held_of(element)).collect()
}

fn held_of(element: &[u8]) -> Option<Held> {
    let long = |kind: u16| Some(u64::from_be_bytes(attribute(element, kind)?.try_into().ok()?));
    Some(Held {
        key: attribute(attribute(element, 1)?, 1)?.to_vec(),
        comment: attribute(element, 6).and_then(comment_in),
        timeout_ms: long(4),
        expires_ms: long(5),
        ends_interval: number(element, 3).unwrap_or_default() & 1 != 0,
    })
}

/// Of nft's notes about an element the comment: notes are a kind, a length and bytes each.
fn comment_in(mut notes: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = notes {
        let (value, behind) = rest.split_at_checked(usize::from(*len))?;
        if *kind == 0 {
            return std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0').to_owned());
        }
        notes = behind;
    }
    None
}

fn absent_is_none<T>(found: Result<Option<T>, NetfilterError>) -> Result<Option<T>, NetfilterError> {
    match found {
        Err(err) if err.is_absent() => Ok(None),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put;

    #[test]
    fn a_comment_is_found_among_notes_and_torn_notes_have_none() {
        assert_eq!(comment_in(&[1, 4, 1, 0, 0, 0, 0, 3, b'a', b'b', 0]).as_deref(), Some("ab"));
        assert_eq!(comment_in(&[0, 9, b'a']), None);
        assert_eq!(comment_in(&[0]), None);
    }

    #[test]
    fn attributes_of_an_element_are_read_and_torn_ones_are_passed_over() {
        let mut element = Vec::new();
        crate::expression::value(&mut element, 1, &[10, 0, 0, 1]);
        put(&mut element, 3, &1_u32.to_be_bytes());
        put(&mut element, 4, &60_000_u64.to_be_bytes());
        let held = held_of(&element).unwrap();
        assert_eq!((held.key, held.ends_interval, held.timeout_ms), (vec![10, 0, 0, 1], true, Some(60_000)));
        for cut in 0..8 {
            assert_eq!(held_of(&element[..cut]), None);
        }
    }
}
