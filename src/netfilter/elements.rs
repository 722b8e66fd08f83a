//! Elements of sets and maps: as words, and as the kernel holds them.
//!
//! A set of intervals holds each as two elements: its first key and, marked as an end, the first key behind it. One
//! that reaches to the last key has no end. In front of all there is an end at zero.

use crate::error::Misread;
use crate::expression::{Verdict, value};
use crate::kinds::{Kind, Kinds};
use crate::wire::{begin_nested, end_nested, put, put_nested, put_u32, put_u64};
use crate::words::{Misplaced, Words, unquoted};

/// Bytes of elements in one message: an attribute's length has sixteen bits.
const LIST_BYTES_MAX: usize = 32 << 10;
const INTERVAL_END: u32 = 1;

/// Value of a key in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Verdict(Verdict),
    Value(Vec<u8>),
}

/// An element as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    /// The last key of an interval.
    pub(crate) last: Option<Vec<u8>>,
    pub(crate) data: Option<Data>,
    pub(crate) comment: Option<String>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) expires_ms: Option<u64>,
}

/// The keys from the first to the last, both included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    pub(crate) first: Vec<u8>,
    pub(crate) last: Vec<u8>,
}

/// The keys of a word: a network, two ports with a dash between them, or one value.
pub(crate) fn interval(kind: Kind, word: &str) -> Result<Interval, Misread> {
    if let (Kind::V4 | Kind::V6, Some((address, len))) = (kind, word.split_once('/')) {
        let mut first = kind.parse(address)?;
        let len: usize = len.parse().map_err(|_| word.in_place_of("a network"))?;
        if len > first.len() * 8 {
            return Err(word.in_place_of("a network"));
        }
        let mut last = first.clone();
        for (at, (low, high)) in first.iter_mut().zip(&mut last).enumerate() {
            let host = 0xff_u32 >> len.saturating_sub(at * 8).min(8);
            let host = u8::try_from(host).unwrap_or(u8::MAX);
            *low &= !host;
            *high |= host;
        }
        return Ok(Interval { first, last });
    }
    if let (Kind::Service, Some((first, last))) = (kind, word.split_once('-')) {
        let interval = Interval { first: kind.parse(first)?, last: kind.parse(last)? };
        return if interval.first <= interval.last { Ok(interval) } else { Err(word.in_place_of("a range of ports")) };
    }
    let key = kind.parse(word)?;
    Ok(Interval { first: key.clone(), last: key })
}

/// Reads `{ KEY [comment "…"] [timeout Ns] [expires Ns] [: VALUE], … }`. A key's kinds are those of the set, or the
/// ones that it looks like.
pub(crate) fn list(words: &mut Words<'_>, kinds: Option<&Kinds>) -> Result<Vec<Element>, Misread> {
    words.expect("{")?;
    let mut all = Vec::new();
    while !words.take("}") {
        all.push(element(words, kinds)?);
        if !words.take(",") && words.peek() != Some("}") {
            return Err(words.next().map_or(Misread::Ends { wanted: "}" }, |word| word.in_place_of("}")));
        }
    }
    Ok(all)
}

fn element(words: &mut Words<'_>, kinds: Option<&Kinds>) -> Result<Element, Misread> {
    let (key, last) = key(words, kinds)?;
    let mut element = Element { key, last, data: None, comment: None, timeout_ms: None, expires_ms: None };
    loop {
        if words.take("comment") {
            let word = words.need("a comment in quotes")?;
            let text = unquoted(word).filter(|text| text.len() < 128);
            element.comment = Some(text.ok_or_else(|| word.in_place_of("a comment in quotes"))?.to_owned());
        } else if words.take("timeout") {
            element.timeout_ms = Some(seconds(words)?);
        } else if words.take("expires") {
            element.expires_ms = Some(seconds(words)?);
        } else {
            break;
        }
    }
    if words.take(":") {
        element.data = Some(match verdict(words)? {
            Some(verdict) => Data::Verdict(verdict),
            None => Data::Value(self::key(words, None)?.0),
        });
    }
    Ok(element)
}

/// The bytes of `A . B . C`, and the last key if it is an interval.
fn key(words: &mut Words<'_>, kinds: Option<&Kinds>) -> Result<(Vec<u8>, Option<Vec<u8>>), Misread> {
    let mut parts = Vec::with_capacity(4);
    loop {
        let word = words.need("a key")?;
        let kind = match kinds {
            Some(kinds) => *kinds.0.get(parts.len()).ok_or_else(|| word.in_place_of("the end of the key"))?,
            None => Kind::by_look(word)?,
        };
        parts.push((kind, word));
        if !words.take(".") {
            break;
        }
    }
    if kinds.is_some_and(|kinds| kinds.0.len() != parts.len()) {
        return Err(Misread::Ends { wanted: "the rest of the key" });
    }
    if let [(kind, word)] = parts.as_slice() {
        let Interval { first, last } = interval(*kind, word)?;
        let last = (first != last).then_some(last);
        return Ok((first, last));
    }
    let mut key = Vec::with_capacity(24);
    for (kind, word) in parts {
        key.extend(kind.parse(word)?);
        key.resize(key.len().next_multiple_of(4), 0);
    }
    Ok((key, None))
}

