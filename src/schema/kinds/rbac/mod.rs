//! The kinds of rbac.authorization.k8s.io.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::Object;
use crate::defaults::{each, make, put_zero, text};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, Column, NAME};
use crate::read;

pub(crate) mod cluster_role;
pub(crate) mod cluster_role_binding;
pub(crate) mod role;
pub(crate) mod role_binding;

pub(super) fn role_binding(object: &mut Object) {
    put_zero(make(object, "roleRef"), "apiGroup", "rbac.authorization.k8s.io");
    for subject in each(object, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            put_zero(subject, "apiGroup", "rbac.authorization.k8s.io");
        }
    }
}

pub(super) const BINDING: &[Column] =
    &[NAME, column::text("Role"), AGE, column::wide("Users"), column::wide("Groups"), column::wide("ServiceAccounts")];

pub(super) fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
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
