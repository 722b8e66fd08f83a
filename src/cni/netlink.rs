//! Links, addresses and routes of one network namespace over rtnetlink.
//!
//! A netlink socket belongs to the namespace in which it was opened. So a thread of its own enters the container's
//! namespace, opens the socket there and ends; the one runtime thread, which never leaves the host's namespace, drives
//! both sockets.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use base::task::Group;
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::error::CniError;

const EEXIST: i32 = 17;
const ENODEV: i32 = 19;

/// A conversation with the kernel about one network namespace.
pub(crate) struct Net {
    handle: Handle,
    netns: Option<File>,
    /// Owns the task that drives the socket; it ends with the runtime.
    _group: Group,
}

/// The fields of a link that we ask for.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) mac: String,
    pub(crate) up: bool,
    pub(crate) is_bridge: bool,
    pub(crate) master: Option<u32>,
}

/// The two ends of a pod's cable.
pub(crate) struct Veth<'a> {
    pub(crate) host_name: &'a str,
    pub(crate) container_name: &'a str,
    pub(crate) bridge: u32,
    pub(crate) mtu: Option<u32>,
}

impl Net {
    /// The namespace this process runs in.
    pub(crate) fn host() -> Result<Net, CniError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|err| CniError::io("cannot open a netlink socket", &err))?;
        Ok(Net::drive(connection, handle, None))
    }

    /// The namespace at `path`.
    pub(crate) fn inside(path: &Path) -> Result<Net, CniError> {
        let netns = File::open(path).map_err(|err| CniError::io(format!("failed to open netns {path:?}"), &err))?;
        let runtime = tokio::runtime::Handle::current();
        let (connection, handle, _) = in_netns(&netns, || {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        })
        .map_err(|err| CniError::io(format!("cannot open a netlink socket in netns {path:?}"), &err))?;
        Ok(Net::drive(connection, handle, Some(netns)))
    }

    fn drive(connection: impl Future<Output = ()> + Send + 'static, handle: Handle, netns: Option<File>) -> Net {
        let (group, _reports) = Group::root("cni");
        group.spawn_short("netlink", connection);
        Net { handle, netns, _group: group }
    }

    pub(crate) async fn link(&self, name: &str) -> Result<Option<Link>, CniError> {
        match self.handle.link().get().match_name(name).execute().try_next().await {
            Ok(message) => Ok(message.map(|message| Link::from(&message))),
            Err(err) if code(&err) == ENODEV => Ok(None),
            Err(err) => Err(failed(&format!("failed to look up {name:?}"), &err)),
        }
    }

    pub(crate) async fn set_up(&self, index: u32) -> Result<(), CniError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(|err| failed("failed to set the link up", &err))
    }

    pub(crate) async fn set_down(&self, index: u32) -> Result<(), CniError> {
        let message = LinkUnspec::new_with_index(index).down().build();
        self.handle.link().set(message).execute().await.map_err(|err| failed("failed to set the link down", &err))
    }

    pub(crate) async fn set_promiscuous(&self, index: u32) -> Result<(), CniError> {
        let message = LinkUnspec::new_with_index(index).promiscuous(true).build();
        self.handle.link().set(message).execute().await.map_err(|err| failed("could not set promiscuous mode", &err))
    }

    /// Makes a bridge that is up. Its address is fixed, or it would change with every port that comes and goes, and
    /// neighbours would talk to the old one. Two calls at once may both want it: the second finds it there.
    pub(crate) async fn add_bridge(&self, name: &str, mac: [u8; 6], mtu: Option<u32>) -> Result<(), CniError> {
        let mut builder = LinkBridge::new(name).address(mac.to_vec());
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        match self.handle.link().add(builder.build()).execute().await {
            Ok(()) => Ok(()),
            Err(err) if code(&err) == EEXIST => Ok(()),
            Err(err) => Err(failed(&format!("could not add {name:?}"), &err)),
        }
    }

    /// Makes a cable with one end on the bridge here and one in `container`, which is left down.
    pub(crate) async fn add_veth(&self, veth: &Veth<'_>, container: &Net) -> Result<(), CniError> {
        use std::os::fd::AsRawFd as _;
        let netns =
            container.netns.as_ref().ok_or_else(|| CniError::internal("the container's end needs a namespace"))?;
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new().name(veth.container_name).setns_by_fd(netns.as_raw_fd());
        let mut host = LinkVeth::new(veth.host_name, veth.container_name).controller(veth.bridge).up();
        if let Some(mtu) = veth.mtu {
            peer = peer.mtu(mtu);
            host = host.mtu(mtu);
        }
        let message = host.set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build()))).build();
        self.handle.link().add(message).execute().await.map_err(|err| match code(&err) {
            EEXIST => CniError::internal(format!(
                "container veth name ({:?}) peer provided ({:?}) already exists",
                veth.container_name, veth.host_name
            )),
            _ => failed("failed to make the veth pair", &err),
        })
    }

    /// Lets the bridge send frames back out of the port that they came in at.
    pub(crate) async fn set_hairpin(&self, index: u32) -> Result<(), CniError> {
        let message = LinkBridgePort::new(index).hairpin(true).build();
        self.handle.link().set_port(message).execute().await.map_err(|err| failed("failed to set hairpin mode", &err))
    }

    pub(crate) async fn del_link(&self, index: u32) -> Result<(), CniError> {
        match self.handle.link().del(index).execute().await {
            Ok(()) => Ok(()),
            Err(err) if code(&err) == ENODEV => Ok(()),
            Err(err) => Err(failed("failed to delete the link", &err)),
        }
    }

    pub(crate) async fn addresses(&self, index: u32) -> Result<Vec<IpNet>, CniError> {
        let mut stream = std::pin::pin!(self.handle.address().get().set_link_index_filter(index).execute());
        let mut addresses = Vec::new();
        while let Some(message) = stream.try_next().await.map_err(|err| failed("failed to list addresses", &err))? {
            // For IPv4 `Local` is the own address and `Address` the peer's; IPv6 has `Address` only.
            let own = |attribute: &AddressAttribute| match attribute {
                AddressAttribute::Local(addr) => Some(*addr),
                _ => None,
            };
            let any = |attribute: &AddressAttribute| match attribute {
                AddressAttribute::Address(addr) => Some(*addr),
                _ => None,
            };
            let addr = message.attributes.iter().find_map(own).or_else(|| message.attributes.iter().find_map(any));
            let net = addr.and_then(|addr| IpNet::new(addr, message.header.prefix_len).ok());
            if let Some(net) = net.filter(|_| message.header.index == index) {
                addresses.push(net);
            }
        }
        Ok(addresses)
    }

    /// Adds an address. IPv6 goes without duplicate detection, which would keep it unusable for a second.
    pub(crate) async fn add_address(&self, index: u32, address: IpNet) -> Result<(), CniError> {
        let mut request = self.handle.address().add(index, address.addr(), address.prefix_len());
        if address.addr().is_ipv6() {
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match request.execute().await {
            Ok(()) => Ok(()),
            Err(err) if code(&err) == EEXIST => Ok(()),
            Err(err) => Err(failed(&format!("failed to add address {address}"), &err)),
        }
    }

    pub(crate) async fn del_address(&self, index: u32, address: IpNet) -> Result<(), CniError> {
        let mut stream = std::pin::pin!(self.handle.address().get().set_link_index_filter(index).execute());
        while let Some(message) = stream.try_next().await.map_err(|err| failed("failed to list addresses", &err))? {
            let is_it = message.attributes.contains(&AddressAttribute::Address(address.addr()));
            if is_it && message.header.index == index && message.header.prefix_len == address.prefix_len() {
                self.handle
                    .address()
                    .del(message)
                    .execute()
                    .await
                    .map_err(|err| failed(&format!("failed to remove address {address}"), &err))?;
            }
        }
        Ok(())
    }

    pub(crate) async fn add_route(&self, index: u32, dst: IpNet, gateway: Option<IpAddr>) -> Result<(), CniError> {
        let what = || {
            format!("failed to add route '{dst} via {}'", gateway.map_or_else(|| "-".to_owned(), |gw| gw.to_string()))
        };
        let invalid = |err: &dyn std::fmt::Display| CniError::config(format!("{}: {err}", what()));
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(dst.addr(), dst.prefix_len())
            .map_err(|err| invalid(&err))?
            .output_interface(index);
        match gateway {
            Some(gateway) => builder = builder.gateway(gateway).map_err(|err| invalid(&err))?,
            None => builder = builder.scope(rtnetlink::packet_route::route::RouteScope::Link),
        }
        match self.handle.route().add(builder.build()).execute().await {
            Ok(()) => Ok(()),
            Err(err) if code(&err) == EEXIST => Ok(()),
            Err(err) => Err(failed(&what(), &err)),
        }
    }

    pub(crate) async fn has_route(&self, index: u32, dst: IpNet) -> Result<bool, CniError> {
        let filter = match dst {
            IpNet::V4(_) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            IpNet::V6(_) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        };
        let mut stream = std::pin::pin!(self.handle.route().get(filter).execute());
        while let Some(message) = stream.try_next().await.map_err(|err| failed("failed to list routes", &err))? {
            let oif = message.attributes.contains(&RouteAttribute::Oif(index));
            let to = message.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(addr)) => Some(IpAddr::V4(*addr)),
                RouteAttribute::Destination(RouteAddress::Inet6(addr)) => Some(IpAddr::V6(*addr)),
                _ => None,
            });
            let to_dst = to.map_or(dst.prefix_len() == 0, |to| to == dst.network());
            if oif && to_dst && message.header.destination_prefix_length == dst.prefix_len() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes a sysctl of this namespace, e.g. `net/ipv4/conf/eth0/arp_notify`.
    pub(crate) fn sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/{name}");
        match &self.netns {
            None => std::fs::write(path, value),
            Some(netns) => in_netns(netns, || std::fs::write(path, value)),
        }
    }
}

