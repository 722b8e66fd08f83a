//! Images: whether to pull, what to say of it, how long to wait after a failure, and what to delete when the disk
//! fills.

mod credentials;
pub(crate) mod gc;
mod name;
mod pulled;
pub(crate) mod pulls;
mod turns;

use std::time::Duration;

use base::chain::Chain;
use base::time::Stopwatch;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::AcquireError;

use crate::events::Kind;
use crate::images::pulled::PulledImage;
use crate::images::pulls::Pulls;
use crate::known::Known;
use crate::node::Node;
use crate::providers::config::repository;
use crate::runtime::Runtime;
use crate::runtime::cri::CriError;

/// A container has no image yet: upstream's reason and text for its waiting state.
#[derive(Clone, Debug)]
pub(crate) struct NoImage {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry_at: Option<Timestamp>,
}

/// An image that cannot be pulled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error("image \"{image}\" vanished after its pull")]
    Vanished { image: String },
    /// The node ends.
    #[error(transparent)]
    Turns(#[from] AcquireError),
}

/// The tag `latest`, or none, means Always.
fn policy(container: &Container) -> &str {
    let image = container.image.as_deref().unwrap_or_default();
    let tag = image.rsplit('/').next().unwrap_or_default();
    let moving = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    container.image_pull_policy.as_deref().filter(|p| !p.is_empty()).unwrap_or(if moving {
        "Always"
    } else {
        "IfNotPresent"
    })
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
    if let Err(why) = name::check(&image) {
        let message =
            format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}");
        say(Kind::Warning, "InspectFailed", message.clone());
        return Err(NoImage { reason: "InvalidImageName", message, retry_at: None });
    }
    let failed =
        |err: &dyn std::fmt::Display| NoImage { reason: "ImageInspectError", message: err.to_string(), retry_at: None };
    let mut here = node.runtime.cri.image(&image).await.map_err(|err| failed(&err))?;
    // It may be among those that are being brought in just now.
    if here.is_none() && node.preload.wait().await {
        here = node.runtime.cri.image(&image).await.map_err(|err| failed(&err))?;
    }
    let may = match &here {
        Some(found) => may_use(&node.known, &node.pulls, pod, &image, found).await,
        None => true,
    };
    let policy = policy(container);
    if let Some(found) = here.as_ref().filter(|_| may && matches!(policy, "Never" | "IfNotPresent")) {
        let text = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
        say(Kind::Normal, "Pulled", text);
        return Ok(found.clone());
    }
    if policy == "Never" {
        let why = if here.is_some() {
            "present with pull policy of Never but does not have the proper credentials"
        } else {
            "not present with pull policy of Never"
        };
        let message = format!("Container image \"{image}\" is {why}");
        say(Kind::Warning, "ErrImageNeverPull", message.clone());
        return Err(NoImage { reason: "ErrImageNeverPull", message, retry_at: None });
    }
    let key = format!("{}_{image}", pod.metadata.uid.as_deref().unwrap_or_default());
    let now = node.clock.now();
    let waiting = node.pulls.failed.lock().blocked_until(&key, now);
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
        Ok((found, took, waited)) => {
            let (size, took, whole) = (found.size, took.as_secs_f64(), (took + waited).as_secs_f64());
            let text = format!(
                "Successfully pulled image \"{image}\" in {took:.3}s ({whole:.3}s including waiting). \
                 Image size: {size} bytes."
            );
            say(Kind::Normal, "Pulled", text);
            Ok(found)
        }
        Err(err) => {
            let why = Chain(&err).to_string();
            say(Kind::Warning, "Failed", format!("Failed to pull image \"{image}\": {why}"));
            say(Kind::Warning, "Failed", "Error: ErrImagePull".to_owned());
            let now = node.clock.now();
            let until = node.pulls.failed.lock().fail(&key, now, &format!("ErrImagePull: {why}"));
            Err(NoImage { reason: "ErrImagePull", message: why, retry_at: Some(until) })
        }
    }
}

/// Whether a pod may use an image that is here: one that was pulled with credentials is for those who have them, or
/// others as good.
async fn may_use(known: &Known, pulls: &Pulls, pod: &Pod, image: &str, found: &cri::Image) -> bool {
    let found = PulledImage { id: &found.id, repository: &repository(image) };
    if pulls.pulled.allows(found, &[]) {
        return true;
    }
    let own: Vec<_> = credentials::of_pod(known, pod, image).await.iter().map(|auth| pulls.pulled.key(auth)).collect();
    pulls.pulled.allows(found, &own)
}

