//! Which client stays with which endpoint, carried over when the table is written anew: the sets of a table go with it.

use std::net::IpAddr;

use serde_json::Value;

use crate::nft;
use crate::table::{Ruleset, Table};

/// A client that a set knows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    set: String,
    ip: IpAddr,
    /// For how long it is known in all, and from now.
    timeout_secs: u64,
    expires_secs: u64,
}

/// The lines that put the clients which are known now into the sets of `fresh`. Nothing where no Service wants
/// affinity, or when the table cannot be read: then clients are balanced anew.
pub(crate) async fn kept(table: Table, fresh: &Ruleset) -> String {
    if !fresh.sets.keys().any(|name| is_affinity(name)) {
        return String::new();
    }
    let Ok(text) = nft::run(&["-j", "list", "table", table.family, table.name], "").await else { return String::new() };
    lines(table, fresh, &clients(&text))
}

fn is_affinity(set: &str) -> bool {
    set.starts_with("aff-")
}

fn lines(table: Table, fresh: &Ruleset, clients: &[Client]) -> String {
    let Table { family, name } = table;
    let wanted = clients.iter().filter(|client| fresh.sets.contains_key(&client.set));
    let line = |Client { set, ip, timeout_secs, expires_secs }: &Client| {
        format!("add element {family} {name} {set} {{ {ip} timeout {timeout_secs}s expires {expires_secs}s }}\n")
    };
    wanted.map(line).collect()
}

/// Reads `{"nftables": [{"set": {"name": "aff-…", "timeout": 60, "elem": [{"elem": {"val": "10.42.0.9", "expires":
/// 55}}]}}]}`.
fn clients(text: &str) -> Vec<Client> {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let sets = document["nftables"].as_array().into_iter().flatten().map(|object| &object["set"]);
    let mut clients = Vec::new();
    for set in sets {
        let Some(name) = set["name"].as_str().filter(|name| is_affinity(name)) else { continue };
        for element in set["elem"].as_array().into_iter().flatten() {
            let element = element.get("elem").unwrap_or(element);
            let timeout = element["timeout"].as_u64().or(set["timeout"].as_u64());
            let (Some(ip), Some(timeout_secs)) = (element["val"].as_str().and_then(|val| val.parse().ok()), timeout)
            else {
                continue;
            };
            let expires_secs = element["expires"].as_u64().unwrap_or(timeout_secs).clamp(1, timeout_secs.max(1));
            clients.push(Client { set: name.to_owned(), ip, timeout_secs: timeout_secs.max(1), expires_secs });
        }
    }
    clients
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::SetKind;

    pub(super) const TABLE: Table = Table { family: "ip", name: "kedge-proxy" };
    pub(super) const SAID: &str = r#"{"nftables": [{"metainfo": {}}, {"set": {"family": "ip", "name": "aff-1",
        "timeout": 60, "elem": [
        {"elem": {"val": "10.42.0.9", "timeout": 60, "expires": 55}}, {"elem": {"val": "10.42.0.8", "expires": 99}},
        {"elem": {"val": {"odd": 1}}}, "10.42.0.7"]}},
        {"set": {"name": "cluster-ips", "elem": ["10.43.0.1"]}},
        {"set": {"name": "aff-2", "timeout": 60, "elem": [{"elem": {"val": "10.42.0.9"}}]}}]}"#;

    #[test]
    fn clients_stay_in_the_sets_that_are_still_wanted() {
        let mut fresh = Ruleset::default();
        fresh.sets.insert("aff-1".to_owned(), SetKind::Set(String::new()));
        let text = lines(TABLE, &fresh, &clients(SAID));
        assert!(text.starts_with("add element ip kedge-proxy aff-1 { 10.42.0.9 timeout 60s expires 55s }\n"), "{text}");
        assert!(
            text.contains("{ 10.42.0.8 timeout 60s expires 60s }")
                && !text.contains("aff-2")
                && text.lines().count() == 2,
            "{text}"
        );
    }
}

#[cfg(test)]
mod fuzz_tests {
    use super::tests::{SAID, TABLE};
    use super::*;
    use crate::table::SetKind;
    use base::fuzz;

    /// nft's answers are another program's words: whatever they are, only addresses and numbers come out.
    #[test]
    fn strange_answers_of_nft_become_no_words_of_a_script() {
        let rng = fuzz::rng(12);
        let mut fresh = Ruleset::default();
        fresh.sets.insert("aff-1".to_owned(), SetKind::Set(String::new()));
        for _ in fuzz::rounds(5_000) {
            let text = fuzz::mutated_text(&rng, SAID, &["\"", "aff-1", "}", "{", ",", "-1", "1e9", "\n", ";", "null"]);
            for line in lines(TABLE, &fresh, &clients(&text)).lines() {
                let inner = line
                    .strip_prefix("add element ip kedge-proxy aff-1 { ")
                    .and_then(|rest| rest.strip_suffix("s }"))
                    .unwrap();
                assert!(inner.chars().all(|c| c.is_ascii_hexdigit() || " .:timeoutexpires".contains(c)), "{line}");
            }
        }
    }
}
