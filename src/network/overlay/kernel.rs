//! The tunnel device, routes, neighbours and forwarding entries over rtnetlink. The kernel is asked what is there each
//! time, so that what somebody flushed comes back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use base::sync::Mutex;
use base::task::Group;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use ipnet::IpNet;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, LinkUnspec, LinkVxlan, MulticastGroup, RouteMessageBuilder};
use tracing::info;

use crate::error::NetworkError;
use crate::host::OUR_ROUTES;
use crate::overlay::plan::{Mac, Plan, VNI};

/// Our tunnel device.
pub(crate) const DEVICE: &str = base::traces::TUNNEL;
/// Its port: Linux's default and flannel's, not IANA's.
const PORT: u16 = base::ports::OVERLAY;

/// The interface that has the node's address.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    pub(crate) ip: IpAddr,
    /// Networks on this segment.
    pub(crate) networks: Vec<IpNet>,
}

/// The tunnel device as it must be.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) local: IpAddr,
    pub(crate) uplink: u32,
    pub(crate) mtu: u32,
    pub(crate) mac: Mac,
    pub(crate) addresses: Vec<IpAddr>,
}

/// News of addresses.
pub(crate) const ADDRESSES: &[MulticastGroup] = &[MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
/// News of all that the overlay is made of.
pub(crate) const OVERLAY: &[MulticastGroup] = &[
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Neigh,
];

/// A conversation with the kernel.
pub(crate) struct Kernel {
    handle: Handle,
    uplink: SeenUplink,
}

/// The uplink as it was seen last: its index and MTU.
type SeenUplink = Arc<Mutex<Option<(u32, u32)>>>;

/// News of addresses, of our device and of the uplink.
pub(crate) struct Events {
    messages: std::pin::Pin<Box<dyn futures_util::Stream<Item = RouteNetlinkMessage> + Send>>,
    uplink: SeenUplink,
}

impl Events {
    /// The next event that can matter. Cancel safe.
    pub(crate) async fn next(&mut self) {
        loop {
            match self.messages.next().await {
                Some(message) if matters(&message) || self.is_other_mtu(&message) => return,
                Some(_) => {}
                // The socket is gone: the slow recheck remains.
                None => std::future::pending().await,
            }
        }
    }

    /// Whether the uplink carries more or less than it did.
    fn is_other_mtu(&self, message: &RouteNetlinkMessage) -> bool {
        let RouteNetlinkMessage::NewLink(link) = message else { return false };
        let seen = *self.uplink.lock();
        seen.is_some_and(|(index, before)| index == link.header.index && mtu(link).is_some_and(|now| now != before))
    }

    pub(crate) fn drain(&mut self) {
        while let Some(Some(_)) = self.messages.next().now_or_never() {}
    }
}

/// Pods' cables and neighbours come and go all the time; news is any address, our device's end or stop, and what
/// somebody took away of what only we make. (What we take away ourselves is news once more, and the next look finds
/// nothing to do.)
fn matters(message: &RouteNetlinkMessage) -> bool {
    let ours = |link: &LinkMessage| link.attributes.contains(&LinkAttribute::IfName(DEVICE.to_owned()));
    match message {
        RouteNetlinkMessage::NewAddress(_) | RouteNetlinkMessage::DelAddress(_) => true,
        RouteNetlinkMessage::DelLink(link) => ours(link),
        RouteNetlinkMessage::NewLink(link) => ours(link) && !is_up(link),
        RouteNetlinkMessage::DelRoute(route) => route.header.protocol == RouteProtocol::Other(OUR_ROUTES),
        // Only a tunnel's entries have a far end, and only an administrator's hand, or ours, makes permanent ones.
        RouteNetlinkMessage::DelNeighbour(entry) => {
            let far_end = |attribute: &NeighbourAttribute| matches!(attribute, NeighbourAttribute::Destination(_));
            entry.header.state == NeighbourState::Permanent && entry.attributes.iter().any(far_end)
        }
        _ => false,
    }
}

fn is_up(link: &LinkMessage) -> bool {
    link.header.flags.contains(LinkFlags::Up)
}

fn failed(doing: &'static str) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
    move |err| NetworkError::Io { doing, source: std::io::Error::other(err.to_string()) }
}

impl Kernel {
    /// Opens a socket that hears of `groups`; the task that reads it lives in `group`.
    pub(crate) fn open(groups: &[MulticastGroup], group: &Group) -> Result<(Kernel, Events), NetworkError> {
        let opened = rtnetlink::new_multicast_connection(groups);
        let (connection, handle, messages) =
            opened.map_err(|source| NetworkError::Io { doing: "cannot open a netlink socket", source })?;
        group.spawn_short("netlink", connection);
        let news = messages.filter_map(|(message, _)| async move {
            match message.payload {
                NetlinkPayload::InnerMessage(inner) => Some(inner),
                _ => None,
            }
        });
        let uplink = SeenUplink::default();
        Ok((Kernel { handle, uplink: Arc::clone(&uplink) }, Events { messages: Box::pin(news), uplink }))
    }

    /// The interface with this address, or the one named; there its first address of the same family.
    pub(crate) async fn uplink(&self, ip: IpAddr, named: Option<&str>) -> Result<Option<Uplink>, NetworkError> {
        let named = match named {
            Some(name) => Some(
                self.link(name).await?.ok_or_else(|| NetworkError::NoInterface { name: name.to_owned() })?.header.index,
            ),
            None => None,
        };
        let mut stream = std::pin::pin!(self.handle.address().get().execute());
        let (mut found, mut all) = (None, Vec::new());
        while let Some(message) = stream.try_next().await.map_err(failed("cannot list addresses"))? {
            let index = message.header.index;
            let own = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Local(ip) => Some(*ip),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
            let Some(have) = own.or(any) else { continue };
            let is_it = named.map_or(have == ip, |named| named == index && have.is_ipv4() == ip.is_ipv4());
            if is_it && (found.is_none() || have == ip) {
                found = Some((index, have));
            }
            all.extend(IpNet::new(have, message.header.prefix_len).ok().map(|net| (index, net.trunc())));
        }
        let Some((index, ip)) = found else { return Ok(None) };
        let mut links = std::pin::pin!(self.handle.link().get().match_index(index).execute());
        let link = links.try_next().await.map_err(failed("cannot look at the uplink"))?;
        let mtu = link.and_then(|link| mtu(&link)).unwrap_or(1500);
        *self.uplink.lock() = Some((index, mtu));
        Ok(Some(Uplink {
            index,
            mtu,
            ip,
            networks: all.into_iter().filter(|(at, _)| *at == index).map(|(_, net)| net).collect(),
        }))
    }

    async fn link(&self, name: &str) -> Result<Option<LinkMessage>, NetworkError> {
        const ENODEV: i32 = 19;
        match self.handle.link().get().match_name(name).execute().try_next().await {
            Ok(link) => Ok(link),
            Err(rtnetlink::Error::NetlinkError(err)) if -err.raw_code() == ENODEV => Ok(None),
            Err(err) => Err(failed("cannot look up a link")(err)),
        }
    }

    pub(crate) async fn remove_tunnel(&self) -> Result<(), NetworkError> {
        if let Some(old) = self.link(DEVICE).await? {
            self.handle
                .link()
                .del(old.header.index)
                .execute()
                .await
                .map_err(failed("cannot remove the tunnel device"))?;
        }
        Ok(())
    }

    /// Makes the device, or mends it; one whose fixed properties differ is made anew. Returns its index.
    pub(crate) async fn tunnel(&self, want: &Tunnel) -> Result<u32, NetworkError> {
        let mut link = self.link(DEVICE).await?;
        if link.as_ref().is_some_and(|link| !is_like(link, want)) {
            info!("the node's address changed: the tunnel is made anew");
            self.remove_tunnel().await?;
            link = None;
        }
        if link.is_none() {
            let builder = LinkVxlan::new(DEVICE, VNI)
                .dev(want.uplink)
                .port(PORT)
                .learning(false)
                .address(want.mac.to_vec())
                .mtu(want.mtu)
                .up();
            let builder = match want.local {
                IpAddr::V4(ip) => builder.local(ip),
                IpAddr::V6(ip) => builder.local6(ip),
            };
            let made = self.handle.link().add(builder.build()).execute().await;
            made.map_err(|err| NetworkError::Tunnel { text: err.to_string() })?;
            link = self.link(DEVICE).await?;
        }
        let Some(link) = link else { return Err(NetworkError::Tunnel { text: "it vanished".to_owned() }) };
        let index = link.header.index;
        if mtu(&link) != Some(want.mtu) || !is_up(&link) {
            let message = LinkUnspec::new_with_index(index).mtu(want.mtu).up().build();
            self.handle
                .link()
                .set(message)
                .execute()
                .await
                .map_err(failed("cannot set the tunnel's MTU, or set it up"))?;
        }
        self.addresses(index, &want.addresses).await?;
        Ok(index)
    }

    /// Gives the device exactly these addresses, each for itself alone: routes come from the plan.
    async fn addresses(&self, index: u32, want: &[IpAddr]) -> Result<(), NetworkError> {
        let mut stream = std::pin::pin!(self.handle.address().get().set_link_index_filter(index).execute());
        let mut have = BTreeSet::new();
        while let Some(message) = stream.try_next().await.map_err(failed("cannot list the tunnel's addresses"))? {
            let ip = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
            let Some(ip) = ip.filter(|_| message.header.index == index) else { continue };
            let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if want.contains(&ip) {
                have.insert(ip);
            } else if !link_local {
                self.handle
                    .address()
                    .del(message)
                    .execute()
                    .await
                    .map_err(failed("cannot remove an old address of the tunnel"))?;
            }
        }
        for ip in want.iter().filter(|ip| !have.contains(ip)) {
            let mut request = self.handle.address().add(index, *ip, if ip.is_ipv4() { 32 } else { 128 });
            if ip.is_ipv6() {
                // Nobody else can have it; looking for others would keep it unusable for a second.
                request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            }
            request.execute().await.map_err(failed("cannot give the tunnel its address"))?;
        }
        Ok(())
    }

    /// Routes, neighbours and machines as planned on `device`; what else of ours is there goes.
    pub(crate) async fn apply(&self, plan: &Plan, device: u32, services: &[IpNet]) -> Result<(), NetworkError> {
        for (mac, machine) in &plan.machines {
            let entry = self
                .handle
                .neighbours()
                .add_bridge(device, mac)
                .destination(*machine)
                .flags(NeighbourFlags::Own)
                .replace();
            entry.execute().await.map_err(failed("cannot tell the tunnel where a node is"))?;
        }
        for (ip, mac) in &plan.neighbours {
            let entry = self
                .handle
                .neighbours()
                .add(device, *ip)
                .link_layer_address(mac)
                .state(NeighbourState::Permanent)
                .replace();
            entry.execute().await.map_err(failed("cannot add a neighbour"))?;
        }
        for (cidr, gateway) in &plan.routes {
            let refused = |text: String| NetworkError::Route { cidr: *cidr, text };
            let route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(cidr.addr(), cidr.prefix_len())
                .and_then(|route| {
                    route.output_interface(device).protocol(RouteProtocol::Other(OUR_ROUTES)).gateway(*gateway)
                })
                .map_err(|err| refused(err.to_string()))?;
            // The tunnel's ends are not in any network of the device.
            let route = route.onlink();
            self.handle.route().add(route.build()).replace().execute().await.map_err(|err| refused(err.to_string()))?;
        }
        self.sweep_routes(plan, device, services).await?;
        self.sweep_neighbours(plan, device).await
    }

    async fn sweep_routes(&self, plan: &Plan, device: u32, services: &[IpNet]) -> Result<(), NetworkError> {
        for (route, net) in self.our_routes().await? {
            let oif = route.attributes.contains(&RouteAttribute::Oif(device));
            if services.contains(&net) || oif && plan.routes.contains_key(&net) {
                continue;
            }
            self.handle
                .route()
                .del(route)
                .execute()
                .await
                .map_err(failed("cannot remove the route to a node that is gone"))?;
        }
        Ok(())
    }

    /// Takes the routes out of the plan that somebody else has made already: the machine's networks are not ours to
    /// take.
    pub(crate) async fn leave_to_others(&self, plan: &mut Plan) -> Result<(), NetworkError> {
        if plan.routes.is_empty() {
            return Ok(());
        }
        for (route, net) in self.routes().await? {
            let main = route.header.table == RouteHeader::RT_TABLE_MAIN;
            if main && route.header.protocol != RouteProtocol::Other(OUR_ROUTES) && plan.routes.remove(&net).is_some() {
                plan.neighbours.remove(&net.network());
                plan.troubles.push(format!(
                    "this machine has a route to {net} that is not kedge's: the pods there cannot be reached from here"
                ));
            }
        }
        Ok(())
    }

    async fn our_routes(&self) -> Result<Vec<(RouteMessage, IpNet)>, NetworkError> {
        let ours = |route: &RouteMessage| route.header.protocol == RouteProtocol::Other(OUR_ROUTES);
        Ok(self.routes().await?.into_iter().filter(|(route, _)| ours(route)).collect())
    }

    async fn routes(&self) -> Result<Vec<(RouteMessage, IpNet)>, NetworkError> {
        let mut routes = Vec::new();
        for filter in [
            RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        ] {
            let mut stream = std::pin::pin!(self.handle.route().get(filter).execute());
            while let Some(route) = stream.try_next().await.map_err(failed("cannot list routes"))? {
                let to = route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Destination(RouteAddress::Inet(addr)) => Some(IpAddr::V4(*addr)),
                    RouteAttribute::Destination(RouteAddress::Inet6(addr)) => Some(IpAddr::V6(*addr)),
                    _ => None,
                });
                let net = to.and_then(|to| IpNet::new(to, route.header.destination_prefix_length).ok());
                routes.extend(net.map(|net| (route, net)));
            }
        }
        Ok(routes)
    }

    async fn sweep_neighbours(&self, plan: &Plan, device: u32) -> Result<(), NetworkError> {
        let mut stale: Vec<NeighbourMessage> = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
            let mut stream = std::pin::pin!(self.handle.neighbours().get().set_address_family(family).execute());
            while let Some(entry) = stream.try_next().await.map_err(failed("cannot list neighbours"))? {
                if entry.header.ifindex == device
                    && entry.header.state == NeighbourState::Permanent
                    && !is_planned(&entry, plan)
                {
                    stale.push(entry);
                }
            }
        }
        for entry in stale {
            self.handle
                .neighbours()
                .del(entry)
                .execute()
                .await
                .map_err(failed("cannot remove a neighbour that is gone"))?;
        }
        Ok(())
    }
}

