//! Who may do what, and what must hold: RBAC, disruption budgets, admission, certificates, flow control, definitions.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, name, name_and_created, or_none};
use super::column::{AGE, CREATED_AT, Column, NAME, Printer, integer, printer, text, wide};
use super::duration;
use crate::read;

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const BINDING: &[Column] = &[NAME, text("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")];
const WEBHOOKS: &[Column] = &[NAME, integer("Webhooks"), AGE];
const POLICY_BINDING: &[Column] = &[NAME, text("PolicyName"), text("ParamRef"), AGE];

pub(super) const PRINTERS: &[Printer] = &[
    printer(RBAC, "Role", &[NAME, CREATED_AT], name_and_created),
    printer(RBAC, "ClusterRole", &[NAME, CREATED_AT], name_and_created),
    printer(RBAC, "RoleBinding", BINDING, binding),
    printer(RBAC, "ClusterRoleBinding", BINDING, binding),
    printer(
        "policy",
        "PodDisruptionBudget",
        &[NAME, text("Min Available"), text("Max Unavailable"), integer("Allowed Disruptions"), AGE],
        budget,
    ),
    printer(ADMISSION, "MutatingWebhookConfiguration", WEBHOOKS, webhooks),
    printer(ADMISSION, "ValidatingWebhookConfiguration", WEBHOOKS, webhooks),
    printer(
        ADMISSION,
        "ValidatingAdmissionPolicy",
        &[NAME, integer("Validations"), text("ParamKind"), AGE],
        validating_policy,
    ),
    printer(
        ADMISSION,
        "MutatingAdmissionPolicy",
        &[NAME, integer("Mutations"), text("ParamKind"), AGE],
        mutating_policy,
    ),
    printer(ADMISSION, "ValidatingAdmissionPolicyBinding", POLICY_BINDING, policy_binding),
    printer(ADMISSION, "MutatingAdmissionPolicyBinding", POLICY_BINDING, policy_binding),
    printer(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &[NAME, AGE, text("SignerName"), text("Requestor"), text("RequestedDuration"), text("Condition")],
        signing_request,
    ),
    printer("apiextensions.k8s.io", "CustomResourceDefinition", &[NAME, CREATED_AT], name_and_created),
    printer(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &[
            NAME,
            text("PriorityLevel"),
            integer("MatchingPrecedence"),
            text("DistinguisherMethod"),
            AGE,
            text("MissingPL"),
        ],
        flow_schema,
    ),
    printer(
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &[
            NAME,
            text("Type"),
            text("NominalConcurrencyShares"),
            text("Queues"),
            text("HandSize"),
            text("QueueLengthLimit"),
            AGE,
        ],
        priority_level,
    ),
];

fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = read::list(object, "subjects");
    let names = |kind: &str| {
        let names = subjects.iter().filter(|s| read::text(s, "kind") == kind).map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", read::text(s, "namespace"), read::text(s, "name")),
            _ => read::text(s, "name").to_owned(),
        });
        json!(names.collect::<Vec<_>>().join(", "))
    };
    let role = format!("{}/{}", read::text(object, "roleRef.kind"), read::text(object, "roleRef.name"));
    vec![name(object), json!(role), age(object, now), names("User"), names("Group"), names("ServiceAccount")]
}

fn budget(object: &Value, now: Timestamp) -> Vec<Value> {
    let bound = |path: &str| match read::at(object, path) {
        Some(Value::String(s)) => json!(s),
        Some(n) => json!(n.to_string()),
        None => json!("N/A"),
    };
    vec![
        name(object),
        bound("spec.minAvailable"),
        bound("spec.maxUnavailable"),
        json!(read::number(object, "status.disruptionsAllowed")),
        age(object, now),
    ]
}

fn webhooks(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "webhooks").len()), age(object, now)]
}

fn param_kind(object: &Value) -> Value {
    json!(
        read::at(object, "spec.paramKind").map_or_else(
            || "<unset>".to_owned(),
            |p| format!("{}/{}", read::text(p, "apiVersion"), read::text(p, "kind"))
        )
    )
}

fn validating_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.validations").len()), param_kind(object), age(object, now)]
}

fn mutating_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.mutations").len()), param_kind(object), age(object, now)]
}

fn policy_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let param = match read::at(object, "spec.paramRef") {
        None => "<unset>".to_owned(),
        Some(p) => match (read::text(p, "namespace"), read::some_text(p, "name")) {
            ("", Some(name)) => name.to_owned(),
            (ns, Some(name)) => format!("{ns}/{name}"),
            (ns, None) => format!("{ns}/<any>"),
        },
    };
    vec![name(object), json!(read::text(object, "spec.policyName")), json!(param), age(object, now)]
}

fn signing_request(object: &Value, now: Timestamp) -> Vec<Value> {
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
    let has = |kind: &str| read::find(conditions, "type", kind).is_some();
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

fn flow_schema(object: &Value, now: Timestamp) -> Vec<Value> {
    let dangling = read::find(read::list(object, "status.conditions"), "type", "Dangling");
    vec![
        name(object),
        json!(read::text(object, "spec.priorityLevelConfiguration.name")),
        json!(read::number(object, "spec.matchingPrecedence")),
        or_none(object, "spec.distinguisherMethod.type"),
        age(object, now),
        json!(dangling.map_or("?", |c| read::text(c, "status"))),
    ]
}

fn priority_level(object: &Value, now: Timestamp) -> Vec<Value> {
    let shown = |paths: &[&str]| {
        let found = paths.iter().find_map(|p| read::integer(object, p));
        json!(found.map_or_else(|| "<none>".to_owned(), |n| n.to_string()))
    };
    vec![
        name(object),
        json!(read::text(object, "spec.type")),
        shown(&["spec.limited.nominalConcurrencyShares", "spec.exempt.nominalConcurrencyShares"]),
        shown(&["spec.limited.limitResponse.queuing.queues"]),
        shown(&["spec.limited.limitResponse.queuing.handSize"]),
        shown(&["spec.limited.limitResponse.queuing.queueLengthLimit"]),
        age(object, now),
    ]
}
