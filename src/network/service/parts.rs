//! Parts in force, by Service, and the work of a change of few among many: work for the few, not for the many.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};

use client::informer::Key;

use crate::service::rules::{Element, Part, ServiceRules};
use crate::table::Ruleset;

/// The parts of all Services in one family.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    parts: BTreeMap<Key, Part>,
    /// How many Services want an element, by the hash of its set and key. Two elements with one hash only cost a look
    /// more.
    claims: HashMap<u64, u32>,
}

/// Parts that a change touches, as they were and as they are to be.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) before: ServiceRules,
    pub(crate) after: ServiceRules,
}

impl Parts {
    /// The content of the whole table: `frame` and all parts, Services in order.
    pub(crate) fn whole(&self, frame: Ruleset) -> ServiceRules {
        let mut rules = ServiceRules { content: frame, udp: BTreeMap::new() };
        self.parts.values().for_each(|part| rules.add(part));
        rules
    }

    /// The Services that have a part.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.parts.keys()
    }

    /// Takes new parts over; `None` for a Service that is gone.
    pub(crate) fn change(&mut self, mut fresh: BTreeMap<Key, Option<Part>>) -> Delta {
        fresh.retain(|key, part| self.parts.get(key) != part.as_ref());
        let mut old = BTreeMap::new();
        for key in fresh.keys() {
            if let Some(part) = self.parts.remove(key) {
                part.elements.iter().for_each(|element| self.unclaim(element));
                old.insert(key.clone(), part);
            }
        }
        let new: BTreeMap<Key, Part> = fresh.into_iter().filter_map(|(key, part)| Some((key, part?))).collect();
        let delta = {
            let contested = self.contested(&old, &new);
            Delta { before: merged(&old, &contested), after: merged(&new, &contested) }
        };
        for (key, part) in new {
            part.elements.iter().for_each(|element| self.claim(element));
            self.parts.insert(key, part);
        }
        delta.complete()
    }

    /// Elements of these parts that other Services, which do not change, want too, with the first of them in order.
    fn contested<'a>(&'a self, old: &'a BTreeMap<Key, Part>, new: &'a BTreeMap<Key, Part>) -> Contested<'a> {
        let elements = old.values().chain(new.values()).flat_map(|part| &part.elements);
        let mut open: BTreeSet<(&str, &str)> =
            elements.filter(|element| self.claims.contains_key(&id(element))).map(place).collect();
        let mut contested = Contested::new();
        for (key, part) in &self.parts {
            if open.is_empty() {
                break;
            }
            for element in &part.elements {
                if open.remove(&place(element)) {
                    contested.insert(place(element), (key, element));
                }
            }
        }
        contested
    }

    fn claim(&mut self, element: &Element) {
        *self.claims.entry(id(element)).or_default() += 1;
    }

    fn unclaim(&mut self, element: &Element) {
        if let std::collections::hash_map::Entry::Occupied(mut claims) = self.claims.entry(id(element)) {
            *claims.get_mut() -= 1;
            if *claims.get() == 0 {
                claims.remove();
            }
        }
    }
}

type Contested<'a> = BTreeMap<(&'a str, &'a str), (&'a Key, &'a Element)>;

/// Some parts together, with the elements that others hold instead or beside them.
fn merged(parts: &BTreeMap<Key, Part>, contested: &Contested<'_>) -> ServiceRules {
    let mut rules = ServiceRules::default();
    let mut holders: Vec<(&Key, &Element)> = contested.values().copied().collect();
    holders.sort_by_key(|(key, _)| *key);
    let mut holders = holders.into_iter().peekable();
    for (key, part) in parts {
        while let Some((_, element)) = holders.next_if(|(holder, _)| *holder < key) {
            rules.add_element(element);
        }
        rules.add(part);
    }
    holders.for_each(|(_, element)| rules.add_element(element));
    rules
}

impl Delta {
    /// A set whose last element goes is named on both sides: it stays.
    fn complete(mut self) -> Delta {
        let (before, after) = (&mut self.before.content.elements, &mut self.after.content.elements);
        for set in before.keys() {
            after.entry(set.clone()).or_default();
        }
        for set in after.keys() {
            before.entry(set.clone()).or_default();
        }
        self
    }
}

fn place(element: &Element) -> (&str, &str) {
    (element.set, &element.key)
}

fn id(element: &Element) -> u64 {
    let mut hasher = DefaultHasher::new();
    place(element).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
