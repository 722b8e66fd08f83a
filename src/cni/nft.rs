//! Our own nftables tables, changed by netlink with one transaction a call.

use std::net::IpAddr;

use ipnet::IpNet;
use netfilter::look::{self, Held, SetRef, TableRef};
use netfilter::{NetfilterError, nft};

use crate::error::CniError;

/// A table, as nft names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    /// `ip`, `ip6`, `inet` or `bridge`.
    pub(crate) family: &'a str,
    pub(crate) name: &'a str,
}

/// An element of a map, by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapKey {
    pub(crate) map: &'static str,
    pub(crate) key: String,
}

/// Applies a script in one transaction.
pub(crate) fn apply(script: &str) -> Result<(), CniError> {
    nft::apply(script).map_err(|err| failed(&err))
}

/// As [`apply`], where what is not there any more is no error: then nothing is changed.
pub(crate) fn apply_or_absent(script: &str) -> Result<(), CniError> {
    match nft::apply(script) {
        Err(err) if !err.is_absent() => Err(failed(&err)),
        _ => Ok(()),
    }
}

/// Whether the kernel would take a script. Nothing is changed.
///
/// Errors: of the code `Internal` if it would not, of `Io` if it does not answer.
pub(crate) fn would_take(script: &str) -> Result<(), CniError> {
    nft::would_take(script).map_err(|err| failed(&err))
}

/// Whether there is such a chain.
pub(crate) fn has_chain(table: Table<'_>, chain: &str) -> Result<bool, CniError> {
    look::has_chain(TableRef { family: table.family, name: table.name }, chain).map_err(|err| failed(&err))
}

/// The elements of a set or map. A table that is not there has none.
pub(crate) fn elements(table: Table<'_>, set: &str) -> Result<Vec<Held>, CniError> {
    look::elements(SetRef { family: table.family, table: table.name, set }).map_err(|err| failed(&err))
}

/// The comment of one element, which is asked for by its key: `None` if there is no such element, or no such table.
pub(crate) fn comment_of(table: Table<'_>, MapKey { map, key }: &MapKey) -> Result<Option<String>, CniError> {
    let set = SetRef { family: table.family, table: table.name, set: map };
    look::comment_of(set, &format!("{{ {key} }}")).map_err(|err| failed(&err))
}

/// A kernel without nftables refuses, as one does that does not take a script: both are there to stay.
fn failed(err: &NetfilterError) -> CniError {
    let text = base::chain::Chain(err).to_string();
    match err {
        NetfilterError::Language { .. }
        | NetfilterError::Refused { .. }
        | NetfilterError::NoNftables
        | NetfilterError::Denied => CniError::internal(format!("nftables refuses: {text}")),
        _ => CniError::io("nftables does not answer", &text),
    }
}

/// The address that an element's key is.
pub(crate) fn address(held: &Held) -> Option<IpAddr> {
    match held.key.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(held.key.as_slice()).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(held.key.as_slice()).ok()?)),
        _ => None,
    }
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip" } else { "ip6" }
}

/// Everything a pod sends beyond its own network gets the node's address.
pub(crate) fn masquerade_add(container_id: &str, ips: &[IpNet]) -> Result<(), CniError> {
    apply(&masquerade(container_id, ips))
}

fn masquerade(container_id: &str, ips: &[IpNet]) -> String {
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
    script
}

pub(crate) fn masquerade_del(container_id: &str) -> Result<(), CniError> {
    let mut script = String::new();
    for fam in ["ip", "ip6"] {
        let held = elements(Table { family: fam, name: "kedge-masq" }, "pods")?;
        let ours = held.iter().filter(|held| held.comment.as_deref() == Some(container_id));
        for ip in ours.filter_map(address) {
            script += &format!("delete element {} kedge-masq pods {{ {ip} }}\n", family(&ip));
        }
    }
    if script.is_empty() { Ok(()) } else { apply(&script) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_addresss_length_is_one() {
        let held = |key: &[u8]| Held { key: key.to_vec(), ..Held::default() };
        assert_eq!(address(&held(&[10, 42, 0, 5])), Some("10.42.0.5".parse().unwrap()));
        assert_eq!(address(&held(&[0; 16])), Some("::".parse().unwrap()));
        assert_eq!(address(&held(&[1, 2, 3])), None);
    }

    #[test]
    fn the_kernel_holds_what_nft_makes_of_masquerade() {
        let ips = |four: &str, six: &str| [four.parse().unwrap(), six.parse().unwrap()];
        let scripts = [
            masquerade("c1", &ips("10.42.0.5/24", "fd42::5/64")),
            masquerade("c2", &ips("10.42.0.6/24", "fd42::6/64")),
            // A node whose network became another one.
            masquerade("c3", &ips("10.42.1.6/24", "fd42::1:6/48")),
            masquerade("c4", &ips("10.42.9.9/16", "fd42::9/128")),
        ];
        crate::oracle::compare(&scripts, |script| apply(script).unwrap());
    }

    #[test]
    fn what_the_kernel_refuses_is_told_from_a_kernel_that_is_silent() {
        use crate::error::Code;
        assert_eq!(failed(&NetfilterError::NoNftables).code, Code::Internal as u32);
        assert_eq!(failed(&NetfilterError::Lost).code, Code::Io as u32);
    }
}
