//! Kinds that carry certificates: their rows leave to the server who asked, and whether the certificates can be read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use registry::user::UserInfo;
use schema::behaviour::ServerPart;
use schema::validate::error::FieldError;
use serde_json::Value;

/// Writes into a new object who asked for it, over whatever the client wrote there, if its kind says so.
pub(crate) fn sign(part: ServerPart, user: &UserInfo, object: &mut Value) {
    if part == ServerPart::CertificateRequest {
        requestor(user, object);
    }
}

/// The faults of an object, given its old form, beyond those that its row names.
pub(crate) fn faults(part: ServerPart, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match part {
        ServerPart::CertificateRequest => certificate_request(object, old),
        ServerPart::TrustAnchors => trust_bundle(object, old),
        ServerPart::None | ServerPart::Addresses | ServerPart::Components => Vec::new(),
    }
}

/// The requestor of a certificate is the user of the request that creates it: approvers and signers trust that.
///
/// Spec: `PrepareForCreate` of upstream's pkg/registry/certificates/certificates/strategy.go (v1.36.2).
fn requestor(user: &UserInfo, object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".to_owned(), user.name.as_str().into());
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), serde_json::json!(user.extra));
    }
}

/// A certificate signing request holds one in PEM form, signed by its own key.
fn certificate_request(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if old.is_some() {
        return Vec::new();
    }
    let text = object["spec"]["request"].as_str().unwrap_or_default();
    let read = STANDARD.decode(text).map_err(|err| err.to_string()).and_then(|pem| {
        let der = pki::csr::der_from_pem(&pem).map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_owned())?;
        pki::csr::parse(&der).map_err(|err| err.to_string())
    });
    read.err().map(|why| FieldError::invalid("spec.request", text, why)).into_iter().collect()
}

/// A bundle holds certificates of authorities. One that was stored is not read again: another reader may be stricter.
fn trust_bundle(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let text = &object["spec"]["trustBundle"];
    if old.is_some_and(|old| old["spec"]["trustBundle"] == *text) {
        return Vec::new();
    }
    let faults = pki::anchors::faults(text.as_str().unwrap_or_default());
    faults.into_iter().map(|why| FieldError::invalid("spec.trustBundle", "<value omitted>", why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_for_a_certificate_says_who_sent_it_and_nothing_else() {
        let mut object = json!({"spec": {"username": "system:node:n1", "groups": ["system:nodes"], "uid": "7",
            "extra": {"a": ["b"]}, "request": "x"}});
        requestor(&UserInfo::new("bob", &["dev"]), &mut object);
        assert_eq!(
            object["spec"],
            json!({"username": "bob", "groups": ["dev", "system:authenticated"], "request": "x"})
        );
    }

    #[test]
    fn a_request_for_a_certificate_is_one() {
        let said = |pem: &str| certificate_request(&json!({"spec": {"request": STANDARD.encode(pem)}}), None);
        assert_eq!(said("x")[0].detail, "PEM block type must be CERTIFICATE REQUEST");
        assert_eq!(
            said("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")[0].field,
            "spec.request"
        );
    }

    #[test]
    fn the_identity_of_who_asks_is_whole_and_other_kinds_are_left_alone() {
        let mut user = UserInfo::new("bob", &[]);
        user.uid = "7".to_owned();
        user.extra = [("scopes".to_owned(), vec!["a".to_owned()])].into();
        let mut object = json!({"spec": {"request": "x"}});
        sign(ServerPart::CertificateRequest, &user, &mut object);
        let spec = &object["spec"];
        assert_eq!(
            (&spec["uid"], &spec["extra"], &spec["username"]),
            (&json!("7"), &json!({"scopes": ["a"]}), &json!("bob"))
        );
        for part in [ServerPart::None, ServerPart::TrustAnchors] {
            let mut object = json!({"spec": {"username": "as sent"}});
            sign(part, &user, &mut object);
            assert_eq!(object, json!({"spec": {"username": "as sent"}}));
        }
        let mut nothing = json!({});
        sign(ServerPart::CertificateRequest, &user, &mut nothing);
        assert_eq!(nothing, json!({}), "validation says what is missing");
    }

    #[test]
    fn what_was_stored_is_not_read_again() {
        let request = json!({"spec": {"request": "no request"}});
        assert_eq!(faults(ServerPart::CertificateRequest, &request, None).len(), 1);
        assert!(faults(ServerPart::CertificateRequest, &request, Some(&request)).is_empty());
        let bundle = json!({"spec": {"trustBundle": "no certificates"}});
        let told = faults(ServerPart::TrustAnchors, &bundle, None);
        assert!(!told.is_empty() && told.iter().all(|fault| fault.field == "spec.trustBundle"));
        assert!(faults(ServerPart::TrustAnchors, &bundle, Some(&bundle)).is_empty());
        let before = json!({"spec": {"trustBundle": "other"}});
        assert!(!faults(ServerPart::TrustAnchors, &bundle, Some(&before)).is_empty());
        assert!(faults(ServerPart::None, &bundle, None).is_empty());
    }
}
