//! Our own nftables tables, changed through the `nft` program with one transaction a call.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use base::program;
use ipnet::IpNet;
use serde_json::Value;

use crate::error::CniError;

/// A table of all pods of a node takes well under a second.
const LIMIT: Duration = Duration::from_secs(30);

/// A table, as nft names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub(crate) family: &'a str,
    pub(crate) name: &'a str,
}

/// A table's set or map of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements<'a> {
    Set(&'a str),
    Map(&'a str),
}

/// An element of a map, by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapKey {
    pub(crate) map: &'static str,
    pub(crate) key: String,
}

/// Applies a script in one transaction.
pub(crate) fn apply(script: &str) -> Result<(), CniError> {
    run(&["-f", "-"], script).map(drop)
}

/// As [`apply`], where what is not there any more is no error: then nothing is changed.
pub(crate) fn apply_or_absent(script: &str) -> Result<(), CniError> {
    match apply(script) {
        Err(err) if !is_absent(&err) => Err(err),
        _ => Ok(()),
    }
}

/// Whether the kernel would take a script. Nothing is changed.
///
/// Errors: of the code `Internal` if it would not, of `Io` if nft does not answer.
pub(crate) fn would_take(script: &str) -> Result<(), CniError> {
    run(&["-c", "-f", "-"], script).map(drop)
}

/// Whether there is such a chain.
pub(crate) fn has_chain(table: Table<'_>, chain: &str) -> Result<bool, CniError> {
    match run(&["list", "chain", table.family, table.name, chain], "") {
        Ok(_) => Ok(true),
        Err(err) if is_absent(&err) => Ok(false),
        Err(err) => Err(err),
    }
}

/// The elements of a set or map as nft's JSON: `{"elem": {"val": …, "comment": …}}` or `[key, value]` pairs around
/// them. A table that is not there has none.
pub(crate) fn elements(table: Table<'_>, of: Elements<'_>) -> Result<Vec<Value>, CniError> {
    let (kind, name) = match of {
        Elements::Set(name) => ("set", name),
        Elements::Map(name) => ("map", name),
    };
    match run(&["-j", "list", kind, table.family, table.name, name], "") {
        Ok(text) => {
            let document: Value = serde_json::from_str(&text)
                .map_err(|err| CniError::internal(format!("cannot parse nft's output: {err}")))?;
            let objects = document.get("nftables").and_then(Value::as_array).cloned().unwrap_or_default();
            Ok(objects
                .iter()
                .filter_map(|object| object.get(kind)?.get("elem")?.as_array().cloned())
                .flatten()
                .collect())
        }
        Err(err) if is_absent(&err) => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// The comment of one element, which is asked for by its key: `None` if there is no such element, or no such table.
pub(crate) fn comment_of(table: Table<'_>, MapKey { map, key }: &MapKey) -> Result<Option<String>, CniError> {
    // As text: nft 1.0 answers this with text also when asked for JSON.
    match run(&["get", "element", table.family, table.name, map, &format!("{{ {key} }}")], "") {
        Ok(text) => Ok(Some(comment_in(&text))),
        Err(err) if is_absent(&err) => Ok(None),
        // Versions before 1.0 do not find every kind of key: all elements are looked through.
        Err(_) => Ok(elements(table, Elements::Map(map))?.iter().find_map(|element| comment_at(element, key))),
    }
}

/// Of `[{"elem": {"val": {"concat": ["tcp", 80]}, "comment": "ID"}}, {"concat": [...]}]` the comment, if it has this
/// key.
fn comment_at(element: &Value, key: &str) -> Option<String> {
    let elem = element.get(0)?.get("elem")?;
    let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
    let parts: Vec<String> = elem.get("val")?.get("concat")?.as_array()?.iter().map(part).collect();
    (parts.join(" . ") == key).then(|| elem.get("comment").and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// Of `elements = { tcp . 80 comment "ID" : 10.42.0.5 . 8080 }` the comment; empty if there is none.
fn comment_in(text: &str) -> String {
    let after = text.split_once("comment \"").map_or("", |(_, after)| after);
    after.split('"').next().unwrap_or_default().to_owned()
}

fn is_absent(err: &CniError) -> bool {
    err.msg.contains("No such file or directory") && !err.msg.contains("cannot run")
}

fn run(args: &[&str], stdin: &str) -> Result<String, CniError> {
    let output =
        program::output(Command::new("nft").args(args), stdin.as_bytes(), LIMIT).map_err(|err| match err.kind() {
            std::io::ErrorKind::NotFound => CniError::io("cannot run nft: install the package nftables", &err),
            _ => CniError::io("nft does not answer", &err),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(CniError::internal(format!("nft failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip" } else { "ip6" }
}

/// Everything a pod sends beyond its own network gets the node's address.
pub(crate) fn masquerade_add(container_id: &str, ips: &[IpNet]) -> Result<(), CniError> {
    let mut script = String::new();
    for ip in ips {
        let (fam, kind, multicast) = match ip {
            IpNet::V4(_) => ("ip", "ipv4_addr", "224.0.0.0/4"),
            IpNet::V6(_) => ("ip6", "ipv6_addr", "ff00::/8"),
        };
        script += &format!(
            "add table {fam} kedge-masq\n\
             add set {fam} kedge-masq pods {{ type {kind}; }}\n\
             add set {fam} kedge-masq local {{ type {kind}; flags interval; auto-merge; }}\n\
             add chain {fam} kedge-masq postrouting {{ type nat hook postrouting priority srcnat; }}\n\
             flush chain {fam} kedge-masq postrouting\n\
             add rule {fam} kedge-masq postrouting {fam} saddr @pods {fam} daddr != @local masquerade\n\
             add element {fam} kedge-masq local {{ {multicast}, {net} }}\n\
             add element {fam} kedge-masq pods {{ {addr} comment \"{container_id}\" }}\n",
            net = ip.trunc(),
            addr = ip.addr(),
        );
    }
    apply(&script)
}

pub(crate) fn masquerade_del(container_id: &str) -> Result<(), CniError> {
    let mut script = String::new();
    for fam in ["ip", "ip6"] {
        for element in elements(Table { family: fam, name: "kedge-masq" }, Elements::Set("pods"))? {
            let Some(element) =
                element.get("elem").filter(|e| e.get("comment").and_then(Value::as_str) == Some(container_id))
            else {
                continue;
            };
            let Some(ip) = element.get("val").and_then(Value::as_str).and_then(|val| val.parse::<IpAddr>().ok()) else {
                continue;
            };
            script += &format!("delete element {} kedge-masq pods {{ {ip} }}\n", family(&ip));
        }
    }
    if script.is_empty() { Ok(()) } else { apply(&script) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_an_element_is_its_comment() {
        let said = "table ip t {\n\tmap m {\n\t\telements = { tcp . 80 comment \"abc\" : 10.42.0.5 . 8080 }\n\t}\n}\n";
        assert_eq!(comment_in(said), "abc");
        assert_eq!(comment_in(&said.replace(" comment \"abc\"", "")), "");
        let element = serde_json::json!([{ "elem": { "val": { "concat": ["tcp", 80] }, "comment": "abc" } },
            { "concat": ["10.42.0.5", 8080] }]);
        assert_eq!(comment_at(&element, "tcp . 80").as_deref(), Some("abc"));
        assert_eq!(comment_at(&element, "tcp . 81"), None);
    }
}
