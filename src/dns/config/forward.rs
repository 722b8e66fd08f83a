//! `forward FROM TO... { … }`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;
use rustls_pki_types::ServerName;

use crate::apiserver::{self, Identity};
use crate::args::{Parsed, absent, duration, name, names, none, number, one, response_code, unknown, wrong_count};
use crate::around::Surroundings;
use crate::corefile::Directive;

/// Resolvers of one `forward`, as CoreDNS bounds them.
const TARGETS_MAX: usize = 15;

#[derive(Clone, Debug)]
pub(crate) struct Forward {
    /// Names below any of these.
    pub(crate) from: Vec<Name>,
    pub(crate) to: Vec<Target>,
    pub(crate) except: Vec<Name>,
    pub(crate) policy: Policy,
    pub(crate) force_tcp: bool,
    pub(crate) prefer_udp: bool,
    pub(crate) fails_max: u32,
    pub(crate) health_check: HealthCheck,
    pub(crate) concurrent_max: usize,
    /// After this, an idle connection is closed.
    pub(crate) expire: Duration,
    /// Codes with which the next `forward` is asked.
    pub(crate) next: Vec<ResponseCode>,
    /// Codes with which the next resolver is asked.
    pub(crate) failover: Vec<ResponseCode>,
    /// With no resolver in health, SERVFAIL at once.
    pub(crate) failfast: bool,
    /// Shared by all resolvers over TLS.
    pub(crate) tls: Option<Tls>,
}

/// Trust and identity for resolvers over TLS, and the name that they must show.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) config: std::sync::Arc<rustls::ClientConfig>,
    /// `None`: the address itself.
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// Where and how a resolver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) addr: SocketAddr,
    pub(crate) tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub(crate) interval: Duration,
    pub(crate) recursion_desired: bool,
    pub(crate) domain: Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

/// The files of `tls [CERT KEY] [CA]` and the name of `tls_servername`.
#[derive(Default)]
struct TlsWords {
    cert_and_key: Option<[PathBuf; 2]>,
    ca: Option<PathBuf>,
    server_name: Option<ServerName<'static>>,
}

impl Forward {
    pub(crate) fn new(to: Vec<Target>) -> Forward {
        Forward {
            from: vec![Name::root()],
            to,
            except: Vec::new(),
            policy: Policy::Random,
            force_tcp: false,
            prefer_udp: false,
            fails_max: 2,
            health_check: HealthCheck {
                interval: Duration::from_millis(500),
                recursion_desired: true,
                domain: Name::root(),
            },
            concurrent_max: 0,
            expire: Duration::from_secs(10),
            next: Vec::new(),
            failover: Vec::new(),
            failfast: false,
            tls: None,
        }
    }

    pub(super) fn parse(directive: &Directive, around: &Surroundings<'_>) -> Parsed<Forward> {
        let Some((from, to)) = directive.args.split_at_checked(1) else {
            return Err(directive.error("forward needs a zone and at least one address or file"));
        };
        let mut forward = Forward { from: names(directive, from)?, ..Forward::new(Vec::new()) };
        for target in to {
            forward.to.extend(targets(directive, target, around)?);
        }
        if forward.to.is_empty() && to.is_empty() {
            return Err(directive.error("forward has nobody to ask"));
        }
        if forward.to.len() > TARGETS_MAX {
            let what = format!("more than {TARGETS_MAX} TOs configured: {}", forward.to.len());
            return Err(directive.error(what));
        }
        let mut tls = TlsWords::default();
        for option in &directive.body {
            if !forward.set(option)? && !tls.set(option, around)? {
                return Err(match option.name.as_str() {
                    "max_age"
                    | "max_idle_conns"
                    | "read_timeout"
                    | "max_connect_attempts"
                    | "doh_method"
                    | "source_address"
                    | "resolver" => absent(directive, option),
                    _ => unknown(directive, option),
                });
            }
        }
        if forward.to.iter().any(|target| target.tls) {
            forward.tls = Some(tls.build(directive)?);
        }
        Ok(forward)
    }

