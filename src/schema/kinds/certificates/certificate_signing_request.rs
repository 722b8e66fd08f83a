//! CertificateSigningRequest (certificates.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Part, Prepare, Printer, Rules, ServerPart, kind};
use crate::print::cells::{age, name, or_none};
use crate::print::column::{AGE, NAME};
use crate::print::{column, duration};
use crate::read;
use crate::strategy::conditions;
use crate::validate;

/// The row.
pub(crate) static CERTIFICATE_SIGNING_REQUEST: Behaviour = Behaviour {
    selectable: &["spec.signerName"],
    owners: Owners {
        update: &[&["spec"], &["status"]],
        status_of_others: &[&["status", "conditions"]],
        ..Owners::CLIENTS.with_status()
    },
    prepare: Prepare {
        status: |new, old, now| {
            conditions::keep_verdicts(new, old);
            conditions::stamp(new, old, now);
        },
        ..Prepare::NONE
    },
    rules: Rules {
        name: validate::certificates::any_name,
        always: validate::certificates::request,
        update: validate::certificates::request_main_update,
        status: |new, old, errors| {
            validate::certificates::request(new, errors);
            validate::certificates::request_update(new, old, "status", errors);
        },
        ..Rules::NONE
    },
    parts: &[Part {
        name: "approval",
        writes: &[&["metadata"], &["status", "conditions"]],
        prepare: conditions::stamp,
        rule: Some(|new, old, errors| {
            validate::certificates::request(new, errors);
            validate::certificates::request_update(new, old, "approval", errors);
        }),
    }],
    printer: Printer {
        columns: &[
            NAME,
            AGE,
            column::text("SignerName"),
            column::text("Requestor"),
            column::text("RequestedDuration"),
            column::text("Condition"),
        ],
        cells,
    },
    server: ServerPart::CertificateRequest,
    ..kind("certificates.k8s.io", "CertificateSigningRequest")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let requested =
        read::integer(object, "spec.expirationSeconds").map_or_else(|| "<none>".to_owned(), duration::human);
    let signer = or_none(object, "spec.signerName");
    vec![
        name(object),
        age(object, now),
        signer,
        json!(read::text(object, "spec.username")),
        json!(requested),
        json!(signing_status(object)),
    ]
}

fn signing_status(object: &Value) -> String {
    let conditions = read::list(object, "status.conditions");
    let has = |kind: &str| read::typed(conditions, kind).is_some();
    let mut status = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if read::some_text(object, "status.certificate").is_some() {
        status.push_str(",Issued");
    }
    status
}
