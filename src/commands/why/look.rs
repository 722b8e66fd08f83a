//! Reads of `kedge why`: the object, its events, and what belongs to it.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, LogParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, Discovery, Scope};
use serde_json::Value;

use super::reasons::{self, Finding};
use super::{WhyError, nodes};
use crate::commands::admin::Admin;

/// Pods of a workload that are looked into; more say the same.
const PODS_MAX: usize = 3;
/// Lines of a container's log.
const LOG_LINES: i64 = 4;
/// Kinds that people name in short.
const SHORT: [(&str, &str); 12] = [
    ("po", "pods"),
    ("deploy", "deployments"),
    ("rs", "replicasets"),
    ("sts", "statefulsets"),
    ("ds", "daemonsets"),
    ("pvc", "persistentvolumeclaims"),
    ("pv", "persistentvolumes"),
    ("svc", "services"),
    ("ns", "namespaces"),
    ("no", "nodes"),
    ("ing", "ingresses"),
    ("crd", "customresourcedefinitions"),
];

/// The object that somebody asks about.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
}

/// A kind of which objects are read.
struct Known {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const PODS: Known = Known { group: "", kind: "Pod", plural: "pods" };
const NODES: Known = Known { group: "", kind: "Node", plural: "nodes" };
const EVENTS: Known = Known { group: "", kind: "Event", plural: "events" };
const CLAIMS: Known = Known { group: "", kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims" };
const CLASSES: Known = Known { group: "storage.k8s.io", kind: "StorageClass", plural: "storageclasses" };
const SLICES: Known = Known { group: "discovery.k8s.io", kind: "EndpointSlice", plural: "endpointslices" };
const REPLICA_SETS: Known = Known { group: "apps", kind: "ReplicaSet", plural: "replicasets" };

impl Known {
    fn resource(&self) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group, "v1", self.kind), self.plural)
    }
}

struct Cluster {
    client: kube::Client,
    namespace: String,
}

/// The object as plain JSON.
fn plain(object: &DynamicObject) -> Result<Value, WhyError> {
    Ok(serde_json::to_value(object)?)
}

/// Finds out what an object waits for.
pub(super) async fn findings(kubeconfig: &Path, asked: Asked<'_>) -> Result<Vec<Finding>, WhyError> {
    let Asked { kind, name, namespace } = asked;
    let admin = Admin::open(kubeconfig)?;
    let cluster = Cluster { client: admin.client, namespace: namespace.to_owned() };
    let (resource, capabilities) = cluster.resolve(kind).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(cluster.client.clone(), &resource),
    };
    let object = api.get(name).await?;
    let events = cluster.events(&object).await?;
    let about = format!("{} {name}", resource.kind.to_lowercase());
    let object = plain(&object)?;
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => cluster.pod(&object, &events).await,
        ("", "PersistentVolumeClaim") => cluster.claim(&about, &object, &events).await,
        ("", "Service") => cluster.service(&about, &object).await,
        ("apps", _) | ("batch", "Job") => cluster.workload(&about, &object, &events).await,
        _ => Ok(reasons::other(&about, &object, &events)),
    }
}

impl Cluster {
    async fn resolve(&self, kind: &str) -> Result<(ApiResource, ApiCapabilities), WhyError> {
        let wanted = kind.to_lowercase();
        let wanted = SHORT.iter().find(|(short, _)| *short == wanted).map_or(wanted.as_str(), |(_, long)| *long);
        let (wanted, group) = wanted.split_once('.').map_or((wanted, None), |(name, group)| (name, Some(group)));
        let fits = |resource: &ApiResource| {
            (resource.plural == wanted || resource.kind.to_lowercase() == wanted)
                && group.is_none_or(|group| resource.group == group)
        };
        let known = Discovery::new(self.client.clone()).run().await?;
        let mut all: Vec<_> = known
            .groups()
            .flat_map(|group| group.recommended_resources())
            .filter(|(resource, _)| fits(resource))
            .collect();
        // What is built in goes before what others call the same.
        all.sort_by_key(|(resource, _)| resource.group.contains('.'));
        all.into_iter().next().ok_or_else(|| WhyError::Kind(kind.to_owned()))
    }