impl From<&LinkMessage> for Link {
    fn from(message: &LinkMessage) -> Link {
        let mut link = Link {
            index: message.header.index,
            mac: String::new(),
            up: message.header.flags.contains(LinkFlags::Up),
            is_bridge: false,
            master: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => {
                    link.mac = base::hex::join(bytes, ":");
                }
                LinkAttribute::Controller(index) => link.master = Some(*index),
                LinkAttribute::LinkInfo(details) => {
                    link.is_bridge = details.contains(&LinkInfo::Kind(InfoKind::Bridge))
                }
                _ => {}
            }
        }
        link
    }
}

/// Runs `work` on a thread of its own inside the namespace; a thread cannot be trusted to come back, so it ends.
fn in_netns<T: Send>(netns: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            work()
        });
        thread.join().map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    })
}

/// The positive errno of a refused request, 0 for another failure.
fn code(err: &rtnetlink::Error) -> i32 {
    match err {
        rtnetlink::Error::NetlinkError(message) => -message.raw_code(),
        _ => 0,
    }
}

fn failed(doing: &str, err: &rtnetlink::Error) -> CniError {
    match err {
        rtnetlink::Error::NetlinkError(message) => CniError::internal(format!("{doing}: {}", message.to_io())),
        other => CniError::internal(format!("{doing}: {other}")),
    }
}
