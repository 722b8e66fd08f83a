//! The node's addresses while it runs: those that were given, or the one that leads to the cluster, followed when the
//! machine moves.

use std::net::IpAddr;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use network::addresses::News;
use nix::net::if_::InterfaceFlags;
use tokio::sync::watch;
use tracing::{info, warn};

/// While the machine has no address that leads anywhere, it is looked for this often: routes come after addresses.
const LOOK: Duration = Duration::from_secs(1);
/// How often is looked though nothing was heard: the kernel drops news that nobody fetched in time.
const RECHECK: Duration = Duration::from_secs(600);

/// Addresses that a person chose: they stay.
pub(crate) fn fixed(ips: Vec<IpAddr>, group: &Group) -> watch::Receiver<Vec<IpAddr>> {
    let (tell, told) = watch::channel(ips);
    group.spawn("addresses", async move {
        // Whoever follows waits on this channel as long as it lives.
        let _open = tell;
        std::future::pending::<()>().await;
    });
    told
}

/// Begins with `first`, one a family, and tells another address as soon as the machine has lost one. `find` asks the
/// kernel for the one to use, of the same family as the one before; it may block on DNS.
pub(crate) fn follow<F>(first: Vec<IpAddr>, find: F, group: &Group) -> watch::Receiver<Vec<IpAddr>>
where
    F: Fn(IpAddr) -> Option<IpAddr> + Clone + Send + 'static,
{
    let (tell, told) = watch::channel(first.clone());
    let tasks = group.child("addresses");
    group.spawn("addresses", async move {
        let mut news = match News::listen(&tasks) {
            Ok(news) => Some(news),
            Err(err) => {
                warn!(err = %Chain(&err), "cannot hear of address changes at once");
                None
            }
        };
        let mut all: Vec<(IpAddr, Option<String>)> = first.into_iter().map(|ip| (ip, interface_of(ip))).collect();
        loop {
            let mut wait = RECHECK;
            for idx in 0..all.len() {
                let (now, interface) = all[idx].clone();
                if is_ours(now) {
                    continue;
                }
                let Some(found) = look(find.clone(), interface, now).await else {
                    wait = LOOK;
                    continue;
                };
                info!(from = %now, to = %found, "the node's address changed");
                all[idx] = (found, interface_of(found));
                tell.send_replace(all.iter().map(|(ip, _)| *ip).collect());
            }
            let heard = async {
                match &mut news {
                    Some(news) => news.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = heard => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    });
    told
}

/// The address to use now: where the way to the cluster begins, else whatever the interface has that had the last one.
async fn look(
    find: impl Fn(IpAddr) -> Option<IpAddr> + Send + 'static,
    interface: Option<String>,
    last: IpAddr,
) -> Option<IpAddr> {
    if let Ok(Some(found)) = Group::blocking(move || find(last)).await {
        return Some(found);
    }
    let usable =
        |ip: &IpAddr| ip.is_ipv4() == last.is_ipv4() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses()?.into_iter().find(|(name, ip)| Some(name) == interface.as_ref() && usable(ip)).map(|(_, ip)| ip)
}

/// Interfaces that are up, with each of their addresses; `None` if the kernel does not tell.
fn addresses() -> Option<Vec<(String, IpAddr)>> {
    let of = |i: nix::ifaddrs::InterfaceAddress| {
        let address = i.address.filter(|_| i.flags.contains(InterfaceFlags::IFF_UP))?;
        let v4 = address.as_sockaddr_in().map(|sin| IpAddr::V4(sin.ip()));
        Some((i.interface_name, v4.or_else(|| address.as_sockaddr_in6().map(|sin| IpAddr::V6(sin.ip())))?))
    };
    Some(nix::ifaddrs::getifaddrs().ok()?.filter_map(of).collect())
}

fn interface_of(ip: IpAddr) -> Option<String> {
    addresses()?.into_iter().find(|(_, has)| *has == ip).map(|(name, _)| name)
}

/// Whether the machine still has the address: one that it has stays the node's, whatever else comes. A machine that
/// cannot tell keeps it.
fn is_ours(ip: IpAddr) -> bool {
    addresses().is_none_or(|all| all.iter().any(|(_, has)| *has == ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_nobody_here_is_not_ours() {
        assert!(is_ours("127.0.0.1".parse().unwrap()));
        // A documentation address (RFC 5737).
        assert!(!is_ours("192.0.2.1".parse().unwrap()));
    }
}
