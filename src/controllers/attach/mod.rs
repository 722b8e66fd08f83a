//! Volumes are attached to the nodes whose pods need them, and detached when nobody there uses them any more: a
//! VolumeAttachment each, which the driver's own attacher carries out. Spec: upstream's attach/detach controller.
//!
//! Nothing of it runs until there is a volume of a driver.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Stopwatch;
use client::events::{Recorder, Severity};
use client::informer::{Change, Groups, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use model::phase::has_ended;
use model::pod::Pod;
use serde_json::json;
use tracing::warn;

use self::plan::{Attachment, NodeView, VolumeId, Wish};
use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};

const NAME: &str = "attachdetach-controller";
/// A node that fell silent has this long to let go of a volume.
const UNMOUNT_WAIT: Duration = Duration::from_secs(6 * 60);
/// Between two tries to learn whether there are attachments from an earlier time.
const START_RETRY: Duration = Duration::from_secs(5);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Words that were told, and since when something is waited for; lost with the process, and then begun anew.
#[derive(Default)]
struct Memory {
    /// Attachments that wait for the kubelet.
    held: BTreeMap<String, Stopwatch>,
    /// Failures that were told: the message by attachment.
    failures: BTreeMap<String, String>,
    /// Nodes that wait for volumes which others have: the volumes.
    blocked: BTreeMap<String, BTreeSet<String>>,
}

/// How it went with a volume that pods wait for.
#[derive(Clone, Copy)]
enum Outcome {
    Attached,
    Failed,
}

fn id_of(source: &CSIPersistentVolumeSource) -> VolumeId<'_> {
    VolumeId { driver: &source.driver, handle: &source.volume_handle }
}

struct Attacher {
    client: kube::Client,
    recorder: Recorder,
    pods: Informer<Pod>,
    by_node: Groups<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    drivers: Informer<CSIDriver>,
    attachments: Informer<VolumeAttachment>,
    nodes: Informer<Node>,
    memory: Arc<Mutex<Memory>>,
}

/// Starts the controller once there is something for it to do.
pub(crate) fn start(context: &Context) {
    let own = context.clone();
    context.spawn("attach-detach", async move {
        something_to_do(&own).await;
        begin(&own);
        std::future::pending::<()>().await;
    });
}

fn is_driven(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|s| s.csi.is_some())
}

/// Waits for a volume of a driver, or for an attachment of an earlier time.
async fn something_to_do(context: &Context) {
    let volumes: Informer<PersistentVolume> = context.informers.get();
    let mut changes = volumes.changes();
    volumes.synced().await;
    let api: Api<VolumeAttachment> = Api::all(context.client(NAME));
    loop {
        if volumes.list().iter().any(|volume| is_driven(volume)) {
            return;
        }
        match api.list(&ListParams::default().limit(1)).await {
            Ok(found) if found.items.is_empty() => break,
            Ok(_) => return,
            Err(err) => {
                warn!(controller = NAME, err = %base::chain::Chain(&err), "cannot look for attached volumes");
                tokio::time::sleep(START_RETRY).await;
            }
        }
    }
    loop {
        match changes.next().await {
            Change::Added(volume) | Change::Modified { new: volume, .. } if is_driven(&volume) => return,
            _ => {}
        }
    }
}

fn node_of(pod: &Pod) -> Option<Key> {
    let name = pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())?;
    Some(Key::new("", name))
}

/// Begins; the queue holds nodes.
fn begin(context: &Context) {
    let pods: Informer<Pod> = context.informers.get();
    let attacher = Attacher {
        client: context.client(NAME),
        recorder: context.recorder_as(EventSource { account: NAME, component: "attachdetach-controller" }),
        by_node: pods.group_by(node_of),
        claims: context.informers.get(),
        volumes: context.informers.get(),
        drivers: context.informers.get(),
        attachments: context.informers.get(),
        nodes: context.informers.get(),
        memory: Arc::default(),
        pods,
    };
    let queue = Arc::new(Queue::default());
    feed(context, &attacher, &queue);
    let waits = (attacher.pods.clone(), attacher.claims.clone(), attacher.volumes.clone(), attacher.nodes.clone());
    let more = (attacher.drivers.clone(), attacher.attachments.clone());
    context.start(NAME, &queue, attacher, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
        more.0.synced().await;
        more.1.synced().await;
    });
}

