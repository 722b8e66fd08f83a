//! `--kube-apiserver-arg`: upstream's flags of the API server, those that mean something here.
//!
//! A flag that upstream knows and kedge does not obey is refused by its name, and so is one that nobody knows: none is
//! ignored.

mod absent;

use std::path::PathBuf;
use std::time::Duration;

use admission::configuration::AdmissionConfiguration;
use admission::names;
use authn::oidc::Oidc;

use crate::arguments::absent::{FIXED, NOT_HERE};

/// Arguments, beyond the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// `token-auth-file`
    pub token_auth_file: Option<PathBuf>,
    /// `anonymous-auth`; `None`: only health may be asked without credentials.
    pub anonymous_auth: Option<bool>,
    /// Contents of `client-ca-file`: authorities that vouch for users besides our own; empty: none.
    pub client_ca_pem: String,
    /// `oidc-*`
    pub oidc: Oidc,
    /// `authentication-config`
    pub authentication_config: Option<PathBuf>,
    /// `authentication-token-webhook-config-file`
    pub token_webhook: Option<PathBuf>,
    /// `authentication-token-webhook-version`
    pub token_webhook_version: String,
    /// `authentication-token-webhook-cache-ttl`
    pub token_webhook_ttl: Duration,
    /// `authorization-mode`, in order.
    pub authorization_modes: Vec<String>,
    /// `authorization-policy-file` (ABAC)
    pub abac_file: Option<PathBuf>,
    /// `authorization-webhook-config-file`
    pub authorization_webhook: Option<PathBuf>,
    /// `authorization-webhook-cache-authorized-ttl` and `-unauthorized-ttl`
    pub authorization_ttls: (Duration, Duration),
    /// `authorization-config`
    pub authorization_config: Option<PathBuf>,
    /// `requestheader-allowed-names`
    pub front_proxy_names: Vec<String>,
    /// `api-audiences`, besides our own.
    pub api_audiences: Vec<String>,
    /// `service-account-*`
    pub accounts: Accounts,
    /// `enable-admission-plugins` and `disable-admission-plugins`
    pub plugins: (Vec<String>, Vec<String>),
    /// Contents of `admission-control-config-file`.
    pub admission: AdmissionConfiguration,
    /// `audit-*`
    pub audit: Audit,
    /// `encryption-provider-config`
    pub encryption_config: Option<PathBuf>,
    /// `max-requests-inflight` and `max-mutating-requests-inflight`
    pub inflight: (usize, usize),
    /// `enable-priority-and-fairness`
    pub fairness: bool,
    /// `event-ttl`
    pub event_ttl: Duration,
    /// `request-timeout`
    pub request_timeout: Duration,
    /// `min-request-timeout`
    pub min_request_timeout: Duration,
    /// `default-not-ready-toleration-seconds` and `default-unreachable-toleration-seconds`
    pub tolerations_secs: (i64, i64),
    /// `tls-min-version` and `tls-cipher-suites`
    pub tls: pki::tls::Policy,
}

/// `service-account-*`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// `service-account-issuer`: the first signs, tokens of all are taken; empty: kedge's own.
    pub issuers: Vec<String>,
    /// `service-account-jwks-uri`; empty: this server's.
    pub jwks_uri: String,
    /// Inverse of `service-account-extend-token-expiration`.
    pub as_short_as_asked: bool,
    /// `service-account-max-token-expiration`, seconds.
    pub life_secs_max: Option<i64>,
    /// `service-account-signing-key-file`
    pub signing_key: Option<PathBuf>,
    /// `service-account-key-file`, each of them.
    pub keys: Vec<PathBuf>,
}

/// `audit-*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// `audit-policy-file`
    pub policy_file: Option<PathBuf>,
    /// `audit-log-path`; `-` is standard output.
    pub log_path: Option<PathBuf>,
    /// `audit-log-maxage`, days; 0 is for ever.
    pub max_age_days: u64,
    /// `audit-log-maxbackup`; 0 is all.
    pub max_backups: usize,
    /// `audit-log-maxsize`, megabytes; 0 is no bound.
    pub max_size_mb: u64,
    /// `audit-webhook-config-file`
    pub webhook: Option<PathBuf>,
    /// `audit-webhook-batch-max-size` and `-max-wait`
    pub webhook_batch: (usize, Duration),
}

