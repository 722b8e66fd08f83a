//! Which client stays with which endpoint, carried over when the table is written anew: the sets of a table go with it.

use std::net::IpAddr;

use netfilter::look::{self, Held, SetFacts, SetRef, TableRef};

use crate::nft::ask;
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
    let wanted: Vec<String> = fresh.sets.keys().filter(|name| is_affinity(name)).cloned().collect();
    lines(table, &ask(move || clients(table, &wanted)).await.unwrap_or_default())
}

fn is_affinity(set: &str) -> bool {
    set.starts_with("aff-")
}

fn lines(table: Table, clients: &[Client]) -> String {
    let Table { family, name } = table;
    let line = |Client { set, ip, timeout_secs, expires_secs }: &Client| {
        format!("add element {family} {name} {set} {{ {ip} timeout {timeout_secs}s expires {expires_secs}s }}\n")
    };
    clients.iter().map(line).collect()
}

/// The clients that the kernel knows in the `wanted` sets.
fn clients(table: Table, wanted: &[String]) -> Result<Vec<Client>, netfilter::NetfilterError> {
    let mut all = Vec::new();
    for set in
        look::sets(TableRef { family: table.family, name: table.name })?.iter().filter(|set| wanted.contains(&set.name))
    {
        let held = look::elements(SetRef { family: table.family, table: table.name, set: &set.name })?;
        all.extend(held.iter().filter_map(|held| client(set, held)));
    }
    Ok(all)
}

fn client(set: &SetFacts, held: &Held) -> Option<Client> {
    let ip = match held.key.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(held.key.as_slice()).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(held.key.as_slice()).ok()?),
    };
    let timeout_secs = (held.timeout_ms.or(set.timeout_ms)? / 1000).max(1);
    let expires_secs = held.expires_ms.map_or(timeout_secs, |ms| ms / 1000).clamp(1, timeout_secs);
    Some(Client { set: set.name.clone(), ip, timeout_secs, expires_secs })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table { family: "ip", name: "kedge-proxy" };

    #[test]
    fn a_client_stays_known_for_as_long_as_it_would_have_been() {
        let set = SetFacts { name: "aff-1".to_owned(), timeout_ms: Some(60_000) };
        let held = |key: &[u8], timeout_ms: Option<u64>, expires_ms: Option<u64>| {
            client(&set, &Held { key: key.to_vec(), timeout_ms, expires_ms, ..Held::default() })
        };
        let all: Vec<Client> = [
            held(&[10, 42, 0, 9], Some(60_000), Some(55_900)),
            held(&[10, 42, 0, 8], None, Some(99_000)),
            held(&[10, 42, 0, 7], None, Some(3)),
            held(&[1, 2, 3], None, None),
            held(&[0; 16], Some(0), None),
        ]
        .into_iter()
        .flatten()
        .collect();
        let wanted = "add element ip kedge-proxy aff-1 { 10.42.0.9 timeout 60s expires 55s }\n\
                      add element ip kedge-proxy aff-1 { 10.42.0.8 timeout 60s expires 60s }\n\
                      add element ip kedge-proxy aff-1 { 10.42.0.7 timeout 60s expires 1s }\n\
                      add element ip kedge-proxy aff-1 { :: timeout 1s expires 1s }\n";
        assert_eq!(lines(TABLE, &all), wanted);
        let forever = SetFacts { timeout_ms: None, ..set };
        assert_eq!(client(&forever, &Held { key: vec![10, 42, 0, 9], ..Held::default() }), None);
    }
}
