//! Bringing a manifest into the cluster, as `kubectl apply --server-side` does, and taking it out again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::chain::Chain;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::Scope;
use serde_json::Value;
use tracing::info;

use super::MANAGER;
use super::files::Manifest;
use super::record::{self, AddOn, Held, NAMESPACE};

/// A definition is served by then after it was written.
const SERVED: Duration = Duration::from_secs(10);
/// Between two looks whether it is.
const SERVED_POLL: Duration = Duration::from_millis(50);

/// The cluster as add-ons see it.
pub struct Cluster {
    client: kube::Client,
}

/// Result of a file that was applied.
pub struct Done {
    /// The AddOn as it stands.
    pub addon: AddOn,
    /// Objects in the manifest.
    pub objects: usize,
    /// Whether it was not in force like this before.
    pub changed: bool,
}

/// A file that could not be applied in whole.
pub struct Failed {
    /// The AddOn, if it is there.
    pub addon: Option<AddOn>,
    /// Reason of the event.
    pub reason: &'static str,
    /// Words before "at PATH failed".
    pub doing: &'static str,
    /// Why.
    pub why: String,
}

/// A text that is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Yaml(serde_saphyr::Error),
    /// A field that every object has.
    #[error("document {document}: {field} is missing")]
    Missing {
        /// Number of the document, from 1 on.
        document: usize,
        /// The field.
        field: &'static str,
    },
    /// A document that is no object.
    #[error("document {document}")]
    Object {
        /// Number of the document, from 1 on.
        document: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// An object that the API does not take or let go.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Its kind is not served.
    #[error("no matches for kind {kind:?} in version {api_version:?}")]
    NotServed {
        /// The kind.
        kind: String,
        /// Its group and version.
        api_version: String,
    },
    /// The API's own sentence.
    #[error("{0}")]
    Status(String),
    /// There was no answer.
    #[error(transparent)]
    Client(kube::Error),
}

impl From<kube::Error> for ObjectError {
    fn from(err: kube::Error) -> ObjectError {
        match err {
            kube::Error::Api(status) => ObjectError::Status(status.message.clone()),
            err => ObjectError::Client(err),
        }
    }
}

/// Reads the objects of a manifest: documents of YAML or JSON, lists taken apart.
pub fn objects(text: &str) -> Result<Vec<DynamicObject>, ManifestError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(ManifestError::Yaml)?;
    let mut out = Vec::new();
    for (idx, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let is_list =
            document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && document["items"].is_array();
        let items = if is_list { document["items"].as_array().cloned().unwrap_or_default() } else { vec![document] };
        for item in items {
            let document = idx + 1;
            let fields = [
                ("apiVersion", &item["apiVersion"]),
                ("kind", &item["kind"]),
                ("metadata.name", &item["metadata"]["name"]),
            ];
            if let Some((field, _)) = fields.into_iter().find(|(_, value)| value.as_str().is_none_or(str::is_empty)) {
                return Err(ManifestError::Missing { document, field });
            }
            out.push(serde_json::from_value(item).map_err(|source| ManifestError::Object { document, source })?);
        }
    }
    Ok(out)
}

/// Namespaces and definitions first, for the others stand on them; else the order of the file.
fn in_order(objects: &mut [(DynamicObject, Held)]) {
    objects.sort_by_key(|(_, held)| match held.kind.as_str() {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        _ => 2,
    });
}

/// Resources of kinds, asked for once a round.
#[derive(Default)]
struct Kinds(BTreeMap<(String, String), (ApiResource, Scope)>);

impl Cluster {
    /// Through `client`, which may do everything.
    pub fn new(client: kube::Client) -> Cluster {
        Cluster { client }
    }

