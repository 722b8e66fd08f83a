//! From the directives of a Corefile to what a server does; a plugin or option that is not here is refused with its
//! line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::rr::Name;

use crate::args::{
    Parsed, ZoneError, address, bare, body_less, duration, names_or, none, number, one, unknown, zone_names,
};
use crate::around::{Fall, Read, Surroundings};
use crate::corefile::{CorefileError, Directive, ServerBlock};
use crate::plugin::acl::Acl;
use crate::plugin::autopath::Autopath;
use crate::plugin::errors::Errors;
use crate::plugin::header::Header;
use crate::plugin::local::Local;
use crate::plugin::log::Log;
use crate::plugin::rewrite::Rules;
use crate::plugin::template::Template;
use crate::plugin::zone_file::ZoneFile;
use crate::zone::{EndpointNames, PodNames};

mod bind;
mod cache;
mod forward;

pub(crate) use cache::{Cache, StaleMode};
#[cfg(test)]
pub(crate) use cache::{Prefetch, Stale};
#[cfg(test)]
pub(crate) use forward::Tls;
pub(crate) use forward::{Forward, Policy, Target};

/// Plugins that exist here, in CoreDNS's order of the chain. Their order in a Corefile means nothing.
pub(crate) const PLUGINS: &str = "root, cancel, reload, nsid, bufsize, bind, debug, ready, health, prometheus, errors, \
                                  log, local, any, loadbalance, rewrite, autopath, acl, cache, header, minimal, \
                                  template, hosts, kubernetes, file, loop, forward, whoami";
/// Plugins of CoreDNS that are not here.
const ABSENT: &[&str] = &[
    "metadata",
    "geoip",
    "proxyproto",
    "quic",
    "grpc_server",
    "https",
    "https3",
    "timeouts",
    "multisocket",
    "trace",
    "pprof",
    "shed",
    "dnstap",
    "dns64",
    "siit",
    "chaos",
    "tsig",
    "dnssec",
    "tls",
    "transfer",
    "dynupdate",
    "route53",
    "azure",
    "clouddns",
    "k8s_external",
    "auto",
    "secondary",
    "etcd",
    "grpc",
    "erratic",
    "on",
    "sign",
    "view",
    "nomad",
];

/// One server block, understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) zones: Vec<Zone>,
    pub(crate) bind: Vec<IpAddr>,
    pub(crate) cancel: Option<Duration>,
    pub(crate) nsid: Option<String>,
    pub(crate) bufsize: Option<u16>,
    pub(crate) debug: bool,
    pub(crate) errors: Option<Errors>,
    pub(crate) log: Vec<Log>,
    pub(crate) health: Option<Health>,
    pub(crate) ready: Option<SocketAddr>,
    pub(crate) prometheus: Option<SocketAddr>,
    pub(crate) reload: Option<Duration>,
    pub(crate) local: Option<Local>,
    pub(crate) any: bool,
    pub(crate) loadbalance: bool,
    pub(crate) rewrite: Rules,
    pub(crate) autopath: Option<Autopath>,
    pub(crate) acl: Vec<Acl>,
    pub(crate) cache: Option<Cache>,
    pub(crate) header: Option<Header>,
    pub(crate) minimal: bool,
    pub(crate) templates: Vec<Template>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) kubernetes: Option<Kubernetes>,
    pub(crate) files: Vec<ZoneFile>,
    pub(crate) detect_loops: bool,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) whoami: bool,
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hosts {
    pub(crate) path: PathBuf,
    pub(crate) zones: Vec<Name>,
    pub(crate) inline: String,
    pub(crate) ttl_secs: u32,
    pub(crate) reload: Duration,
    pub(crate) reverse: bool,
    pub(crate) fall: Fall,
    /// Types other than addresses of a name that is here are asked of the next plugin.
    pub(crate) fall_unsupported: bool,
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

/// Surroundings on which the meaning of a Corefile depends.
pub(crate) struct Context<'a> {
    /// Name of the Corefile, for errors.
    pub(crate) file: &'a str,
    /// Port of zones without one.
    pub(crate) port: u16,
    /// Reads a resolv.conf or a zone file.
    pub(crate) read: Read<'a>,
}

/// All blocks.
pub(crate) fn understand(blocks: &[ServerBlock], context: &Context<'_>) -> Parsed<Vec<Block>> {
    blocks.iter().map(|block| understand_block(block, context)).collect()
}

fn understand_block(source: &ServerBlock, context: &Context<'_>) -> Parsed<Block> {
    let at = |err: ZoneError| CorefileError {
        file: source.file.clone().unwrap_or_else(|| context.file.to_owned()),
        line: source.line,
        what: err.to_string(),
    };
    let mut block = Block::default();
    for key in &source.keys {
        block.zones.extend(zone_key(key, context.port).map_err(at)?);
    }
    let root = source.directives.iter().find(|directive| directive.name == "root").map(one).transpose()?;
    let surroundings = Surroundings {
        zones: block.zones.iter().map(|zone| zone.name.clone()).collect(),
        root: root.map(PathBuf::from),
        read: context.read,
    };
    for directive in &source.directives {
        if !outer(&mut block, directive)? && !inner(&mut block, directive, &surroundings)? {
            return Err(unknown_plugin(directive));
        }
    }
    if let Some(autopath) = &block.autopath {
        autopath.check(block.kubernetes.as_ref().map(|kubernetes| kubernetes.pods))?;
    }
    Ok(block)
}