/// Feeds the queue with the nodes that a change concerns.
fn feed(context: &Context, attacher: &Attacher, queue: &Arc<Queue<Key>>) {
    context.feed(&attacher.pods, queue, |change| match change {
        Change::Modified { old, new }
            if old.spec.as_ref().map(|s| &s.node_name) == new.spec.as_ref().map(|s| &s.node_name)
                && has_ended(old) == has_ended(new) =>
        {
            Vec::new()
        }
        change => driver::objects_of(change)
            .iter()
            .filter(|pod| claim_names(pod).next().is_some())
            .filter_map(|pod| node_of(pod))
            .collect(),
    });
    context.feed(&attacher.nodes, queue, |change| match change {
        Change::Modified { old, new } if view(Some(old), "") == view(Some(new), "") => Vec::new(),
        change => driver::objects_of(change).iter().map(|node| Key::new("", &node.name_any())).collect(),
    });
    let memory = Arc::clone(&attacher.memory);
    context.feed(&attacher.attachments, queue, move |change| {
        let mut keys: Vec<Key> = driver::objects_of(change).iter().map(|a| Key::new("", &a.spec.node_name)).collect();
        if let Change::Deleted(gone) = change {
            let volume = gone.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
            let memory = memory.lock();
            keys.extend(
                memory
                    .blocked
                    .iter()
                    .filter(|(_, volumes)| volumes.contains(volume))
                    .map(|(node, _)| Key::new("", node)),
            );
        }
        keys
    });
    let pods = attacher.pods.clone();
    context.feed(&attacher.claims, queue, move |change| {
        let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|s| s.volume_name.clone());
        let claim = match change {
            Change::Added(claim) => claim,
            Change::Modified { old, new } if volume(old) != volume(new) => new,
            _ => return Vec::new(),
        };
        let (ns, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let users = pods.list_in(&ns).into_iter().filter(|pod| claim_names(pod).any(|used| used == name));
        users.filter_map(|pod| node_of(&pod)).collect()
    });
    let nodes = attacher.nodes.clone();
    context.feed(&attacher.drivers, queue, move |_| {
        nodes.list().iter().map(|node| Key::new("", &node.name_any())).collect()
    });
}

fn claim_names(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name)),
    })
}

fn view(node: Option<&Node>, name: &str) -> NodeView {
    let Some(node) = node else { return NodeView { name: name.to_owned(), ..NodeView::default() } };
    let status = node.status.clone().unwrap_or_default();
    NodeView {
        name: node.name_any(),
        exists: true,
        is_ready: status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"),
        is_out_of_service: node
            .spec
            .iter()
            .flat_map(|s| s.taints.iter().flatten())
            .any(|taint| taint.key == OUT_OF_SERVICE),
        in_use: status.volumes_in_use.into_iter().flatten().collect(),
        attached: status.volumes_attached.into_iter().flatten().map(|v| v.name).collect(),
    }
}