impl Default for Arguments {
    fn default() -> Arguments {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        Arguments {
            token_auth_file: None,
            anonymous_auth: None,
            client_ca_pem: String::new(),
            oidc: Oidc { username_claim: "sub".into(), signing_algs: vec!["RS256".into()], ..Oidc::default() },
            authentication_config: None,
            token_webhook: None,
            token_webhook_version: "v1".into(),
            token_webhook_ttl: minutes(2),
            authorization_modes: vec!["Node".into(), "RBAC".into()],
            abac_file: None,
            authorization_webhook: None,
            authorization_ttls: (minutes(5), Duration::from_secs(30)),
            authorization_config: None,
            front_proxy_names: Vec::new(),
            api_audiences: Vec::new(),
            accounts: Accounts::default(),
            plugins: (Vec::new(), Vec::new()),
            admission: AdmissionConfiguration::default(),
            audit: Audit {
                policy_file: None,
                log_path: None,
                max_age_days: 0,
                max_backups: 0,
                max_size_mb: 0,
                webhook: None,
                webhook_batch: (400, Duration::from_secs(30)),
            },
            encryption_config: None,
            inflight: (400, 200),
            fairness: true,
            event_ttl: minutes(60),
            request_timeout: minutes(1),
            min_request_timeout: minutes(30),
            tolerations_secs: (300, 300),
            tls: pki::tls::Policy::default(),
        }
    }
}

