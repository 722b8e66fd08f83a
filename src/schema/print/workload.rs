//! Workloads: what keeps pods running.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, containers, labels_text, name, or_none};
use super::column::{AGE, Column, NAME, Printer, boolean, integer, printer, text, wide};
use super::duration;
use crate::read;
use model::labels::format_label_selector;
use model::meta;

const CONTAINERS: Column = wide("Containers");
const IMAGES: Column = wide("Images");
const SELECTOR: Column = wide("Selector");

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "apps",
        "Deployment",
        &[NAME, text("Ready"), integer("Up-to-date"), integer("Available"), AGE, CONTAINERS, IMAGES, SELECTOR],
        deployment,
    ),
    printer("apps", "ReplicaSet", REPLICAS, replica_set),
    printer("", "ReplicationController", REPLICAS, replication_controller),
    printer("apps", "StatefulSet", &[NAME, text("Ready"), AGE, CONTAINERS, IMAGES], stateful_set),
    printer(
        "apps",
        "DaemonSet",
        &[
            NAME,
            integer("Desired"),
            integer("Current"),
            integer("Ready"),
            integer("Up-to-date"),
            integer("Available"),
            text("Node Selector"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        daemon_set,
    ),
    printer(
        "batch",
        "Job",
        &[NAME, text("Status"), text("Completions"), text("Duration"), AGE, CONTAINERS, IMAGES, SELECTOR],
        job,
    ),
    printer(
        "batch",
        "CronJob",
        &[
            NAME,
            text("Schedule"),
            text("Timezone"),
            boolean("Suspend"),
            integer("Active"),
            text("Last Schedule"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        cron_job,
    ),
    printer("apps", "ControllerRevision", &[NAME, text("Controller"), integer("Revision"), AGE], controller_revision),
    printer(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[NAME, text("Reference"), text("Targets"), text("MinPods"), text("MaxPods"), integer("Replicas"), AGE],
        autoscaler,
    ),
];

const REPLICAS: &[Column] =
    &[NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, CONTAINERS, IMAGES, SELECTOR];

fn selector(object: &Value) -> Value {
    json!(format_label_selector(read::at(object, "spec.selector")))
}

fn count(object: &Value, path: &str) -> Value {
    json!(read::number(object, path))
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    let ready = format!("{}/{}", read::number(object, "status.readyReplicas"), read::number(object, "spec.replicas"));
    vec![
        name(object),
        json!(ready),
        count(object, "status.updatedReplicas"),
        count(object, "status.availableReplicas"),
        age(object, now),
        names,
        images,
        selector(object),
    ]
}

fn replicas(object: &Value, now: Timestamp, selector: Value) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    vec![
        name(object),
        count(object, "spec.replicas"),
        count(object, "status.replicas"),
        count(object, "status.readyReplicas"),
        age(object, now),
        names,
        images,
        selector,
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, selector(object))
}

fn replication_controller(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, json!(labels_text(read::map(object, "spec.selector"))))
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    let ready = format!("{}/{}", read::number(object, "status.readyReplicas"), read::number(object, "spec.replicas"));
    vec![name(object), json!(ready), age(object, now), names, images]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    vec![
        name(object),
        count(object, "status.desiredNumberScheduled"),
        count(object, "status.currentNumberScheduled"),
        count(object, "status.numberReady"),
        count(object, "status.updatedNumberScheduled"),
        count(object, "status.numberAvailable"),
        json!(labels_text(read::map(object, "spec.template.spec.nodeSelector"))),
        age(object, now),
        names,
        images,
        selector(object),
    ]
}

fn job(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let last = read::some_text(object, "status.lastScheduleTime").map(|t| duration::since(Some(t), now));
    let suspend = match read::at(object, "spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let (names, images) = containers(object, "spec.jobTemplate.spec.template.spec");
    vec![
        name(object),
        json!(read::text(object, "spec.schedule")),
        or_none(object, "spec.timeZone"),
        json!(suspend),
        json!(read::list(object, "status.active").len()),
        json!(last.unwrap_or_else(|| "<none>".to_owned())),
        age(object, now),
        names,
        images,
        json!(format_label_selector(read::at(object, "spec.jobTemplate.spec.selector"))),
    ]
}

fn controller_revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let owner = meta::controller_of(object).map(|o| {
        let group = o.api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = o.kind.to_lowercase();
        if group.is_empty() { format!("{kind}/{}", o.name) } else { format!("{kind}.{group}/{}", o.name) }
    });
    vec![name(object), json!(owner.unwrap_or_else(|| "<none>".to_owned())), count(object, "revision"), age(object, now)]
}

fn autoscaler(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference = format!(
        "{}/{}",
        read::text(object, "spec.scaleTargetRef.kind"),
        read::text(object, "spec.scaleTargetRef.name")
    );
    let minimum = read::integer(object, "spec.minReplicas").map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    vec![
        name(object),
        json!(reference),
        json!(targets(object)),
        json!(minimum),
        json!(read::number(object, "spec.maxReplicas").to_string()),
        count(object, "status.currentReplicas"),
        age(object, now),
    ]
}

/// `cpu: 12%/80%`, one for each metric, at most two and how many more.
fn targets(object: &Value) -> String {
    if let Some(target) = read::integer(object, "spec.targetCPUUtilizationPercentage") {
        let current = read::integer(object, "status.currentCPUUtilizationPercentage");
        return format!("cpu: {}/{target}%", current.map_or_else(|| "<unknown>".to_owned(), |c| format!("{c}%")));
    }
    let current = read::list(object, "status.currentMetrics");
    let metrics = read::list(object, "spec.metrics");
    let texts: Vec<String> = metrics.iter().enumerate().map(|(idx, m)| target(m, current.get(idx))).collect();
    match texts.len() {
        0 => "<none>".to_owned(),
        n if n > 2 => format!("{} + {} more...", texts[..2].join(", "), n - 2),
        _ => texts.join(", "),
    }
}

fn target(metric: &Value, current: Option<&Value>) -> String {
    let field = match read::text(metric, "type") {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = |name: &str| read::at(metric, &format!("{field}.target.{name}"));
    let have = |name: &str| current.and_then(|c| read::at(c, &format!("{field}.current.{name}")));
    let show = |v: Option<&Value>| {
        v.map_or_else(|| "<unknown>".to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
    };
    let prefix = match field {
        "resource" | "containerResource" => format!("{}: ", read::text(metric, &format!("{field}.name"))),
        _ => String::new(),
    };
    let suffix = if matches!(field, "object" | "external") { " (avg)" } else { "" };
    if wanted("averageUtilization").is_some() {
        let now = have("averageUtilization").map_or_else(|| "<unknown>".to_owned(), |v| format!("{v}%"));
        return format!("{prefix}{now}/{}%", show(wanted("averageUtilization")));
    }
    if wanted("averageValue").is_some() {
        return format!("{prefix}{}/{}{suffix}", show(have("averageValue")), show(wanted("averageValue")));
    }
    format!("{prefix}{}/{}", show(have("value")), show(wanted("value")))
}