#[async_trait::async_trait]
impl Reconcile for Attacher {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let node = view(self.nodes.get("", &key.name).as_deref(), &key.name);
        let pods: Vec<Arc<Pod>> = self.by_node.get(key).into_iter().filter(|pod| !has_ended(pod)).collect();
        let wishes = self.wishes(&pods);
        let all: Vec<Attachment> = self.attachments.list().iter().filter_map(|a| self.seen(a)).collect();
        let overdue = {
            let memory = self.memory.lock();
            memory
                .held
                .iter()
                .filter(|(_, since)| since.elapsed() >= UNMOUNT_WAIT)
                .map(|(name, _)| name.clone())
                .collect()
        };
        let plan = plan::plan(&node, &wishes, &all, &overdue);
        // The kubelet must not believe in what is about to go.
        if node.exists && plan.attached != node.attached {
            self.tell_node(&node.name, &plan.attached).await?;
        }
        for volume in &plan.fresh {
            let text = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
            self.tell_pods(&pods, volume, Outcome::Attached, &text);
        }
        self.tell_failures(&node.name, &pods);
        for name in &plan.detach {
            let api: Api<VolumeAttachment> = Api::all(self.client.clone());
            driver::gone_is_fine(api.delete(name, &DeleteParams::default()).await)?;
        }
        for wish in &plan.attach {
            self.attach(&node.name, wish).await?;
        }
        self.note_blocked(&node.name, &plan.blocked, &pods);
        Ok(self.note_held(&node.name, &plan.held, &all))
    }
}

impl Attacher {
    /// The volumes behind the pods' claims that drivers want attached.
    fn wishes(&self, pods: &[Arc<Pod>]) -> Vec<Wish> {
        let mut wishes: BTreeMap<String, Wish> = BTreeMap::new();
        for pod in pods {
            for volume in claim_names(pod).filter_map(|claim| self.volume(pod, &claim)) {
                let spec = volume.spec.clone().unwrap_or_default();
                let Some(csi) = spec.csi else { continue };
                let required = self.drivers.get("", &csi.driver).and_then(|d| d.spec.attach_required).unwrap_or(true);
                if required {
                    let modes = spec.access_modes.unwrap_or_default();
                    let is_shared =
                        modes.is_empty() || modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany");
                    let wish =
                        Wish { volume: volume.name_any(), driver: csi.driver, handle: csi.volume_handle, is_shared };
                    wishes.insert(wish.volume.clone(), wish);
                }
            }
        }
        wishes.into_values().collect()
    }