/// Pulls an image for a pod, in its turn. Returns how long that took, and how long it waited before.
async fn pull(
    node: &Node,
    pod: &Pod,
    image: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<(cri::Image, Duration, Duration), PullError> {
    let waited = Stopwatch::start();
    let in_turn = async {
        node.pulls.pace.turn().await;
        let (waited, watch) = (waited.elapsed(), Stopwatch::start());
        let found = pull_now(node, pod, image, sandbox).await?;
        Ok((found, watch.elapsed(), waited))
    };
    node.pulls.turns.within(&crate::registries::server_of(image), Box::pin(in_turn)).await?
}

async fn pull_now(
    node: &Node,
    pod: &Pod,
    image: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<cri::Image, PullError> {
    let (own, repository, pulled) =
        (credentials::of_pod(&node.known, pod, image).await, repository(image), &node.pulls.pulled);
    // Dropped on the way, it leaves a doubt about what may have come.
    let begun = if own.is_empty() {
        None
    } else {
        let images = node.runtime.cri.images().await?;
        let of_it = |image: &cri::Image| {
            image.repo_tags.iter().chain(&image.repo_digests).any(|name| self::repository(name) == repository)
        };
        let here: Vec<String> = images.into_iter().filter(of_it).map(|image| image.id).collect();
        Some(pulled.begin(&repository, &here).await)
    };
    let outcome = fetch(node, image, own.clone(), Some(sandbox.clone())).await;
    if let Ok((found, by)) = &outcome {
        let key = by.and_then(|idx| own.get(idx)).map(|auth| pulled.key(auth));
        pulled.came(PulledImage { id: &found.id, repository: &repository }, key).await;
        node.pulls.note_pull();
    }
    if let Some(begun) = begun {
        begun.end().await;
    }
    outcome.map(|(found, _)| found)
}

/// Pulls with the credentials given, then with those of registries.yaml and of the operator's programs, one after
/// another; without any if there are none. Returns which of those given did it, if one did.
pub(crate) async fn fetch(
    node: &Node,
    image: &str,
    given: Vec<cri::AuthConfig>,
    sandbox: Option<cri::PodSandboxConfig>,
) -> Result<(cri::Image, Option<usize>), PullError> {
    let mut known = match &node.config.settings.providers {
        Some(providers) => providers.credentials(image).await,
        None => Vec::new(),
    };
    // For the registry itself and no mirror.
    known.iter_mut().for_each(|auth| auth.server_address = crate::registries::server_of(image));
    let n_given = given.len();
    let all = given.into_iter().chain(node.registries.credentials(image)).chain(known);
    let mut tries: Vec<Option<cri::AuthConfig>> = all.map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut refused = None;
    for (idx, auth) in tries.into_iter().enumerate() {
        match node.runtime.cri.pull(image, auth, sandbox.clone()).await {
            Ok(reference) => {
                let found = node.runtime.cri.image(&reference).await?;
                let found = found.ok_or_else(|| PullError::Vanished { image: image.to_owned() })?;
                return Ok((found, Some(idx).filter(|idx| *idx < n_given)));
            }
            // The first refusal is that of the most likely credentials.
            Err(err) => {
                refused.get_or_insert(err);
            }
        }
    }
    Err(refused.expect("it is tried at least once").into())
}

/// The images for the node's status, if it is time to look at them again: there are many, and they seldom change.
pub(crate) async fn to_list(
    pulls: &Pulls,
    runtime: &Runtime,
    max: usize,
) -> Option<Result<Vec<(Vec<String>, u64)>, CriError>> {
    if !pulls.wants_list() {
        return None;
    }
    let images = runtime.cri.images().await;
    if images.is_ok() {
        pulls.note_list();
    }
    Some(images.map(|images| listed(images, max)))
}

/// Names and sizes of images, the largest first.
fn listed(mut images: Vec<cri::Image>, max: usize) -> Vec<(Vec<String>, u64)> {
    images.sort_by_key(|image| std::cmp::Reverse(image.size));
    let names = |image: cri::Image| {
        (image.repo_digests.into_iter().chain(image.repo_tags).take(5).collect::<Vec<_>>(), image.size)
    };
    images.into_iter().map(names).filter(|(names, _)| !names.is_empty()).take(max).collect()
}

/// Forgets the failures of a pod's images.
pub(crate) fn forget(pulls: &Pulls, uid: &str) {
    pulls.failed.lock().forget(uid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;

    #[test]
    fn a_moving_tag_is_always_pulled_and_a_digest_is_not() {
        let policy_of =
            |image: &str| policy(&Container { image: Some(image.to_owned()), ..Default::default() }).to_owned();
        assert_eq!(policy_of("localhost:5000/web"), "Always");
        assert_eq!(policy_of("web:latest"), "Always");
        assert_eq!(policy_of("web:1"), "IfNotPresent");
        assert_eq!(policy_of("web@sha256:00"), "IfNotPresent");
    }

    #[test]
    fn a_policy_that_is_named_counts() {
        let named = |policy_name: &str| {
            let (image, image_pull_policy) = (Some("web:1".to_owned()), Some(policy_name.to_owned()));
            policy(&Container { image, image_pull_policy, ..Default::default() }).to_owned()
        };
        assert_eq!(named("Never"), "Never");
        assert_eq!(named("Always"), "Always");
        assert_eq!(named(""), "IfNotPresent", "an empty one is none");
    }

    #[test]
    fn images_are_listed_the_largest_first_with_five_of_their_names() {
        let image = |size: u64, n_names: usize| cri::Image {
            repo_tags: (0..n_names).map(|idx| format!("r.io/{size}:{idx}")).collect(),
            size,
            ..Default::default()
        };
        let all = listed(vec![image(1, 1), image(9, 7), image(5, 0), image(3, 2)], 2);
        assert_eq!(all.iter().map(|(names, size)| (names.len(), *size)).collect::<Vec<_>>(), [(5, 9), (2, 3)]);
    }

    // node.md E8: they were listed with each look at the node, every ten seconds
    #[test]
    fn images_are_listed_again_after_a_pull_and_not_for_each_status() {
        let dir = tempfile::tempdir().unwrap();
        let pulls = Pulls::new(dir.path(), 3, crate::pace::Pace::new(0, 1), &Rng::from_seed(1));
        assert!(pulls.wants_list());
        pulls.note_list();
        assert!(!pulls.wants_list());
        pulls.note_pull();
        assert!(pulls.wants_list());
    }
}
