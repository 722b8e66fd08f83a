//! Image garbage collection when the disk fills: images that nobody uses, the least recently used first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_cri::v1 as cri;
use tracing::{info, warn};

use crate::events::Kind;
use crate::images::pulls::Age;
use crate::images::pulls::Pulls;
use crate::node::Node;
use crate::runtime::Runtime;
use crate::runtime::catalog;
use crate::runtime::cri::CriError;
use crate::volumes::image::parents;

const PERIOD: Duration = Duration::from_secs(300);

/// An image that is here.
#[derive(Clone, Debug)]
struct Here {
    image: cri::Image,
    age: Age,
    /// A container is made of it, whether that runs or not.
    in_use: bool,
}

/// Deletes images that no container uses when the disk fills.
pub(crate) fn start(node: Arc<Node>, group: &Group) {
    group.spawn("image-gc", async move {
        loop {
            tokio::time::sleep(PERIOD).await;
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
    let disk = || node.disks.of_images();
    seen_now(&node.pulls, &node.runtime).await?;
    if !settings.image_age_max.is_zero() {
        let freed = delete_unused(node, u64::MAX, settings.image_age_max).await?;
        if freed > 0 {
            info!(bytes = freed, "deleted images that nobody used for longer than imageMaximumGCAge");
        }
    }
    let Some(now) = disk().filter(|d| d.used_percent() >= settings.image_gc_high_percent) else { return Ok(()) };
    let goal = now.capacity / 100 * (100 - settings.image_gc_low_percent);
    let wanted = goal.saturating_sub(now.available);
    info!(percent = now.used_percent(), bytes = wanted, "the disk of images is nearly full, deleting unused ones");
    let freed = free(node, wanted).await?;
    if freed < wanted {
        let text = format!(
            "Failed to garbage collect required amount of images. \
             Attempted to free {wanted} bytes, but only found {freed} bytes eligible to free."
        );
        node.events.node(&node.config.node_name, Kind::Warning, "FreeDiskSpaceFailed", text);
    }
    Ok(())
}

/// Ids and names of the images of all containers.
async fn used_now(runtime: &Runtime) -> Result<HashSet<String>, CriError> {
    Ok(runtime.cri.containers(None).await?.into_iter().flat_map(|c| [c.image_ref, c.image_id]).collect())
}

/// Notes which images there are and which are in use; those that are gone are forgotten.
async fn seen_now(pulls: &Pulls, runtime: &Runtime) -> Result<Vec<Here>, CriError> {
    let used = used_now(runtime).await?;
    let images = runtime.cri.images().await?;
    Ok(note(images, &used, &mut pulls.ages.lock()))
}

fn note(images: Vec<cri::Image>, used: &HashSet<String>, ages: &mut HashMap<String, Age>) -> Vec<Here> {
    ages.retain(|id, _| images.iter().any(|image| image.id == *id));
    let look = |image: cri::Image| {
        let in_use = is_used(&image, used);
        let age = ages.entry(image.id.clone()).or_insert_with(|| Age { found: Stopwatch::start(), used: None });
        if in_use {
            age.used = Some(Stopwatch::start());
        }
        Here { age: *age, image, in_use }
    };
    images.into_iter().map(look).collect()
}

/// `used` holds ids and names.
fn is_used(image: &cri::Image, used: &HashSet<String>) -> bool {
    used.contains(&image.id) || image.repo_digests.iter().chain(&image.repo_tags).any(|name| used.contains(name))
}

/// Deletes unused images, the least recently used first, until `wanted` bytes are free. Returns how many bytes went.
///
/// An image that was found less than `--minimum-image-ttl-duration` ago stays: a container may be about to be made of
/// it.
pub(crate) async fn free(node: &Node, wanted: u64) -> Result<u64, CriError> {
    delete_unused(node, wanted, Duration::ZERO).await
}

/// Of those that nobody used for `idle_min`.
async fn delete_unused(node: &Node, wanted: u64, idle_min: Duration) -> Result<u64, CriError> {
    let until = node.pulls.pulled.now();
    let here = seen_now(&node.pulls, &node.runtime).await?;
    node.pulls.pulled.keep(&here.iter().map(|here| here.image.id.clone()).collect::<BTreeSet<_>>(), until).await;
    // Older versions do not tell over the CRI which images are pinned.
    let pins: HashSet<String> = match catalog::list(&node.runtime.socket).await {
        Ok(all) => all.into_iter().filter(|(_, known)| known.pinned).map(|(name, _)| name).collect(),
        Err(_) => HashSet::new(),
    };
    // The pause image and, of the same tag, the others that kedge made of itself: nobody could pull them again.
    let pause = &node.config.pause_image;
    let own = |tag: &str| {
        tag == pause || tag.starts_with("kedge.local/") && tag.rsplit(':').next() == pause.rsplit(':').next()
    };
    let stays = |tag: &str| own(tag) || pins.contains(tag);
    let is_idle = |here: &Here| idle(&here.age) >= idle_min;
    let unused = unused(here.into_iter().filter(is_idle).collect(), stays, node.config.settings.image_age_min);
    if unused.is_empty() {
        return Ok(0);
    }
    let shown = match parents(&node.runtime).await {
        Ok(shown) => shown,
        Err(status) => {
            warn!(
                err = %Chain(&status),
                "no image is deleted: the runtime does not tell which ones are shown as volumes"
            );
            return Ok(0);
        }
    };
    let remove = |image: cri::Image| {
        let shown = &shown;
        async move {
            // Deleting takes its time, and meanwhile pods start.
            if is_used(&image, &used_now(&node.runtime).await?) || is_shown(&node.runtime, &image, shown).await? {
                return Ok::<bool, CriError>(false);
            }
            info!(image = %image.id, bytes = image.size, "deleting an unused image");
            node.runtime.cri.remove_image(&image.id).await?;
            Ok(true)
        }
        .boxed()
    };
    Ok(delete(unused, wanted, remove).await)
}

/// Deletes images in order until `wanted` bytes are free. `remove` tells whether it did. One that cannot be removed
/// does not keep the others.
async fn delete<'f, E: std::error::Error + 'static>(
    unused: Vec<cri::Image>,
    wanted: u64,
    remove: impl Fn(cri::Image) -> BoxFuture<'f, Result<bool, E>>,
) -> u64 {
    let mut freed = 0;
    for image in unused {
        if freed >= wanted {
            break;
        }
        let (id, bytes) = (image.id.clone(), image.size);
        match remove(image).await {
            Ok(true) => freed += bytes,
            Ok(false) => {}
            Err(err) => warn!(image = %id, err = %Chain(&err), "cannot delete an unused image"),
        }
    }
    freed
}

/// Whether a pod has an image as a volume. `shown` holds the snapshots that such volumes are views of.
async fn is_shown(runtime: &Runtime, image: &cri::Image, shown: &HashSet<String>) -> Result<bool, CriError> {
    Ok(!shown.is_empty() && runtime.cri.chain_id(&image.id).await?.is_none_or(|chain| shown.contains(&chain)))
}

/// Since when nobody has used an image: since it was found, if nobody ever did.
fn idle(age: &Age) -> Duration {
    age.used.as_ref().unwrap_or(&age.found).elapsed()
}

/// Images that may be deleted, the least recently used first. Containerd would delete an image under its containers,
/// too.
fn unused(here: Vec<Here>, stays: impl Fn(&str) -> bool, age_min: Duration) -> Vec<cri::Image> {
    let old = |age: &Age| age.found.elapsed() >= age_min;
    let may_go = |here: &Here| {
        !here.in_use && !here.image.pinned && old(&here.age) && !here.image.repo_tags.iter().any(|tag| stays(tag))
    };
    let mut unused: Vec<Here> = here.into_iter().filter(may_go).collect();
    // By moments and not by ages, which grow while images are compared: what was never used comes first.
    unused.sort_by_key(|Here { age, .. }| (age.used, age.found));
    unused.into_iter().map(|here| here.image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // in the virtual machine, a full disk took the image from under the pods that ran of it
    #[test]
    fn an_image_of_a_container_is_never_unused() {
        let image = |id: &str| cri::Image {
            id: id.to_owned(),
            repo_tags: vec![format!("x/{id}:1")],
            size: 1,
            ..Default::default()
        };
        let all = || {
            vec![
                image("a"),
                image("b"),
                image("c"),
                cri::Image { pinned: true, ..image("d") },
                image("e"),
                image("pause"),
            ]
        };
        let mut ages = HashMap::new();
        let used = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<HashSet<String>>();
        note(all(), &used(&["b"]), &mut ages);
        let here = note(all(), &used(&["a", "x/e:1"]), &mut ages);
        let choose = |here: Vec<Here>, secs: u64| -> Vec<String> {
            let unused = unused(here, |tag| tag == "x/pause:1", Duration::from_secs(secs));
            unused.into_iter().map(|image| image.id).collect()
        };
        assert_eq!(choose(here.clone(), 0), ["c", "b"], "what was never used goes first");
        assert!(choose(here, 60).is_empty(), "a container may be about to be made of it");
        let here = note(all(), &used(&[]), &mut ages);
        assert_eq!(choose(here, 0), ["c", "b", "a", "e"]);
        note(vec![image("b")], &used(&[]), &mut ages);
        assert_eq!(ages.into_keys().collect::<Vec<_>>(), ["b"], "what is gone is forgotten");
    }

    // node.md M7: the same image ended each round, and the disk filled.
    #[tokio::test]
    async fn an_image_that_cannot_be_removed_does_not_keep_the_others() {
        let image = |id: &str| cri::Image { id: id.to_owned(), size: 3, ..Default::default() };
        let asked = base::sync::Mutex::new(Vec::new());
        let remove = |image: cri::Image| {
            asked.lock().push(image.id.clone());
            let answer = match image.id.as_str() {
                "bad" => Err(std::io::Error::other("no")),
                id => Ok(id != "used since"),
            };
            async move { answer }.boxed()
        };
        let all = ["bad", "used since", "a", "b", "c"].map(image).to_vec();
        assert_eq!(delete(all, 6, remove).await, 6);
        assert_eq!(*asked.lock(), ["bad", "used since", "a", "b"]);
    }
}
