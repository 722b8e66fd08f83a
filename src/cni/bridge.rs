//! The `bridge` plugin: a bridge on the host, a veth pair to the container, addresses and routes from IPAM.

use std::net::IpAddr;

use base::fnv;
use base::rng::Rng;
use ipnet::IpNet;
use serde::Deserialize;

use crate::error::{CniError, Code};
use crate::netlink::{Link, Net, Veth};
use crate::request::{Attachment, Request};
use crate::result::{Interface, NetResult, Route};
use crate::{ipam, nft, source};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    bridge: Option<String>,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Vec<serde_json::Value>,
    macspoofchk: bool,
    port_isolation: bool,
    disable_container_interface: bool,
    /// Our own: the container sends under the addresses that it is given, and under no others.
    source_guard: bool,
}

impl Config {
    fn read(request: &Request) -> Result<Config, CniError> {
        let mut config: Config = request.parse()?;
        let unsupported = [
            ("vlan", config.vlan != 0),
            ("vlanTrunk", !config.vlan_trunk.is_empty()),
            ("macspoofchk", config.macspoofchk),
            ("portIsolation", config.port_isolation),
            ("disableContainerInterface", config.disable_container_interface),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, used)| *used) {
            return Err(CniError::new(Code::UnsupportedField, format!("bridge: the field {field} is not supported")));
        }
        if config.hairpin_mode && config.promisc_mode {
            return Err(CniError::config("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        config.is_gateway |= config.is_default_gateway;
        Ok(config)
    }

    fn bridge(&self) -> &str {
        self.bridge.as_deref().filter(|name| !name.is_empty()).unwrap_or(base::traces::BRIDGE)
    }

    fn mtu(&self) -> Option<u32> {
        (self.mtu != 0).then_some(self.mtu)
    }
}

pub(crate) async fn add(request: &Request) -> Result<NetResult, CniError> {
    let config = Config::read(request)?;
    let (host, container) = (Net::host()?, Net::inside(request.netns()?)?);
    let bridge = ensure_bridge(&host, &config).await?;
    let veth = host_name(request.attachment());
    // A cable of this container that an earlier, interrupted call left is in the way.
    if let Some(old) = host.link(&veth).await? {
        host.del_link(old.index).await?;
    }
    let cable = Veth { host_name: &veth, container_name: &request.ifname, bridge: bridge.index, mtu: config.mtu() };
    host.add_veth(&cable, &container).await?;
    let outcome =
        connect(request, &config, &Ends { host: &host, container: &container, bridge: &bridge, veth: &veth }).await;
    if outcome.is_err() {
        // Undo as far as possible; what the caller must hear is the first error.
        if let Some(kind) = ipam::kind(request) {
            let _first_error_counts = ipam::del(request, kind);
        }
        if let Ok(Some(link)) = host.link(&veth).await {
            let _first_error_counts = host.del_link(link.index).await;
        }
        if config.source_guard {
            let _first_error_counts = source::del(&veth);
        }
    }
    outcome
}

pub(crate) async fn del(request: &Request) -> Result<(), CniError> {
    let config = Config::read(request)?;
    if let Some(kind) = ipam::kind(request) {
        ipam::del(request, kind)?;
    }
    // The host's end takes the other one with it, even when the namespace has no name any more.
    let (host, veth) = (Net::host()?, host_name(request.attachment()));
    if let Some(link) = host.link(&veth).await? {
        host.del_link(link.index).await?;
    } else if let Some(container) = request.netns.as_deref().and_then(|path| Net::inside(path).ok())
        && let Some(link) = container.link(&request.ifname).await?
    {
        // Made by another plugin under its own name for the host's end.
        container.del_link(link.index).await?;
    }
    // When the cable is gone: not sooner may anything pass.
    if config.source_guard {
        source::del(&veth)?;
    }
    if config.ip_masq {
        nft::masquerade_del(&request.container_id)?;
    }
    Ok(())
}

pub(crate) async fn check(request: &Request) -> Result<(), CniError> {
    let config = Config::read(request)?;
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("Required prevResult missing"))?;
    if let Some(kind) = ipam::kind(request) {
        ipam::check(request, kind)?;
    }
    let (host, container) = (Net::host()?, Net::inside(request.netns()?)?);
    let bridge = host.link(config.bridge()).await?.filter(|link| link.is_bridge);
    let bridge = bridge.ok_or_else(|| CniError::internal(format!("Bridge interface {} not found", config.bridge())))?;
    let veth = host_name(request.attachment());
    if host.link(&veth).await?.is_none_or(|link| link.master != Some(bridge.index)) {
        return Err(CniError::internal(format!("host veth interface {veth} is not attached to {}", config.bridge())));
    }
    if config.source_guard {
        source::check(&veth)?;
    }
    let link = container.link(&request.ifname).await?;
    let link = link.ok_or_else(|| CniError::internal(format!("Container interface {} not found", request.ifname)))?;
    let addresses = container.addresses(link.index).await?;
    for ip in prev.container_ips() {
        if !addresses.contains(&ip.address) {
            return Err(CniError::internal(format!(
                "Failed to match addr {} on interface {}",
                ip.address, request.ifname
            )));
        }
    }
    for route in &prev.routes {
        if !container.has_route(link.index, route.dst).await? {
            return Err(CniError::internal(format!("Route {} not found in container", route.dst)));
        }
    }
    Ok(())
}

/// The two ends of the cable.
struct Ends<'a> {
    host: &'a Net,
    container: &'a Net,
    bridge: &'a Link,
    veth: &'a str,
}

