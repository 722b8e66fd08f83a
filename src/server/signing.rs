//! Signatures of controllers, with the cluster's own keys.

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use controllers::signer::{BootstrapToken, SignError, Signer};
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

fn refused(err: pki::error::PkiError) -> SignError {
    SignError::Refused(Box::new(err))
}

impl Signer for Keys {
    fn certificate(
        &self,
        signer_name: &str,
        request: &[u8],
        usages: &[&str],
        life: Option<Duration>,
    ) -> Result<String, SignError> {
        let (profile, ca) = match signer_name {
            "kubernetes.io/kube-apiserver-client" => (Profile::Client, Ca::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => (Profile::KubeletClient, Ca::Client),
            "kubernetes.io/kubelet-serving" => (Profile::KubeletServing, Ca::Server),
            other => return Err(SignError::NoSigner(other.to_owned())),
        };
        let der = csr::der_from_pem(request).map_err(refused)?;
        self.pki
            .authority(ca)
            .sign_csr_for(&der, profile, usages, life, Start::Backdated(self.clock.now()))
            .map_err(refused)
    }

    fn node_of(&self, request: &[u8]) -> Option<String> {
        let request = csr::parse(&csr::der_from_pem(request).ok()?).ok()?;
        csr::check(&request, Profile::KubeletClient).ok()?;
        Some(request.common_name)
    }

    fn detached(&self, content: &str, token: BootstrapToken<'_>) -> String {
        pki::jwt::detached(content, token.id, token.secret)
    }

    fn token(&self, claims: &Value) -> Result<String, SignError> {
        self.pki.signer().map_err(refused)?.sign(claims).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    fn keys(dir: &std::path::Path) -> Keys {
        let clock = Clock::system();
        let pki = Pki::load_or_create(dir, crate::server::authorities::tests::options()).unwrap();
        Keys { pki: Arc::new(pki), clock }
    }

    #[test]
    fn what_cannot_be_signed_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let keys = keys(dir.path());
        let said = |signer: &str, request: &[u8]| {
            Chain(&keys.certificate(signer, request, &["client auth"], None).unwrap_err()).to_string()
        };
        assert_eq!(said("example.com/mine", b""), "no signer example.com/mine");
        let unread = said("kubernetes.io/kube-apiserver-client", b"no request");
        assert!(unread.starts_with("no usable "), "{unread}");
        assert_eq!(keys.node_of(b"no request"), None);
    }
}
