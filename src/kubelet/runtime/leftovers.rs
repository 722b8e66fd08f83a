//! Ends attachments to the pods' network whose sandbox containerd does not know: else each power cut in the making of a
//! sandbox would cost the node an address for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use tracing::{debug, info, warn};

use super::attachments::{self, Attachment, Places};
use super::cri::Cri;
use crate::pods::folder;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(300);
/// Until then a sandbox that containerd does not show may be in the making: it is shown when all of it runs. Twice as
/// long as the call that makes one may take, and what was begun is undone.
const MAKING_MAX: Duration = Duration::from_secs(600);

/// The places and the runtime that are looked at.
pub(super) struct Leftovers {
    pub(super) places: Places,
    pub(super) cri: Cri,
    /// The kubelet's folder: it tells which pods are ours.
    pub(super) root_dir: PathBuf,
}

/// Whether containerd can have begun something before it was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Containerd {
    /// It was just started: what it does not know, nobody makes.
    New,
    /// It ran on while kedge was away.
    Adopted,
}

impl Leftovers {
    /// Looks now, before anybody makes a sandbox, and from then on now and then.
    pub(super) async fn watch(self, containerd: Containerd, group: &Group) {
        let first = match containerd {
            Containerd::New => self.unknown().await.unwrap_or_default(),
            Containerd::Adopted => Vec::new(),
        };
        group.spawn("attachments", async move {
            let mut missed = Missed::default();
            self.end(first).await;
            loop {
                tokio::time::sleep(PERIOD).await;
                let Some(unknown) = self.unknown().await else { continue };
                let late = missed.late(unknown.iter().map(|attachment| attachment.sandbox.as_str()).collect());
                self.end(unknown.into_iter().filter(|attachment| late.contains(&attachment.sandbox)).collect()).await;
            }
        });
    }

    /// The recorded attachments of sandboxes that containerd does not know. The records are read first: a sandbox that
    /// is done meanwhile is known.
    async fn unknown(&self) -> Option<Vec<Attachment>> {
        let (places, root) = (self.places.clone(), self.root_dir.clone());
        let has_pod = move |uid: &str| root.join("pods").join(uid).is_dir() && folder::is_our_pod(&root, uid);
        let read = Group::blocking(move || attachments::recorded(&places, &has_pod));
        let recorded = read.await.ok()?;
        if recorded.is_empty() {
            return Some(recorded);
        }
        match self.cri.sandboxes(None).await {
            Ok(sandboxes) => {
                let known: BTreeSet<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
                Some(recorded.into_iter().filter(|attachment| !known.contains(&attachment.sandbox)).collect())
            }
            Err(err) => {
                debug!(err = %Chain(&err), "cannot look for networks of sandboxes that are gone");
                None
            }
        }
    }

    async fn end(&self, all: Vec<Attachment>) {
        let places = self.places.clone();
        let ended = Group::blocking(move || {
            for attachment in all {
                let sandbox = &attachment.sandbox;
                match attachment.end(&places) {
                    Ok(()) => info!(sandbox, "ended the network of a sandbox that containerd does not know"),
                    Err(err) => {
                        warn!(
                            sandbox,
                            err = %Chain(&err),
                            "cannot end the network of a sandbox that containerd does not know"
                        )
                    }
                }
            }
        });
        if let Err(err) = ended.await {
            warn!(err = %Chain(&err), "cannot end networks of sandboxes that are gone");
        }
    }
}

/// Since when each sandbox is not known.
#[derive(Default)]
struct Missed(BTreeMap<String, Stopwatch>);

impl Missed {
    /// Those of the unknown that were unknown for long.
    fn late(&mut self, unknown: BTreeSet<&str>) -> BTreeSet<String> {
        self.0.retain(|sandbox, _| unknown.contains(sandbox.as_str()));
        for sandbox in unknown {
            self.0.entry(sandbox.to_owned()).or_insert_with(Stopwatch::start);
        }
        self.longer_than(MAKING_MAX)
    }

    fn longer_than(&self, limit: Duration) -> BTreeSet<String> {
        self.0.iter().filter(|(_, since)| since.elapsed() >= limit).map(|(sandbox, _)| sandbox.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_in_the_making_is_let_be_and_one_that_was_made_is_forgotten() {
        let mut missed = Missed::default();
        assert!(missed.late(["a", "b"].into()).is_empty(), "they may be in the making");
        assert_eq!(missed.longer_than(Duration::ZERO), ["a", "b"].map(str::to_owned).into());
        missed.late(["b"].into());
        assert_eq!(
            missed.longer_than(Duration::ZERO),
            ["b".to_owned()].into(),
            "containerd knows the other one by now"
        );
    }
}