fn is_planned(entry: &NeighbourMessage, plan: &Plan) -> bool {
    let (mut to, mut mac) = (None, None);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => to = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => to = Some(IpAddr::V6(*ip)),
            // A forwarding entry's address is not of its message's family.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => to = raw_ip(bytes),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
            _ => {}
        }
    }
    let (Some(to), Some(mac)) = (to, mac) else { return true };
    if entry.header.family == AddressFamily::Bridge {
        return plan.machines.get(&mac) == Some(&to);
    }
    // Multicast groups and the like are the kernel's.
    to.is_multicast() || plan.neighbours.get(&to) == Some(&mac)
}

fn raw_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

fn mtu(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// Whether the device has the properties that cannot be changed in place.
fn is_like(link: &LinkMessage, want: &Tunnel) -> bool {
    let vxlan = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(parts) => parts.iter().find_map(|part| match part {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
            _ => None,
        }),
        _ => None,
    });
    let Some(vxlan) = vxlan else { return false };
    let local = match want.local {
        IpAddr::V4(ip) => InfoVxlan::Local(ip),
        IpAddr::V6(ip) => InfoVxlan::Local6(ip),
    };
    let mac = link.attributes.contains(&LinkAttribute::Address(want.mac.to_vec()));
    mac && [InfoVxlan::Id(VNI), InfoVxlan::Port(PORT), InfoVxlan::Link(want.uplink), local]
        .iter()
        .all(|part| vxlan.contains(part))
}
