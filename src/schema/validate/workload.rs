//! Workloads, autoscalers, disruption budgets.

use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{
    Errors, IMMUTABLE, immutable, int_or_percent, int_or_percent_value, invalid_each, label_selector, not_negative,
    selector_matches_template, workload_selector,
};
use crate::validate::error::FieldError;
use crate::validate::job;
use crate::validate::path::Path;
use crate::validate::pod::pod_template;
use crate::validate::storage;

fn spec_of(object: &Value) -> &Value {
    read::at(object, "spec").unwrap_or(&Value::Null)
}

/// Templates of workloads that restart their pods themselves.
fn always_template(object: &Value, errors: &mut Errors) {
    pod_template(spec_of(object), "template", Path("spec.template"), errors);
    let policy = read::text(object, "spec.template.spec.restartPolicy");
    if !matches!(policy, "" | "Always") {
        errors.push(FieldError::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if read::at(object, "spec.template.spec.activeDeadlineSeconds").is_some() {
        let message = format!("activeDeadlineSeconds in {} is not Supported", model::meta::kind(object));
        errors.push(FieldError::forbidden("spec.template.spec.activeDeadlineSeconds", message));
    }
}

fn counts(object: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        not_negative(spec_of(object), Path("spec"), field, errors);
    }
}

pub(crate) fn deployment(object: &Value, errors: &mut Errors) {
    counts(object, &["replicas", "minReadySeconds", "revisionHistoryLimit"], errors);
    workload_selector(spec_of(object), "deployment", errors);
    always_template(object, errors);
    let strategy = read::at(object, "spec.strategy").unwrap_or(&Value::Null);
    let rolling = read::at(strategy, "rollingUpdate");
    match (read::text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => {
            let message = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", message));
        }
        ("RollingUpdate", Some(rolling)) => rolling_update(rolling, Path("spec.strategy.rollingUpdate"), errors),
        // Defaulting fills in what is empty.
        ("" | "Recreate" | "RollingUpdate", None) => {}
        (other, _) => {
            // Upstream shows its own type of the strategy.
            let shown = serde_json::json!({"Type": other, "RollingUpdate": rolling.map(|rolling| {
                let of = |field: &str| read::at(rolling, field).cloned().unwrap_or(Value::Null);
                serde_json::json!({"MaxUnavailable": of("maxUnavailable"), "MaxSurge": of("maxSurge")})
            })});
            errors.push(FieldError::not_supported("spec.strategy", shown, &["Recreate", "RollingUpdate"]));
        }
    }
    if let Some(deadline) = read::integer(object, "spec.progressDeadlineSeconds") {
        not_negative(spec_of(object), Path("spec"), "progressDeadlineSeconds", errors);
        if deadline <= read::number(object, "spec.minReadySeconds") {
            errors.push(FieldError::invalid(
                "spec.progressDeadlineSeconds",
                deadline,
                "must be greater than minReadySeconds",
            ));
        }
    }
}

fn rolling_update(rolling: &Value, path: Path<'_>, errors: &mut Errors) {
    int_or_percent(rolling, path, "maxUnavailable", errors);
    int_or_percent(rolling, path, "maxSurge", errors);
    if let Some(unavailable) = read::at(rolling, "maxUnavailable")
        && int_or_percent_value(rolling, "maxUnavailable") == 0
        && int_or_percent_value(rolling, "maxSurge") == 0
    {
        let message = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(format!("{path}.maxUnavailable"), unavailable.clone(), message));
    }
    if let Some(Value::String(text)) = read::at(rolling, "maxUnavailable")
        && int_or_percent_value(rolling, "maxUnavailable") > 100
    {
        errors.push(FieldError::invalid(
            format!("{path}.maxUnavailable"),
            text.as_str(),
            "must not be greater than 100%",
        ));
    }
}

pub(crate) fn deployment_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.selector", errors);
}

pub(crate) fn selector_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.selector", errors);
}

pub(crate) fn replica_set(object: &Value, errors: &mut Errors) {
    counts(object, &["replicas", "minReadySeconds"], errors);
    workload_selector(spec_of(object), "deployment", errors);
    always_template(object, errors);
}

pub(crate) fn replication_controller(object: &Value, errors: &mut Errors) {
    counts(object, &["replicas", "minReadySeconds"], errors);
    match read::map(object, "spec.selector") {
        None => errors.push(FieldError::required("spec.selector", "")),
        Some(selector) if selector.is_empty() => errors.push(FieldError::required("spec.selector", "")),
        Some(selector) => {
            let selector = serde_json::json!({"matchLabels": selector});
            selector_matches_template(spec_of(object), &selector, errors);
        }
    }
    always_template(object, errors);
}