    fn api(&self, known: &Known) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &known.resource())
    }

    fn api_of_all(&self, known: &Known) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &known.resource())
    }

    async fn list(&self, api: &Api<DynamicObject>, params: &ListParams) -> Result<Vec<Value>, WhyError> {
        api.list(params).await?.items.iter().map(plain).collect()
    }

    async fn events(&self, object: &DynamicObject) -> Result<Vec<Value>, WhyError> {
        let Some(uid) = object.uid() else { return Ok(Vec::new()) };
        self.list(&self.api_of_all(&EVENTS), &ListParams::default().fields(&format!("involvedObject.uid={uid}"))).await
    }

    async fn pod(&self, pod: &Value, events: &[Value]) -> Result<Vec<Finding>, WhyError> {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut logs = std::collections::BTreeMap::new();
        let statuses = ["initContainerStatuses", "containerStatuses"]
            .into_iter()
            .filter_map(|list| pod["status"][list].as_array())
            .flatten();
        for status in statuses.filter(|status| status["restartCount"].as_i64().unwrap_or_default() > 0) {
            let container = status["name"].as_str().unwrap_or_default();
            let params = LogParams {
                container: Some(container.to_owned()),
                previous: true,
                tail_lines: Some(LOG_LINES),
                ..LogParams::default()
            };
            // A log that is gone, or a node that is silent, says nothing; all else does still.
            if let Ok(text) = api.logs(name, &params).await {
                logs.insert(container.to_owned(), text);
            }
        }
        let mut found = reasons::pod(&format!("pod {name}"), pod, events, &|container| logs.get(container).cloned());
        if pod["spec"]["nodeName"].is_null() && !found.is_empty() {
            let nodes = self.list(&self.api_of_all(&NODES), &ListParams::default()).await?;
            let pods = self.list(&self.api_of_all(&PODS), &ListParams::default()).await?;
            if let Some(first) = found.first_mut() {
                for line in nodes::lines(pod, &nodes, &pods) {
                    first.what = format!("{}\n{line}", first.what);
                }
            }
            for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                    found.extend(self.claim_named(claim).await?);
                }
            }
        }
        Ok(found)
    }

    async fn claim_named(&self, name: &str) -> Result<Vec<Finding>, WhyError> {
        let about = format!("persistentvolumeclaim {name}");
        match self.api(&CLAIMS).get_opt(name).await? {
            Some(claim) => self.claim(&about, &plain(&claim)?, &self.events(&claim).await?).await,
            None => Ok(vec![reasons::finding(&about, "there is none of that name", "make it")]),
        }
    }

    async fn claim(&self, about: &str, claim: &Value, events: &[Value]) -> Result<Vec<Finding>, WhyError> {
        let classes = self.list(&self.api_of_all(&CLASSES), &ListParams::default()).await?;
        let is_default =
            |class: &Value| class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
        let class = match claim["spec"]["storageClassName"].as_str() {
            Some(named) => classes.iter().find(|class| class["metadata"]["name"] == named),
            None => classes.iter().find(|class| is_default(class)),
        };
        let name = &claim["metadata"]["name"];
        let pods = self.list(&self.api(&PODS), &ListParams::default()).await?;
        let mounts = |pod: &&Value| {
            let volumes = pod["spec"]["volumes"].as_array();
            volumes.is_some_and(|volumes| {
                volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == *name)
            })
        };
        Ok(reasons::claim(about, claim, class, pods.iter().filter(mounts).count(), events))
    }

    async fn service(&self, about: &str, service: &Value) -> Result<Vec<Finding>, WhyError> {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        let slices = self.api(&SLICES);
        let slices =
            self.list(&slices, &ListParams::default().labels(&format!("kubernetes.io/service-name={name}"))).await?;
        let endpoints: Vec<&Value> =
            slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten().collect();
        let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] != Value::Bool(false)).count();
        let labels = service["spec"]["selector"].as_object().into_iter().flatten();
        let labels: Vec<String> =
            labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let pods = match labels.is_empty() {
            true => Vec::new(),
            false => self.list(&self.api(&PODS), &ListParams::default().labels(&labels.join(","))).await?,
        };
        let mut found = reasons::service(about, service, ready, endpoints.len() - ready, pods.len());
        if ready == 0 {
            found.extend(self.pods(pods).await?);
        }
        Ok(found)
    }

    /// Of a workload, what it makes, and the pods of that: owners are followed down.
    async fn workload(&self, about: &str, object: &Value, events: &[Value]) -> Result<Vec<Finding>, WhyError> {
        let mut found = reasons::workload(about, object, events);
        let mut owners = vec![object["metadata"]["uid"].clone()];
        let owned = |all: Vec<Value>, owners: &[Value]| -> Vec<Value> {
            let ours = |one: &Value| {
                one["metadata"]["ownerReferences"]
                    .as_array()
                    .is_some_and(|refs| refs.iter().any(|r| owners.contains(&r["uid"])))
            };
            all.into_iter().filter(ours).collect()
        };
        let sets = self.api(&REPLICA_SETS);
        for set in owned(self.list(&sets, &ListParams::default()).await?, &owners) {
            owners.push(set["metadata"]["uid"].clone());
            let name = set["metadata"]["name"].as_str().unwrap_or_default();
            if set["spec"]["replicas"].as_i64().unwrap_or_default()
                > set["status"]["replicas"].as_i64().unwrap_or_default()
            {
                let whole = sets.get(name).await?;
                found.extend(reasons::workload(
                    &format!("replicaset {name}"),
                    &plain(&whole)?,
                    &self.events(&whole).await?,
                ));
            }
        }
        let pods = owned(self.list(&self.api(&PODS), &ListParams::default()).await?, &owners);
        found.extend(self.pods(pods).await?);
        Ok(found)
    }

    /// Findings about the first of these that wait.
    async fn pods(&self, pods: Vec<Value>) -> Result<Vec<Finding>, WhyError> {
        let (mut found, mut looked) = (Vec::new(), 0);
        let api = self.api(&PODS);
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let Some(whole) = api.get_opt(name).await? else { continue };
            let own = self.pod(&plain(&whole)?, &self.events(&whole).await?).await?;
            looked += usize::from(!own.is_empty());
            found.extend(own);
            if looked == PODS_MAX {
                break;
            }
        }
        Ok(found)
    }
}
