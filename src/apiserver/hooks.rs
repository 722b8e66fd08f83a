//! Needs of single resources beyond the table: data, read by the verbs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schema::validate::error::FieldError;
use serde_json::Value;

use crate::component_status::{Make, components};
use crate::user::UserInfo;

/// Facts about how a resource is deleted and written.
#[derive(Default)]
pub struct Hooks {
    /// Group and plural.
    pub resource: (&'static str, &'static str),
    /// `delete` answers with the object instead of a Status.
    pub returns_deleted: bool,
    /// `delete` gives the object time to end (pods).
    pub graceful: bool,
    /// Dependents are orphaned unless the client says otherwise.
    pub orphans_by_default: bool,
    /// `spec.finalizers` holds the object back too (namespaces).
    pub spec_finalizers: bool,
    /// Cluster IPs and node ports are given out.
    pub addresses: bool,
    /// Objects vanish after this many seconds.
    pub lives_secs: i64,
    /// This finalizer is put on what is deleted: its controller has to clean up behind it.
    pub cleanup: &'static str,
    /// An update may create the object.
    pub create_on_update: bool,
    /// What is wrong with an object, given what it was before, beyond what its table and rules say.
    pub judge: Option<fn(&Value, Option<&Value>) -> Vec<FieldError>>,
    /// Writes into a new object who asked for it, over whatever the client wrote there.
    pub requestor: Option<fn(&UserInfo, &mut Value)>,
    /// Nothing is stored: the objects are made when somebody asks.
    pub computed: Option<Make>,
}

const NONE: Hooks = Hooks {
    resource: ("", ""),
    returns_deleted: false,
    graceful: false,
    orphans_by_default: false,
    spec_finalizers: false,
    addresses: false,
    lives_secs: 0,
    cleanup: "",
    create_on_update: false,
    judge: None,
    requestor: None,
    computed: None,
};

const ROWS: &[Hooks] = &[
    Hooks {
        resource: ("apiextensions.k8s.io", "customresourcedefinitions"),
        cleanup: crate::custom::status::CLEANUP,
        ..NONE
    },
    Hooks { resource: ("", "componentstatuses"), computed: Some(components), ..NONE },
    Hooks { resource: ("", "pods"), returns_deleted: true, graceful: true, ..NONE },
    Hooks { resource: ("", "namespaces"), spec_finalizers: true, returns_deleted: true, ..NONE },
    Hooks { resource: ("", "services"), returns_deleted: true, addresses: true, create_on_update: true, ..NONE },
    Hooks { resource: ("", "serviceaccounts"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "podtemplates"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "persistentvolumes"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "persistentvolumeclaims"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "resourcequotas"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "replicationcontrollers"), orphans_by_default: true, ..NONE },
    Hooks { resource: ("batch", "jobs"), orphans_by_default: true, ..NONE },
    Hooks {
        resource: ("certificates.k8s.io", "certificatesigningrequests"),
        judge: Some(certificate_request),
        requestor: Some(requestor),
        ..NONE
    },
    Hooks { resource: ("certificates.k8s.io", "clustertrustbundles"), judge: Some(trust_bundle), ..NONE },
    Hooks { resource: ("", "events"), lives_secs: 3600, create_on_update: true, ..NONE },
    Hooks { resource: ("", "endpoints"), create_on_update: true, ..NONE },
    Hooks { resource: ("", "limitranges"), create_on_update: true, ..NONE },
    Hooks { resource: ("coordination.k8s.io", "leases"), create_on_update: true, ..NONE },
    Hooks { resource: ("coordination.k8s.io", "leasecandidates"), create_on_update: true, ..NONE },
    Hooks { resource: ("node.k8s.io", "runtimeclasses"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "roles"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "rolebindings"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "clusterroles"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "clusterrolebindings"), create_on_update: true, ..NONE },
];

/// Those of a resource, by the group and plural under which it is stored.
pub fn of(group: &str, plural: &str) -> &'static Hooks {
    ROWS.iter().find(|h| h.resource == (group, plural)).unwrap_or(&NONE)
}

/// The requestor of a certificate is the user of the request that creates it: approvers and signers trust that.
///
/// Spec: `PrepareForCreate` of upstream's pkg/registry/certificates/certificates/strategy.go (v1.36.2).
fn requestor(user: &UserInfo, object: &mut Value) {
    let Some(spec) = object["spec"].as_object_mut() else { return };
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
        let mut object = json!({"spec": {"username": "system:node:n1", "groups": ["system:nodes"], "uid": "7", "extra": {"a": ["b"]}, "request": "x"}});
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
}
