//! Why nodes' pods cannot be connected.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

/// Why the proxy cannot work.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel cannot be asked, or did not say whether a change is in force.
    #[error("cannot change or read nftables")]
    Netfilter {
        /// Why not.
        source: netfilter::NetfilterError,
    },
    /// It did not answer in time.
    #[error("nftables did not answer within a minute")]
    NftHangs,
    /// The kernel refused a script.
    #[error("nftables refused the rules: {text}")]
    NftRefused {
        /// The line, and the kernel's own words.
        text: String,
    },
    /// Pods could reach nothing.
    #[error("cannot switch on packet forwarding in {path}")]
    Forwarding {
        /// The kernel parameter's file.
        path: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The service network's route.
    #[error("cannot add a route for {cidr}: {text}")]
    Route {
        /// The network.
        cidr: IpNet,
        /// The kernel's words.
        text: String,
    },
    /// The overlay's own interface.
    #[error(
        "no interface has the node's address {ip}: name another one with --node-ip, or the interface with \
         --flannel-iface"
    )]
    NoUplink {
        /// The address.
        ip: IpAddr,
    },
    /// A name that no interface has.
    #[error("--flannel-iface: this machine has no interface {name}")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// The kernel made no tunnel.
    #[error(
        "cannot make the tunnel device kedge.1: {text}; if the kernel module vxlan is missing, install it (Raspberry \
         Pi OS, Ubuntu: linux-modules-extra) or use --flannel-backend=host-gw"
    )]
    Tunnel {
        /// The kernel's words.
        text: String,
    },
    /// Other nodes would not find this one.
    #[error("cannot write this node's overlay address to its Node")]
    Annotate {
        /// Why not.
        source: Box<kube::Error>,
    },
    /// A file, socket or process.
    #[error("{doing}")]
    Io {
        /// The attempt.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}
