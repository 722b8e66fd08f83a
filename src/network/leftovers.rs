//! Leftovers of kedge in a machine's network, found and taken away by netlink: links, routes, tables. For
//! `kedge killall`, which runs when no other part of kedge does.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use base::task::Group;
use base::traces;
use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netfilter::look;
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::{Handle, LinkBridge, LinkVeth, LinkVxlan, RouteMessageBuilder};

use crate::error::NetworkError;

/// A link of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// The number of the bridge that it is plugged into.
    pub bridge: Option<u32>,
    /// It is one end of a cable.
    pub is_veth: bool,
    /// The kernel's own device of a module of tunnels: it is down, and asks for no address.
    pub is_idle: bool,
}

/// A route that we made.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its network.
    pub net: IpNet,
    message: RouteMessage,
}

/// Kind of a link that a node makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The one on which pods meet.
    Bridge,
    /// A pod's cable.
    Veth,
    /// The tunnel to other nodes.
    Vxlan,
}

/// A conversation with the kernel about one network namespace.
pub struct Machine {
    handle: Handle,
    /// Owns the task that drives the socket.
    _group: Group,
}

fn io(doing: &'static str) -> impl Fn(rtnetlink::Error) -> NetworkError {
    move |err| NetworkError::Io { doing, source: code(&err).map_or_else(|| io::Error::other(err), Into::into) }
}

fn code(err: &rtnetlink::Error) -> Option<nix::errno::Errno> {
    match err {
        rtnetlink::Error::NetlinkError(message) => Some(nix::errno::Errno::from_raw(message.raw_code().abs())),
        _ => None,
    }
}

impl Machine {
    /// The namespace that this process runs in. Must be called where an async runtime runs.
    ///
    /// Errors: the kernel gives no socket.
    pub fn here() -> Result<Machine, NetworkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(no_socket)?;
        Ok(Machine::drive(connection, handle))
    }

    /// The namespace at `path`. Must be called where an async runtime runs.
    ///
    /// Errors: it is no namespace, or the kernel gives no socket.
    pub fn inside(path: &Path) -> Result<Machine, NetworkError> {
        let (netns, runtime) = (File::open(path).map_err(no_socket)?, tokio::runtime::Handle::current());
        // A socket belongs to the namespace in which it was opened: a thread of its own goes there, and ends.
        let opened = std::thread::scope(|scope| {
            let inside = || {
                setns(&netns, CloneFlags::CLONE_NEWNET)?;
                let _entered = runtime.enter();
                rtnetlink::new_connection()
            };
            scope.spawn(inside).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        });
        let (connection, handle, _) = opened.map_err(no_socket)?;
        Ok(Machine::drive(connection, handle))
    }

    fn drive(connection: impl Future<Output = ()> + Send + 'static, handle: Handle) -> Machine {
        let (group, _reports) = Group::root("machine");
        group.spawn_short("netlink", connection);
        Machine { handle, _group: group }
    }

    /// All links.
    ///
    /// Errors: the kernel refuses to tell.
    pub async fn links(&self) -> Result<Vec<Link>, NetworkError> {
        let all: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(io("cannot list links"))?;
        Ok(all.iter().filter_map(Link::of).collect())
    }

    /// Removes a link.
    ///
    /// Errors: the kernel refuses.
    pub async fn remove_link(&self, link: &Link) -> Result<(), NetworkError> {
        match self.handle.link().del(link.index).execute().await {
            // The other end of a cable takes it along.
            Err(err) if code(&err) == Some(nix::errno::Errno::ENODEV) => Ok(()),
            done => done.map_err(io("cannot remove the link")),
        }
    }

    /// The routes of our protocol number, of both families.
    ///
    /// Errors: the kernel refuses to tell.
    pub async fn our_routes(&self) -> Result<Vec<Route>, NetworkError> {
        let mut ours = Vec::new();
        for question in [
            RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        ] {
            let all: Vec<RouteMessage> =
                self.handle.route().get(question).execute().try_collect().await.map_err(io("cannot list routes"))?;
            let of_ours =
                all.into_iter().filter(|route| route.header.protocol == RouteProtocol::Other(traces::ROUTE_PROTOCOL));
            ours.extend(of_ours.map(|message| Route { net: net_of(&message), message }));
        }
        Ok(ours)
    }

    /// Removes a route.
    ///
    /// Errors: the kernel refuses.
    pub async fn remove_route(&self, route: &Route) -> Result<(), NetworkError> {
        match self.handle.route().del(route.message.clone()).execute().await {
            // It went with its link.
            Err(err) if code(&err) == Some(nix::errno::Errno::ESRCH) => Ok(()),
            done => done.map_err(io("cannot remove the route")),
        }
    }

    /// Whether the kernel can make links of a kind: one is made and taken away.
    ///
    /// Errors: it cannot; why not.
    pub async fn try_link(&self, kind: Kind) -> Result<(), NetworkError> {
        const NAME: &str = "kedge-chk0";
        let message = match kind {
            Kind::Bridge => LinkBridge::new(NAME).build(),
            Kind::Veth => LinkVeth::new(NAME, "kedge-chk1").build(),
            Kind::Vxlan => LinkVxlan::new(NAME, 4242).port(0).build(),
        };
        self.handle.link().add(message).execute().await.map_err(io("cannot make a link"))?;
        for link in self.links().await?.iter().filter(|link| link.name == NAME) {
            self.remove_link(link).await?;
        }
        Ok(())
    }
}

