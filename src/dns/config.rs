//! From the directives of a Corefile to what a server does; a plugin or option that is not here is refused with its
//! line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::corefile::{CorefileError, Directive, ServerBlock};
use crate::zone::{EndpointNames, PodNames};

/// Plugins that exist here, in the order of the chain.
pub(crate) const PLUGINS: &str =
    "bind, cache, errors, forward, health, hosts, kubernetes, loadbalance, log, loop, prometheus, ready, reload";

/// One server block, understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) zones: Vec<Zone>,
    pub(crate) bind: Vec<IpAddr>,
    pub(crate) errors: bool,
    pub(crate) log: bool,
    pub(crate) health: Option<Health>,
    pub(crate) ready: Option<SocketAddr>,
    pub(crate) prometheus: Option<SocketAddr>,
    pub(crate) reload: Option<Duration>,
    pub(crate) loadbalance: bool,
    pub(crate) cache: Option<Cache>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) kubernetes: Option<Kubernetes>,
    pub(crate) detect_loops: bool,
    pub(crate) forwards: Vec<Forward>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) name: Name,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) addr: SocketAddr,
    pub(crate) lameduck: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) zones: Vec<Name>,
    pub(crate) success_entries_max: usize,
    pub(crate) success_secs: (u32, u32),
    pub(crate) denial_entries_max: usize,
    pub(crate) denial_secs: (u32, u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hosts {
    pub(crate) path: PathBuf,
    pub(crate) zones: Vec<Name>,
    pub(crate) inline: String,
    pub(crate) ttl_secs: u32,
    pub(crate) reload: Duration,
    pub(crate) reverse: bool,
    pub(crate) fall: Fall,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kubernetes {
    pub(crate) zones: Vec<Name>,
    pub(crate) endpoint: Option<String>,
    /// Certificate, key, CA.
    pub(crate) tls: Option<[PathBuf; 3]>,
    pub(crate) pods: PodNames,
    pub(crate) endpoint_names: EndpointNames,
    pub(crate) ttl_secs: u32,
    pub(crate) namespaces: Vec<String>,
    pub(crate) fall: Fall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// Names below any of these.
    pub(crate) from: Vec<Name>,
    pub(crate) to: Vec<SocketAddr>,
    pub(crate) except: Vec<Name>,
    pub(crate) policy: Policy,
    pub(crate) force_tcp: bool,
    pub(crate) prefer_udp: bool,
    pub(crate) fails_max: u32,
    pub(crate) health_check: Duration,
    pub(crate) concurrent_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

/// For which names a plugin that has no answer lets the next one try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fall(Vec<Name>);

impl Fall {
    #[cfg(test)]
    pub(crate) fn all() -> Fall {
        Fall(vec![Name::root()])
    }

    pub(crate) fn through(&self, name: &Name) -> bool {
        self.0.iter().any(|zone| zone.zone_of(name))
    }
}

type Parsed<T> = Result<T, CorefileError>;

/// All blocks.
pub(crate) fn understand(blocks: &[ServerBlock], context: &Context<'_>) -> Parsed<Vec<Block>> {
    blocks.iter().map(|block| understand_block(block, context)).collect()
}

/// Surroundings on which the meaning of a Corefile depends.
pub(crate) struct Context<'a> {
    /// Name of the Corefile, for errors.
    pub(crate) file: &'a str,
    /// Port of zones without one.
    pub(crate) port: u16,
    /// Reads a resolv.conf.
    pub(crate) resolv: &'a dyn Fn(&str) -> std::io::Result<String>,
}

fn understand_block(source: &ServerBlock, context: &Context<'_>) -> Parsed<Block> {
    let (file, resolv) = (context.file, context.resolv);
    let at = |err: ZoneError| CorefileError { file: file.to_owned(), line: source.line, what: err.to_string() };
    let mut block = Block::default();
    for key in &source.keys {
        block.zones.extend(zone_key(key, context.port).map_err(at)?);
    }
    for directive in &source.directives {
        let zones = || block.zones.iter().map(|zone| zone.name.clone()).collect::<Vec<_>>();
        match directive.name.as_str() {
            "errors" => block.errors = true,
            "log" => block.log = true,
            "loop" => block.detect_loops = true,
            "loadbalance" => match directive.args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] | ["round_robin"] => block.loadbalance = true,
                _ => return Err(directive.error("loadbalance knows the policy round_robin only")),
            },
            "bind" => {
                block.bind = directive
                    .args
                    .iter()
                    .map(|a| a.parse().map_err(|_| directive.error(format!("not an address: {a}"))))
                    .collect::<Parsed<_>>()?
            }
            "health" => block.health = Some(health(directive)?),
            "ready" => block.ready = Some(address(directive, ":8181")?),
            "prometheus" => block.prometheus = Some(address(directive, "localhost:9153")?),
            "reload" => {
                block.reload =
                    Some(directive.args.first().map_or(Ok(Duration::from_secs(30)), |text| duration(directive, text))?)
            }
            "cache" => block.cache = Some(cache(directive, zones())?),
            "hosts" => block.hosts = Some(hosts(directive, zones())?),
            "kubernetes" => block.kubernetes = Some(kubernetes(directive, zones())?),
            "forward" => block.forwards.push(forward(directive, resolv)?),
            other => {
                return Err(directive.error(format!("Unknown directive '{other}': the plugins here are {PLUGINS}")));
            }
        }
    }
    Ok(block)
}

