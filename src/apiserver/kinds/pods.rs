//! Pods beyond their storage: the server binds and evicts them, and leads to what runs in them.

use std::sync::Arc;

use base::url;
use http::{Response, StatusCode};
use jiff::Timestamp;
use model::meta;
use model::reference::{GroupKind, GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::connect::Target;
use registry::forms;
use registry::status::Status;
use serde_json::{Value, json};
use wire::Body;

use super::eviction;
use super::passing::{self, assigned_node, behind_proxy, named, proxyable, scheme_name_port};
use super::posted::{admit, posted};
use crate::verbs::judge::Part;
use crate::verbs::write::{self, Maker};
use crate::verbs::{Call, create, delete, managers};

/// `POST bindings`: the old address of `pods/binding`, with the pod's name in the body.
pub(super) async fn bind_by_name(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let object = create::posted(call).await?;
    let pods = forms::stored(GroupResource::core("pods")).ok_or_else(Status::no_such_resource)?;
    (call.resource, call.stored) = (Arc::clone(&pods), pods);
    call.x.attributes.name = meta::name(&object).to_owned();
    bind(call, object).await
}

/// `POST pods/binding`: puts a pod on a node.
pub(super) async fn binding(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let object = posted(call).await?;
    bind(call, object).await
}

async fn bind(call: &mut Call<'_, '_>, mut binding: Value) -> Result<Response<Body>, Status> {
    let dry_run = call.dry_run()?;
    admit(call, "Binding", &mut binding, dry_run).await?;
    let name = call.x.attributes.name.clone();
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let target = binding["target"]["kind"].as_str().unwrap_or_default();
    if node.is_empty() || !matches!(target, "" | "Node") {
        let field = if node.is_empty() { "target.name" } else { "target.kind" };
        let error = if node.is_empty() {
            schema::validate::error::FieldError::required(field, "")
        } else {
            schema::validate::error::FieldError::not_supported(field, json!(target), &["Node", "<empty>"])
        };
        return Err(registry::status::invalid(GroupKind { group: "", kind: "Binding" }, &name, vec![error]));
    }
    let manager = managers::named(call)?;
    let now = call.x.server.objects.clock.now();
    let annotations = meta::annotations(&binding).cloned().unwrap_or_default();
    let labels = meta::labels(&binding).cloned().unwrap_or_default();
    let mut make = |old: Option<&Value>| {
        let mut pod = old.cloned().unwrap_or_default();
        check_bindable(&pod, &name, &binding)?;
        pod["spec"]["nodeName"] = json!(node);
        for (key, value) in &annotations {
            meta::set_annotation(&mut pod, key, value.as_str().unwrap_or_default());
        }
        for (key, value) in &labels {
            meta::set_label(&mut pod, key, value.as_str().unwrap_or_default());
        }
        set_scheduled(&mut pod, now);
        meta::set_resource_version(&mut pod, "");
        Ok(pod)
    };
    write::update(call, &name, Part::Binding, false, Some(&manager), Maker::Stored(&mut make)).await?;
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(crate::respond::value(StatusCode::CREATED, &done, call.output, &call.x.parts.headers))
}

/// Whether a pod may be put on a node.
///
/// Errors: 409 with the reason.
fn check_bindable(pod: &Value, name: &str, binding: &Value) -> Result<(), Status> {
    let uid = meta::uid(binding);
    let conflict = |why: &str| Err(Status::conflict(GroupResource::core("pods/binding"), name, why));
    let have = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !uid.is_empty() && uid != meta::uid(pod) {
        return conflict(&format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(pod)
        ));
    }
    if meta::deletion_timestamp(pod).is_some() {
        return conflict(&format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if !have.is_empty() {
        return conflict(&format!("pod {name} is already assigned to node {have:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return conflict(&format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    Ok(())
}

/// Notes on the pod that it has a node.
fn set_scheduled(pod: &mut Value, now: Timestamp) {
    let (kind, now) = ("PodScheduled", base::time::rfc3339_secs(now));
    let condition = json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now });
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    if let Some(list) = pod["status"]["conditions"].as_array_mut() {
        list.retain(|c| c["type"] != json!(kind));
        list.push(condition);
    }
}

/// `POST pods/eviction`: deletes a pod if its disruption budgets allow it.
pub(super) async fn evict(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let mut eviction = posted(call).await?;
    let mut options = delete::parse_options(&eviction["deleteOptions"], &call.x.query)?;
    options.dry_run |= call.dry_run()?;
    admit(call, "Eviction", &mut eviction, options.dry_run).await?;
    let named = NamespacedName { namespace: call.namespace(), name: &call.x.attributes.name };
    let warnings = eviction::evict(call, named, &options).await?;
    call.x.warnings.extend(warnings);
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(crate::respond::value(StatusCode::CREATED, &done, call.output, &call.x.parts.headers))
}

/// `GET pods/log`.
pub(super) async fn log(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let target = log_target(call).await?;
    passing::refusal_of_logs(passing::pass(call, target).await?).await
}

/// `exec` and `attach` of pods.
pub(super) async fn stream(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    may_run(call).await?;
    let target = stream_target(call).await?;
    let options = stream_options(call);
    passing::admit(call, options).await?;
    passing::pass(call, target).await
}

/// `portforward` of pods.
pub(super) async fn forward(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    may_run(call).await?;
    let target = forward_target(call).await?;
    let mut options = passing::options(call);
    let ports =
        call.x.query.all("ports").flat_map(|ports| ports.split(',')).filter_map(|port| port.parse::<u16>().ok());
    options["ports"] = ports.collect::<Vec<_>>().into();
    passing::admit(call, options).await?;
    passing::pass(call, target).await
}

/// `pods/proxy`.
pub(super) async fn proxy(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let target = proxy_target(call).await?;
    passing::proxy(call, target).await
}

/// A browser's WebSocket opens with GET, which is a read; what runs in a pod is none.
///
/// Errors: 403. Spec: upstream's AuthorizePodWebsocketUpgradeCreatePermission.
async fn may_run(call: &Call<'_, '_>) -> Result<(), Status> {
    let a = &call.x.attributes;
    if a.verb == "create" {
        return Ok(());
    }
    call.x.server.access.require(&Attributes { verb: "create".to_owned(), ..a.clone() }).await
}

/// `PodExecOptions` or `PodAttachOptions`, as admission judges them.
fn stream_options(call: &Call<'_, '_>) -> Value {
    let (mut object, query) = (passing::options(call), &call.x.query);
    for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|flag| query.flag(flag)) {
        object[flag] = true.into();
    }
    let (container, command) = (query.text("container"), query.all("command").collect::<Vec<_>>());
    if !container.is_empty() {
        object["container"] = container.into();
    }
    if !command.is_empty() {
        object["command"] = json!(command);
    }
    object
}

/// The container when a request names none of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unnamed {
    /// The first, as logs have it.
    First,
    /// None: the request has to say.
    Refused,
}

/// The container a request means: the one named, the annotated default, or the only one.
fn container(pod: &Value, asked: &str, unnamed: Unnamed) -> Result<String, Status> {
    let name = meta::name(pod);
    let names = |field: &str| -> Vec<String> {
        let list = pod["spec"][field].as_array().into_iter().flatten();
        list.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if !asked.is_empty() {
        let known = main.iter().chain(&init).chain(&ephemeral).any(|c| c == asked);
        return if known {
            Ok(asked.to_owned())
        } else {
            Err(Status::bad_request(format!("container {asked} is not valid for pod {name}")))
        };
    }
    if let Some(default) =
        meta::annotation(pod, "kubectl.kubernetes.io/default-container").filter(|d| main.iter().any(|c| c == d))
    {
        return Ok(default.to_owned());
    }
    match main.as_slice() {
        [only] => Ok(only.clone()),
        [first, ..] if unnamed == Unnamed::First => Ok(first.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        several => {
            let mut text =
                format!("a container name must be specified for pod {name}, choose one of: [{}]", several.join(" "));
            if !init.is_empty() {
                text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Status::bad_request(text))
        }
    }
}

async fn log_target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let name = call.x.attributes.name.clone();
    let pod = named(call, &name).await?;
    let query = &call.x.query;
    let container = container(&pod, query.text("container"), Unnamed::Refused)?;
    let Some(node) = assigned_node(call, &pod)? else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    let passed = ["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"];
    let pairs: Vec<String> = query
        .pairs()
        .iter()
        .filter(|(k, _)| passed.contains(&k.as_str()))
        .map(|(k, v)| format!("{k}={}", url::encode(v, url::COMPONENT)))
        .collect();
    let path = format!("/containerLogs/{}/{name}/{container}?{}", call.namespace(), pairs.join("&"));
    Ok(Target::Kubelet { node, path_and_query: path })
}

async fn stream_target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let name = call.x.attributes.name.clone();
    let pod = named(call, &name).await?;
    let Some(node) = assigned_node(call, &pod)? else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    let container = container(&pod, call.x.query.text("container"), Unnamed::Refused)?;
    let mut pairs = Vec::new();
    for (ours, kubelets) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if call.x.query.flag(ours) {
            pairs.push(format!("{kubelets}=1"));
        }
    }
    pairs.extend(call.x.query.all("command").map(|c| format!("command={}", url::encode(c, url::COMPONENT))));
    let what = &call.x.attributes.subresource;
    let path = format!("/{what}/{}/{name}/{container}?{}", call.namespace(), pairs.join("&"));
    Ok(Target::Kubelet { node, path_and_query: path })
}