pub(crate) fn daemon_set(object: &Value, errors: &mut Errors) {
    counts(object, &["minReadySeconds", "revisionHistoryLimit"], errors);
    workload_selector(spec_of(object), "daemonset", errors);
    always_template(object, errors);
    if let Some(rolling) = read::at(object, "spec.updateStrategy.rollingUpdate") {
        let path = "spec.updateStrategy.rollingUpdate";
        int_or_percent(rolling, Path(path), "maxUnavailable", errors);
        int_or_percent(rolling, Path(path), "maxSurge", errors);
        let (down, up) = (int_or_percent_value(rolling, "maxUnavailable"), int_or_percent_value(rolling, "maxSurge"));
        if down == 0 && up == 0 {
            let value = read::at(rolling, "maxUnavailable").cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(format!("{path}.maxUnavailable"), value, "cannot be 0 when maxSurge is 0"));
        } else if down != 0 && up != 0 {
            let value = read::at(rolling, "maxSurge").cloned().unwrap_or(Value::Null);
            let message = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(format!("{path}.maxSurge"), value, message));
        }
    }
}

/// The set as its pods will be: each claim template is a volume that containers may mount.
fn with_claims_mounted(object: &Value) -> Value {
    let mut whole = object.clone();
    let claims: Vec<String> = read::list(spec_of(object), "volumeClaimTemplates")
        .iter()
        .map(|claim| model::meta::name(claim).to_owned())
        .collect();
    let Some(spec) = whole.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) else { return whole };
    let volumes = spec.entry("volumes").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(volumes) = volumes.as_array_mut() {
        for name in claims {
            if volumes.iter().all(|volume| volume["name"] != name) {
                volumes.push(serde_json::json!({"name": name, "emptyDir": {}}));
            }
        }
    }
    whole
}

pub(crate) fn stateful_set(object: &Value, errors: &mut Errors) {
    counts(object, &["replicas", "minReadySeconds"], errors);
    workload_selector(spec_of(object), "statefulset", errors);
    always_template(&with_claims_mounted(object), errors);
    match read::text(object, "spec.podManagementPolicy") {
        "" => errors.push(FieldError::required("spec.podManagementPolicy", "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            errors.push(FieldError::invalid("spec.podManagementPolicy", other, "must be 'OrderedReady' or 'Parallel'"))
        }
    }
    let strategy = read::at(object, "spec.updateStrategy").unwrap_or(&Value::Null);
    match (read::text(strategy, "type"), read::at(strategy, "rollingUpdate")) {
        ("", _) => errors.push(FieldError::required("spec.updateStrategy", "")),
        ("OnDelete", Some(rolling)) => {
            let message = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid("spec.updateStrategy.rollingUpdate", rolling.clone(), message));
        }
        ("OnDelete" | "RollingUpdate", _) => {}
        (other, rolling) => {
            let of = |field: &str| rolling.and_then(|rolling| read::at(rolling, field)).cloned().unwrap_or(Value::Null);
            let inside = rolling
                .map(|_| serde_json::json!({"Partition": of("partition"), "MaxUnavailable": of("maxUnavailable")}));
            let shown = serde_json::json!({"Type": other, "RollingUpdate": inside});
            errors.push(FieldError::invalid("spec.updateStrategy", shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
    not_negative(strategy, Path("spec.updateStrategy"), "rollingUpdate.partition", errors);
    not_negative(spec_of(object), Path("spec"), "ordinals.start", errors);
    let (path, supported) = ("spec.persistentVolumeClaimRetentionPolicy", ["Retain", "Delete"]);
    if let Some(policy) = read::at(object, path) {
        for field in ["whenDeleted", "whenScaled"].into_iter().filter(|f| !supported.contains(&read::text(policy, f))) {
            errors.push(FieldError::not_supported(format!("{path}.{field}"), read::text(policy, field), &supported));
        }
    }
}

/// Fields of a set that are fixed once it is there, and so only judged when it is new.
pub(crate) fn new_stateful_set(object: &Value, errors: &mut Errors) {
    for (idx, claim) in read::list(spec_of(object), "volumeClaimTemplates").iter().enumerate() {
        let spec = read::at(claim, "spec").unwrap_or(&Value::Null);
        storage::claim_spec(spec, Path(&format!("spec.volumeClaimTemplates[{idx}].spec")), errors);
    }
    if let Some(name) = read::some_text(object, "spec.serviceName") {
        invalid_each(Path("spec.serviceName"), name, names::dns_label_errors(name), errors);
    }
}

const STATEFUL_MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(crate) fn stateful_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = |object: &Value| {
        let mut spec = read::map(object, "spec").cloned().unwrap_or_default();
        spec.retain(|k, _| !STATEFUL_MUTABLE.contains(&k.as_str()));
        // The status of a claim template is nobody's wish.
        for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(map) = claim.as_object_mut() {
                map.remove("status");
            }
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let message = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
            'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are \
                forbidden";
        errors.push(FieldError::forbidden("spec", message));
    }
}

pub(crate) fn controller_revision(object: &Value, errors: &mut Errors) {
    if read::at(object, "data").is_none() {
        errors.push(FieldError::required("data", "data is mandatory"));
    }
    not_negative(object, Path(""), "revision", errors);
}

pub(crate) fn controller_revision_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "data", errors);
}

fn job_spec(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
    ] {
        not_negative(spec, path, field, errors);
    }
    job::modes(spec, path, errors);
    pod_template(spec, "template", Path(&format!("{path}.template")), errors);
    let policy = read::text(spec, "template.spec.restartPolicy");
    let here = format!("{path}.template.spec.restartPolicy");
    if matches!(policy, "" | "Always") {
        errors.push(FieldError::required(here, "valid values: \"OnFailure\", \"Never\""));
    } else if !matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::not_supported(here, policy, &["OnFailure", "Never"]));
    } else if read::at(spec, "podFailurePolicy").is_some() && policy != "Never" {
        let message = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(FieldError::invalid(here, policy, message));
    }
}

