//! The rights to approve and sign certificate signing requests, and the subjects that nobody may ask for.

use std::sync::Arc;

use async_trait::async_trait;
use authz::{Authorizer, Decision};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use schema::read;
use serde_json::Value;

use super::{Operation, Plugin, Review};

const GROUP: &str = "certificates.k8s.io";
const RESOURCE: &str = "certificatesigningrequests";

/// Upstream's `CertificateApproval`: approving needs the verb `approve` on the signer.
pub struct Approval(pub Arc<dyn Authorizer>);
/// Upstream's `CertificateSigning`: a signed certificate needs the verb `sign` on the signer.
pub struct Signing(pub Arc<dyn Authorizer>);
/// Upstream's `ClusterTrustBundleAttest`: vouching for a signer's certificates needs the verb `attest` on the signer.
pub struct Attest(pub Arc<dyn Authorizer>);
/// Upstream's `CertificateSubjectRestriction`: nobody asks for a masters' certificate.
pub struct SubjectRestriction;

#[async_trait]
impl Plugin for Approval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Update && a.group == GROUP && a.resource == RESOURCE && a.subresource == "approval"
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        may(self.0.as_ref(), review, "approve").await
    }
}

#[async_trait]
impl Plugin for Signing {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Update && a.group == GROUP && a.resource == RESOURCE && a.subresource == "status"
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let unchanged =
            |field: &str| review.old.is_some_and(|old| old["status"][field] == review.object["status"][field]);
        if unchanged("certificate") && unchanged("conditions") {
            Ok(())
        } else {
            may(self.0.as_ref(), review, "sign").await
        }
    }
}

#[async_trait]
impl Plugin for Attest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
            && a.is(GroupResource { group: GROUP, resource: "clustertrustbundles" })
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let signer = read::text(review.object, "spec.signerName");
        // The garbage collector and storage migration change nothing that anybody vouches for.
        if signer.is_empty() || review.old.is_some_and(|old| unchanged_but_for_owners(review.object, old)) {
            return Ok(());
        }
        match permitted(self.0.as_ref(), review, Act { verb: "attest", signer }).await {
            true => Ok(()),
            false => Err(review.forbidden(&format!("user not permitted to attest for signerName {signer:?}"))),
        }
    }
}

/// Whether only owners, finalizers and what the server itself notes differ.
fn unchanged_but_for_owners(new: &Value, old: &Value) -> bool {
    let bare = |object: &Value| {
        let mut bare = object.clone();
        if let Some(metadata) = bare["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation", "selfLink"]
            {
                metadata.remove(field);
            }
        }
        bare
    };
    bare(new) == bare(old)
}

#[async_trait]
impl Plugin for SubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource { group: GROUP, resource: RESOURCE })
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        if review.object["spec"]["signerName"] != "kubernetes.io/kube-apiserver-client" {
            return Ok(());
        }
        let pem =
            review.object["spec"]["request"].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
        let refused = |err: pki::error::PkiError| review.forbidden(&format!("unable to parse csr: {err}"));
        let request = pki::csr::parse(&pki::csr::der_from_pem(&pem).map_err(refused)?).map_err(refused)?;
        match pki::csr::check(&request, pki::csr::Profile::Client) {
            Ok(()) => Ok(()),
            Err(err) => Err(review.forbidden(&err.to_string())),
        }
    }
}

/// Asks for `verb` on the signer, then on all signers of its domain.
async fn may(authorizer: &dyn Authorizer, review: &Review<'_>, verb: &str) -> Result<(), Status> {
    let signer = read::text(review.old.unwrap_or(review.object), "spec.signerName");
    match permitted(authorizer, review, Act { verb, signer }).await {
        true => Ok(()),
        false => Err(review.forbidden(&format!("user not permitted to {verb} requests with signerName {signer:?}"))),
    }
}

/// An act in a signer's name: to approve, sign or attest.
struct Act<'a> {
    verb: &'a str,
    signer: &'a str,
}

async fn permitted(authorizer: &dyn Authorizer, review: &Review<'_>, Act { verb, signer }: Act<'_>) -> bool {
    let domain = signer.split_once('/').map_or(String::new(), |(domain, _)| format!("{domain}/*"));
    for name in [signer.to_owned(), domain] {
        let asked = Attributes {
            user: review.attributes.user.clone(),
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            is_resource: true,
            ..Attributes::default()
        };
        if matches!(authorizer.authorize(&asked).await, Decision::Allow { .. }) {
            return true;
        }
    }
    false
}
