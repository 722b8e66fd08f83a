//! `--kube-apiserver-arg`: upstream's flags of the API server, those that mean something here.
//!
//! A flag that upstream knows and kedge does not obey is refused by its name, and so is one that nobody knows: none is
//! ignored.

pub mod error;
pub mod table;
pub mod values;

use std::path::PathBuf;
use std::time::Duration;

use admission::configuration::AdmissionConfiguration;
use admission::names;
use authn::oidc::Oidc;
use base::flags::{self, Given, Verdict};

use crate::arguments::error::{ArgumentError, FlagError};
use crate::arguments::table::TABLE;
use crate::arguments::values::{
    authorities, duration, list, modes, number, one_of, path, plugins, runtime_config, switch,
};

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
    /// Errors: a flag is refused; the error names it.
    pub fn parse(args: &[String]) -> Result<Arguments, ArgumentError> {
        let mut out = Arguments::default();
        for arg in args {
            let given = Given::of(arg);
            let refused = |source| ArgumentError::Flag { name: given.name.to_owned(), source };
            // None of the API server's flags has nothing to tune.
            if flags::judge(TABLE, given).map_err(|err| refused(err.into()))? == Verdict::Follow {
                out.set(given).map_err(refused)?;
            }
        }
        out.check()?;
        Ok(out)
    }

    fn set(&mut self, given: Given<'_>) -> Result<(), FlagError> {
        let Given { name, value } = given;
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
            "admission-control-config-file" => {
                self.admission = AdmissionConfiguration::read(&PathBuf::from(value)).map_err(FlagError::of)?;
            }
            "encryption-provider-config" => self.encryption_config = file()?,
            "max-requests-inflight" => self.inflight.0 = number(value)?,
            "max-mutating-requests-inflight" => self.inflight.1 = number(value)?,
            "enable-priority-and-fairness" => self.fairness = switch(value)?,
            "event-ttl" => self.event_ttl = duration(value)?,
            "request-timeout" => self.request_timeout = duration(value)?,
            "min-request-timeout" => self.min_request_timeout = Duration::from_secs(number(value)?),
            "default-not-ready-toleration-seconds" => self.tolerations_secs.0 = number(value)?,
            "default-unreachable-toleration-seconds" => self.tolerations_secs.1 = number(value)?,
            "feature-gates" => schema::gates::check(value).map_err(FlagError::of)?,
            "runtime-config" => runtime_config(value)?,
            "tls-min-version" => self.tls.set_min_version(value).map_err(FlagError::of)?,
            "tls-cipher-suites" => self.tls.set_suites(&list(value)).map_err(FlagError::of)?,
            _ if name.starts_with("service-account-") && self.accounts.set(given)? => {}
            _ if name.starts_with("oidc-") => return self.oidc.set(name, value).map_err(FlagError::of),
            _ if name.starts_with("audit-") && self.audit.set(given)? => {}
            _ => return Err(flags::Refusal::Unknown.into()),
        }
        Ok(())
    }

    /// Refuses flags that go together and do not come together, and the other way round.
    fn check(&self) -> Result<(), ArgumentError> {
        let has = |mode: &str| self.authorization_modes.iter().any(|m| m == mode);
        if has("ABAC") != self.abac_file.is_some() {
            return Err(ArgumentError::Apart { one: "authorization-mode=ABAC", other: "authorization-policy-file" });
        }
        if has("Webhook") != self.authorization_webhook.is_some() {
            return Err(ArgumentError::Apart {
                one: "authorization-mode=Webhook",
                other: "authorization-webhook-config-file",
            });
        }
        for (plugin, configured) in [
            ("EventRateLimit", !self.admission.event_limits.is_empty()),
            ("ImagePolicyWebhook", self.admission.image_policy.is_some()),
        ] {
            if names::runs(plugin, &self.plugins) && !configured {
                return Err(ArgumentError::Unconfigured { plugin });
            }
        }
        let default = Arguments::default();
        if self.authorization_config.is_some() && self.authorization_modes != default.authorization_modes {
            return Err(ArgumentError::TwoAuthorizations);
        }
        if (self.audit.log_path.is_some() || self.audit.webhook.is_some()) && self.audit.policy_file.is_none() {
            return Err(ArgumentError::NoAuditPolicy);
        }
        if self.authentication_config.is_some() && !self.oidc.issuer_url.is_empty() {
            return Err(ArgumentError::TwoAuthentications);
        }
        if self.oidc.issuer_url.is_empty() != self.oidc.client_id.is_empty() {
            return Err(ArgumentError::HalfAnIssuer);
        }
        Ok(())
    }
}

