//! Changes that a running pod takes: images, deadlines, more tolerations, fewer scheduling gates.

use std::collections::{HashMap, HashSet};

use model::qos;
use serde_json::Value;

use crate::read;
use crate::validate::checks::Errors;
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const ALLOWED: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
        additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
            previously negative)";

/// A pod gated from scheduling may still change where it can go.
fn is_gated(pod: &Value) -> bool {
    !read::list(pod, "spec.schedulingGates").is_empty()
}

pub(crate) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["containers", "initContainers"] {
        let path = format!("spec.{field}");
        if read::list(new, &path).len() != read::list(old, &path).len() {
            errors.push(FieldError::forbidden(path, "pod updates may not add or remove containers"));
            return;
        }
    }
    deadline(new, old, errors);
    let timeless = |pod| read::list(pod, "spec.tolerations").iter().map(|t| without(t, "tolerationSeconds"));
    let tolerations: HashSet<Value> = timeless(new).collect();
    if !timeless(old).all(|toleration| tolerations.contains(&toleration)) {
        let message = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", message));
    }
    let gates: HashSet<&Value> = read::list(old, "spec.schedulingGates").iter().collect();
    if let Some(idx) = read::list(new, "spec.schedulingGates").iter().position(|g| !gates.contains(g)) {
        let message = "only deletion is allowed, but found new scheduling gate";
        errors.push(FieldError::forbidden(format!("spec.schedulingGates[{idx}]"), message));
    }
    if is_gated(old) {
        narrower(new, old, errors);
    }
    let changed = changed_fields(new, old);
    if !changed.is_empty() {
        errors.push(FieldError::forbidden("spec", format!("{ALLOWED}\n{}", changed.join("\n"))));
    }
}

/// Where a gated pod may go only becomes narrower.
fn narrower(new: &Value, old: &Value, errors: &mut Errors) {
    let selector = |pod| read::map(pod, "spec.nodeSelector");
    let kept =
        selector(old).is_none_or(|old| old.iter().all(|(k, v)| selector(new).is_some_and(|new| new.get(k) == Some(v))));
    if !kept {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(
            "spec.nodeSelector",
            read::at(new, "spec.nodeSelector").cloned().unwrap_or(Value::Null),
            why,
        ));
    }
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let (now, before) = (read::list(new, path), read::list(old, path));
    if !before.is_empty() && now.len() != before.len() {
        errors.push(FieldError::invalid(
            path,
            now.to_vec(),
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        ));
        return;
    }
    for (idx, (now, before)) in now.iter().zip(before).enumerate() {
        let starts = |field| read::list(now, field).starts_with(read::list(before, field));
        let empty = |field| read::list(before, field).is_empty();
        let fields = ["matchExpressions", "matchFields"];
        if fields.iter().all(|f| empty(f)) && now != before || !fields.iter().all(|f| starts(f)) {
            let why = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(format!("{path}[{idx}]"), now.clone(), why));
        }
    }
}

/// Of a running pod's resources, CPU and memory may change; none may be taken away, and the class of service stays.
pub(crate) fn resize(new: &Value, old: &Value, errors: &mut Errors) {
    let found = errors.len();
    if model::meta::annotation(old, "kubernetes.io/config.mirror").is_some() {
        errors.push(FieldError::forbidden("", "static pods cannot be resized"));
        return;
    }
    if qos::qos_class(new) != qos::qos_class(old) {
        let class = read::text(new, "status.qosClass");
        errors.push(FieldError::invalid("spec", class, "Pod QOS Class may not change as a result of resizing"));
    }
    let running = read::list(old, "status.containerStatuses").iter().find(|c| read::at(c, "state.running").is_some());
    if running.is_some_and(|c| read::at(c, "resources").is_none()) {
        errors.push(FieldError::forbidden("spec", "Pod running on node without support for resize"));
    }
    whole_resize(new, old, errors);
    let ordered = errors.len();
    for field in ["containers", "initContainers"] {
        same_names(new, old, field, errors);
    }
    if errors.len() > ordered {
        return;
    }
    for field in ["initContainers", "containers"] {
        let path = format!("spec.{field}");
        for (idx, (now, before)) in read::list(new, &path).iter().zip(read::list(old, &path)).enumerate() {
            if now != before {
                container_resize(now, before, field, Path(&format!("{path}[{idx}]")), errors);
            }
        }
    }
    let rest = |pod: &Value| {
        let mut spec = read::at(pod, "spec").cloned().unwrap_or_default();
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|field, _| !matches!(field.as_str(), "containers" | "initContainers" | "resources"));
        }
        spec
    };
    if errors.len() == found && rest(new) != rest(old) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
    }
}

