//! The usual guards of a server, made from its certificates: one call for the role that builds it.

mod authorizers;
mod plugins;

use std::path::PathBuf;
use std::sync::Arc;

use admission::Plugin;
use admission::image_policy::ImagePolicy;
use admission::webhooks::Outside;
use authn::basic::BasicUser;
use authn::chain::{self, Chain, TokenAuthenticator};
use authn::configuration::{Anonymous, Configuration};
use authn::issue::Issuer;
use authn::jwt::{self, Jwt};
use authn::legacy::Uses;
use authn::token_file::TokenFile;
use authn::token_webhook::TokenWebhook;
use authn::{Authenticator, TokenIssuer};
use authz::Authorizer;
use authz::escalation::Escalation;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use pki::bundle::Bundle;
use pki::error::PkiError;
use pki::jwt::{Signer, Verifier};
use pki::leaf::{Ca, Leaf};
use pki::server::Pki;
use registry::lookup::Lookup;
use registry::objects::Objects;
use registry::webhook::client::{Identity, Webhooks};
use registry::webhook::kubeconfig::Remote;

use crate::aggregate;
use crate::arguments::Arguments;
use crate::arguments::error::{FileFault, UnusableFile};
use crate::audit::auditor::{Auditor, Plan};
use crate::capabilities::VirtualRow;
use crate::crypt::rotate::Encryption;
use crate::guards::plugins::plugins;

/// Guards of the server; made by the role from `authn`, `authz` and `admission`.
pub struct Guards {
    /// Authentication.
    pub authenticator: Arc<dyn Authenticator>,
    /// May they?
    pub authorizer: Arc<dyn Authorizer>,
    /// In the order they run.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// Service-account tokens.
    pub issuer: Arc<dyn TokenIssuer>,
    /// Resources that compute an answer.
    pub virtuals: Vec<VirtualRow>,
    /// Writes the audit log, if one is wanted.
    pub auditor: Option<Arc<Auditor>>,
    /// Encryption at rest, where it is configured.
    pub encryption: Option<Encryption>,
    /// Paths that are open without credentials.
    pub anonymous: Anonymous,
    /// Old tokens of service accounts that were used.
    pub legacy_uses: Arc<Uses>,
    /// This server's identity to those whose APIs it aggregates.
    pub front_proxy: Identity,
}

/// Settings that upstream's flags add, their files read.
#[derive(Default)]
struct Settings {
    arguments: Arguments,
    tokens: Option<TokenFile>,
    token_webhook: Option<Remote>,
    authentication: Configuration,
    modes: Vec<authorizers::Mode>,
    audit: Option<Plan>,
    encryption: Option<Encryption>,
    image_policy: Option<(ImagePolicy, Remote)>,
}

/// Parts of the guards; [`Parts::new`] takes the keys out of a [`Pki`], so that what follows cannot fail.
pub struct Parts {
    client_ca: Bundle,
    request_header_ca: Bundle,
    signer: Signer,
    verifier: Verifier,
    /// Of service-account tokens: the first signs.
    issuers: Vec<String>,
    jwks_uri: String,
    basic: Vec<BasicUser>,
    front_proxy: Identity,
    settings: Settings,
    clock: Clock,
    rng: Rng,
}

impl Parts {
    /// `public_url` is where others reach this server (`https://192.0.2.7:6443`); `basic` are the users of the join
    /// tokens.
    pub fn new(pki: &Pki, public_url: &str, basic: Vec<BasicUser>, clock: Clock, rng: Rng) -> Result<Parts, PkiError> {
        Ok(Parts {
            client_ca: Bundle::from_pem(pki.authority(Ca::Client).bundle())?,
            request_header_ca: Bundle::from_pem(pki.authority(Ca::RequestHeader).bundle())?,
            signer: pki.signer()?,
            verifier: pki.verifier()?,
            issuers: vec![format!("https://kubernetes.default.svc.{}", pki.options().cluster_domain)],
            jwks_uri: format!("{public_url}/openid/v1/jwks"),
            basic,
            settings: Settings::default(),
            front_proxy: aggregate::caller::identity(Arc::clone(pki.leaf(Leaf::ClientAuthProxy))),
            clock,
            rng,
        })
    }

    /// Takes upstream's flags in: every file they name is read here.
    ///
    /// Errors: a file cannot be used; the error names its flag.
    pub fn configured(mut self, arguments: &Arguments, encryption: Encryption) -> Result<Parts, SettingsError> {
        let remote =
            |path: &PathBuf| Remote::read(path).map_err(UnusableFile::of("authentication-token-webhook-config-file"));
        if !arguments.accounts.issuers.is_empty() {
            self.issuers.clone_from(&arguments.accounts.issuers);
        }
        if !arguments.accounts.jwks_uri.is_empty() {
            self.jwks_uri.clone_from(&arguments.accounts.jwks_uri);
        }
        self.client_ca = self.client_ca.and(&arguments.client_ca_pem).map_err(UnusableFile::of("client-ca-file"))?;
        let image_policy = |policy: &ImagePolicy| {
            let flag = "admission-control-config-file: ImagePolicyWebhook: kubeConfigFile";
            Remote::read(&policy.kubeconfig).map(|remote| (policy.clone(), remote)).map_err(UnusableFile::of(flag))
        };
        self.settings = Settings {
            image_policy: arguments.admission.image_policy.as_ref().map(image_policy).transpose()?,
            arguments: arguments.clone(),
            tokens: arguments
                .token_auth_file
                .as_deref()
                .map(TokenFile::read)
                .transpose()
                .map_err(UnusableFile::of("token-auth-file"))?,
            token_webhook: arguments.token_webhook.as_ref().map(remote).transpose()?,
            authentication: authentication(arguments)?,
            modes: authorizers::modes(arguments)?,
            audit: Plan::read(&arguments.audit)?,
            encryption: Some(encryption),
        };
        Ok(self)
    }