impl Accounts {
    /// Contents of the file of `service-account-signing-key-file` and of each `service-account-key-file`.
    ///
    /// Errors: one cannot be read; the error names the flag and the file.
    pub fn read_keys(&self) -> Result<(Option<String>, Vec<String>), ArgumentError> {
        let read = |flag: &'static str, path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| ArgumentError::Unreadable {
                flag,
                path: path.clone(),
                source,
            })
        };
        let signing =
            self.signing_key.as_ref().map(|path| read("service-account-signing-key-file", path)).transpose()?;
        let verifying =
            self.keys.iter().map(|path| read("service-account-key-file", path)).collect::<Result<_, _>>()?;
        Ok((signing, verifying))
    }

    /// False for a flag that is not among ours.
    fn set(&mut self, given: Given<'_>) -> Result<bool, FlagError> {
        let Given { name, value } = given;
        match name {
            // As upstream: a text with a colon must be a URL.
            "service-account-issuer" if value.is_empty() || (value.contains(':') && !is_url(value)) => {
                return Err(FlagError::Issuer(value.to_owned()));
            }
            "service-account-issuer" => self.issuers.push(value.to_owned()),
            "service-account-signing-key-file" => self.signing_key = Some(path(value)?),
            "service-account-key-file" => self.keys.push(path(value)?),
            "service-account-jwks-uri" if !value.starts_with("https://") => {
                return Err(FlagError::PlainKeys(value.to_owned()));
            }
            "service-account-jwks-uri" => value.clone_into(&mut self.jwks_uri),
            "service-account-extend-token-expiration" => self.as_short_as_asked = !switch(value)?,
            "service-account-max-token-expiration" => {
                let secs = i64::try_from(duration(value)?.as_secs()).unwrap_or(i64::MAX);
                if !(3600..=1 << 32).contains(&secs) {
                    return Err(FlagError::TokenLife);
                }
                self.life_secs_max = Some(secs);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some())
}

impl Audit {
    /// False for a flag that is not among ours.
    fn set(&mut self, given: Given<'_>) -> Result<bool, FlagError> {
        let Given { name, value } = given;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Arguments, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Arguments::parse(&args).map_err(|err| base::chain::Chain(&err).to_string())
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
        assert!(parse(&["etcd-servers=http://x"]).unwrap_err().contains("etcd-servers: the store is kedge's own"));
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
        assert!(parse(&["service-account-signing-endpoint=x"]).unwrap_err().contains("signing-key-file; remove it"));
        assert!(parse(&["feature-gates=Odd=true"]).unwrap_err().contains("unrecognized feature gate: Odd"));
    }

    #[test]
    fn flags_that_go_together_say_so_when_they_do_not_come_together() {
        for (args, expected) in [
            (&["authorization-mode=ABAC"][..], "authorization-mode=ABAC and authorization-policy-file go together"),
            (&["authorization-policy-file=x"], "authorization-mode=ABAC and authorization-policy-file go together"),
            (
                &["authorization-mode=Webhook"],
                "authorization-mode=Webhook and authorization-webhook-config-file go together",
            ),
            (
                &["authorization-mode=RBAC", "authorization-config=x"],
                "authorization-config can not be specified when --authorization-mode or --authorization-webhook-* \
                 flags \
                 are defined",
            ),
            (&["audit-log-path=-"], "an audit backend without audit-policy-file would log nothing: give a policy"),
            (
                &["oidc-issuer-url=https://i", "oidc-client-id=c", "authentication-config=x"],
                "authentication-config and oidc-* can not be specified together",
            ),
            (&["oidc-client-id=c"], "oidc-issuer-url and oidc-client-id must be specified together"),
            (
                &["enable-admission-plugins=ImagePolicyWebhook"],
                "enable-admission-plugins=ImagePolicyWebhook wants its configuration in admission-control-config-file",
            ),
        ] {
            assert_eq!(parse(args).unwrap_err(), format!("--kube-apiserver-arg: {expected}"), "{args:?}");
        }
        assert!(parse(&["profiling=false", "enable-aggregator-routing=true"]).is_ok());
    }

    #[test]
    fn a_value_that_is_wrong_is_refused_with_the_name_of_its_flag() {
        for (arg, expected) in [
            ("anonymous-auth=perhaps", "\"perhaps\" is not true or false"),
            ("token-auth-file=", "wants a file"),
            ("client-ca-file=/nowhere", "cannot read /nowhere: No such file or directory (os error 2)"),
            ("authentication-token-webhook-version=v2", "\"v2\" is none of v1, v1beta1"),
            ("event-ttl=1", "\"1\" is no duration such as 1h30m"),
            ("audit-log-maxage=old", "\"old\" is not a number"),
            ("audit-nothing=1", "unknown flag"),
            (
                "service-account-jwks-uri=http://x",
                "service-account-jwks-uri requires https scheme, parsed as: http://x",
            ),
            ("service-account-issuer=", "service-account-issuer \"\" contained a ':' but was not a valid URL"),
        ] {
            let name = arg.split('=').next().unwrap();
            assert_eq!(parse(&[arg]).unwrap_err(), format!("--kube-apiserver-arg={name}: {expected}"));
        }
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, "no certificate").unwrap();
        let refused = parse(&[&format!("client-ca-file={}", ca.display())]).unwrap_err();
        assert!(refused.starts_with(&format!("--kube-apiserver-arg=client-ca-file: {}: ", ca.display())), "{refused}");
    }

    #[test]
    fn a_later_flag_wins_and_lists_grow() {
        let args = parse(&[
            "--event-ttl=1m",
            "event-ttl=2m",
            "enable-admission-plugins=AlwaysPullImages",
            "enable-admission-plugins=NodeRestriction,AlwaysDeny",
            "anonymous-auth",
            "audit-policy-file=p",
            "audit-webhook-batch-max-size=0",
        ]);
        let args = args.unwrap();
        assert_eq!((args.event_ttl, args.plugins.0.len()), (Duration::from_secs(120), 3));
        assert_eq!((args.anonymous_auth, args.audit.webhook_batch.0), (Some(true), 1));
    }

    #[test]
    fn a_key_that_cannot_be_read_is_named_with_its_flag() {
        let accounts = parse(&["service-account-key-file=/nowhere"]).unwrap().accounts;
        let err = accounts.read_keys().unwrap_err();
        assert_eq!(
            base::chain::Chain(&err).to_string(),
            "--kube-apiserver-arg=service-account-key-file: cannot read /nowhere: No such file or directory (os error \
             2)"
        );
        assert_eq!(Accounts::default().read_keys().ok(), Some((None, Vec::new())));
    }
}
