//! Images: whether to pull, what to say of it, how long to wait after a failure, and what to delete when the disk fills.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use kube::Api;
use tracing::{info, warn};

use crate::events::Kind;
use crate::node::Node;
use crate::worker::backoff::Backoffs;

/// Upstream's image-gc-high-threshold and -low-threshold, in per cent of the disk.
const GC_ABOVE_PERCENT: u64 = 85;
const GC_DOWN_TO_PERCENT: u64 = 80;
const GC_PERIOD: Duration = Duration::from_secs(300);

/// Failed pulls, by pod and image.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<Backoffs>);

/// Why a container has no image yet: upstream's reason and text for its waiting state.
#[derive(Clone, Debug)]
pub(crate) struct NoImage {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry_at: Option<Timestamp>,
}

/// The tag `latest`, or none, means Always.
fn policy(container: &Container) -> &str {
    let image = container.image.as_deref().unwrap_or_default();
    let tag = image.rsplit('/').next().unwrap_or_default();
    let moving = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    container.image_pull_policy.as_deref().filter(|p| !p.is_empty()).unwrap_or(if moving { "Always" } else { "IfNotPresent" })
}

/// Makes sure that the container's image is here.
pub(crate) async fn ensure(
    node: &Node,
    pod: &Pod,
    container: &Container,
    field: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<cri::Image, NoImage> {
    let image = container.image.clone().unwrap_or_default();
    let say = |kind, reason, message: String| node.events.pod(pod, Some(field.to_owned()), kind, reason, message);
    let failed = |err: &dyn std::fmt::Display| NoImage { reason: "ImageInspectError", message: err.to_string(), retry_at: None };
    let here = node.runtime.cri.image(&image).await.map_err(|err| failed(&err))?;
    match (policy(container), here) {
        ("Never", None) => {
            let message = format!("Container image \"{image}\" is not present with pull policy of Never");
            say(Kind::Warning, "ErrImageNeverPull", message.clone());
            return Err(NoImage { reason: "ErrImageNeverPull", message, retry_at: None });
        }
        ("Never" | "IfNotPresent", Some(found)) => {
            say(Kind::Normal, "Pulled", format!("Container image \"{image}\" already present on machine and can be accessed by the pod"));
            return Ok(found);
        }
        _ => {}
    }
    let key = format!("{}_{image}", pod.metadata.uid.as_deref().unwrap_or_default());
    let now = node.clock.now();
    let waiting = node.pulls.0.lock().unwrap_or_else(PoisonError::into_inner).blocked_until(&key, now);
    if let Some((until, why)) = waiting {
        say(Kind::Normal, "BackOff", format!("Back-off pulling image \"{image}\""));
        say(Kind::Warning, "Failed", "Error: ImagePullBackOff".to_owned());
        return Err(NoImage { reason: "ImagePullBackOff", message: format!("Back-off pulling image \"{image}\": {why}"), retry_at: Some(until) });
    }
    say(Kind::Normal, "Pulling", format!("Pulling image \"{image}\""));
    match pull(node, pod, &image, sandbox).await {
        Ok((found, took)) => {
            let size = found.size;
            let took = format!("{:.3}s", took.as_secs_f64());
            say(Kind::Normal, "Pulled", format!("Successfully pulled image \"{image}\" in {took} ({took} including waiting). Image size: {size} bytes."));
            Ok(found)
        }
        Err(why) => {
            say(Kind::Warning, "Failed", format!("Failed to pull image \"{image}\": {why}"));
            say(Kind::Warning, "Failed", "Error: ErrImagePull".to_owned());
            let now = node.clock.now();
            let until = node.pulls.0.lock().unwrap_or_else(PoisonError::into_inner).fail(&key, now, &format!("ErrImagePull: {why}"));
            Err(NoImage { reason: "ErrImagePull", message: why, retry_at: Some(until) })
        }
    }
}

async fn pull(node: &Node, pod: &Pod, image: &str, sandbox: &cri::PodSandboxConfig) -> Result<(cri::Image, Duration), String> {
    let watch = Stopwatch::start();
    let auth = credentials(node, pod, image).await;
    let reference = node.runtime.cri.pull(image, auth, Some(sandbox.clone())).await.map_err(|err| err.to_string())?;
    let found = node.runtime.cri.image(&reference).await.map_err(|err| err.to_string())?;
    found.map(|image| (image, watch.elapsed())).ok_or_else(|| format!("image \"{image}\" vanished after its pull"))
}

/// The first pull secret that knows the image's registry.
async fn credentials(node: &Node, pod: &Pod, image: &str) -> Option<cri::AuthConfig> {
    let api: Api<Secret> = Api::namespaced(node.client.clone(), pod.metadata.namespace.as_deref()?);
    for name in pod.spec.as_ref()?.image_pull_secrets.iter().flatten().map(|r| r.name.clone()) {
        let Ok(Some(secret)) = api.get_opt(&name).await else { continue };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(".dockerconfigjson").or_else(|| data.get(".dockercfg")) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&bytes.0) else { continue };
        if let Some(auth) = find_auth(json.get("auths").unwrap_or(&json), image) {
            return Some(auth);
        }
    }
    None
}