impl Arguments {
    /// Reads `name=value` texts, with or without dashes; a later one of the same name wins, lists excepted.
    ///
    /// Errors: a text that names the flag.
    pub fn parse(args: &[String]) -> Result<Arguments, String> {
        let mut out = Arguments::default();
        for arg in args {
            let arg = arg.trim_start_matches('-');
            let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
            out.set(name, value).map_err(|why| format!("--kube-apiserver-arg={name}: {why}"))?;
        }
        out.check()?;
        Ok(out)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let file = || path(value).map(Some);
        match name {
            "token-auth-file" => self.token_auth_file = file()?,
            "anonymous-auth" => self.anonymous_auth = Some(switch(value)?),
            "client-ca-file" => self.client_ca_pem = authorities(value)?,
            "authentication-config" => self.authentication_config = file()?,
            "authentication-token-webhook-config-file" => self.token_webhook = file()?,
            "authentication-token-webhook-version" => self.token_webhook_version = one_of(value, &["v1", "v1beta1"])?,
            "authentication-token-webhook-cache-ttl" => self.token_webhook_ttl = duration(value)?,
            "authorization-mode" => self.authorization_modes = modes(value)?,
            "authorization-policy-file" => self.abac_file = file()?,
            "authorization-webhook-config-file" => self.authorization_webhook = file()?,
            "authorization-webhook-cache-authorized-ttl" => self.authorization_ttls.0 = duration(value)?,
            "authorization-webhook-cache-unauthorized-ttl" => self.authorization_ttls.1 = duration(value)?,
            "authorization-config" => self.authorization_config = file()?,
            "requestheader-allowed-names" => self.front_proxy_names = list(value),
            "api-audiences" => self.api_audiences = list(value),
            "enable-admission-plugins" => self.plugins.0.extend(plugins(value)?),
            "disable-admission-plugins" => self.plugins.1.extend(plugins(value)?),
            "admission-control-config-file" => self.admission = AdmissionConfiguration::read(&PathBuf::from(value))?,
            "encryption-provider-config" => self.encryption_config = file()?,
            "max-requests-inflight" => self.inflight.0 = number(value)?,
            "max-mutating-requests-inflight" => self.inflight.1 = number(value)?,
            "enable-priority-and-fairness" => self.fairness = switch(value)?,
            "event-ttl" => self.event_ttl = duration(value)?,
            "request-timeout" => self.request_timeout = duration(value)?,
            "min-request-timeout" => self.min_request_timeout = Duration::from_secs(number(value)?),
            "default-not-ready-toleration-seconds" => self.tolerations_secs.0 = number(value)?,
            "default-unreachable-toleration-seconds" => self.tolerations_secs.1 = number(value)?,
            "feature-gates" => schema::gates::check(value).map_err(|err| err.to_string())?,
            "runtime-config" => runtime_config(value)?,
            "tls-min-version" => self.tls.set_min_version(value)?,
            "tls-cipher-suites" => self.tls.set_suites(&list(value))?,
            _ if name.starts_with("service-account-") && self.accounts.set(name, value)? => {}
            _ if name.starts_with("oidc-") => return self.oidc.set(name, value),
            _ if FIXED.iter().any(|(n, v)| *n == name && v.eq_ignore_ascii_case(value)) => {}
            _ if name.starts_with("audit-") && self.audit.set(name, value)? => {}
            _ => return Err(refusal(name)),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let has = |mode: &str| self.authorization_modes.iter().any(|m| m == mode);
        if has("ABAC") != self.abac_file.is_some() {
            return Err(
                "--kube-apiserver-arg: authorization-mode=ABAC and authorization-policy-file go together".to_owned()
            );
        }
        if has("Webhook") != self.authorization_webhook.is_some() {
            return Err(
                "--kube-apiserver-arg: authorization-mode=Webhook and authorization-webhook-config-file go together"
                    .to_owned(),
            );
        }
        for (plugin, configured) in [
            ("EventRateLimit", !self.admission.event_limits.is_empty()),
            ("ImagePolicyWebhook", self.admission.image_policy.is_some()),
        ] {
            if names::runs(plugin, &self.plugins) && !configured {
                return Err(format!(
                    "--kube-apiserver-arg: enable-admission-plugins={plugin} wants its configuration in admission-control-config-file"
                ));
            }
        }
        let default = Arguments::default();
        if self.authorization_config.is_some() && self.authorization_modes != default.authorization_modes {
            return Err("--kube-apiserver-arg: authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined".to_owned());
        }
        if (self.audit.log_path.is_some() || self.audit.webhook.is_some()) && self.audit.policy_file.is_none() {
            return Err(
                "--kube-apiserver-arg: an audit backend without audit-policy-file would log nothing: give a policy"
                    .to_owned(),
            );
        }
        if self.authentication_config.is_some() && !self.oidc.issuer_url.is_empty() {
            return Err(
                "--kube-apiserver-arg: authentication-config and oidc-* can not be specified together".to_owned()
            );
        }
        if self.oidc.issuer_url.is_empty() != self.oidc.client_id.is_empty() {
            return Err(
                "--kube-apiserver-arg: oidc-issuer-url and oidc-client-id must be specified together".to_owned()
            );
        }
        Ok(())
    }
}

fn refusal(name: &str) -> String {
    if NOT_HERE.contains(&name) || FIXED.iter().any(|(n, _)| *n == name) {
        return "kube-apiserver knows this flag, kedge has no such setting; remove it (kedge's own flags are in kedge server --help)"
            .to_owned();
    }
    "unknown flag".to_owned()
}

impl Accounts {
    /// What is in the files of `service-account-signing-key-file` and of each `service-account-key-file`.
    ///
    /// Errors: a text that names the flag and the file.
    pub fn read_keys(&self) -> Result<(Option<String>, Vec<String>), String> {
        let read = |flag: &str, path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|err| format!("--kube-apiserver-arg={flag}: cannot read {}: {err}", path.display()))
        };
        let signing =
            self.signing_key.as_ref().map(|path| read("service-account-signing-key-file", path)).transpose()?;
        let verifying =
            self.keys.iter().map(|path| read("service-account-key-file", path)).collect::<Result<_, _>>()?;
        Ok((signing, verifying))
    }

    /// False for a flag that is not among ours.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            // As upstream: a text with a colon must be a URL.
            "service-account-issuer" if value.is_empty() || (value.contains(':') && !is_url(value)) => {
                return Err(format!("service-account-issuer {value:?} contained a ':' but was not a valid URL"));
            }
            "service-account-issuer" => self.issuers.push(value.to_owned()),
            "service-account-signing-key-file" => self.signing_key = Some(path(value)?),
            "service-account-key-file" => self.keys.push(path(value)?),
            "service-account-jwks-uri" if !value.starts_with("https://") => {
                return Err(format!("service-account-jwks-uri requires https scheme, parsed as: {value}"));
            }
            "service-account-jwks-uri" => value.clone_into(&mut self.jwks_uri),
            "service-account-extend-token-expiration" => self.as_short_as_asked = !switch(value)?,
            "service-account-max-token-expiration" => {
                let secs = i64::try_from(duration(value)?.as_secs()).unwrap_or(i64::MAX);
                if !(3600..=1 << 32).contains(&secs) {
                    return Err(
                        "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".to_owned()
                    );
                }
                self.life_secs_max = Some(secs);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() { Err("wants a file".to_owned()) } else { Ok(PathBuf::from(value)) }
}

fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some())
}

impl Audit {
    /// False for a flag that is not among ours.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "audit-policy-file" => self.policy_file = Some(value.into()),
            "audit-log-path" => self.log_path = Some(value.into()),
            "audit-log-maxage" => self.max_age_days = number(value)?,
            "audit-log-maxbackup" => self.max_backups = number(value)?,
            "audit-log-maxsize" => self.max_size_mb = number(value)?,
            "audit-webhook-config-file" => self.webhook = Some(value.into()),
            "audit-webhook-batch-max-size" => self.webhook_batch.0 = number::<usize>(value)?.max(1),
            "audit-webhook-batch-max-wait" => self.webhook_batch.1 = duration(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
}

fn switch(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Ok(true),
        "false" | "0" | "f" => Ok(false),
        _ => Err(format!("{value:?} is not true or false")),
    }
}

/// The text of a file of certificates.
fn authorities(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|err| format!("cannot read {path}: {err}"))?;
    match pki::bundle::Bundle::from_pem(&text) {
        Ok(_) => Ok(text),
        Err(err) => Err(format!("{path}: {}", base::chain::Chain(&err))),
    }
}

fn one_of(value: &str, of: &[&str]) -> Result<String, String> {
    if of.contains(&value) { Ok(value.to_owned()) } else { Err(format!("{value:?} is none of {}", of.join(", "))) }
}

fn modes(value: &str) -> Result<Vec<String>, String> {
    let known = ["AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook", "RBAC", "Node"];
    let modes = list(value);
    match modes.iter().enumerate().find(|(at, mode)| !known.contains(&mode.as_str()) || modes[..*at].contains(mode)) {
        Some((_, mode)) if known.contains(&mode.as_str()) => Err(format!("{mode} is specified more than once")),
        Some((_, mode)) => Err(format!("{mode:?} is not a valid mode: want some of {}", known.join(","))),
        None if modes.is_empty() => Err("at least one authorization-mode must be passed".to_owned()),
        None => Ok(modes),
    }
}

/// Names of admission plugins, each of which must exist here.
fn plugins(value: &str) -> Result<Vec<String>, String> {
    let names = list(value);
    names.iter().try_for_each(|name| names::known(name))?;
    Ok(names)
}

/// Which APIs are served: all of them, always. What asks for that is satisfied.
fn runtime_config(value: &str) -> Result<(), String> {
    for pair in list(value) {
        let (what, wanted) = pair.split_once('=').unwrap_or((&pair, "true"));
        let groups = schema::catalog::Catalog::builtin().groups();
        let served = groups.iter().any(|g| {
            g.versions.iter().any(|v| schema::table::GroupVersion { group: &g.name, version: v }.to_string() == what)
        });
        if !served && !matches!(what, "api/all" | "api/ga" | "api/beta" | "api/alpha" | "api/legacy") {
            return Err(format!("unknown api groups {what}"));
        }
        if !switch(wanted)? {
            return Err(format!("kedge serves every version of v1.36, {what} cannot be switched off"));
        }
    }
    Ok(())
}

