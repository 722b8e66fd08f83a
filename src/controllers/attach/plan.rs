//! Which volumes a node gets, and which it gives back. Pure.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// A volume that pods of the node need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The persistent volume.
    pub(super) volume: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// Many nodes may have it at once.
    pub(super) is_shared: bool,
}

/// A volume as its driver knows it.
#[derive(Clone, Copy)]
pub(super) struct VolumeId<'a> {
    pub(super) driver: &'a str,
    pub(super) handle: &'a str,
}

const NAME_PREFIX: &str = "csi-";

impl VolumeId<'_> {
    /// The name of the volume in a node's status.
    pub(super) fn unique_name(self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// The name of the VolumeAttachment by which a node gets the volume, upstream's.
    pub(super) fn attachment_on(self, node: &str) -> String {
        let hash = Sha256::digest(format!("{}{}{node}", self.handle, self.driver));
        format!("{NAME_PREFIX}{}", base::hex::encode(&hash))
    }
}

/// Whether a VolumeAttachment has a name of that form. Others are somebody's own, who takes them away as well.
pub(super) fn is_ours(name: &str) -> bool {
    name.strip_prefix(NAME_PREFIX)
        .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) name: String,
    pub(super) node: String,
    pub(super) volume: String,
    /// As the volume is called in a node's status; empty if the volume is gone.
    pub(super) unique: String,
    pub(super) is_attached: bool,
    pub(super) is_leaving: bool,
}

/// Facts of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeView {
    pub(super) name: String,
    pub(super) exists: bool,
    pub(super) is_ready: bool,
    /// Somebody has said that the machine is off.
    pub(super) is_out_of_service: bool,
    /// Volumes that the kubelet says it uses.
    pub(super) in_use: BTreeSet<String>,
    /// Volumes that we have told it to be attached.
    pub(super) attached: BTreeSet<String>,
}

/// Work to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Volumes that the node is to be told.
    pub(super) attached: BTreeSet<String>,
    /// Volumes that it is told of for the first time.
    pub(super) fresh: Vec<String>,
    /// VolumeAttachments to delete, after it was told.
    pub(super) detach: Vec<String>,
    /// VolumeAttachments that go once the kubelet has let go.
    pub(super) held: Vec<String>,
    /// Volumes to attach.
    pub(super) attach: Vec<Wish>,
    /// Volumes that another node has.
    pub(super) blocked: Vec<Wish>,
}

/// `overdue` are attachments that were held for too long. `all` are those of every node.
pub(super) fn plan(node: &NodeView, wishes: &[Wish], all: &[Attachment], overdue: &BTreeSet<String>) -> Plan {
    let mut plan = Plan::default();
    let wanted: BTreeMap<&str, &Wish> = wishes.iter().map(|w| (w.volume.as_str(), w)).collect();
    for own in all.iter().filter(|a| a.node == node.name) {
        if own.is_leaving {
            continue;
        }
        let wish = wanted.get(own.volume.as_str());
        if wish.is_none() {
            let forced = node.is_out_of_service || (overdue.contains(&own.name) && !node.is_ready);
            if node.exists && node.in_use.contains(&own.unique) && !forced {
                plan.held.push(own.name.clone());
            } else {
                plan.detach.push(own.name.clone());
                continue;
            }
        }
        if own.is_attached && !own.unique.is_empty() {
            if !node.attached.contains(&own.unique) && wish.is_some() {
                plan.fresh.push(own.volume.clone());
            }
            plan.attached.insert(own.unique.clone());
        }
    }
    if !node.exists {
        return plan;
    }
    for wish in wishes {
        let theirs = || all.iter().filter(|a| a.volume == wish.volume);
        if theirs().any(|a| a.node == node.name) {
            continue;
        }
        if !wish.is_shared && theirs().next().is_some() {
            plan.blocked.push(wish.clone());
        } else {
            plan.attach.push(wish.clone());
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(volume: &str) -> Wish {
        Wish { volume: volume.to_owned(), driver: "d".to_owned(), handle: volume.to_owned(), is_shared: false }
    }

    fn unique_name(volume: &str) -> String {
        VolumeId { driver: "d", handle: volume }.unique_name()
    }

    fn attachment(node: &str, volume: &str) -> Attachment {
        Attachment {
            name: format!("csi-{node}-{volume}"),
            node: node.to_owned(),
            volume: volume.to_owned(),
            unique: unique_name(volume),
            is_attached: true,
            is_leaving: false,
        }
    }

    fn node() -> NodeView {
        NodeView { name: "n".to_owned(), exists: true, is_ready: true, ..NodeView::default() }
    }

    #[test]
    fn attachments_that_somebody_else_made_are_not_ours() {
        assert!(is_ours(&VolumeId { driver: "d", handle: "vol-1" }.attachment_on("n")));
        assert!(!is_ours("va-e2e-4rvht") && !is_ours("csi-abc"));
    }

    #[test]
    fn a_volume_is_attached_and_the_node_told_when_that_is_done() {
        let first = plan(&node(), &[wish("v")], &[], &BTreeSet::new());
        assert_eq!(first.attach, [wish("v")]);
        let mut on_its_way = attachment("n", "v");
        on_its_way.is_attached = false;
        assert_eq!(plan(&node(), &[wish("v")], &[on_its_way], &BTreeSet::new()), Plan::default());
        let done = plan(&node(), &[wish("v")], &[attachment("n", "v")], &BTreeSet::new());
        assert_eq!((done.fresh, done.attached), (vec!["v".to_owned()], BTreeSet::from([unique_name("v")])));
    }

    #[test]
    fn what_the_kubelet_uses_is_not_taken_from_it() {
        let mut view = node();
        view.in_use.insert(unique_name("v"));
        let all = [attachment("n", "v")];
        let kept = plan(&view, &[], &all, &BTreeSet::new());
        assert_eq!((kept.detach.len(), kept.held.len(), kept.attached.len()), (0, 1, 1));
        let overdue = BTreeSet::from(["csi-n-v".to_owned()]);
        assert!(plan(&view, &[], &all, &overdue).detach.is_empty(), "a node that is well is waited for");
        view.is_ready = false;
        assert_eq!(plan(&view, &[], &all, &overdue).detach, ["csi-n-v"]);
        view.is_out_of_service = true;
        assert_eq!(plan(&view, &[], &all, &BTreeSet::new()).detach, ["csi-n-v"]);
        view.in_use.clear();
        let freed = plan(&view, &[], &all, &BTreeSet::new());
        assert_eq!((freed.detach.len(), freed.attached.len()), (1, 0));
    }

    #[test]
    fn one_node_at_a_time_has_a_volume_that_is_not_shared() {
        let elsewhere = [attachment("other", "v")];
        assert_eq!(plan(&node(), &[wish("v")], &elsewhere, &BTreeSet::new()).blocked, [wish("v")]);
        let shared = Wish { is_shared: true, ..wish("v") };
        assert_eq!(plan(&node(), std::slice::from_ref(&shared), &elsewhere, &BTreeSet::new()).attach, [shared]);
    }

    #[test]
    fn a_node_that_is_gone_gives_all_back() {
        let gone = NodeView { name: "n".to_owned(), ..NodeView::default() };
        let plan = plan(&gone, &[wish("w")], &[attachment("n", "v")], &BTreeSet::new());
        assert_eq!((plan.detach.len(), plan.attach.len()), (1, 0));
    }
}
