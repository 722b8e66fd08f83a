//! This machine: its name, its address, its real resolvers.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use base::files::{self, FileError};
use base::layout::{AgentFolder, Layout};
use base::rng::Rng;
use k8s_openapi::api::core::v1::Taint;
use kubelet::config::NodeDns;
use kubelet::settings::Settings as KubeletSettings;
use kubelet::settings::read::Folders;
use model::names;
use nix::errno::Errno;
use nix::ifaddrs::InterfaceAddress;
use tracing::{info, warn};

use crate::agent::origin::OriginError;
use crate::flags::ranges::{self, Family, RangeError};
use crate::flags::roles::NodeArgs;

/// Files that may hold the host's resolvers, best first. systemd-resolved's own file names the real ones where the
/// first has only its stub.
const RESOLV_CONFS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Why the machine cannot be told apart from others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error("cannot read this host's name; name the node with --node-name")]
    Name(#[source] io::Error),
    #[error("'{name}' cannot be a node's name (lower-case letters, digits, '-' and '.'); choose one with --node-name")]
    BadName { name: String },
    #[error("this host has no address but loopback; name one with --node-ip")]
    NoAddress,
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The kubelet has no such setting, or not with such a value.
    #[error("--kubelet-arg")]
    KubeletArg(#[source] Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    ProxyArg(#[from] network::settings::FlagError),
    #[error("--kubelet-arg: port {port}: the kubelet listens on {own}; set the port with --kubelet-port")]
    KubeletPort { port: u16, own: u16 },
    #[error("--{flag}: '{name}' is not a DNS name")]
    DnsName { flag: &'static str, name: String },
    #[error("--node-label: '{0}' is not KEY=VALUE")]
    NoLabel(String),
    #[error("--node-label: '{text}' is not KEY=VALUE: {fault}")]
    Label { text: String, fault: String },
    #[error("--node-taint: '{0}' is not KEY=VALUE:EFFECT or KEY:EFFECT")]
    Taint(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Origin(#[from] OriginError),
}

/// A group that this machine does not have, as far as is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupError {
    #[error("cannot look up the group '{group}'")]
    LookUp { group: String, source: Errno },
    #[error("this machine has no group '{group}'")]
    Missing { group: String },
}

/// The host's name in lower case, as kubelets register.
pub(crate) fn node_name() -> Result<String, HostError> {
    let name = nix::unistd::gethostname().map_err(|err| HostError::Name(err.into()))?;
    Ok(name.to_string_lossy().to_ascii_lowercase())
}

/// The machine's id, empty where it has none.
pub(crate) fn machine_id() -> String {
    fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned()
}

/// The node's name: the one given or the host's, with this machine's own id behind it if asked for.
pub(crate) fn full_node_name(args: &NodeArgs, layout: &Layout, rng: &Rng) -> Result<String, HostError> {
    let mut name = match &args.node_name {
        Some(given) => given.clone(),
        None => kept_name(&layout.agent(), node_name()?)?,
    };
    if args.with_node_id {
        let path = layout.node_id();
        let id = match files::read_if_exists(&path)? {
            Some(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            None => {
                let id = rng.hex(4);
                if let Some(dir) = path.parent() {
                    files::create_private_dir(dir)?;
                }
                files::write_atomic(&path, format!("{id}\n").as_bytes(), 0o600)?;
                id
            }
        };
        name = format!("{name}-{id}");
    }
    check_node_name(&name)?;
    Ok(name)
}

/// The host's name as it was when the node first ran here: a host that is renamed stays the same node, with its pods
/// and volumes.
fn kept_name(agent: &AgentFolder, host: String) -> Result<String, HostError> {
    let path = agent.node_name();
    let kept = files::read_if_exists(&path)?.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    match kept.filter(|kept| check_node_name(kept).is_ok()) {
        Some(kept) => {
            if kept != host {
                info!(
                    host,
                    node = %kept,
                    "this host has another name now, the node keeps the one it began with; --node-name changes it"
                );
            }
            Ok(kept)
        }
        None => {
            check_node_name(&host)?;
            files::create_private_dir(agent.path())?;
            files::write_atomic(&path, format!("{host}\n").as_bytes(), 0o600)?;
            Ok(host)
        }
    }
}

/// The address from which this host reaches `to`, if there is a way.
pub(crate) fn ip_towards(to: SocketAddr) -> Option<IpAddr> {
    // Connecting a UDP socket sends nothing; it only asks the kernel for a route.
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    // With IPv6 the kernel takes any interface's address where the one that leads there has none yet, also our
    // tunnel's.
    if ip.is_unspecified() || ip.is_loopback() || is_pod_networks(ip) {
        return None;
    }
    match ip {
        IpAddr::V6(v6) => Some(lasting(v6, &fs::read_to_string("/proc/net/if_inet6").unwrap_or_default()).into()),
        IpAddr::V4(_) => Some(ip),
    }
}

/// The address to be known by: for a temporary one (RFC 8981), which is another one every day, one of its interface
/// that stays, of the same network if there is one. `table` is the kernel's list.
fn lasting(ip: Ipv6Addr, table: &str) -> Ipv6Addr {
    const TEMPORARY: u8 = 0x01;
    // Deprecated, tentative, or found to be another machine's.
    const UNUSABLE: u8 = 0x20 | 0x40 | 0x08;
    let read = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, scope, flags, name] = fields.as_slice() else { return None };
        let address = Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
        Some((address, *scope == "00", u8::from_str_radix(flags, 16).ok()?, (*name).to_owned()))
    };
    let all: Vec<(Ipv6Addr, bool, u8, String)> = table.lines().filter_map(read).collect();
    let Some((.., link)) = all.iter().find(|(address, _, flags, _)| *address == ip && flags & TEMPORARY != 0) else {
        return ip;
    };
    let stays =
        all.iter().filter(|(_, global, flags, name)| *global && name == link && flags & (TEMPORARY | UNUSABLE) == 0);
    let like = |address: &Ipv6Addr| address.segments()[..4] == ip.segments()[..4];
    stays.map(|(address, ..)| *address).max_by_key(like).unwrap_or(ip)
}

/// Whether an address belongs to the pod network's own links, which outlive us: it is nobody's way to this machine.
fn is_pod_networks(ip: IpAddr) -> bool {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return false };
    let has = |interface: &InterfaceAddress| address(interface) == Some(ip);
    all.filter(has).any(|interface| is_ours(&interface.interface_name))
}

fn is_ours(link: &str) -> bool {
    link == base::traces::BRIDGE || link.starts_with("kedge.") || link.starts_with("flannel")
}

fn address(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address?;
    let v4 = address.as_sockaddr_in().map(|sin| IpAddr::V4(sin.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|sin| IpAddr::V6(sin.ip())))
}

/// The address with which this host begins its way to the rest of the world, of the same family as `like`. The other
/// end is a documentation address (RFC 5737, RFC 3849).
pub(crate) fn ip_of_default_route(like: IpAddr) -> Option<IpAddr> {
    let world = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    ip_towards(if like.is_ipv4() { ([192, 0, 2, 1], 9).into() } else { (world, 9).into() })
}

/// Where to listen for everybody in the family; IPv4's wildcard where the kernel has no IPv6.
pub(crate) fn any_address(family: Family) -> IpAddr {
    let family = if Path::new("/proc/net/if_inet6").exists() { family } else { Family::V4 };
    family.unspecified()
}

/// The kubelet's settings: `--kubelet-arg`, and the flag that k3s has beside it.
///
/// Errors: a setting that the kubelet does not have, or a value that does not fit.
pub(crate) fn kubelet_settings(args: &NodeArgs, layout: &Layout) -> Result<KubeletSettings, HostError> {
    let flag = |name: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("{name}={}", path.display()));
    let providers = [
        flag("image-credential-provider-config", &args.image_credential_provider_config),
        flag("image-credential-provider-bin-dir", &args.image_credential_provider_bin_dir),
    ];
    let words = providers.iter().flatten().chain(&args.kubelet_arg).map(String::as_str);
    let agent = layout.agent();
    let folders = Folders { drop_ins: Some(agent.kubelet_drop_ins()), of_pods: folders_of_pods(layout) };
    let parsed = KubeletSettings::read(words, &folders);
    let mut settings = parsed.map_err(|err| HostError::KubeletArg(err.into()))?;
    if let Some(port) = settings.port.filter(|port| *port != args.kubelet_port) {
        return Err(HostError::KubeletPort { port, own: args.kubelet_port });
    }
    let gates: Vec<String> = settings.feature_gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
    schema::gates::check(&gates.join(",")).map_err(|err| HostError::KubeletArg(err.into()))?;
    settings.protect_kernel_defaults |= args.protect_kernel_defaults;
    Ok(settings)
}