async fn connect(request: &Request, config: &Config, ends: &Ends<'_>) -> Result<NetResult, CniError> {
    let missing = |name: &str| CniError::internal(format!("{name:?} vanished while it was set up"));
    let port = ends.host.link(ends.veth).await?.ok_or_else(|| missing(ends.veth))?;
    if config.hairpin_mode {
        ends.host.set_hairpin(port.index).await?;
    }
    let inner = ends.container.link(&request.ifname).await?.ok_or_else(|| missing(&request.ifname))?;
    let mut result = match ipam::kind(request) {
        Some(kind) => ipam::add(request, kind)?,
        None => NetResult::default(),
    };
    if ipam::kind(request).is_some() && result.ips.is_empty() {
        return Err(CniError::internal("IPAM plugin returned missing IP config"));
    }
    result.interfaces = vec![
        Interface { name: config.bridge().to_owned(), mac: ends.bridge.mac.clone(), sandbox: String::new() },
        Interface { name: ends.veth.to_owned(), mac: port.mac.clone(), sandbox: String::new() },
        Interface {
            name: request.ifname.clone(),
            mac: inner.mac.clone(),
            sandbox: request.netns()?.display().to_string(),
        },
    ];
    complete(&mut result, config);
    if config.is_gateway {
        set_gateways(ends.host, ends.bridge, config, &result).await?;
    }
    if config.source_guard {
        let ips: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        source::add(ends.veth, source::parse_mac(&inner.mac)?, &ips)?;
        shut_port(ends)?;
    }
    // Neighbours may know another machine under this address from a moment ago: announce when the link comes up.
    for (family, name) in [("ipv4", "arp_notify"), ("ipv6", "ndisc_notify")] {
        // A kernel without IPv6 has no such file.
        let _optional = ends.container.sysctl(&format!("net/{family}/conf/{}/{name}", request.ifname), "1");
    }
    for ip in &result.ips {
        ends.container.add_address(inner.index, ip.address).await?;
    }
    ends.container.set_up(inner.index).await?;
    for route in &result.routes {
        ends.container.add_route(inner.index, route.dst, route.gw).await?;
    }
    if config.ip_masq {
        let ips: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        nft::masquerade_add(&request.container_id, &ips)?;
    }
    Ok(result)
}

/// Has the host take nothing that comes by the port and not by its bridge: a frame to one of the addresses that bridges
/// talk to each other by passes by the bridge, and its tables.
fn shut_port(ends: &Ends<'_>) -> Result<(), CniError> {
    for (path, value) in [
        // No address of a pod is beyond the port itself.
        (format!("net/ipv4/conf/{}/rp_filter", ends.veth), "1"),
        (format!("net/ipv6/conf/{}/disable_ipv6", ends.veth), "1"),
    ] {
        match ends.host.sysctl(&path, value) {
            // A kernel without IPv6.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            done => done.map_err(|err| CniError::io(format!("cannot write /proc/sys/{path}"), &err))?,
        }
    }
    Ok(())
}

/// Points addresses at the container's interface, and gives routes without a gateway that of their family.
fn complete(result: &mut NetResult, config: &Config) {
    for ip in &mut result.ips {
        ip.interface = Some(2);
        if config.is_gateway && ip.gateway.is_none() {
            // Upstream's rule: the first address of the network behind its own.
            ip.gateway = ip.address.trunc().hosts().find(|first| *first != ip.address.network());
        }
    }
    let gateways: Vec<IpAddr> = result.ips.iter().filter_map(|ip| ip.gateway).collect();
    if config.is_default_gateway {
        for gateway in &gateways {
            let dst: IpNet = if gateway.is_ipv4() {
                IpNet::V4(ipnet::Ipv4Net::default())
            } else {
                IpNet::V6(ipnet::Ipv6Net::default())
            };
            if !result.routes.iter().any(|route| route.dst == dst) {
                result.routes.push(Route { dst, gw: Some(*gateway), more: serde_json::Map::new() });
            }
        }
    }
    for route in &mut result.routes {
        if route.gw.is_none() {
            route.gw = gateways.iter().find(|gateway| gateway.is_ipv4() == route.dst.addr().is_ipv4()).copied();
        }
    }
}

