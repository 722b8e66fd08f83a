//! Job (batch).

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use super::failure_policy;
use crate::behaviour::{Behaviour, Deletion, Object, Owners, Prepare, Printer, Rules, kind};
use crate::defaults::{self, has, is_empty, make, put};
use crate::print::cells::{age, containers, name};
use crate::print::column::{AGE, NAME};
use crate::print::workload::{CONTAINERS, IMAGES, SELECTOR, selector};
use crate::print::{column, duration};
use crate::read;
use crate::strategy::keep::struct_at;
use crate::validate;

/// The row.
pub(crate) static JOB: Behaviour = Behaviour {
    selectable: &["status.successful"],
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    prepare: Prepare { create: prepare_create, ..Prepare::NONE },
    rules: Rules {
        always: validate::workload::job,
        new: validate::workload::new_job,
        update: validate::workload::job_update,
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Status"),
            column::text("Completions"),
            column::text("Duration"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        cells,
    },
    deletion: Deletion::ORPHANING,
    ..kind("batch", "Job")
};

fn defaults(object: &mut Object) {
    let labels = object.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
    let spec = make(object, "spec");
    if !has(spec, "completions") && !has(spec, "parallelism") {
        put(spec, "completions", 1);
    }
    put(spec, "parallelism", 1);
    let limit = if has(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    put(spec, "backoffLimit", limit);
    put(spec, "completionMode", "NonIndexed");
    put(spec, "suspend", false);
    let replace = if has(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    put(spec, "podReplacementPolicy", replace);
    failure_policy(spec);
    defaults::pod::template(spec);
    let metadata = make(object, "metadata");
    if let Some(labels) =
        labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty()) && is_empty(metadata, "labels"))
    {
        metadata.insert("labels".into(), labels);
    }
}

/// A Job selects its own pods by its uid, unless the user took that over.
fn prepare_create(new: &mut Value) {
    if new.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let (uid, name) = (meta::uid(new).to_owned(), meta::name(new).to_owned());
    let labels = struct_at(new, &["spec", "template", "metadata", "labels"]);
    for (key, value) in [
        ("controller-uid", &uid),
        ("job-name", &name),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
    ] {
        labels.insert(key.into(), value.as_str().into());
    }
    struct_at(new, &["spec", "selector", "matchLabels"])
        .insert("batch.kubernetes.io/controller-uid".into(), uid.into());
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = read::number(object, "status.succeeded");
    let completions = match (read::integer(object, "spec.completions"), read::number(object, "spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        _ => format!("{succeeded}/1"),
    };
    let time = |path: &str| read::some_text(object, path).and_then(|t| t.parse::<Timestamp>().ok());
    let took = time("status.startTime")
        .map(|start| duration::human(duration::seconds_between(start, time("status.completionTime").unwrap_or(now))));
    let (names, images) = containers(object, "spec.template.spec");
    vec![
        name(object),
        json!(job_status(object)),
        json!(completions),
        json!(took.unwrap_or_default()),
        age(object, now),
        names,
        images,
        selector(object),
    ]
}

fn job_status(object: &Value) -> &'static str {
    let is = |condition: &str| read::condition_is_true(object, condition);
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if meta::deletion_timestamp(object).is_some() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}