/// Folders that containers write: no file there is configuration.
pub(crate) fn folders_of_pods(layout: &Layout) -> Vec<PathBuf> {
    vec![layout.kubelet_in_use().join("pods"), layout.agent().containerd(), layout.run().containerd(), layout.volumes()]
}

/// Names of `--node-internal-dns` and `--node-external-dns`.
pub(crate) fn node_dns(args: &NodeArgs) -> Result<NodeDns, HostError> {
    let judged = |flag: &'static str, names: &[String]| match names.iter().find(|name| !is_dns_name(name)) {
        Some(bad) => Err(HostError::DnsName { flag, name: bad.clone() }),
        None => Ok(names.to_vec()),
    };
    Ok(NodeDns {
        internal: judged("node-internal-dns", &args.node_internal_dns)?,
        external: judged("node-external-dns", &args.node_external_dns)?,
    })
}

/// The number of a group that is named, or is a number.
pub(crate) fn group_id(group: &str) -> Result<u32, GroupError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let found = nix::unistd::Group::from_name(group);
    let found = found.map_err(|source| GroupError::LookUp { group: group.to_owned(), source })?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| GroupError::Missing { group: group.to_owned() })
}

/// Labels of `--node-label`.
pub(crate) fn labels(args: &NodeArgs) -> Result<BTreeMap<String, String>, HostError> {
    args.node_label.iter().map(|text| label(text)).collect()
}

