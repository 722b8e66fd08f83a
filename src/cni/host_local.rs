//! The `host-local` plugin: addresses of this node's ranges, one file each, so that any process can see who has what.
//!
//! Files are as upstream's plugin writes them (`DATADIR/NETWORK/10.42.0.7` holds `CONTAINER\r\nIFNAME`), so
//! reservations survive a change of plugin. All work happens under one lock. A file left empty by a power cut counts as
//! free.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};
use serde::Deserialize;

use crate::error::CniError;
use crate::request::Request;
use crate::result::{Dns, IpConfig, NetResult, Route};

const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    ipam: Ipam,
    runtime_config: RuntimeConfig,
    args: Option<Args>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    data_dir: Option<PathBuf>,
    resolv_conf: Option<PathBuf>,
    ranges: Vec<Vec<RangeConfig>>,
    routes: Vec<Route>,
    /// The form of before `ranges`: one range beside the type.
    #[serde(flatten)]
    single: SingleRange,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SingleRange {
    subnet: Option<IpNet>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeConfig {
    subnet: IpNet,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeConfig>>,
    ips: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    ips: Vec<String>,
}

/// A checked range; numbers are addresses as integers.
#[derive(Clone, Debug, PartialEq)]
struct Range {
    subnet: IpNet,
    first: u128,
    last: u128,
    gateway: IpAddr,
}

/// The holder of an address.
#[derive(Debug, PartialEq)]
struct Owner<'a> {
    container: &'a str,
    ifname: &'a str,
}

pub(crate) fn add(request: &Request) -> Result<NetResult, CniError> {
    let config: Config = request.parse()?;
    let sets = range_sets(&config)?;
    let mut wanted = requested_ips(request, &config)?;
    let store = Store::open(request, &config)?;
    let owner = Owner { container: &request.container_id, ifname: &request.ifname };
    let held = store.held_by(&owner)?;
    let mut result = NetResult { routes: config.ipam.routes.clone(), dns: dns(&config)?, ..NetResult::default() };
    for (idx, set) in sets.iter().enumerate() {
        let want =
            wanted.iter().position(|ip| set.iter().any(|range| range.holds(*ip))).map(|at| wanted.swap_remove(at));
        let got = match held.iter().find(|ip| set.iter().any(|range| range.holds(**ip))) {
            // A repeated ADD gets what the first one got: the runtime may have died before it read the answer.
            Some(ip) if want.is_none_or(|want| want == *ip) => Ok(*ip),
            _ => allocate(&store, &owner, set, idx, want),
        };
        let ip = match got {
            Ok(ip) => ip,
            Err(err) => {
                store.release(&owner)?;
                return Err(err);
            }
        };
        let range = set
            .iter()
            .find(|range| range.holds(ip))
            .ok_or_else(|| CniError::internal(format!("{ip} is in no range")))?;
        let address = IpNet::new(ip, range.subnet.prefix_len()).map_err(|err| CniError::internal(err.to_string()))?;
        result.ips.push(IpConfig { version: None, interface: None, address, gateway: Some(range.gateway) });
    }
    if !wanted.is_empty() {
        store.release(&owner)?;
        return Err(CniError::internal(format!("failed to allocate all requested IPs: {wanted:?}")));
    }
    Ok(result)
}

pub(crate) fn del(request: &Request) -> Result<(), CniError> {
    let config: Config = request.parse()?;
    Store::open(request, &config)?.release(&Owner { container: &request.container_id, ifname: &request.ifname })
}

pub(crate) fn check(request: &Request) -> Result<(), CniError> {
    let config: Config = request.parse()?;
    let owner = Owner { container: &request.container_id, ifname: &request.ifname };
    if Store::open(request, &config)?.held_by(&owner)?.is_empty() {
        return Err(CniError::internal(format!(
            "host-local: Failed to find address added by container {}",
            request.container_id
        )));
    }
    Ok(())
}