    fn addons(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), NAMESPACE, &record::resource())
    }

    /// Makes the kind AddOn and waits until it is served.
    pub async fn define(&self) -> Result<(), kube::Error> {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions"));
        let params = PatchParams::apply(MANAGER).force();
        api.patch("addons.kedge.io", &params, &Patch::Apply(record::definition())).await?;
        let served = async {
            while self.list().await.is_err() {
                tokio::time::sleep(SERVED_POLL).await
            }
        };
        if tokio::time::timeout(SERVED, served).await.is_err() {
            self.list().await?;
        }
        Ok(())
    }

    /// All AddOns by name.
    pub async fn list(&self) -> Result<BTreeMap<String, AddOn>, kube::Error> {
        let listed = self.addons().list(&ListParams::default()).await?;
        Ok(listed.iter().map(AddOn::of).map(|addon| (addon.name.clone(), addon)).collect())
    }

    /// Applies a manifest and removes what has left it. The AddOn names every object before it is made, so that none is
    /// forgotten.
    pub async fn bring_in(
        &self,
        manifest: &Manifest,
        before: Option<&AddOn>,
        others: &BTreeSet<Held>,
        server: &str,
    ) -> Result<Done, Failed> {
        let mut addon = self.note(manifest, before, server).await?;
        let parsed = match &manifest.text {
            Ok(text) => objects(text).map_err(|err| ("ParseManifestFailed", "Parse manifest", Chain(&err).to_string())),
            Err(err) => Err(("ReadManifestFailed", "Read manifest", err.to_string())),
        };
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err((reason, doing, why)) => return Err(self.say(Failed { addon: Some(addon), reason, doing, why }).await),
        };
        let mut kinds = Kinds::default();
        let mut wanted = self.settled(&mut kinds, parsed).await;
        in_order(&mut wanted);
        let n_wanted = wanted.len();
        let old: BTreeSet<Held> = addon.objects.iter().cloned().collect();
        let all: BTreeSet<Held> = old.iter().cloned().chain(wanted.iter().map(|(_, held)| held.clone())).collect();
        if all.len() > old.len() {
            addon.objects = all.into_iter().collect();
            self.write(&addon).await.map_err(|err| refused(&addon, said(err.into())))?;
        }
        let mut failures = Vec::new();
        let mut new = BTreeSet::new();
        for (object, mut held) in wanted {
            if let Err(err) = self.put(&mut kinds, object, &mut held).await {
                failures.push(format!("{} {}: {}", held.kind, held.name, said(err)));
            }
            new.insert(held);
        }
        for held in old.iter().rev() {
            if new.contains(held) {
                continue;
            }
            if let Err(err) = self.delete(&mut kinds, held, others).await {
                failures.push(format!("cannot delete {} {}: {}", held.kind, held.name, said(err)));
                new.insert(held.clone());
            }
        }
        addon.objects = new.into_iter().collect();
        if !failures.is_empty() {
            return Err(self.say(refused(&addon, failures.join("; "))).await);
        }
        let changed = addon.applied != manifest.checksum || !addon.error.is_empty();
        (addon.applied, addon.error) = (manifest.checksum.clone(), String::new());
        if before.is_none_or(|before| {
            (&before.objects, &before.applied, &before.error) != (&addon.objects, &addon.applied, &addon.error)
        }) {
            self.write(&addon).await.map_err(|err| refused(&addon, said(err.into())))?;
        }
        Ok(Done { addon, objects: n_wanted, changed })
    }

    /// The objects and what is written down of them. Whether a kind has namespaces is known when it is served: its
    /// definition may stand in this very file.
    async fn settled(&self, kinds: &mut Kinds, objects: Vec<DynamicObject>) -> Vec<(DynamicObject, Held)> {
        let mut out = Vec::new();
        for object in objects {
            let types = object.types.clone().unwrap_or_default();
            let mut held = Held {
                api_version: types.api_version,
                kind: types.kind,
                namespace: object.metadata.namespace.clone().unwrap_or_default(),
                name: object.metadata.name.clone().unwrap_or_default(),
            };
            if let Some((_, scope)) = kinds.get(&self.client, &held).await {
                held.settle(scope);
            }
            out.push((object, held));
        }
        out
    }

    /// Makes the AddOn, or tells it of a new content.
    async fn note(&self, manifest: &Manifest, before: Option<&AddOn>, server: &str) -> Result<AddOn, Failed> {
        let mut addon = before.cloned().unwrap_or_default();
        addon.name.clone_from(&manifest.name);
        addon.source = manifest.path.display().to_string();
        server.clone_into(&mut addon.server);
        addon.checksum.clone_from(&manifest.checksum);
        if before == Some(&addon) {
            return Ok(addon);
        }
        let failed = |err: kube::Error| Failed {
            addon: None,
            reason: "ApplyManifestFailed",
            doing: "Applying manifest",
            why: Chain(&err).to_string(),
        };
        let params = PatchParams::apply(MANAGER).force();
        let written = self.addons().patch(&addon.name, &params, &Patch::Apply(addon.spec())).await.map_err(failed)?;
        addon.uid = written.metadata.uid.unwrap_or_default();
        Ok(addon)
    }

    async fn write(&self, addon: &AddOn) -> Result<(), kube::Error> {
        let params = PatchParams::apply(MANAGER).force();
        self.addons().patch_status(&addon.name, &params, &Patch::Apply(addon.status())).await.map(drop)
    }

    /// Writes a failure into the AddOn's status, too.
    async fn say(&self, mut failed: Failed) -> Failed {
        if let Some(addon) = &mut failed.addon
            && addon.error != failed.why
        {
            addon.error.clone_from(&failed.why);
            if let Err(err) = self.write(addon).await {
                failed.why = format!("{}; and the AddOn cannot be written: {}", failed.why, Chain(&err));
            }
        }
        failed
    }

    async fn put(&self, kinds: &mut Kinds, mut object: DynamicObject, held: &mut Held) -> Result<(), ObjectError> {
        let Some((resource, scope)) = kinds.get(&self.client, held).await else {
            return Err(ObjectError::NotServed { kind: held.kind.clone(), api_version: held.api_version.clone() });
        };
        held.settle(scope);
        object.metadata.namespace = Some(held.namespace.clone()).filter(|ns| !ns.is_empty());
        let params = PatchParams::apply(MANAGER).force();
        self.api(&resource, held).patch(&held.name, &params, &Patch::Apply(&object)).await?;
        Ok(())
    }

    fn api(&self, resource: &ApiResource, held: &Held) -> Api<DynamicObject> {
        match held.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Deletes an object unless another add-on holds it, or it is no longer one that add-ons made.
    async fn delete(&self, kinds: &mut Kinds, held: &Held, others: &BTreeSet<Held>) -> Result<(), ObjectError> {
        if others.contains(held) {
            return Ok(());
        }
        // Who removed a definition has removed its objects.
        let Some((resource, _)) = kinds.get(&self.client, held).await else { return Ok(()) };
        let api = self.api(&resource, held);
        let Some(found) = api.get_opt(&held.name).await? else { return Ok(()) };
        // An object without a field has nobody who manages one.
        let managers = found.metadata.managed_fields.as_deref().unwrap_or_default();
        let ours = managers.is_empty() || managers.iter().any(|entry| entry.manager.as_deref() == Some(MANAGER));
        if !ours {
            info!(
                kind = held.kind,
                ns = held.namespace,
                name = held.name,
                "left where it is: it is no longer an add-on's"
            );
            return Ok(());
        }
        match api.delete(&held.name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    /// Deletes all that an AddOn holds, and the AddOn. Returns how many objects it held.
    ///
    /// Errors: the first refusal; the AddOn stays until nothing is left to do.
    pub async fn take_out(&self, addon: &AddOn, others: &BTreeSet<Held>) -> Result<usize, Refused> {
        let mut kinds = Kinds::default();
        let late = |held: &&Held| matches!(held.kind.as_str(), "Namespace" | "CustomResourceDefinition");
        let order = addon.objects.iter().filter(|held| !late(held)).chain(addon.objects.iter().filter(late));
        for held in order {
            let failed = |source| Refused { kind: held.kind.clone(), name: held.name.clone(), source };
            self.delete(&mut kinds, held, others).await.map_err(failed)?;
        }
        match self.addons().delete(&addon.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => done.map(drop).map_err(|err| Refused {
                kind: "AddOn".to_owned(),
                name: addon.name.clone(),
                source: err.into(),
            })?,
        }
        Ok(addon.objects.len())
    }
}

fn refused(addon: &AddOn, why: String) -> Failed {
    Failed { addon: Some(addon.clone()), reason: "ApplyManifestFailed", doing: "Applying manifest", why }
}

/// An object that cannot be deleted.
#[derive(Debug, thiserror::Error)]
#[error("cannot delete {kind} {name}")]
pub struct Refused {
    kind: String,
    name: String,
    source: ObjectError,
}

fn said(err: ObjectError) -> String {
    Chain(&err).to_string()
}

impl Held {
    /// Puts it into the namespace where it is to be: `default` where none is named, none where the kind has none.
    fn settle(&mut self, scope: Scope) {
        match scope {
            Scope::Namespaced if self.namespace.is_empty() => "default".clone_into(&mut self.namespace),
            Scope::Namespaced => {}
            Scope::Cluster => self.namespace.clear(),
        }
    }
}

impl Kinds {
    /// The resource of a kind and its scope; `None` if it is not served (yet: it is asked again).
    async fn get(&mut self, client: &kube::Client, held: &Held) -> Option<(ApiResource, Scope)> {
        let key = (held.api_version.clone(), held.kind.clone());
        if let Some(known) = self.0.get(&key) {
            return Some(known.clone());
        }
        let (group, version) = held.api_version.split_once('/').unwrap_or(("", &held.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &held.kind);
        let (resource, can) = kube::discovery::pinned_kind(client, &gvk).await.ok()?;
        let found = (resource, can.scope);
        self.0.insert(key, found.clone());
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_become_objects_and_a_broken_one_is_named() {
        let text = "# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n---\napiVersion: v1\n\
            kind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n";
        let names: Vec<_> = objects(text).unwrap().into_iter().map(|o| o.metadata.name.unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            objects("{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}}").unwrap().len(),
            1
        );
        // The parser's error is told once.
        let err = objects("a: [").unwrap_err();
        assert_eq!(Chain(&err).to_string(), err.to_string());
    }

    #[test]
    fn a_document_that_is_no_object_is_named_by_its_number() {
        let whole = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n";
        for (second, want) in [
            ("kind: Pod\nmetadata: {name: a}\n", "document 2: apiVersion is missing"),
            ("apiVersion: v1\nmetadata: {name: a}\n", "document 2: kind is missing"),
            ("apiVersion: v1\nkind: Pod\n", "document 2: metadata.name is missing"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: ''}\n", "document 2: metadata.name is missing"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n", "document 2: metadata.name is missing"),
            ("apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n", "document 2: apiVersion is missing"),
            ("just a text\n", "document 2: apiVersion is missing"),
        ] {
            assert_eq!(said_of(&format!("{whole}{second}")), want, "{second:?}");
        }
        let labels = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: [b]}\n";
        assert!(said_of(labels).starts_with("document 1: "), "{}", said_of(labels));
    }

    fn said_of(text: &str) -> String {
        Chain(&objects(text).unwrap_err()).to_string()
    }

    #[test]
    fn namespaces_and_definitions_come_first_and_the_rest_in_the_order_of_the_file() {
        let kinds = ["Service", "CustomResourceDefinition", "Pod", "Namespace", "ConfigMap"];
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let mut all: Vec<(DynamicObject, Held)> = kinds
            .iter()
            .map(|kind| (DynamicObject::new("a", &resource), Held { kind: (*kind).to_owned(), ..Held::default() }))
            .collect();
        in_order(&mut all);
        let sorted: Vec<&str> = all.iter().map(|(_, held)| held.kind.as_str()).collect();
        assert_eq!(sorted, ["Namespace", "CustomResourceDefinition", "Service", "Pod", "ConfigMap"]);
    }

    #[test]
    fn an_object_is_in_a_namespace_only_if_its_kind_is() {
        let settled = |namespace: &str, scope| {
            let mut held = Held { namespace: namespace.to_owned(), ..Held::default() };
            held.settle(scope);
            held.namespace
        };
        for (namespace, scope, want) in [
            ("", Scope::Namespaced, "default"),
            ("x", Scope::Namespaced, "x"),
            ("x", Scope::Cluster, ""),
            ("", Scope::Cluster, ""),
        ] {
            assert_eq!(settled(namespace, scope), want, "{namespace:?}");
        }
    }
}