/// Why a text names no zone.
#[derive(Debug, thiserror::Error)]
enum ZoneError {
    #[error("the transport {scheme}:// of {key:?} is not supported, only dns://")]
    Transport { scheme: String, key: String },
    #[error("not a port in {key:?}")]
    Port { key: String },
    /// hickory's text has its causes in it, so they are no source.
    #[error("{text:?} is not a zone: {cause}")]
    Name { text: String, cause: ProtoError },
}

/// `.`, `.:53`, `example.org`, `dns://example.org:5353`, `10.0.0.0/24`.
fn zone_key(key: &str, default_port: u16) -> Result<Vec<Zone>, ZoneError> {
    let plain = match key.split_once("://") {
        None => key,
        Some(("dns", rest)) => rest,
        Some((scheme, _)) => return Err(ZoneError::Transport { scheme: scheme.to_owned(), key: key.to_owned() }),
    };
    let (host, port) = match plain.rsplit_once(':') {
        Some((host, port)) if !port.contains('/') => {
            (host, port.parse().map_err(|_| ZoneError::Port { key: key.to_owned() })?)
        }
        _ => (plain, default_port),
    };
    let names = zone_names(if host.is_empty() { "." } else { host })?;
    Ok(names.into_iter().map(|name| Zone { name, port }).collect())
}

/// A zone as a lower-case name; a network in CIDR form becomes its reverse zones. There are several where its prefix
/// ends within a label: `172.16.0.0/15` is `16.172.in-addr.arpa` and `17.172.in-addr.arpa`, as CoreDNS reads it.
fn zone_names(text: &str) -> Result<Vec<Name>, ZoneError> {
    let named = |text: &str| {
        let mut name = Name::from_ascii(text).map_err(|cause| ZoneError::Name { text: text.to_owned(), cause })?;
        name.set_fqdn(true);
        Ok(name.to_lowercase())
    };
    let Ok(net) = text.parse::<IpNet>() else { return Ok(vec![named(text)?]) };
    let label_bits = if net.addr().is_ipv4() { 8 } else { 4 };
    let whole = net.prefix_len().next_multiple_of(label_bits);
    let reverse = |net: IpNet| match net {
        IpNet::V4(net) => {
            let octets = &net.network().octets()[..usize::from(whole / label_bits)];
            let labels = octets.iter().rev().map(|octet| format!("{octet}.")).collect::<String>();
            format!("{labels}in-addr.arpa.")
        }
        IpNet::V6(net) => {
            let hex = base::hex::encode(&net.network().octets());
            let nibbles = &hex[..usize::from(whole / label_bits)];
            let labels = nibbles.chars().rev().map(|nibble| format!("{nibble}.")).collect::<String>();
            format!("{labels}ip6.arpa.")
        }
    };
    // The prefix is no longer than the address, so there are always subnets.
    net.subnets(whole).into_iter().flatten().map(|net| named(&reverse(net))).collect()
}

fn names(directive: &Directive, texts: &[String]) -> Parsed<Vec<Name>> {
    let zones = texts.iter().map(|text| zone_names(text).map_err(|err| directive.error(err.to_string())));
    Ok(zones.collect::<Parsed<Vec<_>>>()?.concat())
}

fn fall(directive: &Directive) -> Parsed<Fall> {
    let zones = names(directive, &directive.args)?;
    Ok(Fall(if zones.is_empty() { vec![Name::root()] } else { zones }))
}