fn no_socket(source: io::Error) -> NetworkError {
    NetworkError::Io { doing: "cannot open a netlink socket", source }
}

impl Link {
    fn of(message: &LinkMessage) -> Option<Link> {
        let (mut name, mut bridge, mut is_veth, mut is_down) = (None, None, false, false);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(text) => name = Some(text.clone()),
                LinkAttribute::Controller(index) => bridge = Some(*index),
                LinkAttribute::LinkInfo(all) => is_veth = all.contains(&LinkInfo::Kind(InfoKind::Veth)),
                LinkAttribute::OperState(state) => is_down = *state == State::Down,
                _ => {}
            }
        }
        let is_idle = is_down && message.header.flags.contains(LinkFlags::Noarp);
        Some(Link { name: name?, index: message.header.index, bridge, is_veth, is_idle })
    }
}

fn net_of(message: &RouteMessage) -> IpNet {
    use rtnetlink::packet_route::route::RouteAddress;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    });
    // A default route has no destination.
    let address = address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
    IpNet::new(address, message.header.destination_prefix_length).unwrap_or_else(|_| address.into())
}

/// The tables of kedge's that are there, as family and name.
///
/// Errors: the kernel refuses to tell.
pub fn tables() -> Result<Vec<(&'static str, &'static str)>, NetworkError> {
    let there = look::tables().map_err(|source| NetworkError::Netfilter { source })?;
    let ours = traces::NETWORK_TABLES.into_iter().chain(traces::PLUGIN_TABLES);
    Ok(ours.filter(|(family, name)| there.iter().any(|table| table.family == *family && table.name == *name)).collect())
}

/// Removes a table with all that is in it.
///
/// Errors: the kernel refuses.
pub fn remove_table((family, name): (&str, &str)) -> Result<(), NetworkError> {
    // Adding first makes the deletion succeed, also when somebody was faster.
    let script = format!("add table {family} {name}\ndelete table {family} {name}\n");
    netfilter::nft::apply(&script).map_err(|source| NetworkError::Netfilter { source })
}

/// Whether the kernel takes such tables as a node makes; nothing is changed.
///
/// Errors: it does not; why not.
pub fn try_tables() -> Result<(), NetworkError> {
    let script = "add table inet kedge_check\nadd map inet kedge_check m { type ipv4_addr . inet_service : verdict; }\n\
                  add chain inet kedge_check c { type nat hook prerouting priority -100; }\n\
                  add rule inet kedge_check c fib daddr type local ip daddr . tcp dport vmap @m\n\
                  add rule inet kedge_check c numgen random mod 2 vmap { 0 : accept, 1 : return }\n\
                  add rule inet kedge_check c ct state new limit rate over 1000 bytes/second burst 1000 bytes drop\n";
    netfilter::nft::would_take(script).map_err(|source| NetworkError::Netfilter { source })
}
