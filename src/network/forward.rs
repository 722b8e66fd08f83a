//! A machine whose firewall drops what is forwarded (Docker and ufw set the policy of iptables' chain FORWARD to DROP)
//! drops pods' packets, too, whatever our own tables say. Where that is so, two rules for each pod network let them
//! through, as flannel's do.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use ipnet::IpNet;
use netfilter::look::{self, TableName, TableRef};
use tokio::process::Command;
use tracing::{info, warn};

use crate::error::NetworkError;
use crate::monitor::Watched;
use crate::nft::ask;
use crate::table::Table;

/// iptables waits for its lock this long, and we for iptables.
const LOCK_SECS: &str = "5";
const TIMEOUT: Duration = Duration::from_secs(15);
/// A chain's policy that drops.
const POLICY_DROP: u32 = 0;
/// By it our rules are found again.
const COMMENT: &str = "kedge pods";

/// The tables of iptables that are kept by nftables.
pub(crate) fn tables() -> [Table; 2] {
    ["ip", "ip6"].map(|family| Table { family, name: "filter" })
}

/// Looks now, and whenever somebody changes those tables, as long as the group lives.
pub(crate) fn run(cidrs: Vec<IpNet>, mut watched: Watched, group: &Group) {
    group.spawn("forward-policy", async move {
        let mut told = false;
        loop {
            if let Err(err) = look(&cidrs, &mut told).await {
                warn!(err = %Chain(&err), "cannot see whether the machine's firewall lets pods' packets through");
            }
            watched.next().await;
        }
    });
}

async fn look(cidrs: &[IpNet], told: &mut bool) -> Result<(), NetworkError> {
    let tables = ask(look::tables).await?;
    if has(&tables, TableRef { family: "inet", name: "firewalld" }) && !*told {
        *told = true;
        warn!(
            "firewalld is on and may reject pods' packets; if it does: firewall-cmd --permanent --zone=trusted \
             --add-source=POD_NETWORK"
        );
    }
    for (program, family, names) in
        [("iptables", "ip", "/proc/net/ip_tables_names"), ("ip6tables", "ip6", "/proc/net/ip6_tables_names")]
    {
        let own: Vec<&IpNet> = cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == (family == "ip")).collect();
        let old = fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "filter"));
        // Asked where there is nothing, the program would make the table.
        if own.is_empty() || !old && !has(&tables, TableRef { family, name: "filter" }) {
            continue;
        }
        // What nftables keeps of iptables is read without the program, which a machine need not have.
        if !old
            && ask(move || look::chain_policy(TableRef { family, name: "filter" }, "FORWARD")).await?
                != Some(POLICY_DROP)
        {
            continue;
        }
        let Some(rules) = iptables(program, &["-S", "FORWARD"]).await? else {
            warn!(
                program,
                family,
                "the machine's firewall drops forwarded packets, and the program that could let those of pods through \
                 is not there, or refuses: set the policy of its chain FORWARD to ACCEPT"
            );
            continue;
        };
        if !rules.lines().any(|line| line.trim() == "-P FORWARD DROP") {
            continue;
        }
        for (option, cidr) in missing(&rules, &own) {
            let rule = [
                "-I",
                "FORWARD",
                "1",
                option,
                &cidr.to_string(),
                "-m",
                "comment",
                "--comment",
                COMMENT,
                "-j",
                "ACCEPT",
            ];
            iptables(program, &rule).await?;
            info!(cidr = %cidr, "the machine's firewall drops forwarded packets: those of pods are let through");
        }
    }
    Ok(())
}

/// Removes our rules. A machine without iptables has none.
pub(crate) async fn cleanup() -> Result<(), NetworkError> {
    let tables = ask(look::tables).await?;
    for (program, family) in [("iptables", "ip"), ("ip6tables", "ip6")] {
        if !has(&tables, TableRef { family, name: "filter" }) {
            continue;
        }
        let Some(rules) = iptables(program, &["-S", "FORWARD"]).await? else { continue };
        for (option, cidr) in present(&rules) {
            let rule =
                ["-D", "FORWARD", option, &cidr.to_string(), "-m", "comment", "--comment", COMMENT, "-j", "ACCEPT"];
            iptables(program, &rule).await?;
        }
    }
    Ok(())
}

fn has(tables: &[TableName], wanted: TableRef<'_>) -> bool {
    tables.iter().any(|table| table.family == wanted.family && table.name == wanted.name)
}

/// Our rules in what `-S FORWARD` says.
fn present(rules: &str) -> BTreeSet<(&'static str, IpNet)> {
    let ours =
        rules.lines().filter(|line| line.contains(&format!("--comment \"{COMMENT}\"")) && line.ends_with("-j ACCEPT"));
    ours.filter_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| !matches!(*word, "-s" | "-d"));
        let option = if words.next()? == "-s" { "-s" } else { "-d" };
        Some((option, words.next()?.parse().ok()?))
    })
    .collect()
}

fn missing(rules: &str, cidrs: &[&IpNet]) -> Vec<(&'static str, IpNet)> {
    let have = present(rules);
    let wanted = cidrs.iter().flat_map(|cidr| ["-s", "-d"].map(|option| (option, cidr.trunc())));
    wanted.filter(|rule| !have.contains(rule)).collect()
}

/// The program's output; `None` if it is not installed, or refuses.
async fn iptables(program: &str, args: &[&str]) -> Result<Option<String>, NetworkError> {
    let mut command = Command::new(program);
    command.args(["-w", LOCK_SECS]).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(TIMEOUT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(err)) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(Err(source)) => return Err(NetworkError::Io { doing: "cannot run iptables", source }),
        Err(_) => {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(NetworkError::Io { doing: "iptables does not answer", source });
        }
    };
    if !output.status.success() {
        warn!(
            program, err = %String::from_utf8_lossy(&output.stderr).trim(),
            "the machine's firewall cannot be asked or changed"
        );
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_added() {
        let cidr: IpNet = "10.42.0.0/16".parse().unwrap();
        let docker = "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n";
        assert_eq!(missing(docker, &[&cidr]), [("-s", cidr), ("-d", cidr)]);
        let half = format!("{docker}-A FORWARD -s 10.42.0.0/16 -m comment --comment \"kedge pods\" -j ACCEPT\n");
        assert_eq!(missing(&half, &[&cidr]), [("-d", cidr)]);
        let others = format!(
            "{docker}-A FORWARD -d 10.42.0.0/16 -j ACCEPT\n\
             -A FORWARD -d x -m comment --comment \"kedge pods\" -j ACCEPT\n"
        );
        assert_eq!(missing(&others, &[&cidr]).len(), 2);
    }
}