/// `60s` in milliseconds.
pub(crate) fn seconds(words: &mut Words<'_>) -> Result<u64, Misread> {
    let word = words.need("seconds")?;
    let number = word.strip_suffix('s').and_then(|number| number.parse::<u64>().ok());
    number.and_then(|secs| secs.checked_mul(1000)).ok_or_else(|| word.in_place_of("seconds"))
}

/// A verdict, if the next words are one.
pub(crate) fn verdict(words: &mut Words<'_>) -> Result<Option<Verdict>, Misread> {
    let Some(word) = words.peek() else { return Ok(None) };
    let verdict = match word {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "jump" | "goto" => {
            words.expect(if word == "jump" { "jump" } else { "goto" })?;
            let chain = words.need("a chain")?.to_owned();
            return Ok(Some(if word == "jump" { Verdict::Jump(chain) } else { Verdict::Goto(chain) }));
        }
        _ => return Ok(None),
    };
    words.next();
    Ok(Some(verdict))
}

/// The intervals of elements, those that overlap or touch joined.
pub(crate) fn joined(elements: &[Element]) -> Vec<Interval> {
    let interval =
        |e: &Element| Interval { first: e.key.clone(), last: e.last.clone().unwrap_or_else(|| e.key.clone()) };
    join(elements.iter().map(interval).collect())
}

pub(crate) fn join(mut all: Vec<Interval>) -> Vec<Interval> {
    all.sort_unstable();
    let mut out: Vec<Interval> = Vec::with_capacity(all.len());
    for interval in all {
        match out.last_mut() {
            Some(before) if after(&before.last).is_none_or(|next| interval.first <= next) => {
                before.last = std::mem::take(&mut before.last).max(interval.last);
            }
            _ => out.push(interval),
        }
    }
    out
}

/// The next key; none behind the last one.
pub(crate) fn after(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, over) = byte.overflowing_add(1);
        *byte = sum;
        if !over {
            return Some(next);
        }
    }
    None
}

/// The key before.
pub(crate) fn before(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (difference, under) = byte.overflowing_sub(1);
        *byte = difference;
        if !under {
            return Some(next);
        }
    }
    None
}

/// Of the kernel's elements, keys and whether each ends an interval, the intervals.
pub(crate) fn intervals_of(mut keys: Vec<(Vec<u8>, bool)>) -> Vec<Interval> {
    // At one key an end stands before a begin.
    keys.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    // What changes while it is told may be told twice.
    keys.dedup();
    let (mut all, mut open) = (Vec::new(), None::<Vec<u8>>);
    for (key, is_end) in keys {
        match (open.take(), is_end) {
            (Some(first), true) => all.extend(before(&key).map(|last| Interval { first, last })),
            (Some(first), false) => {
                all.extend(before(&key).map(|last| Interval { first, last }));
                open = Some(key);
            }
            (None, true) => {}
            (None, false) => open = Some(key),
        }
    }
    let to_the_end = |first: Vec<u8>| Interval { last: vec![0xff; first.len()], first };
    all.extend(open.map(to_the_end));
    all
}

/// An element as the kernel holds it.
pub(crate) struct Entry<'a> {
    key: std::borrow::Cow<'a, [u8]>,
    flags: u32,
    element: Option<&'a Element>,
    /// The interval has no end.
    is_open: bool,
}

