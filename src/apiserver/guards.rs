//! The usual guards of a server, made from its certificates: one call for the role that builds it.

use std::sync::Arc;

use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use pki::bundle::Bundle;
use pki::error::PkiError;
use pki::jwt::{Signer, Verifier};
use pki::leaf::Ca;
use pki::server::Pki;

use crate::admission::standard::plugins;
use crate::admission::webhooks::Outside;
use crate::authn::basic::BasicUser;
use crate::authn::chain::{self, Chain};
use crate::authn::issue::Issuer;
use crate::authz::escalation::Escalation;
use crate::authz::union;
use crate::connect::Connector;
use crate::lookup::Lookup;
use crate::serve::Guards;
use crate::webhook::client::Webhooks;
use crate::{authn, authz};

/// What guards are made from; [`Parts::new`] takes the keys out of a [`Pki`], so that what follows cannot fail.
pub struct Parts {
    client_ca: Bundle,
    request_header_ca: Bundle,
    signer: Signer,
    verifier: Verifier,
    issuer: String,
    jwks_uri: String,
    basic: Vec<BasicUser>,
    clock: Clock,
    rng: Rng,
}

impl Parts {
    /// `public_url` is where others reach this server (`https://192.0.2.7:6443`); `basic` are the users of the join tokens.
    pub fn new(pki: &Pki, public_url: &str, basic: Vec<BasicUser>, clock: Clock, rng: Rng) -> Result<Parts, PkiError> {
        Ok(Parts {
            client_ca: Bundle::from_pem(pki.authority(Ca::Client).bundle())?,
            request_header_ca: Bundle::from_pem(pki.authority(Ca::RequestHeader).bundle())?,
            signer: pki.signer()?,
            verifier: pki.verifier()?,
            issuer: format!("https://kubernetes.default.svc.{}", pki.options().cluster_domain),
            jwks_uri: format!("{public_url}/openid/v1/jwks"),
            basic,
            clock,
            rng,
        })
    }

    /// The guards over what the server stores.
    pub fn guards(self, lookup: Arc<dyn Lookup>, connector: Arc<dyn Connector>, group: &Group) -> Guards {
        let webhooks = Arc::new(Webhooks::new(lookup.clone(), connector.clone(), group));
        let audiences = vec![self.issuer.clone(), "kedge".to_owned()];
        let config = chain::Config {
            clock: self.clock.clone(),
            client_ca: self.client_ca,
            request_header_ca: self.request_header_ca,
            front_proxy_names: vec!["system:auth-proxy".to_owned()],
            verifier: self.verifier.clone(),
            issuer: self.issuer.clone(),
            audiences: audiences.clone(),
            basic: self.basic,
        };
        let chain = Arc::new(Chain::new(config, lookup.clone()));
        let (authorizer, rbac) = union::standard(lookup);
        let mut virtuals = authz::review::virtuals(&authorizer, &rbac);
        virtuals.extend(authn::review::virtuals(&chain));
        let issuer = Issuer {
            signer: self.signer,
            verifier: self.verifier,
            issuer: self.issuer,
            jwks_uri: self.jwks_uri,
            audiences,
            clock: self.clock,
            rng: self.rng.clone(),
        };
        let escalation = Escalation { rbac, authorizer: authorizer.clone() };
        let outside = Outside { webhooks, rng: self.rng };
        Guards { authenticator: chain, authorizer, plugins: plugins(escalation, outside), issuer: Arc::new(issuer), virtuals, connector }
    }
}
