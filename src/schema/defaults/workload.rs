//! Defaults of apps, batch and autoscaling.

use serde_json::{Value, json};

use super::{Object, at, each, has, is_empty, make, put, put_zero, text};
use crate::defaults::pod;

pub(super) fn replication_controller(object: &mut Object) {
    let labels = object.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    if let Some(labels) = labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty())) {
        if is_empty(spec, "selector") {
            spec.insert("selector".into(), labels.clone());
        }
        let metadata = make(object, "metadata");
        if is_empty(metadata, "labels") {
            metadata.insert("labels".into(), labels);
        }
    }
    let spec = make(object, "spec");
    if has(spec, "template") {
        pod::template(spec);
    }
}

pub(super) fn deployment(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    put(spec, "progressDeadlineSeconds", 600);
    let strategy = make(spec, "strategy");
    put_zero(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = make(strategy, "rollingUpdate");
        put(rolling, "maxUnavailable", "25%");
        put(rolling, "maxSurge", "25%");
    }
    pod::template(spec);
}

pub(super) fn replica_set(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    pod::template(spec);
}

pub(super) fn daemon_set(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "revisionHistoryLimit", 10);
    let strategy = make(spec, "updateStrategy");
    put_zero(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = make(strategy, "rollingUpdate");
        put(rolling, "maxUnavailable", 1);
        put(rolling, "maxSurge", 0);
    }
    pod::template(spec);
}

pub(super) fn stateful_set(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    put_zero(spec, "podManagementPolicy", "OrderedReady");
    let strategy = make(spec, "updateStrategy");
    // Who names the strategy also says how it rolls, or leaves it at that.
    if text(strategy, "type").is_empty() {
        put_zero(strategy, "type", "RollingUpdate");
        make(strategy, "rollingUpdate");
    }
    if text(strategy, "type") == "RollingUpdate"
        && let Some(rolling) = at(strategy, "rollingUpdate")
    {
        put(rolling, "partition", 0);
    }
    let retention = make(spec, "persistentVolumeClaimRetentionPolicy");
    put_zero(retention, "whenDeleted", "Retain");
    put_zero(retention, "whenScaled", "Retain");
    for claim in each(spec, "volumeClaimTemplates") {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        super::core::persistent_volume_claim(claim);
    }
    pod::template(spec);
}

pub(super) fn job(object: &mut Object) {
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
    pod::template(spec);
    let metadata = make(object, "metadata");
    if let Some(labels) =
        labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty()) && is_empty(metadata, "labels"))
    {
        metadata.insert("labels".into(), labels);
    }
}

pub(super) fn cron_job(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "concurrencyPolicy", "Allow");
    put(spec, "suspend", false);
    put(spec, "successfulJobsHistoryLimit", 3);
    put(spec, "failedJobsHistoryLimit", 1);
    let job = make(make(spec, "jobTemplate"), "spec");
    failure_policy(job);
    pod::template(job);
}

/// A condition of a pod is meant to be true.
fn failure_policy(job: &mut Object) {
    if let Some(policy) = at(job, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            each(rule, "onPodConditions").for_each(|c| put_zero(c, "status", "True"));
        }
    }
}

pub(super) fn autoscaler(object: &mut Object) {
    let v1 = text(object, "apiVersion") == "autoscaling/v1";
    let spec = make(object, "spec");
    put(spec, "minReplicas", 1);
    if v1 {
        return;
    }
    if is_empty(spec, "metrics") {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.insert("metrics".into(), json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    let Some(behavior) = at(spec, "behavior") else { return };
    let up = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]);
    let rules = make(behavior, "scaleUp");
    put(rules, "stabilizationWindowSeconds", 0);
    scaling_rules(rules, up);
    let rules = make(behavior, "scaleDown");
    scaling_rules(rules, json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
}

fn scaling_rules(rules: &mut Object, policies: Value) {
    put(rules, "selectPolicy", "Max");
    if is_empty(rules, "policies") {
        rules.insert("policies".into(), policies);
    }
}
