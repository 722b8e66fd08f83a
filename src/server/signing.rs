//! Signatures of controllers, with the cluster's own keys.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::time::Clock;
use controllers::signer::Signer;
use pki::authority::Start;
use pki::csr::{self, Profile};
use pki::leaf::Ca;
use pki::server::Pki;
use serde_json::Value;

/// The keys of this server.
pub(crate) struct Keys {
    pub(crate) pki: Arc<Pki>,
    pub(crate) clock: Clock,
}

impl Signer for Keys {
    fn certificate(
        &self,
        signer_name: &str,
        request: &[u8],
        usages: &[&str],
        life: Option<Duration>,
    ) -> Result<String, String> {
        let (profile, ca) = match signer_name {
            "kubernetes.io/kube-apiserver-client" => (Profile::Client, Ca::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => (Profile::KubeletClient, Ca::Client),
            "kubernetes.io/kubelet-serving" => (Profile::KubeletServing, Ca::Server),
            other => return Err(format!("no signer {other}")),
        };
        let said = |err: pki::error::PkiError| Chain(&err).to_string();
        let der = csr::der_from_pem(request).map_err(said)?;
        self.pki
            .authority(ca)
            .sign_csr_for(&der, profile, usages, life, Start::Backdated(self.clock.now()))
            .map_err(said)
    }

    fn node_of(&self, request: &[u8]) -> Option<String> {
        let request = csr::parse(&csr::der_from_pem(request).ok()?).ok()?;
        csr::check(&request, Profile::KubeletClient).ok()?;
        Some(request.common_name)
    }

    fn detached(&self, content: &str, id: &str, secret: &str) -> String {
        pki::jwt::detached(content, id, secret)
    }

    fn token(&self, claims: &Value) -> Result<String, String> {
        let said = |err: pki::error::PkiError| Chain(&err).to_string();
        self.pki.signer().map_err(said)?.sign(claims).map_err(said)
    }
}