fn find_auth(auths: &serde_json::Value, image: &str) -> Option<cri::AuthConfig> {
    use base64::Engine as _;
    let registry = match image.split_once('/') {
        Some((host, _)) if host.contains('.') || host.contains(':') || host == "localhost" => host,
        _ => "docker.io",
    };
    let (server, entry) = auths.as_object()?.iter().find(|(server, _)| {
        let host = server.trim_start_matches("https://").trim_start_matches("http://").split('/').next().unwrap_or_default();
        host == registry || (registry == "docker.io" && host == "index.docker.io")
    })?;
    let text = |key: &str| entry.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    if let Ok(plain) = base64::engine::general_purpose::STANDARD.decode(text("auth"))
        && let Some((user, pass)) = String::from_utf8_lossy(&plain).split_once(':')
    {
        (username, password) = (user.to_owned(), pass.to_owned());
    }
    Some(cri::AuthConfig { username, password, server_address: server.clone(), identity_token: text("identitytoken"), ..Default::default() })
}

/// Deletes images that no container uses when the disk fills.
pub(crate) fn start_gc(node: Arc<Node>, group: &Group) {
    group.spawn("image-gc", async move {
        loop {
            tokio::time::sleep(GC_PERIOD).await;
            if let Err(err) = collect(&node).await {
                warn!(err = %Chain(&err), "image garbage collection failed");
            }
        }
    });
}

async fn collect(node: &Node) -> Result<(), crate::runtime::cri::CriError> {
    let used_percent = || {
        let stat = rustix::fs::statvfs(&node.config.root_dir).ok()?;
        let used = stat.f_blocks.saturating_sub(stat.f_bavail);
        Some(used * 100 / stat.f_blocks.max(1))
    };
    if used_percent().is_none_or(|percent| percent < GC_ABOVE_PERCENT) {
        return Ok(());
    }
    let in_use: HashSet<String> = node.runtime.cri.containers(None).await?.into_iter().flat_map(|c| [c.image_ref, c.image_id]).collect();
    for image in node.runtime.cri.images().await? {
        let named = image.repo_tags.contains(&node.config.pause_image);
        if image.pinned || named || in_use.contains(&image.id) || image.repo_digests.iter().any(|d| in_use.contains(d)) {
            continue;
        }
        info!(image = %image.id, bytes = image.size, "deleting an unused image, the disk is nearly full");
        node.runtime.cri.remove_image(&image.id).await?;
        if used_percent().is_some_and(|percent| percent < GC_DOWN_TO_PERCENT) {
            break;
        }
    }
    Ok(())
}

/// Names and sizes of images for the node's status, the largest first.
pub(crate) fn listed(mut images: Vec<cri::Image>, max: usize) -> Vec<(Vec<String>, u64)> {
    images.sort_by_key(|image| std::cmp::Reverse(image.size));
    let names = |image: cri::Image| (image.repo_digests.into_iter().chain(image.repo_tags).take(5).collect::<Vec<_>>(), image.size);
    images.into_iter().map(names).filter(|(names, _)| !names.is_empty()).take(max).collect()
}

/// Forgets the failures of a pod's images.
pub(crate) fn forget(pulls: &Pulls, uid: &str) {
    pulls.0.lock().unwrap_or_else(PoisonError::into_inner).forget(uid);
}


#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_tag_is_always_pulled_and_a_digest_is_not() {
        let policy_of = |image: &str| policy(&Container { image: Some(image.to_owned()), ..Default::default() }).to_owned();
        assert_eq!(policy_of("localhost:5000/web"), "Always");
        assert_eq!(policy_of("web:latest"), "Always");
        assert_eq!(policy_of("web:1"), "IfNotPresent");
        assert_eq!(policy_of("web@sha256:00"), "IfNotPresent");
    }

    #[test]
    fn credentials_are_found_by_registry() {
        let auths = serde_json::json!({"https://r.io/v1/": {"auth": "dTpw"}});
        let auth = find_auth(&auths, "r.io/a/b:1").unwrap();
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("u", "p"));
        assert!(find_auth(&auths, "b:1").is_none());
    }
}