fn number<N: std::str::FromStr>(value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{value:?} is not a number"))
}

/// Go's durations: `1h30m`, `90s`, `1500ms`.
pub fn duration(value: &str) -> Result<Duration, String> {
    let bad = || format!("{value:?} is no duration such as 1h30m");
    let mut total = Duration::ZERO;
    let mut rest = value;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let amount: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        total += Duration::try_from_secs_f64(amount * seconds).map_err(|_| bad())?;
        rest = &rest[unit..];
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn known_flags_act_and_others_are_refused_by_name() {
        let args = parse(&[
            "event-ttl=1h30m",
            "--max-requests-inflight=7",
            "authorization-mode=RBAC",
            "oidc-issuer-url=https://i",
            "oidc-client-id=c",
        ])
        .unwrap();
        assert_eq!(args.event_ttl, Duration::from_secs(5400));
        assert_eq!((args.inflight.0, args.authorization_modes.as_slice()), (7, &["RBAC".to_owned()][..]));
        assert!(
            parse(&["etcd-servers=http://x"]).unwrap_err().contains("etcd-servers: kube-apiserver knows this flag")
        );
        assert_eq!(parse(&["nonsense=1"]).unwrap_err(), "--kube-apiserver-arg=nonsense: unknown flag");
        assert!(parse(&["authorization-mode=RBAC,Nobody"]).unwrap_err().contains("Nobody"));
        assert!(
            parse(&["enable-admission-plugins=EventRateLimit"]).unwrap_err().contains("admission-control-config-file")
        );
        assert!(parse(&["enable-admission-plugins=NamespaceExists,JobValidation"]).is_ok());
        assert!(parse(&["enable-admission-plugins=NodeRestriction,AlwaysPullImages"]).is_ok());
        assert!(parse(&["disable-admission-plugins=Foo"]).unwrap_err().contains("\"Foo\" is unknown"));
        assert!(
            parse(&["tls-min-version=VersionTLS13", "tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).is_ok()
        );
        assert!(parse(&["tls-cipher-suites=TLS_ODD"]).unwrap_err().contains("TLS_ODD not supported"));
        assert!(parse(&["runtime-config=api/all=true,batch/v1=true"]).is_ok());
        assert!(parse(&["runtime-config=batch/v1=false"]).unwrap_err().contains("cannot be switched off"));
        let accounts = parse(&[
            "service-account-issuer=https://issuer.example.com",
            "service-account-issuer=https://kubernetes.default.svc",
            "service-account-extend-token-expiration=false",
            "service-account-max-token-expiration=24h",
        ]);
        let accounts = accounts.unwrap().accounts;
        assert_eq!(
            (accounts.issuers.len(), accounts.as_short_as_asked, accounts.life_secs_max),
            (2, true, Some(86_400))
        );
        assert!(parse(&["service-account-issuer=a:b c"]).unwrap_err().contains("not a valid URL"));
        assert!(parse(&["service-account-max-token-expiration=10m"]).unwrap_err().contains("between 1 hour and 2^32"));
        let keys =
            parse(&["service-account-signing-key-file=x", "service-account-key-file=a", "service-account-key-file=b"])
                .unwrap();
        assert_eq!((keys.accounts.signing_key.is_some(), keys.accounts.keys.len()), (true, 2));
        assert!(parse(&["service-account-signing-endpoint=x"]).unwrap_err().contains("kedge has no such setting"));
        assert!(parse(&["feature-gates=Odd=true"]).unwrap_err().contains("unrecognized feature gate: Odd"));
    }

    #[test]
    fn a_flag_that_needs_another_says_so() {
        assert!(parse(&["authorization-mode=ABAC"]).unwrap_err().contains("authorization-policy-file"));
        assert!(parse(&["audit-log-path=-"]).unwrap_err().contains("audit-policy-file"));
        assert!(parse(&["profiling=false", "enable-aggregator-routing=true"]).is_ok());
    }
}
