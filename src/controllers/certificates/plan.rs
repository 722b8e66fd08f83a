//! Fate of a CertificateSigningRequest. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// The time of a condition of this type, if the request has it; the far future if it says none: such a request never
/// gets old.
pub(super) fn condition(csr: &CertificateSigningRequest, kind: &str) -> Option<Timestamp> {
    let conditions = csr.status.as_ref()?.conditions.as_deref()?;
    let found = conditions.iter().find(|c| c.type_ == kind)?;
    Some(found.last_update_time.as_ref().or(found.last_transition_time.as_ref()).map_or(Timestamp::MAX, |t| t.0))
}

/// Whether a certificate was issued.
pub(super) fn is_issued(csr: &CertificateSigningRequest) -> bool {
    csr.status.as_ref().and_then(|s| s.certificate.as_ref()).is_some_and(|pem| !pem.0.is_empty())
}

/// Whether the request waits for one of our signers.
pub(super) fn wants_signature(csr: &CertificateSigningRequest) -> bool {
    let ours = matches!(csr.spec.signer_name.as_str(), CLIENT | KUBELET_CLIENT | KUBELET_SERVING);
    ours && condition(csr, "Approved").is_some()
        && condition(csr, "Denied").is_none()
        && condition(csr, "Failed").is_none()
        && !is_issued(csr)
}

/// Why the usages are not the signer's; texts as upstream's.
pub(super) fn bad_usages(csr: &CertificateSigningRequest) -> Option<String> {
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let (needed, name) = match csr.spec.signer_name.as_str() {
        KUBELET_SERVING => ("server auth", "kubelet serving"),
        KUBELET_CLIENT => ("client auth", "kubelet client"),
        _ => ("client auth", "client"),
    };
    let known = ["digital signature", "key encipherment", needed];
    let wrong =
        usages.iter().any(|usage| !known.contains(&usage.as_str())) || !usages.iter().any(|usage| usage == needed);
    wrong.then(|| format!("usages did not match {name} certificate: {usages:?}"))
}

/// The outcome for a request.
pub(super) enum Verdict {
    /// It may be signed, for this reason.
    Approved(&'static str),
    /// It cannot be signed, for this reason.
    Failed(String),
}

/// The request with the verdict as a condition.
pub(super) fn judged(csr: &CertificateSigningRequest, verdict: Verdict, now: Timestamp) -> CertificateSigningRequest {
    let (kind, reason, message) = match verdict {
        Verdict::Approved(why) => ("Approved", "AutoApproved", why.to_owned()),
        Verdict::Failed(why) => ("Failed", "SignerValidationFailure", why),
    };
    let mut updated = csr.clone();
    updated.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_update_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        },
    );
    updated
}

/// When a request that nobody needs any more is deleted. Spec: upstream's `CSRCleanerController`.
pub(super) fn ends_at(csr: &CertificateSigningRequest) -> Timestamp {
    let created = csr.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
    let settled = ["Denied", "Failed", "Approved"].into_iter().find_map(|kind| condition(csr, kind));
    let (since, life) = settled.map_or((created, HOUR * 24), |at| (at, HOUR));
    since.checked_add(life).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn csr(signer: &str, usages: &[&str], conditions: serde_json::Value) -> CertificateSigningRequest {
        serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"signerName": signer, "request": "", "usages": usages}, "status": {"conditions": conditions}}))
        .unwrap()
    }

    #[test]
    fn only_approved_requests_of_our_signers_are_signed() {
        let approved = json!([{"type": "Approved", "status": "True", "lastUpdateTime": "2026-01-01T02:00:00Z"}]);
        assert!(wants_signature(&csr(CLIENT, &[], approved.clone())));
        assert!(!wants_signature(&csr("example.com/mine", &[], approved.clone())));
        assert!(!wants_signature(&csr(CLIENT, &[], json!([]))));
        assert_eq!(ends_at(&csr(CLIENT, &[], approved)).to_string(), "2026-01-01T03:00:00Z");
        assert_eq!(ends_at(&csr(CLIENT, &[], json!([]))).to_string(), "2026-01-02T00:00:00Z");
        assert_eq!(ends_at(&csr(CLIENT, &[], json!([{"type": "Approved", "status": "True"}]))), Timestamp::MAX);
    }

    #[test]
    fn usages_are_those_of_the_signer() {
        assert!(bad_usages(&csr(KUBELET_SERVING, &["digital signature", "server auth"], json!([]))).is_none());
        assert!(bad_usages(&csr(CLIENT, &["digital signature", "server auth"], json!([]))).is_some());
        assert!(bad_usages(&csr(CLIENT, &["digital signature"], json!([]))).is_some());
    }
}