    fn set(&mut self, option: &Directive) -> Parsed<bool> {
        match option.name.as_str() {
            "except" => self.except.extend(names(option, &option.args)?),
            "force_tcp" => {
                none(option)?;
                self.force_tcp = true;
            }
            "prefer_udp" => {
                none(option)?;
                self.prefer_udp = true;
            }
            "failfast_all_unhealthy_upstreams" => {
                none(option)?;
                self.failfast = true;
            }
            "max_fails" => self.fails_max = number(option, one(option)?)?,
            "max_concurrent" => self.concurrent_max = number(option, one(option)?)?,
            "health_check" => self.health_check = health_check(option)?,
            "expire" => self.expire = duration(option, one(option)?)?,
            "next" => self.next = codes(option)?,
            "failover" => self.failover = codes(option)?,
            "policy" => {
                self.policy = match one(option)? {
                    "random" => Policy::Random,
                    "round_robin" => Policy::RoundRobin,
                    "sequential" => Policy::Sequential,
                    other => return Err(option.error(format!("unknown policy '{other}'"))),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn codes(option: &Directive) -> Parsed<Vec<ResponseCode>> {
    if option.args.is_empty() {
        return Err(wrong_count(option));
    }
    option.args.iter().map(|text| response_code(option, text)).collect()
}

/// `health_check DURATION [no_rec] [domain FQDN]`.
fn health_check(option: &Directive) -> Parsed<HealthCheck> {
    let mut words = option.args.iter().map(String::as_str);
    let mut check = HealthCheck {
        interval: duration(option, words.next().unwrap_or_default())?,
        recursion_desired: true,
        domain: Name::root(),
    };
    while let Some(word) = words.next() {
        match word {
            "no_rec" => check.recursion_desired = false,
            "domain" => check.domain = name(option, words.next().ok_or_else(|| wrong_count(option))?)?,
            other => return Err(option.error(format!("health_check: unknown option {other}"))),
        }
    }
    Ok(check)
}

impl TlsWords {
    fn set(&mut self, option: &Directive, around: &Surroundings<'_>) -> Parsed<bool> {
        let path = |text: &String| around.path(text);
        match (option.name.as_str(), option.args.as_slice()) {
            ("tls", []) => {}
            ("tls", [ca]) => self.ca = Some(path(ca)),
            ("tls", [cert, key]) => self.cert_and_key = Some([path(cert), path(key)]),
            ("tls", [cert, key, ca]) => {
                self.cert_and_key = Some([path(cert), path(key)]);
                self.ca = Some(path(ca));
            }
            ("tls", _) => return Err(wrong_count(option)),
            ("tls_servername", [name]) => {
                let bad = |_| option.error(format!("not the name of a server: {name}"));
                self.server_name = Some(ServerName::try_from(name.clone()).map_err(bad)?);
            }
            ("tls_servername", _) => return Err(wrong_count(option)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn build(self, directive: &Directive) -> Parsed<Tls> {
        let identity = self.cert_and_key.as_ref().map(|[cert, key]| Identity { cert, key });
        let config = match &self.ca {
            Some(ca) => apiserver::tls(ca, identity),
            None => crate::roots::of_system().and_then(|roots| apiserver::tls_of(roots, identity)),
        };
        let config = config.map_err(|err| directive.error(format!("tls: {}", base::chain::Chain(&err))))?;
        Ok(Tls { config: std::sync::Arc::new(config), server_name: self.server_name })
    }
}

/// An address, an address with a port, or a file with `nameserver` lines.
fn targets(directive: &Directive, text: &str, around: &Surroundings<'_>) -> Parsed<Vec<Target>> {
    let (plain, tls) = match text.split_once("://") {
        None => (text, false),
        Some(("dns", rest)) => (rest, false),
        Some(("tls", rest)) => (rest, true),
        Some(_) => {
            let what = format!("the transport of {text:?} is not supported, only dns:// and tls://");
            return Err(directive.error(what));
        }
    };
    let port = if tls { 853 } else { 53 };
    let target = |addr: SocketAddr| Target { addr, tls };
    if let Ok(ip) = plain.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![target(SocketAddr::new(ip, port))]);
    }
    if let Ok(addr) = plain.parse() {
        return Ok(vec![target(addr)]);
    }
    if !plain.starts_with('/') {
        return Err(directive.error(format!("not an IP address or file: {text:?}")));
    }
    let content = around.config(directive, plain)?;
    let servers = content.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).filter_map(|rest| {
        let ip = rest.trim().split(['%', ' ', '\t']).next()?;
        Some(target(SocketAddr::new(ip.parse().ok()?, port)))
    });
    // A file without servers is a machine without any: questions for others fail, the cluster's own names work.
    Ok(servers.collect())
}
