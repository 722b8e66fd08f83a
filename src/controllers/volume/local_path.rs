//! The class `local-path`: a folder on the node where the claim's first pod runs, as rancher's local-path-provisioner
//! makes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use client::typed::typed;
use client::volumes;
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod as WholePod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use model::phase;
use model::pod::Pod;
use serde_json::json;

use super::binder::{self, HELPER_AGAIN};
use super::matching::{self, PROVISIONED_BY, SELECTED_NODE};
use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};
use crate::settings::LocalPath;

/// The name that k3s users know the provisioner by.
const PROVISIONER: &str = "rancher.io/local-path";
const HOSTNAME: &str = "kubernetes.io/hostname";
const NAMESPACE: &str = "kube-system";

struct Controller {
    config: LocalPath,
    client: kube::Client,
    recorder: Recorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
}

/// Starts the provisioner. Its queue holds claims, and volumes as keys without namespace.
pub(super) fn start(context: &Context, config: LocalPath) {
    let controller = Controller {
        config,
        client: context.client(binder::NAME),
        recorder: context.recorder_as(EventSource { account: binder::NAME, component: PROVISIONER }),
        claims: context.informers.get(),
        volumes: context.informers.get(),
        classes: context.informers.get(),
        nodes: context.informers.get(),
        pods: context.informers.get(),
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&controller.claims, &queue);
    context.feed_own(&controller.volumes, &queue);
    // A helper's labels say what it works for.
    context.feed(&controller.pods, &queue, |change| {
        driver::objects_of(change).iter().filter_map(|pod| helped(pod)).collect()
    });
    let waits = (
        controller.claims.clone(),
        controller.volumes.clone(),
        controller.classes.clone(),
        controller.nodes.clone(),
        controller.pods.clone(),
    );
    context.start("local-path-provisioner", &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
        waits.4.synced().await;
    });
}

const FOR_NAMESPACE: &str = "local-path.kedge.io/namespace";
const FOR_NAME: &str = "local-path.kedge.io/name";

fn helped(pod: &Pod) -> Option<Key> {
    let of = |annotation: &str| pod.annotations().get(annotation);
    Some(Key::new(of(FOR_NAMESPACE)?, of(FOR_NAME)?)).filter(|_| pod.namespace().as_deref() == Some(NAMESPACE))
}

/// The two things that are done to a folder.
#[derive(Clone, Copy)]
enum Task {
    Setup,
    Teardown,
}

/// Work of a helper pod.
#[derive(Clone, Copy)]
struct Work<'a> {
    task: Task,
    path: &'a str,
    node: &'a Node,
    /// The claim or the volume whose folder it is.
    about: &'a Key,
}

/// A volume's name, its folder and the node that has it.
#[derive(Clone, Copy)]
struct Location<'a> {
    name: &'a str,
    path: &'a str,
    node: &'a Node,
}

/// How far a helper pod is.
enum Helper {
    Works,
    Done,
    Failed,
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if key.namespace.is_empty() {
            let Some(volume) = self.volumes.get("", &key.name) else { return Ok(Next::Wait) };
            return self.take_down(&volume).await;
        }
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let Some(class) =
            self.classes.get("", &volumes::class_of(&claim)).filter(|class| class.provisioner == PROVISIONER)
        else {
            return Ok(Next::Wait);
        };
        if volumes::name_of(&claim).is_some() || claim.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        self.provision(&claim, &class).await
    }
}