async fn forward_target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let name = call.x.attributes.name.clone();
    let pod = named(call, &name).await?;
    let Some(node) = assigned_node(call, &pod)? else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    let ports: Vec<String> =
        call.x.query.all("ports").map(|p| format!("port={}", url::encode(p, url::COMPONENT))).collect();
    let path = format!("/portForward/{}/{name}?{}", call.namespace(), ports.join("&"));
    Ok(Target::Kubelet { node, path_and_query: path })
}

async fn proxy_target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (scheme, name, port) = scheme_name_port("pod", &call.x.attributes.name)?;
    let pod = named(call, &name).await?;
    let first = pod["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|c| c["ports"][0]["containerPort"].as_u64());
    let port = port.parse::<u16>().ok().or(first.and_then(|p| u16::try_from(p).ok())).filter(|p| *p > 0).unwrap_or(80);
    let host = pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty());
    let host = host.ok_or_else(|| Status::bad_request("address not allowed: the pod has no address yet"))?.to_owned();
    proxyable(&host)?;
    let (path_and_query, prefix) = behind_proxy(call)?;
    let scheme = if scheme.is_empty() { "http".to_owned() } else { scheme };
    Ok(Target::Proxy { scheme, host, port, path_and_query, node: assigned_node(call, &pod)?, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_the_one_named_the_annotated_or_the_only_one() {
        let pod = |containers: &[&str], default: &str| {
            let names = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
            let mut pod = json!({ "metadata": { "name": "x" }, "spec": {
                "containers": names(containers), "initContainers": names(&["i"]), "ephemeralContainers": names(&["e"]),
            } });
            if !default.is_empty() {
                meta::set_annotation(&mut pod, "kubectl.kubernetes.io/default-container", default);
            }
            pod
        };
        for (containers, default, asked, unnamed, expected) in [
            (&["a", "b"][..], "", "b", Unnamed::Refused, Ok("b")),
            (&["a", "b"], "", "i", Unnamed::Refused, Ok("i")),
            (&["a", "b"], "", "e", Unnamed::Refused, Ok("e")),
            (&["a", "b"], "b", "", Unnamed::Refused, Ok("b")),
            (&["a", "b"], "b", "a", Unnamed::Refused, Ok("a")),
            (&["a"], "", "", Unnamed::Refused, Ok("a")),
            (&["a", "b"], "", "", Unnamed::First, Ok("a")),
            (&["a", "b"], "b", "", Unnamed::First, Ok("b")),
            // An annotation that names no container counts for nothing.
            (&["a", "b"], "z", "", Unnamed::First, Ok("a")),
            (&["a", "b"], "", "c", Unnamed::First, Err("container c is not valid for pod x")),
            (&[], "", "", Unnamed::First, Err("a container name must be specified for pod x")),
            (
                &["a", "b"],
                "z",
                "",
                Unnamed::Refused,
                Err(
                    "a container name must be specified for pod x, choose one of: [a b] or one of the init containers: \
                     [i]",
                ),
            ),
        ] {
            let found = container(&pod(containers, default), asked, unnamed);
            let found = found.as_deref().map_err(|status| status.message.as_str());
            assert_eq!(found, expected, "{containers:?} {default} {asked}");
        }
    }

    #[test]
    fn a_pod_is_bound_once_while_it_lives_and_nothing_holds_it_back() {
        let pod = json!({ "metadata": { "name": "p", "uid": "u" }, "spec": {} });
        let of = |path: &str, value: Value| {
            let mut pod = pod.clone();
            pod[path.split('/').next().unwrap()][path.split('/').nth(1).unwrap()] = value;
            pod
        };
        let (any, other) = (json!({}), json!({ "metadata": { "uid": "v" } }));
        for (pod, binding, expected) in [
            (pod.clone(), &any, ""),
            (pod.clone(), &json!({ "metadata": { "uid": "u" } }), ""),
            (of("spec/schedulingGates", json!([])), &any, ""),
            (pod.clone(), &other, "Precondition failed: UID in precondition: v, UID in object meta: u"),
            (
                of("metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
                &any,
                "pod p is being deleted, cannot be assigned to a host",
            ),
            (of("spec/nodeName", json!("n")), &any, "pod p is already assigned to node \"n\""),
            (of("spec/schedulingGates", json!([{ "name": "g" }])), &any, "pod p has non-empty .spec.schedulingGates"),
        ] {
            let told = check_bindable(&pod, "p", binding).err().map_or(String::new(), |status| status.message.clone());
            let whole = format!("Operation cannot be fulfilled on pods/binding \"p\": {expected}");
            assert_eq!(told, if expected.is_empty() { String::new() } else { whole });
        }
    }

    #[test]
    fn a_bound_pod_has_one_condition_that_says_so() {
        let mut pod = json!({ "status": { "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }, { "type": "Ready" },
        ] } });
        set_scheduled(&mut pod, Timestamp::UNIX_EPOCH);
        let scheduled = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        assert_eq!(pod["status"]["conditions"], json!([{ "type": "Ready" }, scheduled]));
        let mut fresh = json!({});
        set_scheduled(&mut fresh, Timestamp::UNIX_EPOCH);
        assert_eq!(fresh["status"]["conditions"], json!([scheduled]));
    }
}