fn unknown_plugin(directive: &Directive) -> CorefileError {
    let name = &directive.name;
    if ABSENT.contains(&name.as_str()) {
        return directive.error(format!(
            "the plugin '{name}' is not in Kedge's DNS: leave the line out, or run CoreDNS's own image (docs/dns.md)"
        ));
    }
    directive.error(format!("Unknown directive '{name}': the plugins here are {PLUGINS}"))
}

/// Plugins that see a question first or not at all. Says whether it was one of them.
fn outer(block: &mut Block, directive: &Directive) -> Parsed<bool> {
    match directive.name.as_str() {
        "root" => body_less(directive)?,
        "cancel" => {
            let timeout = directive.args.first().map_or("5001ms", String::as_str);
            block.cancel = Some(duration(directive, timeout)?);
        }
        "nsid" => {
            let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
            let words = directive.args.join(" ");
            block.nsid = Some(if words.is_empty() { host() } else { words });
        }
        "bufsize" => {
            let size = directive.args.first().map_or(Ok(1232), |text| number(directive, text))?;
            if !(512..=4096).contains(&size) {
                return Err(directive.error(format!("bufsize must be within 512 - 4096: {size}")));
            }
            block.bufsize = Some(size);
        }
        "debug" => {
            bare(directive)?;
            block.debug = true;
        }
        "bind" => block.bind.extend(bind::addresses(directive)?),
        "health" => block.health = Some(health(directive)?),
        "ready" => {
            body_less(directive)?;
            block.ready = Some(address(directive, ":8181")?);
        }
        "prometheus" => {
            body_less(directive)?;
            block.prometheus = Some(address(directive, "localhost:9153")?);
        }
        "reload" => {
            let interval = directive.args.first().map_or("30s", String::as_str);
            // The second word is a jitter: it is checked, and there is nothing here that would swing together.
            directive.args.get(1).map(|jitter| duration(directive, jitter)).transpose()?;
            block.reload = Some(duration(directive, interval)?);
        }
        "errors" => block.errors = Some(Errors::parse(directive)?),
        "log" => block.log.push(Log::parse(directive)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Plugins that answer, or change questions and answers. Says whether it was one of them.
fn inner(block: &mut Block, directive: &Directive, around: &Surroundings<'_>) -> Parsed<bool> {
    match directive.name.as_str() {
        "local" => block.local = Some(Local::parse(directive)?),
        "any" => {
            bare(directive)?;
            block.any = true;
        }
        "loadbalance" => match directive.args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] | ["round_robin"] if directive.body.is_empty() => block.loadbalance = true,
            _ => return Err(directive.error("loadbalance knows the policy round_robin only")),
        },
        "rewrite" => block.rewrite.add(directive)?,
        "autopath" => block.autopath = Some(Autopath::parse(directive, around)?),
        "acl" => block.acl.push(Acl::parse(directive, &around.zones)?),
        "cache" => block.cache = Some(Cache::parse(directive, &around.zones)?),
        "header" => block.header.get_or_insert_default().add(directive)?,
        "minimal" => {
            bare(directive)?;
            block.minimal = true;
        }
        "template" => block.templates.push(Template::parse(directive, &around.zones)?),
        "hosts" => block.hosts = Some(hosts(directive, around)?),
        "kubernetes" => block.kubernetes = Some(kubernetes(directive, &around.zones)?),
        "file" => block.files.push(ZoneFile::parse(directive, around)?),
        "loop" => {
            bare(directive)?;
            block.detect_loops = true;
        }
        "forward" => block.forwards.push(Forward::parse(directive, around)?),
        "whoami" => {
            bare(directive)?;
            block.whoami = true;
        }
        _ => return Ok(false),
    }
    Ok(true)
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

fn health(directive: &Directive) -> Parsed<Health> {
    let mut health = Health { addr: address(directive, ":8080")?, lameduck: Duration::ZERO };
    for option in &directive.body {
        match option.name.as_str() {
            "lameduck" => health.lameduck = duration(option, one(option)?)?,
            _ => return Err(unknown(directive, option)),
        }
    }
    Ok(health)
}

fn hosts(directive: &Directive, around: &Surroundings<'_>) -> Parsed<Hosts> {
    let path = directive.args.first().map_or("/etc/hosts", String::as_str);
    let mut hosts = Hosts {
        path: around.path(path),
        zones: names_or(directive, directive.args.get(1..).unwrap_or_default(), &around.zones)?,
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
            "fallthrough" => hosts.fall = Fall::parse(option)?,
            "fallthrough_unsupported" => {
                none(option)?;
                hosts.fall_unsupported = true;
            }
            ip if ip.parse::<IpAddr>().is_ok() => hosts.inline += &format!("{ip} {}\n", option.args.join(" ")),
            _ => return Err(unknown(directive, option)),
        }
    }
    Ok(hosts)
}

fn kubernetes(directive: &Directive, zones: &[Name]) -> Parsed<Kubernetes> {
    let mut config =
        Kubernetes { zones: names_or(directive, &directive.args, zones)?, ttl_secs: 5, ..Kubernetes::default() };
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
            "fallthrough" => config.fall = Fall::parse(option)?,
            "endpoint" => config.endpoint = Some(one(option)?.to_owned()),
            "tls" => match option.args.as_slice() {
                [cert, key, ca] => config.tls = Some([cert.into(), key.into(), ca.into()]),
                _ => return Err(option.error("tls needs three files: certificate, key, CA")),
            },
            _ => return Err(unknown(directive, option)),
        }
    }
    if config.endpoint.is_some() != config.tls.is_some() {
        return Err(directive.error("endpoint and tls belong together"));
    }
    Ok(config)
}

#[cfg(test)]
mod tests;