fn one(directive: &Directive) -> Parsed<&str> {
    match directive.args.as_slice() {
        [only] => Ok(only),
        _ => Err(directive.error(format!("Wrong argument count or unexpected line ending after '{}'", directive.name))),
    }
}

fn number<T: std::str::FromStr>(directive: &Directive, text: &str) -> Parsed<T> {
    text.parse().map_err(|_| directive.error(format!("not a number: {text}")))
}

/// `5s`, `500ms`, `1m30s`, as Go writes durations.
fn duration(directive: &Directive, text: &str) -> Parsed<Duration> {
    let bad = || directive.error(format!("not a duration: {text}"));
    let (mut rest, mut total) = (text, 0.0);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let value: f64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit_len = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let unit = match &rest[digits..digits + unit_len] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        total += value * unit;
        rest = &rest[digits + unit_len..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| bad())
}

fn address(directive: &Directive, default: &str) -> Parsed<SocketAddr> {
    let text = match directive.args.as_slice() {
        [] => default,
        [only] => only,
        _ => return Err(directive.error(format!("Wrong argument count after '{}'", directive.name))),
    };
    let full = match text {
        text if text.starts_with(':') => format!("[::]{text}"),
        text => text.replace("localhost", "127.0.0.1"),
    };
    full.parse().map_err(|_| directive.error(format!("not an address: {text}")))
}

fn health(directive: &Directive) -> Parsed<Health> {
    let mut health = Health { addr: address(directive, ":8080")?, lameduck: Duration::ZERO };
    for option in &directive.body {
        match option.name.as_str() {
            "lameduck" => health.lameduck = duration(option, one(option)?)?,
            other => return Err(option.error(format!("unknown property '{other}' of health"))),
        }
    }
    Ok(health)
}

fn cache(directive: &Directive, zones: Vec<Name>) -> Parsed<Cache> {
    const ENTRIES: usize = 9984;
    let mut args = directive.args.as_slice();
    let ttl: Option<u32> = args.first().and_then(|text| text.parse().ok());
    if ttl.is_some() {
        args = &args[1..];
    }
    let own = names(directive, args)?;
    let mut cache = Cache {
        zones: if own.is_empty() { zones } else { own },
        success_entries_max: ENTRIES,
        success_secs: (5, ttl.unwrap_or(3600)),
        denial_entries_max: ENTRIES,
        denial_secs: (5, ttl.unwrap_or(1800)),
    };
    for option in &directive.body {
        let (entries, secs) = match option.name.as_str() {
            "success" => (&mut cache.success_entries_max, &mut cache.success_secs),
            "denial" => (&mut cache.denial_entries_max, &mut cache.denial_secs),
            other => {
                return Err(
                    option.error(format!("the option '{other}' of cache is not supported, only success and denial"))
                );
            }
        };
        *entries = number(option, option.args.first().map_or("", String::as_str))?;
        if let Some(ttl) = option.args.get(1) {
            secs.1 = number(option, ttl)?;
        }
        if let Some(ttl) = option.args.get(2) {
            secs.0 = number(option, ttl)?;
        }
    }
    Ok(cache)
}

fn hosts(directive: &Directive, zones: Vec<Name>) -> Parsed<Hosts> {
    let path = directive.args.first().map_or("/etc/hosts", String::as_str);
    let own = names(directive, directive.args.get(1..).unwrap_or_default())?;
    let mut hosts = Hosts {
        path: path.into(),
        zones: if own.is_empty() { zones } else { own },
        ttl_secs: 3600,
        reload: Duration::from_secs(5),
        reverse: true,
        ..Hosts::default()
    };
    for option in &directive.body {
        match option.name.as_str() {
            "ttl" => hosts.ttl_secs = number(option, one(option)?)?,
            "reload" => hosts.reload = duration(option, one(option)?)?,
            "no_reverse" => hosts.reverse = false,
            "fallthrough" => hosts.fall = fall(option)?,
            ip if ip.parse::<IpAddr>().is_ok() => hosts.inline += &format!("{ip} {}\n", option.args.join(" ")),
            other => return Err(option.error(format!("unknown property '{other}' of hosts"))),
        }
    }
    Ok(hosts)
}

