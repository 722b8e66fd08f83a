//! A table as the kernel holds it, kept as the kernel's own bytes, to be made again if somebody takes it away.

use std::collections::BTreeMap;

use crate::declaration::{ANONYMOUS, INTERVAL};
use crate::error::NetfilterError;
use crate::look::{TableRef, number_of};
use crate::script::{
    Batch, DEL_RULE, GET_CHAIN, GET_ELEMENT, GET_RULE, GET_SET, NEW_CHAIN, NEW_ELEMENT, NEW_RULE, NEW_SET, NEW_TABLE,
};
use crate::socket::{Conversation, Mode};
use crate::wire::{APPEND, CREATE, attribute, attributes, number, put, put_nested, put_text, put_u32, text};

/// Flag of attributes that hold attributes.
const NESTED: u16 = 0x8000;
/// Attributes of a set's declaration that come back as they were told: flags, types, lengths, policy, description,
/// times and notes.
const SET_ATTRIBUTES: [u16; 10] = [3, 4, 5, 6, 7, 8, 9, 11, 12, 13];
const DESCRIPTION: u16 = 9;
/// Elements of one message; each has a key, and little beside it.
const ELEMENTS_MAX: usize = 256;

/// A table with all that is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableCopy {
    family: u8,
    name: String,
    chains: Vec<Chain>,
    sets: Vec<Set>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    name: String,
    kind: Option<String>,
    hook: Option<(u32, u32)>,
    policy: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Set {
    name: String,
    flags: u32,
    attributes: Vec<(u16, Vec<u8>)>,
    /// Lists of elements, each of one message.
    elements: Vec<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    chain: String,
    expressions: Vec<u8>,
    notes: Option<Vec<u8>>,
}

/// Reads a table; `None` if it is not there.
///
/// Errors: the kernel refuses to tell, or others change tables all the time.
pub fn copy(table: TableRef<'_>) -> Result<Option<TableCopy>, NetfilterError> {
    let (family, name) = (number_of(table.family)?, table.name);
    let mut kernel = Conversation::open()?;
    match read(&mut kernel, family, name) {
        Err(err) if err.is_absent() => Ok(None),
        Ok(copy) if copy == (TableCopy { family, name: name.to_owned(), ..TableCopy::default() }) => Ok(None),
        done => done.map(Some),
    }
}

fn read(kernel: &mut Conversation, family: u8, name: &str) -> Result<TableCopy, NetfilterError> {
    let of_table = |out: &mut Vec<u8>| put_text(out, 1, name);
    let is_of_table = |attributes: &[u8]| text(attributes, 1) == Some(name);
    let chains = kernel.dump((GET_CHAIN, family), of_table, |_, attributes| {
        let hook = attribute(attributes, 4).and_then(|hook| Some((number(hook, 1)?, number(hook, 2)?)));
        is_of_table(attributes).then_some(Chain {
            name: text(attributes, 3)?.to_owned(),
            kind: text(attributes, 7).map(str::to_owned),
            hook,
            policy: number(attributes, 5),
        })
    })?;
    let mut sets = kernel.dump((GET_SET, family), of_table, |_, all| {
        let kept = attributes(all).filter(|(kind, _)| SET_ATTRIBUTES.contains(kind));
        is_of_table(all).then_some(Set {
            name: text(all, 2)?.to_owned(),
            flags: number(all, 3).unwrap_or_default(),
            attributes: kept.map(|(kind, value)| (kind, value.to_vec())).collect(),
            elements: Vec::new(),
        })
    })?;
    for set in &mut sets {
        let ask = |out: &mut Vec<u8>| {
            put_text(out, 1, name);
            put_text(out, 2, &set.name);
        };
        set.elements =
            kernel.dump((GET_ELEMENT, family), ask, |_, attributes| attribute(attributes, 3).map(<[u8]>::to_vec))?;
        if set.flags & INTERVAL != 0 {
            set.elements = in_order(&set.elements);
        }
    }
    let rules = kernel.dump((GET_RULE, family), of_table, |_, attributes| {
        is_of_table(attributes).then_some(Rule {
            chain: text(attributes, 2)?.to_owned(),
            expressions: attribute(attributes, 4)?.to_vec(),
            notes: attribute(attributes, 7).map(<[u8]>::to_vec),
        })
    })?;
    Ok(TableCopy { family, name: name.to_owned(), chains, sets, rules })
}

/// Elements of intervals in the order of their keys, an end before a begin: the kernel tells them in its own order, and
/// takes an end only behind its begin.
fn in_order(lists: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all: Vec<&[u8]> = lists.iter().flat_map(|list| attributes(list)).map(|(_, element)| element).collect();
    let key = |element: &&[u8]| {
        let key = attribute(element, 1).and_then(|key| attribute(key, 1)).unwrap_or_default().to_vec();
        (key, number(element, 3).unwrap_or_default() & 1 == 0)
    };
    all.sort_by_key(key);
    let chunk = |some: &[&[u8]]| {
        let mut list = Vec::new();
        some.iter().for_each(|element| put(&mut list, 1 | NESTED, element));
        list
    };
    all.chunks(ELEMENTS_MAX).map(chunk).collect()
}