    /// The guards over what the server stores.
    pub fn guards(self, objects: &Arc<Objects>, webhooks: &Arc<Webhooks>, group: &Group) -> Guards {
        let lookup = Arc::clone(&objects.cache) as Arc<dyn Lookup>;
        let Settings { arguments, tokens, token_webhook, authentication, modes, audit, encryption, image_policy } =
            self.settings;
        let mut audiences = self.issuers.clone();
        audiences.push("kedge".to_owned());
        audiences.extend(arguments.api_audiences.iter().cloned());
        let mut front_proxy_names = vec!["system:auth-proxy".to_owned()];
        front_proxy_names.extend(arguments.front_proxy_names.iter().cloned());
        let legacy_uses = Arc::<Uses>::default();
        let config = chain::Config {
            clock: self.clock.clone(),
            client_ca: self.client_ca,
            request_header_ca: self.request_header_ca,
            front_proxy_names,
            verifier: self.verifier.clone(),
            issuers: self.issuers.clone(),
            audiences: audiences.clone(),
            basic: self.basic,
            legacy_uses: Arc::clone(&legacy_uses),
        };
        let first = tokens.map(|file| Arc::new(file) as Arc<dyn TokenAuthenticator>).into_iter().collect();
        let mut last: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
        for issuer in authentication.issuers {
            last.push(Arc::new(Jwt::new(issuer, webhooks.clone(), self.clock.clone())));
        }
        if let Some(remote) = token_webhook {
            let version = arguments.token_webhook_version.clone();
            last.push(Arc::new(TokenWebhook::new(remote, webhooks.clone(), version, arguments.token_webhook_ttl)));
        }
        let chain = Arc::new(Chain::new(config, lookup.clone()).with(first, last));
        group.spawn("revoked-certificates", chain.records().follow());
        let (authorizer, rbac) = authorizers::chain(modes, &lookup, webhooks);
        let auditor = audit.map(|plan| Arc::new(Auditor::start(plan, webhooks.clone(), self.clock.clone(), group)));
        let mut virtuals = authz::review::virtuals(&authorizer, &rbac);
        virtuals.extend(authn::review::virtuals(&chain));
        let issuer = Issuer {
            signer: self.signer,
            verifier: self.verifier,
            issuer: self.issuers.into_iter().next().unwrap_or_default(),
            life_secs_max: arguments.accounts.life_secs_max,
            stretches: !arguments.accounts.as_short_as_asked,
            jwks_uri: self.jwks_uri,
            audiences,
            clock: self.clock,
            rng: self.rng.clone(),
        };
        let escalation = Escalation { rbac, authorizer: authorizer.clone() };
        let outside = Outside { webhooks: webhooks.clone(), rng: self.rng };
        Guards {
            authenticator: chain,
            authorizer,
            plugins: plugins(plugins::Parts {
                objects: Arc::clone(objects),
                escalation,
                outside,
                arguments: &arguments,
                image_policy,
            }),
            issuer: Arc::new(issuer),
            virtuals,
            front_proxy: self.front_proxy,
            auditor,
            encryption,
            anonymous: authentication.anonymous.unwrap_or_default(),
            legacy_uses,
        }
    }
}

/// Why the settings that flags add cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file cannot.
    #[error(transparent)]
    File(#[from] UnusableFile),
    /// An authorizer cannot.
    #[error(transparent)]
    Mode(#[from] authorizers::ModeError),
}

/// `anonymous-auth` beside a file that says it, too.
#[derive(Debug, thiserror::Error)]
#[error("can not be specified when the anonymous field is set in authentication-config")]
struct TwoAnonymous;

/// Issuers of tokens and the anonymous, by a file or by flags.
fn authentication(arguments: &Arguments) -> Result<Configuration, UnusableFile> {
    let mut configuration = match &arguments.authentication_config {
        None => Configuration::default(),
        Some(path) => {
            let flag = "authentication-config";
            let text = std::fs::read_to_string(path).map_err(FileFault::of(path)).map_err(UnusableFile::of(flag))?;
            Configuration::parse(&text).map_err(FileFault::of(path)).map_err(UnusableFile::of(flag))?
        }
    };
    if !arguments.oidc.issuer_url.is_empty() {
        configuration.issuers.push(jwt::Settings::of_flags(&arguments.oidc));
    }
    if let Some(any) = arguments.anonymous_auth {
        if configuration.anonymous.is_some() {
            return Err(UnusableFile::of("anonymous-auth")(TwoAnonymous));
        }
        configuration.anonymous = Some(if any { Anonymous::Any } else { Anonymous::Nothing });
    }
    Ok(configuration)
}
