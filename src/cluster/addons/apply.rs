//! Bringing a manifest into the cluster, as `kubectl apply --server-side` does, and taking it out again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::chain::Chain;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
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

/// Reads the objects of a manifest: documents of YAML or JSON, lists taken apart.
///
/// Errors: what is no manifest, with the number of the document.
pub fn objects(text: &str) -> Result<Vec<DynamicObject>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|err| err.to_string())?;
    let mut out = Vec::new();
    for (idx, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let is_list =
            document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && document["items"].is_array();
        let items = if is_list { document["items"].as_array().cloned().unwrap_or_default() } else { vec![document] };
        for item in items {
            let lacks = |what: &str| format!("document {}: {what} is missing", idx + 1);
            for field in ["apiVersion", "kind"] {
                item[field].as_str().filter(|t| !t.is_empty()).ok_or_else(|| lacks(field))?;
            }
            item["metadata"]["name"].as_str().filter(|t| !t.is_empty()).ok_or_else(|| lacks("metadata.name"))?;
            out.push(serde_json::from_value(item).map_err(|err| format!("document {}: {err}", idx + 1))?);
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
struct Kinds(BTreeMap<(String, String), (ApiResource, bool)>);

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
            Ok(text) => objects(text).map_err(|why| ("ParseManifestFailed", "Parse manifest", why)),
            Err(why) => Err(("ReadManifestFailed", "Read manifest", why.clone())),
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
            self.write(&addon).await.map_err(|err| refused(&addon, said(err)))?;
        }
        let mut failures = Vec::new();
        let mut new = BTreeSet::new();
        for (object, mut held) in wanted {
            if let Err(why) = self.put(&mut kinds, object, &mut held).await {
                failures.push(format!("{} {}: {why}", held.kind, held.name));
            }
            new.insert(held);
        }
        for held in old.iter().rev() {
            if new.contains(held) {
                continue;
            }
            if let Err(why) = self.delete(&mut kinds, held, others).await {
                failures.push(format!("cannot delete {} {}: {why}", held.kind, held.name));
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
            self.write(&addon).await.map_err(|err| refused(&addon, said(err)))?;
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
            if let Some((_, namespaced)) = kinds.get(&self.client, &held).await {
                held.settle(namespaced);
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

    async fn put(&self, kinds: &mut Kinds, mut object: DynamicObject, held: &mut Held) -> Result<(), String> {
        let gone = || format!("no matches for kind {:?} in version {:?}", held.kind, held.api_version);
        let (resource, namespaced) = match kinds.get(&self.client, held).await {
            Some(known) => known,
            None => return Err(gone()),
        };
        held.settle(namespaced);
        object.metadata.namespace = Some(held.namespace.clone()).filter(|ns| !ns.is_empty());
        let params = PatchParams::apply(MANAGER).force();
        self.api(&resource, held).patch(&held.name, &params, &Patch::Apply(&object)).await.map(drop).map_err(said)
    }

    fn api(&self, resource: &ApiResource, held: &Held) -> Api<DynamicObject> {
        match held.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Deletes an object unless another add-on holds it, or it is no longer one that add-ons made.
    async fn delete(&self, kinds: &mut Kinds, held: &Held, others: &BTreeSet<Held>) -> Result<(), String> {
        if others.contains(held) {
            return Ok(());
        }
        // Who removed a definition has removed its objects.
        let Some((resource, _)) = kinds.get(&self.client, held).await else { return Ok(()) };
        let api = self.api(&resource, held);
        let Some(found) = api.get_opt(&held.name).await.map_err(said)? else { return Ok(()) };
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
            done => done.map(drop).map_err(said),
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
            let failed = |why| Refused { kind: held.kind.clone(), name: held.name.clone(), why };
            self.delete(&mut kinds, held, others).await.map_err(failed)?;
        }
        match self.addons().delete(&addon.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => done.map(drop).map_err(|err| Refused {
                kind: "AddOn".to_owned(),
                name: addon.name.clone(),
                why: said(err),
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
#[error("cannot delete {kind} {name}: {why}")]
pub struct Refused {
    kind: String,
    name: String,
    why: String,
}

fn said(err: kube::Error) -> String {
    match err {
        kube::Error::Api(status) => status.message.clone(),
        err => Chain(&err).to_string(),
    }
}

impl Held {
    /// Puts it into the namespace where it is to be: `default` where none is named, none where the kind has none.
    fn settle(&mut self, namespaced: bool) {
        match (namespaced, self.namespace.is_empty()) {
            (true, true) => "default".clone_into(&mut self.namespace),
            (false, false) => self.namespace.clear(),
            _ => {}
        }
    }
}

impl Kinds {
    /// The resource of a kind and whether it has namespaces; `None` if it is not served (yet: it is asked again).
    async fn get(&mut self, client: &kube::Client, held: &Held) -> Option<(ApiResource, bool)> {
        let key = (held.api_version.clone(), held.kind.clone());
        if let Some(known) = self.0.get(&key) {
            return Some(known.clone());
        }
        let (group, version) = held.api_version.split_once('/').unwrap_or(("", &held.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &held.kind);
        let (resource, can) = kube::discovery::pinned_kind(client, &gvk).await.ok()?;
        let found = (resource, can.scope == kube::discovery::Scope::Namespaced);
        self.0.insert(key, found.clone());
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_become_objects_and_a_broken_one_is_named() {
        let text = "# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n";
        let names: Vec<_> = objects(text).unwrap().into_iter().map(|o| o.metadata.name.unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            objects("{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}}").unwrap().len(),
            1
        );
        assert!(objects("apiVersion: v1\nkind: Pod\n").unwrap_err().contains("metadata.name"));
        assert!(objects("a: [").is_err());
    }

    #[test]
    fn an_object_is_in_a_namespace_only_if_its_kind_is() {
        let settled = |namespace: &str, namespaced| {
            let mut held = Held { namespace: namespace.to_owned(), ..Held::default() };
            held.settle(namespaced);
            held.namespace
        };
        assert_eq!([settled("", true), settled("x", true), settled("x", false)], ["default", "x", ""]);
    }
}