async fn ensure_bridge(host: &Net, config: &Config) -> Result<Link, CniError> {
    let name = config.bridge();
    if host.link(name).await?.is_none() {
        let mut mac = [0; 6];
        Rng::from_os().fill(&mut mac);
        // Locally administered, and not a group address.
        mac[0] = (mac[0] & 0xfc) | 0x02;
        host.add_bridge(name, mac, config.mtu()).await?;
    }
    let bridge = host
        .link(name)
        .await?
        .ok_or_else(|| CniError::internal(format!("could not find bridge {name:?} just made")))?;
    if !bridge.is_bridge {
        return Err(CniError::internal(format!("{name:?} already exists but is not a bridge")));
    }
    if config.is_gateway {
        // Pods are behind it, and no router: none gives this machine addresses and routes. (A kernel without IPv6 has
        // no such file.)
        let _optional = host.sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    }
    if !bridge.up {
        host.set_up(bridge.index).await?;
    }
    if config.promisc_mode {
        host.set_promiscuous(bridge.index).await?;
    }
    Ok(bridge)
}

async fn set_gateways(host: &Net, bridge: &Link, config: &Config, result: &NetResult) -> Result<(), CniError> {
    let present = host.addresses(bridge.index).await?;
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let address =
            IpNet::new(gateway, ip.address.prefix_len()).map_err(|err| CniError::internal(err.to_string()))?;
        if present.contains(&address) {
            continue;
        }
        for old in present.iter().filter(|old| is_rival(old, &address)) {
            if !config.force_address {
                return Err(CniError::internal(format!(
                    "failed to set bridge addr: {:?} already has an IP address different from {address}",
                    config.bridge()
                )));
            }
            host.del_address(bridge.index, *old).await?;
        }
        host.add_address(bridge.index, address).await?;
        let (forward, value) = match address {
            IpNet::V4(_) => ("net/ipv4/ip_forward", "1"),
            IpNet::V6(_) => ("net/ipv6/conf/all/forwarding", "1"),
        };
        host.sysctl(forward, value).map_err(|err| {
            CniError::io(format!("failed to enable forwarding: cannot write /proc/sys/{forward}"), &err)
        })?;
    }
    Ok(())
}

/// An address that must go before `new` comes: any other of IPv4; of IPv6 only one in an overlapping network.
fn is_rival(old: &IpNet, new: &IpNet) -> bool {
    match (old, new) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.addr()) || b.contains(&a.addr()),
        _ => false,
    }
}

/// The same for every call about one container, so that a repeated ADD or a DEL without a namespace finds the cable.
fn host_name(Attachment { container_id, ifname }: Attachment<'_>) -> String {
    // 44 of the 64 bits fit into an interface name.
    let hash = [container_id, "\0", ifname].iter().fold(fnv::BASIS, |hash, part| fnv::resume(hash, part.as_bytes()));
    format!("veth{:011x}", hash >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::IpConfig;

    #[test]
    fn interface_names_fit_the_kernel_and_differ() {
        let name = |container_id: &str, ifname: &str| host_name(Attachment { container_id, ifname });
        assert_eq!(name("abc", "eth0").len(), 15);
        assert_ne!(name("abc", "eth0"), name("abc", "eth1"));
        assert_ne!(name("abc", "eth0"), name("abd", "eth0"));
    }

    #[test]
    fn a_default_route_is_added_once_with_the_gateway_of_its_family() {
        let address = |address: &str, gateway: &str| IpConfig {
            version: None,
            interface: None,
            address: address.parse().unwrap(),
            gateway: Some(gateway.parse().unwrap()),
        };
        let mut result = NetResult {
            ips: vec![address("10.42.0.5/24", "10.42.0.1"), address("fd00::5/64", "fd00::1")],
            routes: vec![Route { dst: "0.0.0.0/0".parse().unwrap(), gw: None, more: serde_json::Map::new() }],
            ..NetResult::default()
        };
        complete(&mut result, &Config { is_gateway: true, is_default_gateway: true, ..Config::default() });
        let routes: Vec<String> = result.routes.iter().map(|r| format!("{} via {}", r.dst, r.gw.unwrap())).collect();
        assert_eq!(routes, ["0.0.0.0/0 via 10.42.0.1", "::/0 via fd00::1"]);
    }
}