impl<'a> Entry<'a> {
    pub(crate) fn of(element: &'a Element) -> Entry<'a> {
        Entry { key: element.key.as_slice().into(), flags: 0, element: Some(element), is_open: false }
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_nested(out, 1, |out| {
            value(out, 1, &self.key);
            if self.flags != 0 {
                put_u32(out, 3, self.flags);
            }
            if self.is_open {
                put(out, 6, &[1, 4, 1, 0, 0, 0]);
            }
            let Some(Element { data, comment, timeout_ms, expires_ms, .. }) = self.element else { return };
            match data {
                Some(Data::Verdict(verdict)) => put_nested(out, 2, |out| verdict.write(out)),
                Some(Data::Value(bytes)) => value(out, 2, bytes),
                None => {}
            }
            if let Some(ms) = timeout_ms {
                put_u64(out, 4, *ms);
            }
            if let Some(ms) = expires_ms {
                put_u64(out, 5, *ms);
            }
            if let Some(comment) = comment {
                let len = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
                put(out, 6, &[&[0, len], comment.as_bytes(), &[0]].concat());
            }
        });
    }
}

/// Elements of intervals, which must be apart and in order; with the end at zero if `is_new`.
pub(crate) fn entries(intervals: &[Interval], use_of: Use) -> Vec<Entry<'static>> {
    let entry = |key: Vec<u8>, flags: u32| Entry { key: key.into(), flags, element: None, is_open: false };
    let mut all = Vec::with_capacity(intervals.len() * 2 + 1);
    if use_of == Use::Add
        && let Some(interval) = intervals.first()
        && interval.first.iter().any(|byte| *byte != 0)
    {
        all.push(entry(vec![0; interval.first.len()], INTERVAL_END));
    }
    for Interval { first, last } in intervals {
        let end = after(last);
        all.push(Entry { is_open: end.is_none() && use_of == Use::Add, ..entry(first.clone(), 0) });
        all.extend(end.map(|end| entry(end, INTERVAL_END)));
    }
    all
}

/// Use of elements in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Add,
    Delete,
}

/// Writes the elements as lists, each of which fits into one message: `message` gets one list after the other.
pub(crate) fn lists(entries: &[Entry<'_>], mut message: impl FnMut(&[u8])) {
    let mut at = 0;
    while at < entries.len() {
        let mut out = Vec::new();
        let list = begin_nested(&mut out, 3);
        while let Some(entry) = entries.get(at)
            && out.len() < LIST_BYTES_MAX
        {
            entry.write(&mut out);
            at += 1;
        }
        end_nested(&mut out, list);
        message(&out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Element>, Misread> {
        list(&mut Words::of(text), None)
    }

    #[test]
    fn keys_have_the_kinds_that_they_look_like() {
        let all = read("{ 10.0.0.1 . tcp . 80 : goto svc, tcp . 1 comment \"c\" : 10.0.0.2 . 8080 }").unwrap();
        assert_eq!(all[0].key, [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(all[0].data, Some(Data::Verdict(Verdict::Goto("svc".to_owned()))));
        assert_eq!(
            (all[1].comment.as_deref(), &all[1].data),
            (Some("c"), &Some(Data::Value(vec![10, 0, 0, 2, 31, 144, 0, 0])))
        );
        let timed = read("{ fd00::1 timeout 60s expires 5s }").unwrap();
        assert_eq!((timed[0].timeout_ms, timed[0].expires_ms), (Some(60_000), Some(5_000)));
    }

    #[test]
    fn torn_and_strange_lists_are_refused() {
        for text in [
            "",
            "{",
            "{ 10.0.0.1",
            "{ 10.0.0.1 10.0.0.2 }",
            "{ 10.0.0.1 : }",
            "{ x }",
            "{ 10.0.0.1 comment c }",
            "{ 10.0.0.1/33 }",
            "{ 9-3 }",
            "{ 1.1.1.1 : goto }",
            "{ tcp . }",
            "{ 1.1.1.1 timeout 9 }",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn intervals_that_touch_are_one() {
        let joined = |text: &str| -> Vec<(Vec<u8>, Vec<u8>)> {
            joined(&read(text).unwrap()).into_iter().map(|i| (i.first, i.last)).collect()
        };
        let both = (vec![10, 1, 0, 0], vec![10, 1, 1, 255]);
        assert_eq!(joined("{ 10.1.1.0/24, 10.1.0.0/24 }"), std::slice::from_ref(&both));
        assert_eq!(joined("{ 10.1.0.0/23, 10.1.0.7 }"), [both]);
        assert_eq!(joined("{ 5-9, 20, 10 }"), [(vec![0, 5], vec![0, 10]), (vec![0, 20], vec![0, 20])]);
        assert_eq!(joined("{ 0.0.0.0/0, 1.1.1.1 }"), [(vec![0; 4], vec![255; 4])]);
    }

    #[test]
    fn many_elements_are_many_messages_and_none_is_lost() {
        let all: Vec<Element> = (0..10_000_u32)
            .map(|n| Element {
                key: n.to_be_bytes().to_vec(),
                last: None,
                data: None,
                comment: None,
                timeout_ms: None,
                expires_ms: None,
            })
            .collect();
        let entries: Vec<Entry<'_>> = all.iter().map(Entry::of).collect();
        let (mut messages, mut n) = (0, 0);
        lists(&entries, |list| {
            messages += 1;
            let list = crate::wire::attribute(list, 3).unwrap();
            n += crate::wire::attributes(list).count();
        });
        assert_eq!(n, 10_000);
        assert!(messages > 1);
    }
}