fn label(text: &str) -> Result<(String, String), HostError> {
    let (key, value) = text.split_once('=').ok_or_else(|| HostError::NoLabel(text.to_owned()))?;
    match names::qualified_name_errors(key).into_iter().chain(names::label_value_errors(value)).next() {
        None => Ok((key.to_owned(), value.to_owned())),
        Some(fault) => Err(HostError::Label { text: text.to_owned(), fault }),
    }
}

/// Taints of `--node-taint`.
pub(crate) fn taints(args: &NodeArgs) -> Result<Vec<Taint>, HostError> {
    args.node_taint.iter().map(|text| taint(text)).collect()
}

fn taint(text: &str) -> Result<Taint, HostError> {
    let bad = || HostError::Taint(text.to_owned());
    let (key_value, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    let (key, value) =
        key_value.split_once('=').map_or((key_value, None), |(key, value)| (key, Some(value.to_owned())));
    if key.is_empty() || !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(bad());
    }
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
}

/// Refuses what the API would refuse as a Node's name (RFC 1123 subdomain).
pub(crate) fn check_node_name(name: &str) -> Result<(), HostError> {
    if is_dns_name(name) { Ok(()) } else { Err(HostError::BadName { name: name.to_owned() }) }
}

/// RFC 1123, in lower case.
fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The node's addresses: those of `--node-ip`, else one of each of the cluster's families. The node may lack the
/// second: its pods have both in any case.
pub(crate) fn node_ips(args: &NodeArgs, families: &[Family]) -> Result<Vec<IpAddr>, HostError> {
    if !args.node_ip.is_empty() {
        return Ok(ranges::node_ips(&args.node_ip, families)?);
    }
    let first = node_ip(any_address(families.first().copied().unwrap_or(Family::V4)))?;
    Ok(std::iter::once(first).chain(second_ip(first, families)).collect())
}

/// The address to have beside `first` in a cluster of these families.
pub(crate) fn second_ip(first: IpAddr, families: &[Family]) -> Option<IpAddr> {
    let family = *families.iter().find(|family| **family != Family::of(&first))?;
    let found = node_ip(family.unspecified()).ok();
    if found.is_none() {
        warn!(
            "this host has no {family} address but loopback: its pods have one, it has none; name one with --node-ip"
        );
    }
    found
}

