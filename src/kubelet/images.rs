//! Images: whether to pull, what to say of it, how long to wait after a failure, and what to delete when the disk fills.

use std::collections::{HashMap, HashSet};
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
use crate::runtime::catalog;
use crate::runtime::cri::CriError;
use crate::worker::backoff::Backoffs;

const GC_PERIOD: Duration = Duration::from_secs(300);

/// Failed pulls, by pod and image; and the ages of images.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<Backoffs>, Mutex<HashMap<String, Age>>);

/// When an image was first seen, and last in use.
#[derive(Clone, Copy, Debug)]
struct Age {
    found: Timestamp,
    used: Timestamp,
}

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

/// Whether a name is one that an image can have. Spec: the distribution project's reference grammar.
fn check_name(image: &str) -> Result<(), String> {
    let bad = || Err("invalid reference format".to_owned());
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    if digest.is_some_and(|d| d.split_once(':').is_none_or(|(_, hex)| hex.len() < 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()))) {
        return bad();
    }
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (name, None),
    };
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let tag_fits = |t: &str| t.len() <= 128 && t.bytes().next().is_some_and(word) && t.bytes().all(|b| word(b) || b == b'.' || b == b'-');
    if tag.is_some_and(|t| !tag_fits(t)) {
        return bad();
    }
    let host = |part: &str| part.contains('.') || part.contains(':') || part == "localhost";
    let parts: Vec<&str> = path.split('/').collect();
    let rest = if parts.len() > 1 && host(parts[0]) { &parts[1..] } else { &parts[..] };
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = |p: &str| p.bytes().next().is_some_and(inner) && p.bytes().last().is_some_and(inner);
    if rest.iter().any(|p| p.bytes().any(|b| b.is_ascii_uppercase())) {
        let full = if parts.len() == 1 { format!("library/{path}") } else { path.to_owned() };
        return Err(format!("invalid reference format: repository name ({full}) must be lowercase"));
    }
    if rest.iter().all(|p| edges(p) && p.bytes().all(|b| inner(b) || matches!(b, b'.' | b'_' | b'-'))) { Ok(()) } else { bad() }
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
    if let Err(why) = check_name(&image) {
        let message = format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}");
        say(Kind::Warning, "InspectFailed", message.clone());
        return Err(NoImage { reason: "InvalidImageName", message, retry_at: None });
    }
    let failed = |err: &dyn std::fmt::Display| NoImage { reason: "ImageInspectError", message: err.to_string(), retry_at: None };
    let mut here = node.runtime.cri.image(&image).await.map_err(|err| failed(&err))?;
    // It may be among those that are being brought in just now.
    if here.is_none() && node.preload.wait().await {
        here = node.runtime.cri.image(&image).await.map_err(|err| failed(&err))?;
    }
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
        return Err(NoImage {
            reason: "ImagePullBackOff",
            message: format!("Back-off pulling image \"{image}\": {why}"),
            retry_at: Some(until),
        });
    }
    say(Kind::Normal, "Pulling", format!("Pulling image \"{image}\""));
    match pull(node, pod, &image, sandbox).await {
        Ok((found, took)) => {
            let size = found.size;
            let took = format!("{:.3}s", took.as_secs_f64());
            say(
                Kind::Normal,
                "Pulled",
                format!("Successfully pulled image \"{image}\" in {took} ({took} including waiting). Image size: {size} bytes."),
            );
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
    let own = credentials(node, pod, image).await;
    let found = fetch(node, image, own.into_iter().collect(), Some(sandbox.clone())).await?;
    Ok((found, watch.elapsed()))
}

/// Pulls with the credentials given, then with those of registries.yaml and of the operator's programs, one after another; without any
/// if there are none.
pub(crate) async fn fetch(
    node: &Node,
    image: &str,
    given: Vec<cri::AuthConfig>,
    sandbox: Option<cri::PodSandboxConfig>,
) -> Result<cri::Image, String> {
    let known = match &node.config.settings.providers {
        Some(providers) => providers.credentials(image).await,
        None => Vec::new(),
    };
    let all = given.into_iter().chain(node.registries.credentials(image)).chain(known);
    let mut tries: Vec<Option<cri::AuthConfig>> = all.map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut failure = String::new();
    for auth in tries {
        match node.runtime.cri.pull(image, auth, sandbox.clone()).await {
            Ok(reference) => {
                let found = node.runtime.cri.image(&reference).await.map_err(|err| err.to_string())?;
                return found.ok_or_else(|| format!("image \"{image}\" vanished after its pull"));
            }
            // The first refusal is that of the most likely credentials.
            Err(err) if failure.is_empty() => failure = err.to_string(),
            Err(_) => {}
        }
    }
    Err(failure)
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
    let full = match image.split_once('/') {
        Some((host, _)) if host.contains('.') || host.contains(':') || host == "localhost" => image.to_owned(),
        _ => format!("docker.io/{image}"),
    };
    let place = |server: &str| {
        let bare = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
        let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
        bare.replace("index.docker.io", "docker.io")
    };
    // A longer path is more exact: r.io/team before r.io.
    let covers = |place: &str| full == place || full.strip_prefix(place).is_some_and(|rest| rest.starts_with(['/', ':', '@']));
    // No server's address: containerd would take it for the only host that may see them, and these keys are no hosts.
    let (_, entry) =
        auths.as_object()?.iter().filter(|(server, _)| covers(&place(server))).max_by_key(|(server, _)| place(server).len())?;
    let text = |key: &str| entry.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    if let Ok(plain) = base64::engine::general_purpose::STANDARD.decode(text("auth"))
        && let Some((user, pass)) = String::from_utf8_lossy(&plain).split_once(':')
    {
        (username, password) = (user.to_owned(), pass.to_owned());
    }
    Some(cri::AuthConfig { username, password, identity_token: text("identitytoken"), ..Default::default() })
}

/// Deletes images that no container uses when the disk fills.
pub(crate) fn start_gc(node: Arc<Node>, group: &Group) {
    group.spawn("image-gc", async move {
        loop {
            tokio::time::sleep(GC_PERIOD).await;
            if let Err(err) = collect(&node).await {
                warn!(err = %Chain(&err), "image garbage collection failed");
                let text = format!("Failed to garbage collect images: {err}");
                node.events.node(&node.config.node_name, Kind::Warning, "ImageGCFailed", text);
            }
        }
    });
}

async fn collect(node: &Node) -> Result<(), CriError> {
    let settings = &node.config.settings;
    let disk = || node.image_disk();
    seen_now(node).await?;
    let Some(now) = disk().filter(|d| d.used_percent() >= settings.image_gc_high_percent) else { return Ok(()) };
    let goal = now.capacity / 100 * (100 - settings.image_gc_low_percent);
    let wanted = goal.saturating_sub(now.available);
    info!(percent = now.used_percent(), bytes = wanted, "the disk of images is nearly full, deleting unused ones");
    let freed = free(node, wanted, settings.image_age_min).await?;
    if freed < wanted {
        let text = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} bytes eligible to free."
        );
        node.events.node(&node.config.node_name, Kind::Warning, "FreeDiskSpaceFailed", text);
    }
    Ok(())
}