/// The next free address after the one given last, so that an address just freed rests as long as possible.
fn allocate(
    store: &Store,
    owner: &Owner<'_>,
    set: &[Range],
    set_idx: usize,
    want: Option<IpAddr>,
) -> Result<IpAddr, CniError> {
    if let Some(want) = want {
        if set.iter().any(|range| range.gateway == want) {
            return Err(CniError::internal(format!("requested ip {want} is subnet's gateway")));
        }
        return match store.reserve(want, owner)? {
            true => Ok(want),
            false => Err(CniError::internal(format!("requested IP address {want} is not available"))),
        };
    }
    for ip in candidates(set, store.last_reserved(set_idx)) {
        if store.reserve(ip, owner)? {
            store.set_last_reserved(set_idx, ip)?;
            return Ok(ip);
        }
    }
    let text: Vec<String> =
        set.iter().map(|range| format!("{}-{}", range.ip(range.first), range.ip(range.last))).collect();
    Err(CniError::internal(format!("no IP addresses available in range set: {}", text.join(","))))
}

/// Every address of the set once, without gateways, beginning behind `last`.
fn candidates(set: &[Range], last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let start = last.and_then(|last| set.iter().position(|range| range.holds(last)).map(|idx| (idx, number(last))));
    let behind = start.map(|(idx, last)| (idx, last + 1, set[idx].last));
    let rest = start
        .into_iter()
        .flat_map(move |(idx, _)| (idx + 1..set.len()).map(move |idx| (idx, set[idx].first, set[idx].last)));
    // Wrapped around; without a start this is simply all of them.
    let upto = start.map_or(set.len(), |(idx, _)| idx + 1);
    let wrapped = (0..upto).map(move |idx| {
        let end = start.filter(|(at, _)| *at == idx).map_or(set[idx].last, |(_, last)| last);
        (idx, set[idx].first, end)
    });
    let spans = behind.into_iter().chain(rest).chain(wrapped);
    spans
        .flat_map(move |(idx, first, end)| (first..=end).map(move |n| set[idx].ip(n)))
        .filter(|ip| set.iter().all(|range| range.gateway != *ip))
}

impl Range {
    fn new(config: &RangeConfig) -> Result<Range, CniError> {
        let subnet = config.subnet.trunc();
        let bits = if subnet.addr().is_ipv4() { 32 } else { 128 };
        if subnet.prefix_len() > bits - 2 {
            return Err(CniError::config(format!("Network {subnet} too small to allocate from")));
        }
        let base = number(subnet.network());
        // The last address of an IPv4 network is its broadcast address.
        let top = number(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4());
        let mut range = Range {
            subnet,
            first: base + 1,
            last: top,
            gateway: config.gateway.unwrap_or_else(|| ip_in(&subnet, base + 1)),
        };
        for (name, given, bound) in
            [("RangeStart", config.range_start, &mut range.first), ("RangeEnd", config.range_end, &mut range.last)]
        {
            let Some(given) = given else { continue };
            if !subnet.contains(&given) {
                return Err(CniError::config(format!("{name} {given} not in network {subnet}")));
            }
            *bound = number(given);
        }
        if range.first > range.last {
            return Err(CniError::config(format!(
                "RangeStart {} is above RangeEnd {}",
                range.ip(range.first),
                range.ip(range.last)
            )));
        }
        Ok(range)
    }

    fn ip(&self, n: u128) -> IpAddr {
        ip_in(&self.subnet, n)
    }

