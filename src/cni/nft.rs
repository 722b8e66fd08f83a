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

/// Applies a script in one transaction.
pub(crate) fn apply(script: &str) -> Result<(), CniError> {
    run(&["-f", "-"], script).map(drop)
}

/// The elements of a set or map as nft's JSON: `{"elem": {"val": …, "comment": …}}` or `[key, value]` pairs around them.
/// A table that is not there has none.
pub(crate) fn elements(family: &str, table: &str, kind: &str, name: &str) -> Result<Vec<Value>, CniError> {
    match run(&["-j", "list", kind, family, table, name], "") {
        Ok(text) => {
            let document: Value =
                serde_json::from_str(&text).map_err(|err| CniError::internal(format!("cannot parse nft's output: {err}")))?;
            let objects = document.get("nftables").and_then(Value::as_array).cloned().unwrap_or_default();
            Ok(objects.iter().filter_map(|object| object.get(kind)?.get("elem")?.as_array().cloned()).flatten().collect())
        }
        Err(err) if err.msg.contains("No such file or directory") && !err.msg.contains("cannot run") => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

fn run(args: &[&str], stdin: &str) -> Result<String, CniError> {
    let output = program::output(Command::new("nft").args(args), stdin.as_bytes(), LIMIT).map_err(|err| match err.kind() {
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
        for element in elements(fam, "kedge-masq", "set", "pods")? {
            let Some(element) = element.get("elem").filter(|e| e.get("comment").and_then(Value::as_str) == Some(container_id)) else {
                continue;
            };
            let Some(ip) = element.get("val").and_then(Value::as_str).and_then(|val| val.parse::<IpAddr>().ok()) else { continue };
            script += &format!("delete element {} kedge-masq pods {{ {ip} }}\n", family(&ip));
        }
    }
    if script.is_empty() { Ok(()) } else { apply(&script) }
}