/// Notes which images there are and which are in use; those that are gone are forgotten.
async fn seen_now(node: &Node) -> Result<Vec<cri::Image>, CriError> {
    let in_use: HashSet<String> = node.runtime.cri.containers(None).await?.into_iter().flat_map(|c| [c.image_ref, c.image_id]).collect();
    let images = node.runtime.cri.images().await?;
    let now = node.clock.now();
    let mut ages = node.pulls.1.lock().unwrap_or_else(PoisonError::into_inner);
    ages.retain(|id, _| images.iter().any(|image| image.id == *id));
    for image in &images {
        let used = in_use.contains(&image.id) || image.repo_digests.iter().chain(&image.repo_tags).any(|name| in_use.contains(name));
        let age = ages.entry(image.id.clone()).or_insert(Age { found: now, used: Timestamp::UNIX_EPOCH });
        if used {
            age.used = now;
        }
    }
    Ok(images)
}

/// Deletes unused images, the least recently used first, until `wanted` bytes are free. Returns how many bytes went.
pub(crate) async fn free(node: &Node, wanted: u64, age_min: Duration) -> Result<u64, CriError> {
    let images = seen_now(node).await?;
    // Older versions do not tell over the CRI which images are pinned.
    let pins: HashSet<String> = match catalog::list(&node.runtime.socket).await {
        Ok(all) => all.into_iter().filter(|(_, known)| known.pinned).map(|(name, _)| name).collect(),
        Err(_) => HashSet::new(),
    };
    let now = node.clock.now();
    let ages = node.pulls.1.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let old = |age: &Age| Duration::try_from(now.duration_since(age.found)).is_ok_and(|d| d >= age_min);
    // The pause image and, of the same tag, the others that kedge made of itself: nobody could pull them again.
    let pause = &node.config.pause_image;
    let own = |tag: &String| tag == pause || tag.starts_with("kedge.local/") && tag.rsplit(':').next() == pause.rsplit(':').next();
    let mut unused: Vec<(Age, cri::Image)> = images
        .into_iter()
        .filter(|image| !image.pinned && !image.repo_tags.iter().any(|tag| own(tag) || pins.contains(tag)))
        .filter_map(|image| ages.get(&image.id).map(|age| (*age, image)))
        .filter(|(age, _)| age.used < now && old(age))
        .collect();
    unused.sort_by_key(|(age, _)| (age.used, age.found));
    let mut freed = 0;
    for (_, image) in unused {
        if freed >= wanted {
            break;
        }
        info!(image = %image.id, bytes = image.size, "deleting an unused image");
        node.runtime.cri.remove_image(&image.id).await?;
        freed += image.size;
    }
    Ok(freed)
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
    fn names_that_no_image_can_have_are_refused() {
        for good in ["a", "a:1", "r.io:5000/a/b_c-d:v1.0", "a@sha256:0123456789abcdef0123456789abcdef", "localhost/x"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "a:", "a b", "-a", "a//b", "a@sha256:zz", ":1"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert_eq!(check_name("Foo").unwrap_err(), "invalid reference format: repository name (library/Foo) must be lowercase");
    }

    #[test]
    fn credentials_are_found_by_registry() {
        let auths = serde_json::json!({"https://r.io/v1/": {"auth": "dTpw"}});
        let auth = find_auth(&auths, "r.io/a/b:1").unwrap();
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("u", "p"));
        assert!(find_auth(&auths, "b:1").is_none());
    }
}
