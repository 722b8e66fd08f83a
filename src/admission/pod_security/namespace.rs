//! A namespace's own labels on their way in: they must be readable, and whoever makes a namespace stricter hears which
//! of its pods are not.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use base::time::Stopwatch;
use model::meta;
use model::reference::{GroupKind, GroupResource};
use registry::status::Status;
use serde_json::Value;

use super::PodSecurity;
use super::checks::{Level, reasons, violations};
use super::policy::{Asked, LABELS, Policy};
use crate::{Operation, Review};

/// So many pods of a namespace are looked at (pod-security-admission `admission/admission.go`, 1.36.2).
const PODS_MAX: usize = 3000;
/// So long.
const TIME_MAX: Duration = Duration::from_secs(1);
/// After so many, others have a turn.
const PODS_AT_ONCE: usize = 64;

/// Judges the labels, and warns.
///
/// Errors: a label that cannot be read and was not there before, as a typing error must not leave a namespace open.
pub(super) async fn judge(plugin: &PodSecurity, review: &Review<'_>) -> Result<(), Status> {
    let (policy, causes) = Policy::of(review.object, &plugin.0.defaults);
    let before = review.old.map(|old| Policy::of(old, &plugin.0.defaults));
    let known = before.as_ref().is_some_and(|(_, old_causes)| *old_causes == causes);
    if !causes.is_empty() && !known {
        return Err(Status::invalid(GroupKind { group: "", kind: "Namespace" }, &review.attributes.name, causes));
    }
    let (Operation::Update, Some((old, _))) = (review.operation, before) else { return Ok(()) };
    let (new, old) = (policy.enforce, old.enforce);
    let relaxed = new.version == old.version && new.level <= old.level;
    if new == old || new.level == Level::Privileged || relaxed {
        return Ok(());
    }
    let name = &review.attributes.name;
    let warnings = if plugin.0.exempts_namespace(name) {
        exempt(name, review.object, &policy, &plugin.0.defaults).into_iter().collect()
    } else {
        pods(plugin, review, name, new).await
    };
    review.attributes.trail.warn(warnings);
    Ok(())
}

/// That the labels of a namespace that nobody judges mean nothing; nothing if they ask for what holds anyhow.
fn exempt(name: &str, namespace: &Value, policy: &Policy, defaults: &Policy) -> Option<String> {
    if policy.is_fully_privileged() || policy.is_like(defaults) {
        return None;
    }
    let said = |mode: &str| {
        ["", "-version"].iter().any(|end| meta::label(namespace, &format!("{LABELS}/{mode}{end}")).is_some())
    };
    let modes = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
    let listed = modes.into_iter().filter(|(mode, asked)| asked.level != Level::Privileged && said(mode));
    let listed: Vec<String> = listed.map(|(mode, asked)| format!("{mode}={asked}")).collect();
    Some(format!(
        "namespace {name:?} is exempt from Pod Security, and the policy ({}) will be ignored",
        listed.join(", ")
    ))
}

/// Which pods that are there already break what is enforced from now on; they go on, but would not be let in again.
async fn pods(plugin: &PodSecurity, review: &Review<'_>, namespace: &str, asked: Asked) -> Vec<String> {
    review.lookup.load(GroupResource::core("pods")).await;
    let all = review.lookup.list(GroupResource::core("pods"), Some(namespace));
    // One pod of each controller comes first, as its siblings say the same.
    let mut controllers = HashSet::new();
    let judged = all.iter().filter(|pod| !plugin.0.exempts_class(&pod["spec"]));
    let (mut pods, siblings): (Vec<_>, Vec<_>) =
        judged.partition(|pod| meta::controller_of(pod).is_none_or(|owner| controllers.insert(owner.uid.to_owned())));
    pods.extend(siblings);
    let started = Stopwatch::start();
    let (mut looked_at, mut found) = (0, BTreeMap::<String, Vec<&str>>::new());
    for pod in pods.iter().take(PODS_MAX) {
        let why = violations(asked, &pod["metadata"], &pod["spec"]);
        if !why.is_empty() {
            found.entry(reasons(&why)).or_default().push(meta::name(pod));
        }
        looked_at += 1;
        if started.elapsed() > TIME_MAX {
            break;
        }
        if looked_at % PODS_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut warnings = Vec::new();
    if looked_at < pods.len() {
        let total = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {looked_at} of {total} existing pods"
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{asked}\""
        ));
    }
    let mut texts: Vec<String> = found.iter().map(|(why, names)| named(names, why)).collect();
    texts.sort();
    warnings.extend(texts);
    warnings
}

/// `first (and 2 other pods): why`
fn named(names: &[&str], why: &str) -> String {
    let first = names.iter().min().copied().unwrap_or_default();
    match names.len() {
        0 | 1 => format!("{first}: {why}"),
        2 => format!("{first} (and 1 other pod): {why}"),
        n => format!("{first} (and {} other pods): {why}", n - 1),
    }
}