/// The resources of a pod as a whole may come, and change in CPU and memory, and do not go. Spec: upstream's
/// `validatePodLevelResourcesResize` (1.36.2).
fn whole_resize(new: &Value, old: &Value, errors: &mut Errors) {
    let of = |pod| read::at(pod, "spec.resources").filter(|own| !own.is_null());
    let (now, before) = (of(new), of(old));
    if before.is_some() && now.is_none() {
        return errors.push(FieldError::forbidden("spec.resources", "pod-level resources cannot be removed"));
    }
    removed(
        read::at(new, "spec").unwrap_or(&Value::Null),
        read::at(old, "spec").unwrap_or(&Value::Null),
        Path("spec"),
        "pod-level ",
        errors,
    );
    let own = |resources: Option<&Value>| {
        fixed(&serde_json::json!({"resources": resources.unwrap_or(&serde_json::json!({}))}))
    };
    if own(now) != own(before) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Containers neither come, go nor change places.
fn same_names(new: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let path = format!("spec.{field}");
    let (now, before) = (read::list(new, &path), read::list(old, &path));
    if now.len() != before.len() {
        return errors.push(FieldError::forbidden(path, format!("{field} may not be added or removed on resize")));
    }
    for (idx, (now, before)) in now.iter().zip(before).enumerate() {
        if now["name"] != before["name"] {
            let why = format!("{field} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden(format!("{path}[{idx}].name"), why));
        }
    }
}

fn container_resize(now: &Value, before: &Value, field: &str, path: Path<'_>, errors: &mut Errors) {
    removed(now, before, path, "", errors);
    let is_init = field == "initContainers";
    if fixed(now) != fixed(before) {
        errors.push(if is_init {
            FieldError::forbidden(path, "only cpu and memory resources for init or sidecar containers are mutable")
        } else {
            FieldError::forbidden("spec", "only cpu and memory resources are mutable")
        });
    }
    let restarts = |policy: &Value| read::text(policy, "restartPolicy") == "RestartContainer";
    if is_init
        && read::text(before, "restartPolicy") != "Always"
        && read::list(now, "resizePolicy").iter().any(restarts)
    {
        let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.push(FieldError::forbidden(path, why));
    }
}

/// Requests and limits of a container, or of the pod, that are gone.
fn removed(now: &Value, before: &Value, path: Path<'_>, whose: &str, errors: &mut Errors) {
    for sort in ["requests", "limits"] {
        let names = |c| read::map(c, &format!("resources.{sort}")).into_iter().flatten().map(|(k, _)| k.clone());
        let left: HashSet<String> = names(now).collect();
        if names(before).any(|name| !left.contains(&name)) {
            errors.push(FieldError::forbidden(
                format!("{path}.resources.{sort}"),
                format!("{whose}resource {sort} cannot be removed"),
            ));
        }
    }
}

/// A container without what a resize may change.
fn fixed(container: &Value) -> Value {
    let mut container = container.clone();
    for sort in ["requests", "limits"] {
        if let Some(map) = container.get_mut("resources").and_then(|r| r.get_mut(sort)).and_then(Value::as_object_mut) {
            map.retain(|name, _| name != "cpu" && name != "memory");
        }
    }
    let empty = |v: &Value| v.as_object().is_some_and(serde_json::Map::is_empty);
    if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
        resources.retain(|_, v| !empty(v));
    }
    container
}

/// Ephemeral containers only ever come.
pub(crate) fn ephemeral(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "spec.ephemeralContainers";
    let mut now = HashMap::new();
    for container in read::list(new, path) {
        now.entry(read::text(container, "name")).or_insert(container);
    }
    for container in read::list(old, path) {
        let name = read::text(container, "name");
        let found = now.get(name).copied();
        if found != Some(container) {
            let what = if found.is_none() { "removed" } else { "changed" };
            errors.push(FieldError::forbidden(
                path,
                format!("existing ephemeral containers {name:?} may not be {what}\n"),
            ));
        }
    }
}

fn without(value: &Value, field: &str) -> Value {
    let mut value = value.clone();
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
    value
}

fn deadline(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "spec.activeDeadlineSeconds";
    match (read::integer(new, path), read::integer(old, path)) {
        (Some(now), Some(before)) if now > before => {
            errors.push(FieldError::invalid(path, now, "must be less than or equal to previous value"));
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(path, Value::Null, "must not update from a positive integer to nil value"));
        }
        _ => {}
    }
}