    /// The volume that a pod's claim is bound to.
    fn volume(&self, pod: &Pod, claim: &str) -> Option<Arc<PersistentVolume>> {
        let claim = self.claims.get(&pod.namespace().unwrap_or_default(), claim)?;
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|_| bound)?;
        let volume = self.volumes.get("", &name)?;
        // A volume that names another claim is not this one's.
        let ours = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).is_some_and(|r| r.uid == claim.metadata.uid);
        ours.then_some(volume)
    }

    /// An attachment, if it is of our making.
    fn seen(&self, attachment: &VolumeAttachment) -> Option<Attachment> {
        let volume = attachment.spec.source.persistent_volume_name.clone()?;
        let csi = self.volumes.get("", &volume).and_then(|v| v.spec.as_ref()?.csi.clone());
        if !plan::is_ours(&attachment.name_any()) {
            return None;
        }
        Some(Attachment {
            name: attachment.name_any(),
            node: attachment.spec.node_name.clone(),
            unique: csi.map_or_else(String::new, |csi| id_of(&csi).unique_name()),
            volume,
            is_attached: attachment.status.as_ref().is_some_and(|s| s.attached),
            is_leaving: attachment.metadata.deletion_timestamp.is_some(),
        })
    }

    async fn tell_node(&self, node: &str, attached: &BTreeSet<String>) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let list: Vec<_> = attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        let change = json!({"status": {"volumesAttached": list}});
        driver::gone_is_fine(api.patch_status(node, &PatchParams::default(), &Patch::Merge(change)).await)?;
        Ok(())
    }

    async fn attach(&self, node: &str, wish: &Wish) -> Result<(), Error> {
        let name = VolumeId { driver: &wish.driver, handle: &wish.handle }.attachment_on(node);
        let spec = VolumeAttachmentSpec {
            attacher: wish.driver.clone(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(wish.volume.clone()),
                inline_volume_spec: None,
            },
        };
        let object =
            VolumeAttachment { metadata: ObjectMeta { name: Some(name), ..Default::default() }, spec, status: None };
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &object).await {
            // It is there already; if it is on its way out, its end brings us back.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Tells the pods that have the volume.
    fn tell_pods(&self, pods: &[Arc<Pod>], volume: &str, outcome: Outcome, text: &str) {
        let (severity, reason) = match outcome {
            Outcome::Attached => (Severity::Normal, "SuccessfulAttachVolume"),
            Outcome::Failed => (Severity::Warning, "FailedAttachVolume"),
        };
        for pod in pods {
            if claim_names(pod).any(|claim| self.volume(pod, &claim).is_some_and(|v| v.name_any() == volume)) {
                self.recorder.report(&**pod, severity, reason, text.to_owned());
            }
        }
    }

    /// Tells of each new failure of an attacher.
    fn tell_failures(&self, node: &str, pods: &[Arc<Pod>]) {
        for attachment in self.attachments.list().iter().filter(|a| a.spec.node_name == node) {
            let error =
                attachment.status.as_ref().and_then(|s| s.attach_error.as_ref()).and_then(|err| err.message.clone());
            let name = attachment.name_any();
            let fresh = {
                let mut memory = self.memory.lock();
                match &error {
                    Some(message) => memory.failures.insert(name, message.clone()).as_ref() != Some(message),
                    None => memory.failures.remove(&name).is_some_and(|_| false),
                }
            };
            if let Some(message) = error.filter(|_| fresh) {
                let volume = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
                let text = format!("AttachVolume.Attach failed for volume {volume:?} : {message}");
                self.tell_pods(pods, volume, Outcome::Failed, &text);
            }
        }
    }

    /// Remembers which volumes the node waits for, and tells of those that are new.
    fn note_blocked(&self, node: &str, blocked: &[Wish], pods: &[Arc<Pod>]) {
        let volumes: BTreeSet<String> = blocked.iter().map(|wish| wish.volume.clone()).collect();
        let before = {
            let mut memory = self.memory.lock();
            match volumes.is_empty() {
                true => memory.blocked.remove(node),
                false => memory.blocked.insert(node.to_owned(), volumes.clone()),
            }
        };
        for volume in volumes.difference(&before.unwrap_or_default()) {
            let elsewhere = |pod: &Arc<Pod>| node_of(pod).is_some_and(|key| key.name != node);
            let users: Vec<String> =
                self.users(volume).iter().filter(|pod| elsewhere(pod)).map(|pod| pod.name_any()).collect();
            let why = match users.is_empty() {
                true => {
                    "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
                }
                false => format!("Volume is already used by pod(s) {}", users.join(", ")),
            };
            let text = format!("Multi-Attach error for volume {volume:?} {why}");
            self.tell_pods(pods, volume, Outcome::Failed, &text);
        }
    }

    /// Pods that have the volume and have not ended.
    fn users(&self, volume: &str) -> Vec<Arc<Pod>> {
        let Some(claim) = self.volumes.get("", volume).and_then(|v| v.spec.as_ref()?.claim_ref.clone()) else {
            return Vec::new();
        };
        let (ns, name) = (claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default());
        let mut pods = self.pods.list_in(&ns);
        pods.retain(|pod| !has_ended(pod) && claim_names(pod).any(|used| used == name));
        pods
    }

    /// Remembers since when attachments wait for the kubelet, and says when to look again.
    fn note_held(&self, node: &str, held: &[String], all: &[Attachment]) -> Next {
        let mut memory = self.memory.lock();
        let over = |name: &String| {
            all.iter().all(|a| a.name != *name)
                || (!held.contains(name) && all.iter().any(|a| a.name == *name && a.node == node))
        };
        memory.held.retain(|name, _| !over(name));
        let mut left = None;
        for name in held {
            let since = memory.held.entry(name.clone()).or_insert_with(Stopwatch::start);
            let rest = UNMOUNT_WAIT.saturating_sub(since.elapsed()).max(Duration::from_secs(1));
            left = Some(left.map_or(rest, |l: Duration| l.min(rest)));
        }
        left.map_or(Next::Wait, Next::After)
    }
}
