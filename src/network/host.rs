//! Settings of the node's kernel before it forwards pods' packets.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::route::RouteProtocol;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::error::NetworkError;
use crate::family::Family;

/// Whether packets between two ports of a bridge pass the tables of IP: without it neither Services nor policies see
/// them.
const BRIDGE_FILTER: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];
const MODPROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Has the kernel load the module that shows bridged packets to our tables, where it is not there yet.
pub(crate) async fn load_bridge_filter() {
    if Path::new(BRIDGE_FILTER[0]).exists() {
        return;
    }
    let mut command = tokio::process::Command::new("modprobe");
    command.arg("br_netfilter").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    // Whether it is there now is seen, and said, right after this.
    let _seen_soon = tokio::time::timeout(MODPROBE_TIMEOUT, command.status()).await;
}

/// Network policies cannot be enforced on this node. The remedy stands behind the cause, so that is no source.
#[derive(Debug, thiserror::Error)]
#[error("network policies cannot be enforced between pods of one node ({path}: {cause}); run: modprobe br_netfilter")]
pub(crate) struct Unenforced {
    path: &'static str,
    cause: std::io::Error,
}

/// Sees to it that policies hold between pods of this node, too: somebody may have set the parameters back. Both
/// families are asked for, whatever the cluster has: pods reach each other by link-local addresses of IPv6 in any case.
/// (A kernel without IPv6 lacks its file.)
///
/// Errors: policies would be void, and the administrator must do something.
pub(crate) fn ensure_bridge_filter() -> Result<(), Unenforced> {
    for path in BRIDGE_FILTER {
        if path == BRIDGE_FILTER[1] && !Path::new(path).exists() && !Path::new("/proc/net/if_inet6").exists() {
            continue;
        }
        ensure(path).map_err(|cause| Unenforced { path, cause })?;
    }
    Ok(())
}

fn ensure(path: &str) -> std::io::Result<()> {
    set(path, "1")?;
    match fs::read_to_string(path)?.trim() {
        "1" => Ok(()),
        other => Err(std::io::Error::other(format!("it stays {other}"))),
    }
}

/// Connections that the kernel remembers, as kube-proxy's `--conntrack-max-per-core` and `--conntrack-min`.
const CONNTRACK_PER_CORE: usize = 32_768;
const CONNTRACK_MIN: usize = 131_072;

/// Sets what must be set and says what the administrator must do; only forwarding is indispensable.
pub(crate) fn prepare(families: &BTreeSet<Family>) -> Result<(), NetworkError> {
    for family in families {
        let path = match family {
            Family::V4 => "/proc/sys/net/ipv4/ip_forward",
            Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
        };
        if *family == Family::V6 {
            keep_router_advertisements(path);
        }
        set(path, "1").map_err(|source| NetworkError::Forwarding { path, source })?;
    }
    if !Path::new(BRIDGE_FILTER[0]).exists() {
        warn!(
            "the kernel module br_netfilter is not loaded: pods of one node cannot reach each other through a Service, \
             and pods under a network policy do not start; run: modprobe br_netfilter"
        );
    }
    for (path, value) in [
        (BRIDGE_FILTER[0], "1"),
        (BRIDGE_FILTER[1], "1"),
        // As kube-proxy: a connection that one side has closed may linger that long.
        ("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
    ] {
        if let Err(err) = set(path, value)
            && Path::new(path).exists()
        {
            warn!(path, err = %err, "cannot set a kernel parameter");
        }
    }
    let table = "/proc/sys/net/netfilter/nf_conntrack_max";
    if let Some(size) = conntrack_max(
        fs::read_to_string(table).ok().as_deref(),
        std::thread::available_parallelism().map_or(1, Into::into),
    ) && let Err(err) = set(table, &size.to_string())
    {
        info!(path = table, err = %err, "cannot make room for more connections");
    }
    if fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok_and(|value| value.trim() == "1") {
        info!(
            "strict reverse path filtering is on: packets that come in on another interface than they leave are dropped"
        );
    }
    Ok(())
}

/// How many connections the kernel is to remember, if it is more than it does now: as kube-proxy, which never lowers
/// it.
fn conntrack_max(now: Option<&str>, cores: usize) -> Option<usize> {
    let wanted = cores.saturating_mul(CONNTRACK_PER_CORE).max(CONNTRACK_MIN);
    now?.trim().parse::<usize>().is_ok_and(|now| now < wanted).then_some(wanted)
}

/// A machine that forwards IPv6 hears routers no more, unless it is told to in so many words: one that has its address
/// or default route from them would lose it when that ends.
fn keep_router_advertisements(forwarding: &str) {
    if fs::read_to_string(forwarding).is_ok_and(|value| value.trim() != "0") {
        return;
    }
    for interface in fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
        let path = interface.path().join("accept_ra");
        if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1")
            && let Err(err) = fs::write(&path, "2")
        {
            warn!(
                path = %path.display(), err = %err,
                "cannot keep hearing IPv6 routers: a default route from them ends with its life"
            );
        }
    }
}