/// Top-level fields of the spec that changed although they may not.
fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let comparable = |pod: &Value| {
        let mut spec = read::at(pod, "spec").cloned().unwrap_or_default();
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(map) = container.as_object_mut() {
                    map.remove("image");
                }
            }
        }
        let mut loose = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
        if read::number(old, "spec.terminationGracePeriodSeconds") < 0 {
            loose.push("terminationGracePeriodSeconds");
        }
        if is_gated(old) {
            loose.push("nodeSelector");
            if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
                affinity.remove("nodeAffinity");
            }
            if spec.get("affinity").is_some_and(|a| a.as_object().is_some_and(serde_json::Map::is_empty)) {
                loose.push("affinity");
            }
        }
        if let Some(map) = spec.as_object_mut() {
            map.retain(|k, _| !loose.contains(&k.as_str()));
        }
        spec
    };
    let (now, before) = (comparable(new), comparable(old));
    let empty = serde_json::Map::new();
    let (now, before) = (now.as_object().unwrap_or(&empty), before.as_object().unwrap_or(&empty));
    let mut names: Vec<&String> = now.keys().chain(before.keys()).filter(|k| now.get(*k) != before.get(*k)).collect();
    names.sort();
    names.dedup();
    let show = |v: Option<&Value>| v.map_or_else(|| "nil".to_owned(), Value::to_string);
    names.into_iter().map(|k| format!("  {k}: {} -> {}", show(before.get(k)), show(now.get(k)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(check: fn(&Value, &Value, &mut Errors), new: &Value, old: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        check(new, old, &mut errors);
        errors.iter().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_resize_changes_cpu_and_memory_and_nothing_else() {
        let pod = |resources: Value, policy: &str| {
            json!({"spec": {"containers": [{"name": "a", "resources": resources,
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]}]}})
        };
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}), "NotRequired");
        assert!(said(resize, &pod(json!({"requests": {"cpu": "2", "memory": "2Gi"}}), "NotRequired"), &old).is_empty());
        assert_eq!(
            said(resize, &pod(json!({"requests": {"cpu": "2"}}), "NotRequired"), &old),
            ["spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"]
        );
        assert_eq!(
            said(resize, &pod(json!({"requests": {"cpu": "1", "memory": "1Gi", "x.io/y": "1"}}), "NotRequired"), &old),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        assert_eq!(
            said(resize, &pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}), "RestartContainer"), &old),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let all = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        assert!(
            said(resize, &pod(all, "NotRequired"), &old)[0]
                .ends_with("Pod QOS Class may not change as a result of resizing")
        );
    }

    // upstream's e2e specs of resizes, with names and as a whole
    #[test]
    fn a_resize_keeps_containers_and_may_begin_to_speak_of_the_pod_as_a_whole() {
        let own = json!({"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}});
        let pod = |names: &[&str], whole: Value| {
            let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "resources": own})).collect();
            json!({"spec": {"containers": containers, "resources": whole}})
        };
        let old = pod(&["a", "b"], Value::Null);
        let mut bare = old.clone();
        bare["spec"].as_object_mut().unwrap().remove("resources");
        let cpu = json!({"requests": {"cpu": "5m"}, "limits": {"cpu": "25m"}});
        assert!(said(resize, &pod(&["a", "b"], cpu.clone()), &bare).is_empty());
        let why = "Forbidden: containers may not be renamed or reordered on resize";
        assert_eq!(
            said(resize, &pod(&["b", "a"], Value::Null), &old),
            [format!("spec.containers[0].name: {why}"), format!("spec.containers[1].name: {why}")]
        );
        assert_eq!(
            said(resize, &pod(&["a"], Value::Null), &old),
            ["spec.containers: Forbidden: containers may not be added or removed on resize"]
        );
        let set = pod(&["a", "b"], cpu);
        assert_eq!(said(resize, &bare, &set), ["spec.resources: Forbidden: pod-level resources cannot be removed"]);
        let fewer = pod(&["a", "b"], json!({"requests": {"cpu": "5m"}}));
        assert_eq!(
            said(resize, &fewer, &set),
            ["spec.resources.limits: Forbidden: pod-level resource limits cannot be removed"]
        );
        let huge =
            pod(&["a", "b"], json!({"requests": {"cpu": "5m", "hugepages-2Mi": "2Mi"}, "limits": {"cpu": "25m"}}));
        assert_eq!(
            said(resize, &huge, &set),
            ["spec: Forbidden: only cpu and memory resources are mutable at pod-level"]
        );
    }

    #[test]
    fn an_init_container_is_resized_unless_that_would_start_it_again() {
        let pod = |cpu: &str, policy: &str| {
            let init = json!({"name": "i", "resources": {"requests": {"cpu": cpu}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]});
            json!({"spec": {"initContainers": [init],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}})
        };
        assert!(said(resize, &pod("2", "NotRequired"), &pod("1", "NotRequired")).is_empty());
        let why = said(resize, &pod("2", "RestartContainer"), &pod("1", "RestartContainer"));
        let text = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        assert_eq!(why, [format!("spec.initContainers[0]: Forbidden: {text}")]);
    }

    #[test]
    fn a_gated_pod_may_only_be_told_more_about_its_place() {
        let pod = |selector: Value, keys: &[&str]| {
            let expressions: Vec<Value> = keys.iter().map(|k| json!({"key": k, "operator": "Exists"})).collect();
            let required = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
            json!({"spec": {"schedulingGates": [{"name": "g"}], "nodeSelector": selector, "containers": [],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}})
        };
        let old = pod(json!({"a": "b"}), &["x"]);
        assert!(said(update, &pod(json!({"a": "b", "c": "d"}), &["x", "y"]), &old).is_empty());
        assert!(said(update, &pod(json!({"a": "c"}), &["x"]), &old)[0].contains("only additions to spec.nodeSelector"));
        assert!(said(update, &pod(json!({"a": "b"}), &["y"]), &old)[0].contains("only additions are allowed"));
        let mut other = old.clone();
        other["spec"]["affinity"]["podAffinity"] = json!({});
        assert!(said(update, &other, &old)[0].starts_with("spec: Forbidden: pod updates may not change fields"));
    }
}