/// Makes the table again, in one transaction. What somebody has put there meanwhile stays beside it, but a chain that
/// is in both is written anew.
///
/// Errors: what the kernel refused; then nothing has changed.
pub fn restore(copy: &TableCopy) -> Result<(), NetfilterError> {
    // Lines that stand for the messages, so that a refusal names what was refused.
    let table = format!("{} {}", crate::look::family_name(copy.family).unwrap_or_default(), copy.name);
    let sets = copy.sets.iter().map(|set| format!("restore set {table} {}\n", set.name));
    let chains = copy.chains.iter().map(|chain| format!("restore chain {table} {}\n", chain.name));
    let rules = copy.rules.iter().map(|rule| format!("restore rule {table} {}\n", rule.chain));
    let script: String =
        [format!("restore table {table}\n")].into_iter().chain(sets).chain(chains).chain(rules).collect();
    Conversation::open()?.transact(&script, &mut copy.batch(), (Mode::Commit, None))
}

impl TableCopy {
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        let family = self.family;
        batch.message(0, (NEW_TABLE, CREATE, family), |out| put_text(out, 1, &self.name));
        let mut anonymous = BTreeMap::new();
        // The line of each set is its number.
        for (set, id) in self.sets.iter().zip(1_u32..) {
            if set.flags & ANONYMOUS != 0 {
                let name = if set.name.starts_with("__map") { "__map%d" } else { "__set%d" };
                anonymous.insert(set.name.as_str(), (name, id));
            }
            batch.message(id, (NEW_SET, CREATE, family), |out| {
                put_text(out, 1, &self.name);
                put_text(out, 2, anonymous.get(set.name.as_str()).map_or(set.name.as_str(), |(name, _)| name));
                put_u32(out, 10, id);
                for (kind, value) in &set.attributes {
                    put(out, if *kind == DESCRIPTION { kind | NESTED } else { *kind }, value);
                }
            });
        }
        let mut lines = 1 + u32::try_from(self.sets.len()).unwrap_or(u32::MAX)..;
        for (chain, line) in self.chains.iter().zip(&mut lines) {
            batch.message(line, (NEW_CHAIN, CREATE, family), |out| self.chain(chain, out));
            batch.message(line, (DEL_RULE, 0, family), |out| {
                put_text(out, 1, &self.name);
                put_text(out, 2, &chain.name);
            });
        }
        for (set, id) in self.sets.iter().zip(1_u32..) {
            for list in &set.elements {
                batch.message(id, (NEW_ELEMENT, CREATE, family), |out| {
                    put_text(out, 1, &self.name);
                    put_text(out, 2, anonymous.get(set.name.as_str()).map_or(set.name.as_str(), |(name, _)| name));
                    put_u32(out, 4, id);
                    put(out, 3 | NESTED, list);
                });
            }
        }
        for (rule, line) in self.rules.iter().zip(lines) {
            batch.message(line, (NEW_RULE, CREATE | APPEND, family), |out| {
                put_text(out, 1, &self.name);
                put_text(out, 2, &rule.chain);
                put_nested(out, 4, |out| expressions(&rule.expressions, &anonymous, out));
                if let Some(notes) = &rule.notes {
                    put(out, 7, notes);
                }
            });
        }
        batch
    }

    fn chain(&self, chain: &Chain, out: &mut Vec<u8>) {
        put_text(out, 1, &self.name);
        put_text(out, 3, &chain.name);
        if let Some(kind) = &chain.kind {
            put_text(out, 7, kind);
        }
        if let Some((hook, priority)) = chain.hook {
            put_nested(out, 4, |out| {
                put_u32(out, 1, hook);
                put_u32(out, 2, priority);
            });
        }
        if let Some(policy) = chain.policy.filter(|_| chain.hook.is_some()) {
            put_u32(out, 5, policy);
        }
    }
}

/// Copies expressions; lookups in sets of the rule's own name these by their numbers in the batch.
pub(crate) fn expressions(list: &[u8], anonymous: &BTreeMap<&str, (&str, u32)>, out: &mut Vec<u8>) {
    for (_, expression) in attributes(list) {
        let arguments = attribute(expression, 2).unwrap_or_default();
        let own = text(expression, 1).filter(|name| *name == "lookup").and_then(|_| anonymous.get(text(arguments, 1)?));
        let Some((name, id)) = own else {
            put(out, 1 | NESTED, expression);
            continue;
        };
        put_nested(out, 1, |out| {
            put_text(out, 1, "lookup");
            put_nested(out, 2, |out| {
                put_text(out, 1, name);
                put_u32(out, 4, *id);
                let others = attributes(arguments).filter(|(kind, _)| ![1, 4].contains(kind));
                others.for_each(|(kind, value)| put(out, kind, value));
            });
        });
    }
}