fn set(path: &str, value: &str) -> std::io::Result<()> {
    if fs::read_to_string(path)?.trim() == value {
        return Ok(());
    }
    fs::write(path, value)
}

/// Gives the service network a route where the node has no default route (a machine that never saw the internet):
/// without one the kernel refuses a connection to a service address before any rule could translate it.
/// The kernel takes the route away with the address that it names, so it is made anew when the addresses change.
pub(crate) async fn route_services(
    service_cidrs: &[IpNet],
    mut node_ips: watch::Receiver<Vec<IpAddr>>,
    group: &Group,
) -> Result<(), NetworkError> {
    let now = node_ips.borrow_and_update().clone();
    ensure_routes(service_cidrs, &now, group).await?;
    let (cidrs, tasks) = (service_cidrs.to_vec(), group.child("service-routes"));
    group.spawn("service-routes", async move {
        while node_ips.changed().await.is_ok() {
            let now = node_ips.borrow_and_update().clone();
            if let Err(err) = ensure_routes(&cidrs, &now, &tasks).await {
                warn!(err = %Chain(&err), "cannot give the service network a route");
            }
        }
        std::future::pending::<()>().await;
    });
    Ok(())
}

async fn ensure_routes(service_cidrs: &[IpNet], node_ips: &[IpAddr], group: &Group) -> Result<(), NetworkError> {
    let (connection, handle, _) = rtnetlink::new_connection()
        .map_err(|source| NetworkError::Io { doing: "cannot open a netlink socket", source })?;
    let tasks = group.child("routes");
    tasks.spawn_short("netlink", connection);
    for cidr in service_cidrs {
        let Some(node_ip) = node_ips.iter().find(|ip| ip.is_ipv4() == cidr.addr().is_ipv4()) else { continue };
        let probe = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(cidr.network(), if cidr.addr().is_ipv4() { 32 } else { 128 });
        let Ok(probe) = probe else { continue };
        if let Ok(Some(_)) = handle.route().get(probe.build()).execute().try_next().await {
            continue;
        }
        let Some(index) = interface_of(&handle, *node_ip).await? else {
            warn!(
                ip = %node_ip,
                "no interface has the node's address: service addresses may be unreachable from the node itself"
            );
            continue;
        };
        let route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(cidr.network(), cidr.prefix_len())
            .and_then(|route| {
                route.output_interface(index).protocol(RouteProtocol::Other(OUR_ROUTES)).pref_source(*node_ip)
            })
            .map_err(|err| NetworkError::Route { cidr: *cidr, text: err.to_string() })?;
        handle
            .route()
            .add(route.build())
            .replace()
            .execute()
            .await
            .map_err(|err| NetworkError::Route { cidr: *cidr, text: err.to_string() })?;
        info!(cidr = %cidr, "the node has no default route: the service network got a route of its own");
    }
    tasks.shutdown().await;
    Ok(())
}

/// Routes of ours carry this protocol number (`ip route show proto 107`).
pub(crate) const OUR_ROUTES: u8 = base::traces::ROUTE_PROTOCOL;

async fn interface_of(handle: &rtnetlink::Handle, ip: IpAddr) -> Result<Option<u32>, NetworkError> {
    let mut stream = std::pin::pin!(handle.address().get().execute());
    let failed = |err: rtnetlink::Error| NetworkError::Io {
        doing: "cannot list addresses",
        source: std::io::Error::other(err.to_string()),
    };
    let names = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(addr) | AddressAttribute::Address(addr) => *addr == ip,
        _ => false,
    };
    while let Some(message) = stream.try_next().await.map_err(failed)? {
        if message.attributes.iter().any(names) {
            return Ok(Some(message.header.index));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    // review security.md M17: without it policies between pods of one node were void, and nobody was told
    #[test]
    fn a_parameter_that_does_not_stay_set_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bridge-nf-call-iptables");
        assert!(ensure(path.to_str().unwrap()).is_err(), "no such module");
        fs::write(&path, "0\n").unwrap();
        ensure(path.to_str().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
        // It takes every word and keeps none.
        assert_eq!(ensure("/dev/null").unwrap_err().to_string(), "it stays ");
    }

    // review node.md L2
    #[test]
    fn the_table_of_connections_only_grows() {
        assert_eq!(conntrack_max(Some("8192\n"), 1), Some(131_072));
        assert_eq!(conntrack_max(Some("8192\n"), 8), Some(262_144));
        assert_eq!(conntrack_max(Some("1000000\n"), 8), None);
        assert_eq!(conntrack_max(None, 8), None, "connections are not tracked here");
    }
}