pub(crate) fn job(object: &Value, errors: &mut Errors) {
    let spec = spec_of(object);
    job_spec(spec, Path("spec"), errors);
    match read::at(spec, "selector") {
        None => errors.push(FieldError::required("spec.selector", "")),
        Some(selector) => {
            label_selector(selector, Path("spec.selector"), errors);
            selector_matches_template(spec, selector, errors);
        }
    }
}

/// A new job's selector is the server's, unless somebody says that it is theirs.
pub(crate) fn new_job(object: &Value, errors: &mut Errors) {
    let Some(selector) = read::at(object, "spec.selector").filter(|_| !read::flag(object, "spec.manualSelector"))
    else {
        return;
    };
    let labels = read::map(selector, "matchLabels");
    let generated = labels.is_none_or(|labels| labels.keys().all(|key| key.ends_with("controller-uid")));
    if !generated || !read::list(selector, "matchExpressions").is_empty() {
        errors.push(FieldError::invalid("spec.selector", selector.clone(), "`selector` not auto-generated"));
    }
}

pub(crate) fn job_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = [
        "spec.selector",
        "spec.completionMode",
        "spec.podFailurePolicy",
        "spec.backoffLimitPerIndex",
        "spec.managedBy",
    ];
    for field in fixed {
        immutable(new, old, field, errors);
    }
    if read::text(new, "spec.completionMode") != "Indexed" {
        immutable(new, old, "spec.completions", errors);
    } else {
        let path = "spec.completions";
        let (now, before) = (read::integer(new, path), read::integer(old, path));
        if now != before && now != read::integer(new, "spec.parallelism") {
            errors.push(FieldError::invalid(
                path,
                now,
                format!("can only be modified in tandem with {}", "spec.parallelism"),
            ));
        }
    }
    let open = may_change_template(old);
    let path = if open { "spec.template.spec" } else { "spec.template" };
    let kept = |object: &Value| {
        let mut kept = read::at(object, path).cloned().unwrap_or_default();
        if let Some(spec) = kept.as_object_mut().filter(|_| open) {
            drop_what_may_change(spec);
        }
        kept
    };
    if kept(new) != kept(old) {
        let value = read::at(new, path).cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid(path, value, IMMUTABLE));
    }
}

/// A suspended job without pods may still change where its pods go and what they ask for, also if it has run before.
/// Spec: upstream's `shouldAllowMutablePodTemplate` (1.36.2).
fn may_change_template(old: &Value) -> bool {
    let conditions = read::list(old, "status.conditions");
    let suspended =
        conditions.iter().any(|c| read::text(c, "type") == "Suspended" && read::text(c, "status") == "True");
    read::flag(old, "spec.suspend")
        && (suspended || read::at(old, "status.startTime").is_none())
        && read::integer(old, "status.active").unwrap_or(0) == 0
}

/// Leaves of a pod's spec what stays as it is.
fn drop_what_may_change(spec: &mut serde_json::Map<String, Value>) {
    spec.retain(|k, _| !["nodeSelector", "tolerations", "schedulingGates"].contains(&k.as_str()));
    if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
        affinity.remove("nodeAffinity");
        if affinity.is_empty() {
            spec.remove("affinity");
        }
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            container.remove("resources");
        }
    }
}

