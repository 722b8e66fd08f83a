//! The content of one nftables table as data, and the nft script that leads from one content to the next: what changed,
//! and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::traces;

/// A table of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Table {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub(crate) family: &'static str,
    pub(crate) name: &'static str,
}

/// Names of our tables, and of iptables' own, whose policy for forwarded packets concerns us.
const NAMES: [&str; 7] = [
    "filter",
    traces::BANDWIDTH_TABLE,
    traces::HOSTPORT_TABLE,
    traces::MASQUERADE_TABLE,
    traces::POLICY_TABLE,
    traces::PROXY_TABLE,
    traces::SOURCE_TABLE,
];

impl Table {
    /// The table of this name, if it is one that we look after.
    pub(crate) fn known(family: &str, name: &str) -> Option<Table> {
        let family = ["inet", "ip", "ip6", "bridge"].into_iter().find(|known| *known == family)?;
        NAMES.into_iter().find(|known| *known == name).map(|name| Table { family, name })
    }
}

/// Contents of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    /// Sets and maps by name.
    pub(crate) sets: BTreeMap<String, SetKind>,
    /// Rules by chain; a first line that begins with `type` makes a base chain.
    pub(crate) chains: BTreeMap<String, Vec<String>>,
    /// Elements of sets (empty values) and maps, by set.
    pub(crate) elements: BTreeMap<String, BTreeMap<String, String>>,
}

/// Kind of a set, in nft's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetKind {
    Map(String),
    Set(String),
}

/// Two transactions: the change itself, then the removal of what nothing refers to any more. They are apart because
/// older kernels refuse to delete a chain in the transaction that drops its last reference.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Script {
    pub(crate) change: String,
    pub(crate) sweep: String,
}

/// Replaces the whole table, whatever it holds, in one transaction.
pub(crate) fn full(table: Table, rules: &Ruleset) -> String {
    let Table { family: f, name: t } = table;
    let frame = format!("add table {f} {t}\ndelete table {f} {t}\nadd table {f} {t}\n");
    frame + &update(table, &Ruleset::default(), rules).change
}

/// Takes the table away; one that is not there is no error.
pub(crate) fn remove(table: Table) -> String {
    let Table { family: f, name: t } = table;
    // Adding first makes the deletion succeed either way.
    format!("add table {f} {t}\ndelete table {f} {t}\n")
}

/// The commands that lead from `old` to `new`. Sets and chains come first, then rules and elements, which name them.
pub(crate) fn update(table: Table, old: &Ruleset, new: &Ruleset) -> Script {
    let Table { family: f, name: t } = table;
    let (mut change, mut sweep) = (String::new(), String::new());
    for (name, kind) in &new.sets {
        match old.sets.get(name) {
            Some(before) if before == kind => {}
            // Only the timeout of an affinity set ever differs, and a set's timeout cannot be altered: its name must
            // carry it.
            _ => change += &format!("add {} {f} {t} {name} {{ {} }}\n", kind.word(), kind.spec()),
        }
    }
    for (name, lines) in new.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name)) {
        let hook = lines.first().filter(|line| is_hook(line)).map(|line| format!(" {{ {line} }}")).unwrap_or_default();
        let _infallible = writeln!(change, "add chain {f} {t} {name}{hook}");
    }
    for (name, lines) in new.chains.iter().filter(|(name, lines)| old.chains.get(*name) != Some(*lines)) {
        if old.chains.contains_key(name) {
            let _infallible = writeln!(change, "flush chain {f} {t} {name}");
        }
        for line in lines.iter().filter(|line| !is_hook(line)) {
            let _infallible = writeln!(change, "add rule {f} {t} {name} {line}");
        }
    }
    elements(table, old, new, &mut change);
    let gone: Vec<&String> = old.chains.keys().filter(|name| !new.chains.contains_key(*name)).collect();
    for name in &gone {
        // Emptied now, as its rules may refer to other chains and sets that go.
        let _infallible = writeln!(change, "flush chain {f} {t} {name}");
        let _infallible = writeln!(sweep, "delete chain {f} {t} {name}");
    }
    for (name, kind) in old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name)) {
        let _infallible = writeln!(sweep, "delete {} {f} {t} {name}", kind.word());
    }
    Script { change, sweep }
}

fn elements(table: Table, old: &Ruleset, new: &Ruleset, change: &mut String) {
    let Table { family: f, name: t } = table;
    let none = BTreeMap::new();
    for (set, after) in &new.elements {
        let before = old.elements.get(set).unwrap_or(&none);
        let stale: Vec<&str> =
            before.iter().filter(|(key, value)| after.get(*key) != Some(*value)).map(|(key, _)| key.as_str()).collect();
        let fresh: Vec<String> = after
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(*value))
            .map(|(key, value)| if value.is_empty() { key.clone() } else { format!("{key} : {value}") })
            .collect();
        if !stale.is_empty() {
            let _infallible = writeln!(change, "delete element {f} {t} {set} {{ {} }}", stale.join(", "));
        }
        if !fresh.is_empty() {
            let _infallible = writeln!(change, "add element {f} {t} {set} {{ {} }}", fresh.join(", "));
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::oracle;

    /// Longer scripts take nft minutes.
    const ORACLE_BYTES_MAX: usize = 100_000;

    /// The kernel must hold the same of this table, whether the program nft or we gave it to it.
    pub(crate) fn hold_against_nft(table: Table, rules: &Ruleset) {
        let script = full(table, rules);
        if script.len() <= ORACLE_BYTES_MAX {
            oracle::compare(&[script], |script| netfilter::nft::apply(script).unwrap());
        }
    }

    #[test]
    fn a_change_and_its_sweep_leave_what_nft_leaves() {
        let table = Table { family: "ip", name: "kedge-proxy" };
        let mut old = Ruleset::default();
        old.sets.insert("m".to_owned(), SetKind::Map("type ipv4_addr . inet_service : verdict;".to_owned()));
        old.sets.insert("s".to_owned(), SetKind::Set("type ipv4_addr;".to_owned()));
        old.chains.insert("c".to_owned(), vec!["ip saddr @s drop".to_owned()]);
        old.chains.insert("d".to_owned(), vec!["drop".to_owned()]);
        old.elements.insert("m".to_owned(), [("10.0.0.1 . 80".to_owned(), "goto c".to_owned())].into());
        let mut new = old.clone();
        new.sets.remove("s");
        new.chains.remove("c");
        new.elements.insert("m".to_owned(), [("10.0.0.1 . 80".to_owned(), "goto d".to_owned())].into());
        let Script { change, sweep } = update(table, &old, &new);
        oracle::compare(&[full(table, &old), change, sweep], |script| netfilter::nft::apply(script).unwrap());
        oracle::compare(&[full(table, &old), remove(table), remove(table)], |script| {
            netfilter::nft::apply(script).unwrap();
        });
    }
}
