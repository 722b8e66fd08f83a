//! From one content of the table to the next: the nft script of what changed, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::service::rules::{Family, Ruleset, SetKind, TABLE, UdpTarget};

/// Two transactions: the change itself, then the removal of what nothing refers to any more. They are apart because older kernels
/// refuse to delete a chain in the transaction that drops its last reference.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Script {
    pub(crate) change: String,
    pub(crate) sweep: String,
}

/// Replaces the whole table, whatever it holds, in one transaction.
pub(crate) fn full(family: Family, rules: &Ruleset) -> String {
    let f = family.name();
    let frame = format!("add table {f} {TABLE}\ndelete table {f} {TABLE}\nadd table {f} {TABLE}\n");
    frame + &update(family, &Ruleset::default(), rules).change
}

/// What leads from `old` to `new`. Sets and chains come first, then rules and elements, which refer to them.
pub(crate) fn update(family: Family, old: &Ruleset, new: &Ruleset) -> Script {
    let f = family.name();
    let (mut change, mut sweep) = (String::new(), String::new());
    for (name, kind) in &new.sets {
        match old.sets.get(name) {
            Some(before) if before == kind => {}
            // Only the timeout of an affinity set ever differs, and a set's timeout cannot be altered: its name must carry it.
            _ => change += &format!("add {} {f} {TABLE} {name} {{ {} }}\n", kind.word(), kind.spec()),
        }
    }
    for (name, lines) in new.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name)) {
        let hook = lines.first().filter(|line| is_hook(line)).map(|line| format!(" {{ {line} }}")).unwrap_or_default();
        let _infallible = writeln!(change, "add chain {f} {TABLE} {name}{hook}");
    }
    for (name, lines) in new.chains.iter().filter(|(name, lines)| old.chains.get(*name) != Some(*lines)) {
        if old.chains.contains_key(name) {
            let _infallible = writeln!(change, "flush chain {f} {TABLE} {name}");
        }
        for line in lines.iter().filter(|line| !is_hook(line)) {
            let _infallible = writeln!(change, "add rule {f} {TABLE} {name} {line}");
        }
    }
    elements(f, old, new, &mut change);
    let gone: Vec<&String> = old.chains.keys().filter(|name| !new.chains.contains_key(*name)).collect();
    for name in &gone {
        // Emptied now, as its rules may refer to other chains and sets that go.
        let _infallible = writeln!(change, "flush chain {f} {TABLE} {name}");
        let _infallible = writeln!(sweep, "delete chain {f} {TABLE} {name}");
    }
    for (name, kind) in old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name)) {
        let _infallible = writeln!(sweep, "delete {} {f} {TABLE} {name}", kind.word());
    }
    Script { change, sweep }
}

fn elements(f: &str, old: &Ruleset, new: &Ruleset, change: &mut String) {
    let none = BTreeMap::new();
    for (set, after) in &new.elements {
        let before = old.elements.get(set).unwrap_or(&none);
        let stale: Vec<&str> = before.iter().filter(|(key, value)| after.get(*key) != Some(*value)).map(|(key, _)| key.as_str()).collect();
        let fresh: Vec<String> = after
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(*value))
            .map(|(key, value)| if value.is_empty() { key.clone() } else { format!("{key} : {value}") })
            .collect();
        if !stale.is_empty() {
            let _infallible = writeln!(change, "delete element {f} {TABLE} {set} {{ {} }}", stale.join(", "));
        }
        if !fresh.is_empty() {
            let _infallible = writeln!(change, "add element {f} {TABLE} {set} {{ {} }}", fresh.join(", "));
        }
    }
}

fn is_hook(line: &str) -> bool {
    line.starts_with("type ")
}

impl SetKind {
    fn word(&self) -> &'static str {
        match self {
            SetKind::Map(_) => "map",
            SetKind::Set(_) => "set",
        }
    }

    fn spec(&self) -> &str {
        match self {
            SetKind::Map(spec) | SetKind::Set(spec) => spec,
        }
    }
}

/// UDP flows that conntrack would go on sending to the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StaleFlow {
    /// To this destination, answered by this endpoint, which is gone.
    Endpoint { target: UdpTarget, endpoint: SocketAddr },
    /// To this destination, translated by nobody: it had no endpoints when the flow began.
    Untranslated { target: UdpTarget },
}

/// What conntrack must forget after an update.
pub(crate) fn stale_flows(old: &Ruleset, new: &Ruleset) -> BTreeSet<StaleFlow> {
    let (none, mut stale) = (BTreeSet::new(), BTreeSet::new());
    for (target, before) in &old.udp {
        let after = new.udp.get(target).unwrap_or(&none);
        stale.extend(before.difference(after).map(|endpoint| StaleFlow::Endpoint { target: *target, endpoint: *endpoint }));
    }
    for (target, after) in &new.udp {
        if !after.is_empty() && old.udp.get(target).is_none_or(BTreeSet::is_empty) {
            stale.insert(StaleFlow::Untranslated { target: *target });
        }
    }
    stale
}