    fn holds(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.subnet.addr().is_ipv4() && (self.first..=self.last).contains(&number(ip))
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The address of this number, in the subnet's family.
fn ip_in(subnet: &IpNet, n: u128) -> IpAddr {
    match u32::try_from(n) {
        Ok(n) if subnet.addr().is_ipv4() => IpAddr::V4(n.into()),
        _ => IpAddr::V6(n.into()),
    }
}

fn range_sets(config: &Config) -> Result<Vec<Vec<Range>>, CniError> {
    let mut sets = config.runtime_config.ip_ranges.clone();
    if let Some(subnet) = config.ipam.single.subnet {
        let single = &config.ipam.single;
        sets.push(vec![RangeConfig {
            subnet,
            range_start: single.range_start,
            range_end: single.range_end,
            gateway: single.gateway,
        }]);
    }
    sets.extend(config.ipam.ranges.iter().cloned());
    let sets: Vec<Vec<Range>> =
        sets.iter().map(|set| set.iter().map(Range::new).collect()).collect::<Result<_, _>>()?;
    if sets.is_empty() || sets.iter().any(Vec::is_empty) {
        return Err(CniError::config("no IP ranges specified"));
    }
    for (idx, set) in sets.iter().enumerate() {
        let other = sets[..idx]
            .iter()
            .flatten()
            .find(|a| set.iter().any(|b| a.subnet.contains(&b.subnet) || b.subnet.contains(&a.subnet)));
        if let Some(other) = other {
            return Err(CniError::config(format!("range set {idx} overlaps with {}", other.subnet)));
        }
    }
    Ok(sets)
}

/// Addresses asked for: `CNI_ARGS` IP=, `args.cni.ips`, `runtimeConfig.ips`; a prefix length behind them is ignored as
/// upstream does.
fn requested_ips(request: &Request, config: &Config) -> Result<Vec<IpAddr>, CniError> {
    let from_env = request.args.iter().filter(|(key, _)| key == "IP").flat_map(|(_, value)| value.split(','));
    let from_config = config.args.iter().flat_map(|args| args.cni.ips.iter()).chain(&config.runtime_config.ips);
    let mut ips = Vec::new();
    for text in from_env.chain(from_config.map(String::as_str)) {
        let plain = text.split('/').next().unwrap_or(text);
        let ip: IpAddr = plain.parse().map_err(|_| CniError::config(format!("invalid IP address {text:?}")))?;
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Ok(ips)
}

fn dns(config: &Config) -> Result<Dns, CniError> {
    let Some(path) = &config.ipam.resolv_conf else { return Ok(Dns::default()) };
    let text = fs::read_to_string(path).map_err(|err| CniError::io(format!("cannot read {}", path.display()), &err))?;
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.nameservers.extend(words.next().map(str::to_owned)),
            Some("domain") => dns.domain = words.next().unwrap_or_default().to_owned(),
            Some("search") => dns.search.extend(words.map(str::to_owned)),
            Some("options") => dns.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    Ok(dns)
}

/// The directory of one network, locked as long as this lives.
struct Store {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Store {
    fn open(request: &Request, config: &Config) -> Result<Store, CniError> {
        let root = config.ipam.data_dir.as_deref().unwrap_or(Path::new(DEFAULT_DATA_DIR));
        let dir = root.join(&request.network);
        let broken = |err: io::Error| CniError::io(format!("cannot lock {}", dir.display()), &err);
        fs::create_dir_all(&dir).map_err(broken)?;
        let file = File::options().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(broken)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| broken(errno.into()))?;
        Ok(Store { dir, _lock: lock })
    }

    fn broken(&self) -> impl Fn(io::Error) -> CniError {
        move |err| CniError::io(format!("cannot use {}", self.dir.display()), &err)
    }

    /// Takes the address if it is free. The content is written aside and linked in, so it is there whole or not at all.
    fn reserve(&self, ip: IpAddr, owner: &Owner<'_>) -> Result<bool, CniError> {
        let path = self.dir.join(ip.to_string());
        if fs::metadata(&path).is_ok_and(|meta| meta.len() > 0) {
            return Ok(false);
        }
        let tmp = self.dir.join(".reserve");
        fs::write(&tmp, format!("{}\r\n{}", owner.container, owner.ifname)).map_err(self.broken())?;
        fs::rename(&tmp, &path).map_err(self.broken())?;
        Ok(true)
    }

    fn held_by(&self, owner: &Owner<'_>) -> Result<Vec<IpAddr>, CniError> {
        let mut held = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(self.broken())? {
            let entry = entry.map_err(self.broken())?;
            let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()) else { continue };
            let content = fs::read_to_string(entry.path()).unwrap_or_default();
            let (container, ifname) = content.trim().split_once("\r\n").unwrap_or((content.trim(), ""));
            // Very old files name the container only.
            if container == owner.container && (ifname == owner.ifname || ifname.is_empty()) {
                held.push(ip);
            }
        }
        held.sort();
        Ok(held)
    }

    fn release(&self, owner: &Owner<'_>) -> Result<(), CniError> {
        for ip in self.held_by(owner)? {
            fs::remove_file(self.dir.join(ip.to_string())).map_err(self.broken())?;
        }
        Ok(())
    }

    fn last_reserved(&self, set_idx: usize) -> Option<IpAddr> {
        fs::read_to_string(self.dir.join(format!("last_reserved_ip.{set_idx}"))).ok()?.trim().parse().ok()
    }

    fn set_last_reserved(&self, set_idx: usize, ip: IpAddr) -> Result<(), CniError> {
        fs::write(self.dir.join(format!("last_reserved_ip.{set_idx}")), ip.to_string()).map_err(self.broken())
    }
}

#[cfg(test)]
mod tests;