fn schedule_error(text: &str) -> Option<String> {
    if text.contains("TZ") {
        return Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    base::cron::Schedule::parse(text).err().map(|err| err.to_string())
}

fn time_zone(spec: &Value, errors: &mut Errors) {
    let Some(zone) = spec.get("timeZone").and_then(Value::as_str) else { return };
    let invalid = |text: &str| FieldError::invalid("spec.timeZone", zone, text);
    if zone.is_empty() {
        errors.push(invalid("timeZone must be nil or non-empty string"));
    } else if zone.eq_ignore_ascii_case("local") {
        errors.push(invalid("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"));
    } else if !base::cron::is_zone(zone) {
        errors.push(invalid(&format!("unknown time zone {zone}")));
    }
}

pub(crate) fn cron_job(object: &Value, errors: &mut Errors) {
    let spec = spec_of(object);
    let schedule = read::text(spec, "schedule");
    if schedule.is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    } else if let Some(message) = schedule_error(schedule) {
        errors.push(FieldError::invalid("spec.schedule", schedule, message));
    }
    time_zone(spec, errors);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        not_negative(spec, Path("spec"), field, errors);
    }
    if model::meta::name(object).len() > 52 {
        errors.push(FieldError::invalid(
            "metadata.name",
            model::meta::name(object),
            "must be no more than 52 characters",
        ));
    }
    let policy = read::text(spec, "concurrencyPolicy");
    if !["", "Allow", "Forbid", "Replace"].contains(&policy) {
        errors.push(FieldError::not_supported("spec.concurrencyPolicy", policy, &["Allow", "Forbid", "Replace"]));
    }
    let job = read::at(spec, "jobTemplate.spec").unwrap_or(&Value::Null);
    job_spec(job, Path("spec.jobTemplate.spec"), errors);
    if let Some(selector) = read::at(job, "selector") {
        errors.push(FieldError::invalid(
            "spec.jobTemplate.spec.selector",
            selector.clone(),
            "`selector` will be auto-generated",
        ));
    }
    if read::flag(job, "manualSelector") {
        errors.push(FieldError::not_supported("spec.jobTemplate.spec.manualSelector", true, &["nil", "false"]));
    }
}

pub(crate) fn disruption_budget(object: &Value, errors: &mut Errors) {
    let spec = spec_of(object);
    if read::at(spec, "minAvailable").is_some() && read::at(spec, "maxUnavailable").is_some() {
        let message = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", spec.clone(), message));
    }
    int_or_percent(spec, Path("spec"), "minAvailable", errors);
    int_or_percent(spec, Path("spec"), "maxUnavailable", errors);
    for field in ["minAvailable", "maxUnavailable"] {
        if read::at(spec, field).is_some_and(Value::is_string) && int_or_percent_value(spec, field) > 100 {
            let value = read::at(spec, field).cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(format!("spec.{field}"), value, "must not be greater than 100%"));
        }
    }
    let unhealthy = read::at(spec, "unhealthyPodEvictionPolicy").and_then(Value::as_str);
    if let Some(unhealthy) = unhealthy.filter(|policy| !matches!(*policy, "AlwaysAllow" | "IfHealthyBudget")) {
        errors.push(FieldError::not_supported(
            "spec.unhealthyPodEvictionPolicy",
            unhealthy,
            &["AlwaysAllow", "IfHealthyBudget"],
        ));
    }
    if let Some(selector) = read::at(spec, "selector") {
        label_selector(selector, Path("spec.selector"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Spec: upstream 1.36.2, MutablePodResourcesForSuspendedJobs and MutableSchedulingDirectivesForSuspendedJobs.
    #[test]
    fn a_suspended_job_without_pods_may_ask_for_other_resources_and_nothing_else() {
        let job = |status: Value, container: Value, more: Value| {
            let mut spec = json!({"containers": [container], "affinity": {"podAffinity": {}}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"spec": {"suspend": true, "template": {"metadata": {}, "spec": spec}}, "status": status})
        };
        let plain = || json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
        let refused = |status: Value, container: Value, more: Value| {
            let mut errors = Errors::new();
            job_update(&job(json!({}), container, more), &job(status, plain(), json!({})), &mut errors);
            errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
        };
        let more = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}});
        let stopped =
            json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]});
        assert!(refused(json!({}), more.clone(), json!({})).is_empty());
        assert!(refused(stopped.clone(), more.clone(), json!({"nodeSelector": {"a": "b"}})).is_empty());
        let near = json!({"affinity": {"podAffinity": {}, "nodeAffinity": {}}});
        assert!(refused(stopped.clone(), plain(), near).is_empty());
        assert_eq!(refused(stopped, json!({"name": "c", "image": "other"}), json!({})), ["spec.template.spec"]);
        assert_eq!(refused(json!({}), plain(), json!({"affinity": null})), ["spec.template.spec"]);
        // Its pods are still there, or it has not been stopped yet.
        assert_eq!(refused(json!({"active": 1}), more.clone(), json!({})), ["spec.template"]);
        assert_eq!(refused(json!({"startTime": "2026-01-01T00:00:00Z"}), more, json!({})), ["spec.template"]);
    }
}