impl Controller {
    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Next, Error> {
        let fail = |text: String| self.recorder.report(claim, Severity::Warning, "ProvisioningFailed", text);
        let Some(node) = claim.annotations().get(SELECTED_NODE) else {
            if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
                fail(format!(
                    "failed to provision volume with StorageClass {:?}: configuration error, no node was specified",
                    class.name_any()
                ));
            }
            return Ok(Next::Wait);
        };
        let Some(node) = self.nodes.get("", node) else { return Ok(Next::Wait) };
        if let Some(why) = unsupported(&claim.spec.clone().unwrap_or_default()) {
            fail(format!("failed to provision volume with StorageClass {:?}: {why}", class.name_any()));
            return Ok(Next::Wait);
        }
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        if self.volumes.get("", &name).is_some() {
            return Ok(Next::Wait);
        }
        let path = format!("{}/{name}_{}_{}", self.config.dir, claim.namespace().unwrap_or_default(), claim.name_any());
        let helper = format!("helper-pod-create-{name}");
        let work = Work { task: Task::Setup, path: &path, node: &node, about: &Key::of(claim) };
        match self.helper(&helper, work).await? {
            Helper::Works => return Ok(Next::After(HELPER_AGAIN)),
            Helper::Failed => {
                fail(format!(
                    "failed to provision volume with StorageClass {:?}: create process failed on node {}",
                    class.name_any(),
                    node.name_any()
                ));
                self.forget(&helper).await?;
                return Ok(Next::After(HELPER_AGAIN));
            }
            Helper::Done => {}
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let made = volume(claim, class, Location { name: &name, path: &path, node: &node });
        match api.create(&PostParams::default(), &made).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            other => {
                other?;
                let text = format!("Successfully provisioned volume {name}");
                self.recorder.report(claim, Severity::Normal, "ProvisioningSucceeded", text);
            }
        }
        self.forget(&helper).await?;
        Ok(Next::Wait)
    }

    /// A released volume of ours: its folder goes, then it does.
    async fn take_down(&self, volume: &PersistentVolume) -> Result<Next, Error> {
        let spec = volume.spec.clone().unwrap_or_default();
        let ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by == PROVISIONER);
        let released = matches!(volumes::phase(volume), "Released" | "Failed")
            && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
        if !ours || !released || volume.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let path = spec.host_path.map(|h| h.path).or(spec.local.map(|l| l.path)).unwrap_or_default();
        let node = self.nodes.list().into_iter().find(|node| matching::reaches(volume, node));
        let helper = format!("helper-pod-delete-{}", volume.name_any());
        // Without its node the folder is gone too.
        if let Some(node) = node.filter(|_| path.starts_with(&format!("{}/", self.config.dir))) {
            let work = Work { task: Task::Teardown, path: &path, node: &node, about: &Key::of(volume) };
            match self.helper(&helper, work).await? {
                Helper::Works => return Ok(Next::After(HELPER_AGAIN)),
                Helper::Failed => {
                    let text = format!(
                        "failed to delete volume {:?}: delete process failed on node {}",
                        volume.name_any(),
                        node.name_any()
                    );
                    self.recorder.report(volume, Severity::Warning, "VolumeFailedDelete", text);
                    self.forget(&helper).await?;
                    return Ok(Next::After(HELPER_AGAIN));
                }
                Helper::Done => {}
            }
        }
        binder::delete(&self.client, volume).await?;
        self.forget(&helper).await?;
        Ok(Next::Wait)
    }

    /// Starts the helper pod unless it is there, and says how far it is.
    async fn helper(&self, name: &str, work: Work<'_>) -> Result<Helper, Error> {
        let api: Api<WholePod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let Some(pod) = self.pods.get(NAMESPACE, name) else {
            match api.create(&PostParams::default(), &helper_pod(&self.config, name, work)?).await {
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                other => drop(other?),
            }
            return Ok(Helper::Works);
        };
        Ok(match phase::phase(&pod) {
            "Succeeded" => Helper::Done,
            "Failed" => Helper::Failed,
            _ => Helper::Works,
        })
    }

    async fn forget(&self, helper: &str) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(driver::gone_is_fine(api.delete(helper, &DeleteParams::default()).await)?)
    }
}

fn unsupported(spec: &PersistentVolumeClaimSpec) -> Option<&'static str> {
    if spec.selector.is_some() {
        return Some("claim.Spec.Selector is not supported");
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("Block volume mode is not supported");
    }
    let local = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
    (!spec.access_modes.iter().flatten().all(local)).then_some("Only support ReadWriteOnce access mode")
}

fn helper_pod(config: &LocalPath, name: &str, work: Work<'_>) -> Result<WholePod, Error> {
    let task = match work.task {
        Task::Setup => "setup",
        Task::Teardown => "teardown",
    };
    let notes = json!({FOR_NAMESPACE: work.about.namespace, FOR_NAME: work.about.name});
    let pod = json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": notes},
        "spec": {
            "nodeName": work.node.name_any(),
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "helper",
                "image": config.image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/local-path", task, work.path],
                "volumeMounts": [{"name": "data", "mountPath": config.dir}],
            }],
            "volumes": [{"name": "data", "hostPath": {"path": config.dir, "type": "DirectoryOrCreate"}}],
        },
    });
    typed(&pod).map_err(|err| Error::Object(err.to_string()))
}

fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, location: Location<'_>) -> PersistentVolume {
    let Location { name, path, node } = location;
    let spec = claim.spec.clone().unwrap_or_default();
    let mut reference = claim.object_ref(&());
    reference.resource_version = claim.resource_version();
    let hostname = node.labels().get(HOSTNAME).cloned().unwrap_or_else(|| node.name_any());
    let is_there = json!({"key": HOSTNAME, "operator": "In", "values": [hostname]});
    let near = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [is_there]}]}});
    let source = json!({"path": path, "type": "DirectoryOrCreate"});
    // `defaultVolumeType: local` in the class or on the claim, as the original has it.
    let wanted = |map: Option<&BTreeMap<String, String>>, key: &str| {
        map.and_then(|m| m.get(key)).is_some_and(|kind| kind == "local")
    };
    let local = wanted(claim.metadata.annotations.as_ref(), "volumeType")
        || wanted(class.metadata.annotations.as_ref(), "defaultVolumeType");
    let mut volume = PersistentVolume::default();
    volume.metadata.name = Some(name.to_owned());
    let notes = volume.metadata.annotations.get_or_insert_default();
    notes.insert(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned());
    notes.insert("local.path.provisioner/selected-node".to_owned(), node.name_any());
    let made = volume.spec.get_or_insert_default();
    made.capacity = spec.resources.and_then(|r| r.requests);
    made.access_modes = spec.access_modes;
    made.volume_mode = spec.volume_mode;
    made.persistent_volume_reclaim_policy = Some(class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()));
    made.storage_class_name = Some(class.name_any());
    made.mount_options = class.mount_options.clone();
    made.claim_ref = Some(reference);
    made.node_affinity = typed(&near).ok();
    if local {
        made.local = typed(&json!({"path": path})).ok();
    } else {
        made.host_path = typed(&source).ok();
    }
    volume
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_folder_on_the_chosen_node_and_named_after_its_claim() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "d", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
            .unwrap();
        let class: StorageClass = serde_json::from_value(
            json!({"metadata": {"name": "local-path"}, "provisioner": PROVISIONER, "reclaimPolicy": "Retain"}),
        )
        .unwrap();
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {HOSTNAME: "n1"}}})).unwrap();
        let volume = volume(&claim, &class, Location { name: "pvc-u", path: "/storage/pvc-u_d_data", node: &node });
        let spec = volume.spec.clone().unwrap();
        assert_eq!(spec.host_path.unwrap().path, "/storage/pvc-u_d_data");
        assert_eq!(
            (spec.persistent_volume_reclaim_policy.as_deref(), spec.claim_ref.unwrap().uid.as_deref()),
            (Some("Retain"), Some("u"))
        );
        assert!(matching::reaches(&volume, &node));
    }

    // Texts of local-path-provisioner v0.0.32 (provisioner.go).
    #[test]
    fn what_a_folder_cannot_be_is_refused() {
        let (many, block) = ("Only support ReadWriteOnce access mode", "Block volume mode is not supported");
        for (spec, refusal) in [
            (json!({}), None),
            (json!({"accessModes": ["ReadWriteOnce"]}), None),
            (json!({"accessModes": ["ReadWriteOncePod"], "volumeMode": "Filesystem"}), None),
            (json!({"accessModes": ["ReadWriteMany"]}), Some(many)),
            (json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}), Some(many)),
            (json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}), Some(block)),
            (json!({"selector": {}, "volumeMode": "Block"}), Some("claim.Spec.Selector is not supported")),
        ] {
            let read: PersistentVolumeClaimSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(unsupported(&read), refusal, "{spec}");
        }
    }

    #[test]
    fn a_class_or_a_claim_chooses_the_kind_of_the_volume_and_the_claims_name_is_kept() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        let location = Location { name: "pvc-u", path: "/storage/x", node: &node };
        for (on_class, on_claim, is_local) in [
            (json!({}), json!({}), false),
            (json!({"defaultVolumeType": "local"}), json!({}), true),
            (json!({}), json!({"volumeType": "local"}), true),
            (json!({"defaultVolumeType": "hostPath"}), json!({"defaultVolumeType": "local"}), false),
        ] {
            let claim = json!({"metadata": {"name": "data", "namespace": "d", "uid": "u", "annotations": on_claim}});
            let class = json!({"metadata": {"name": "c", "annotations": on_class}, "provisioner": PROVISIONER});
            let (claim, class) = (typed(&claim).unwrap(), typed(&class).unwrap());
            let made = volume(&claim, &class, location);
            let spec = made.spec.clone().unwrap();
            assert_eq!((spec.local.is_some(), spec.host_path.is_some()), (is_local, !is_local));
            assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"), "the default of a class");
            assert_eq!(made.annotations()["local.path.provisioner/selected-node"], "n1");
        }
    }

    #[test]
    fn a_helper_pod_runs_its_task_on_the_volumes_node_and_says_for_whom() {
        let config = LocalPath { dir: "/storage".to_owned(), image: "local-path".to_owned() };
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        for (task, word) in [(Task::Setup, "setup"), (Task::Teardown, "teardown")] {
            let about = Key::new("d", "data");
            let work = Work { task, path: "/storage/x", node: &node, about: &about };
            let pod = json!(helper_pod(&config, "helper", work).unwrap());
            assert_eq!(pod["spec"]["containers"][0]["command"], json!(["/local-path", word, "/storage/x"]));
            assert_eq!(pod["spec"]["nodeName"], "n1");
            let seen: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(helped(&seen), Some(about));
        }
    }
}