/// The address from which this host reaches others: that of its default route, else the first one that is not loopback;
/// of the same family as `like`.
pub(crate) fn node_ip(like: IpAddr) -> Result<IpAddr, HostError> {
    if let Some(ip) = ip_of_default_route(like) {
        return Ok(ip);
    }
    let addresses = nix::ifaddrs::getifaddrs().map_err(|_| HostError::NoAddress)?;
    let ips = addresses
        .filter(|interface| !is_ours(&interface.interface_name) && !interface.interface_name.starts_with("veth"))
        .filter_map(|interface| address(&interface));
    let link_local = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let mut usable = ips.filter(|ip| ip.is_ipv4() == like.is_ipv4() && !ip.is_loopback() && !link_local(ip));
    usable.next().ok_or(HostError::NoAddress)
}

/// The resolv.conf with the host's real resolvers: pods cannot use one on the host's loopback. `None` if no file names
/// any; then pods get no upstream resolver, because a public one is not ours to choose.
pub(crate) fn resolv_conf() -> Option<PathBuf> {
    RESOLV_CONFS
        .iter()
        .map(Path::new)
        .find(|path| fs::read_to_string(path).is_ok_and(|text| has_real_resolver(&text)))
        .map(Path::to_owned)
}

fn has_real_resolver(text: &str) -> bool {
    text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).any(|rest| {
        let address = rest.trim().split('%').next().unwrap_or_default();
        address.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_on_loopback_is_no_real_resolver() {
        assert!(!has_real_resolver("nameserver 127.0.0.53\noptions edns0\n"));
        assert!(has_real_resolver("search lan\nnameserver 127.0.0.1\nnameserver 192.0.2.53\n"));
    }

    #[test]
    fn a_node_is_known_by_an_address_that_stays() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     20010db8000000000000000000000abc 02 40 00 01     eth0\n\
                     fd000000000000000000000000000002 02 40 00 00     eth0\n\
                     20010db8000000000000000000000002 02 40 00 00     eth0\n\
                     20010db8000000000000000000000def 02 40 00 20     eth0\n\
                     fe800000000000000000000000000002 02 40 20 80     eth0\n";
        let of = |ip: &str| lasting(ip.parse().unwrap(), table).to_string();
        assert_eq!(of("2001:db8::abc"), "2001:db8::2");
        assert_eq!(of("fd00::2"), "fd00::2");
        assert_eq!(of("2001:db8::77"), "2001:db8::77");
    }

    #[test]
    fn labels_that_the_api_refuses_are_refused_at_start() {
        assert_eq!(label("example.com/zone=a").unwrap(), ("example.com/zone".to_owned(), "a".to_owned()));
        assert_eq!(label("empty=").unwrap().1, "");
        for bad in ["zone", "=a", "a b=c", "zone=a b", "zone=-a", "/zone=a"] {
            let said = label(bad).unwrap_err().to_string();
            assert!(said.starts_with(&format!("--node-label: '{bad}' is not KEY=VALUE")), "{said}");
        }
    }

    #[test]
    fn names_that_the_api_refuses_are_refused_at_start() {
        assert!(check_node_name("edge-1.lan").is_ok());
        for bad in ["", "Edge", "a_b", "-a", "a..b"] {
            assert!(check_node_name(bad).is_err(), "{bad}");
        }
    }

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        node: NodeArgs,
    }

    fn node(args: &[&str]) -> NodeArgs {
        <Flags as clap::Parser>::try_parse_from(["kedge"].iter().chain(args)).unwrap().node
    }

    #[test]
    fn taints_are_read_as_kubectl_writes_them() {
        let read = |text: &str| taint(text).map(|taint| (taint.key, taint.value, taint.effect));
        let taint = |key: &str, value: Option<&str>, effect: &str| {
            (key.to_owned(), value.map(str::to_owned), effect.to_owned())
        };
        for (text, wanted) in [
            ("gpu=yes:NoSchedule", taint("gpu", Some("yes"), "NoSchedule")),
            ("gpu:NoExecute", taint("gpu", None, "NoExecute")),
            ("a.b/c=:PreferNoSchedule", taint("a.b/c", Some(""), "PreferNoSchedule")),
        ] {
            assert_eq!(read(text).unwrap(), wanted);
        }
        for bad in ["gpu", "gpu=yes", "gpu=yes:Never", ":NoSchedule", "=yes:NoSchedule", "gpu:noschedule"] {
            let said = read(bad).unwrap_err().to_string();
            assert_eq!(said, format!("--node-taint: '{bad}' is not KEY=VALUE:EFFECT or KEY:EFFECT"));
        }
    }

    #[test]
    fn a_group_is_a_number_or_one_that_this_machine_has() {
        assert_eq!(group_id("1234").unwrap(), 1234);
        assert_eq!(group_id("root").unwrap(), 0);
        let missing = group_id("no such group").unwrap_err().to_string();
        assert_eq!(missing, "this machine has no group 'no such group'");
    }

    #[test]
    fn dns_names_of_a_node_are_judged_by_their_flag() {
        let names = node_dns(&node(&["--node-internal-dns=a.lan,b.lan", "--node-external-dns=a.example.com"])).unwrap();
        assert_eq!((names.internal.len(), names.external), (2, vec!["a.example.com".to_owned()]));
        for flag in ["node-internal-dns", "node-external-dns"] {
            let Err(err) = node_dns(&node(&[&format!("--{flag}=a_b")])) else { panic!("{flag}") };
            assert_eq!(err.to_string(), format!("--{flag}: 'a_b' is not a DNS name"));
        }
    }

    #[test]
    fn a_setting_that_the_kubelet_lacks_is_refused_by_its_flag() {
        let dir = tempfile::tempdir().unwrap();
        let read = |args: &[&str]| kubelet_settings(&node(args), &Layout::new(dir.path()));
        let settings = read(&["--protect-kernel-defaults", "--kubelet-arg=max-pods=50"]).unwrap();
        assert!(settings.protect_kernel_defaults);
        let why = |arg: &str| base::chain::Chain(&read(&[&format!("--kubelet-arg={arg}")]).unwrap_err()).to_string();
        assert_eq!(why("warp-speed=1"), "--kubelet-arg: warp-speed: this kubelet has no such setting");
        assert_eq!(
            why("port=10255"),
            "--kubelet-arg: port 10255: the kubelet listens on 10250; set the port with --kubelet-port"
        );
        read(&["--kubelet-arg=port=10250", "--kubelet-arg=feature-gates=NodeSwap=true"]).unwrap();
        assert!(why("feature-gates=Odd=true").contains("unrecognized feature gate: Odd"));
    }

    #[test]
    fn a_node_keeps_the_name_and_the_id_that_it_began_with() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(kept_name(&layout.agent(), "first".to_owned()).unwrap(), "first");
        assert_eq!(kept_name(&layout.agent(), "renamed".to_owned()).unwrap(), "first");
        let args = node(&["--node-name=edge", "--with-node-id"]);
        let name = full_node_name(&args, &layout, &Rng::from_os()).unwrap();
        assert!(name.starts_with("edge-") && name.len() == "edge-".len() + 8, "{name}");
        assert_eq!(full_node_name(&args, &layout, &Rng::from_os()).unwrap(), name);
        let Err(err) = full_node_name(&node(&["--node-name=Edge"]), &layout, &Rng::from_os()) else { panic!() };
        assert!(err.to_string().starts_with("'Edge' cannot be a node's name"), "{err}");
    }

    #[test]
    fn given_addresses_are_judged_before_any_is_looked_for() {
        let ips = |text: &str, families: &[Family]| node_ips(&node(&[&format!("--node-ip={text}")]), families);
        assert_eq!(ips("10.0.0.1", &[Family::V4]).unwrap(), [IpAddr::from([10, 0, 0, 1])]);
        let Err(err) = ips("fd00::1", &[Family::V4]) else { panic!() };
        let text = base::chain::Chain(&err).to_string();
        assert!(text.starts_with("--node-ip: 'fd00::1': the cluster's pods have IPv4 addresses first"), "{text}");
    }
}