fn kubernetes(directive: &Directive, zones: Vec<Name>) -> Parsed<Kubernetes> {
    let own = names(directive, &directive.args)?;
    let mut config =
        Kubernetes { zones: if own.is_empty() { zones } else { own }, ttl_secs: 5, ..Kubernetes::default() };
    for option in &directive.body {
        match option.name.as_str() {
            "pods" => {
                config.pods = match one(option)? {
                    "disabled" => PodNames::Disabled,
                    "insecure" => PodNames::Insecure,
                    "verified" => PodNames::Verified,
                    other => {
                        return Err(option.error(format!(
                            "wrong value for pods: {other}, must be one of: disabled, verified, insecure"
                        )));
                    }
                }
            }
            "endpoint_pod_names" => config.endpoint_names = EndpointNames::Pods,
            "ttl" => {
                config.ttl_secs = number(option, one(option)?)?;
                if config.ttl_secs > 3600 {
                    return Err(option.error(format!("ttl must be in range [0, 3600]: {}", config.ttl_secs)));
                }
            }
            "namespaces" => config.namespaces.clone_from(&option.args),
            "fallthrough" => config.fall = fall(option)?,
            "endpoint" => config.endpoint = Some(one(option)?.to_owned()),
            "tls" => match option.args.as_slice() {
                [cert, key, ca] => config.tls = Some([cert.into(), key.into(), ca.into()]),
                _ => return Err(option.error("tls needs three files: certificate, key, CA")),
            },
            other => return Err(option.error(format!("unknown property '{other}' of kubernetes"))),
        }
    }
    if config.endpoint.is_some() != config.tls.is_some() {
        return Err(directive.error("endpoint and tls belong together"));
    }
    Ok(config)
}

fn forward(directive: &Directive, resolv: &dyn Fn(&str) -> std::io::Result<String>) -> Parsed<Forward> {
    let Some((from, to)) = directive.args.split_at_checked(1) else {
        return Err(directive.error("forward needs a zone and at least one address or file"));
    };
    let mut forward = Forward {
        from: names(directive, from)?,
        to: Vec::new(),
        except: Vec::new(),
        policy: Policy::Random,
        force_tcp: false,
        prefer_udp: false,
        fails_max: 2,
        health_check: Duration::from_millis(500),
        concurrent_max: 0,
    };
    for target in to {
        forward.to.extend(upstreams(directive, target, resolv)?);
    }
    if forward.to.is_empty() && to.is_empty() {
        return Err(directive.error("forward has nobody to ask"));
    }
    for option in &directive.body {
        match option.name.as_str() {
            "except" => forward.except = names(option, &option.args)?,
            "force_tcp" => forward.force_tcp = true,
            "prefer_udp" => forward.prefer_udp = true,
            "max_fails" => forward.fails_max = number(option, one(option)?)?,
            "max_concurrent" => forward.concurrent_max = number(option, one(option)?)?,
            "health_check" => forward.health_check = duration(option, option.args.first().map_or("", String::as_str))?,
            // Connections to upstreams are not kept, so there is nothing to expire.
            "expire" => drop(duration(option, one(option)?)?),
            "policy" => {
                forward.policy = match one(option)? {
                    "random" => Policy::Random,
                    "round_robin" => Policy::RoundRobin,
                    "sequential" => Policy::Sequential,
                    other => return Err(option.error(format!("unknown policy '{other}'"))),
                }
            }
            other => return Err(option.error(format!("the option '{other}' of forward is not supported"))),
        }
    }
    Ok(forward)
}

/// An address, an address with a port, or a file with `nameserver` lines.
fn upstreams(
    directive: &Directive,
    text: &str,
    resolv: &dyn Fn(&str) -> std::io::Result<String>,
) -> Parsed<Vec<SocketAddr>> {
    let plain = text.strip_prefix("dns://").unwrap_or(text);
    if plain.contains("://") {
        return Err(directive.error(format!("the transport of {text:?} is not supported, only dns://")));
    }
    if let Ok(ip) = plain.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, 53)]);
    }
    if let Ok(addr) = plain.parse() {
        return Ok(vec![addr]);
    }
    if !plain.starts_with('/') {
        return Err(directive.error(format!("not an IP address or file: {text:?}")));
    }
    let content = resolv(plain).map_err(|err| directive.error(format!("cannot read {plain}: {err}")))?;
    let servers = content.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).filter_map(|rest| {
        let ip = rest.trim().split(['%', ' ', '\t']).next()?;
        Some(SocketAddr::new(ip.parse().ok()?, 53))
    });
    // A file without servers is a machine without any: questions for others fail, the cluster's own names work.
    Ok(servers.collect())
}

#[cfg(test)]
mod tests;
