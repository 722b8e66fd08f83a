//! The kind AddOn (`addons.kedge.io`): one object a manifest, in `kube-system`.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Where AddOns live.
pub const NAMESPACE: &str = "kube-system";

/// An object of the cluster that an add-on holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// `apps/v1`
    pub api_version: String,
    /// `Deployment`
    pub kind: String,
    /// Empty for cluster scope.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// An AddOn as this program needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddOn {
    /// Name.
    pub name: String,
    /// UID, for events.
    pub uid: String,
    /// Path of its file.
    pub source: String,
    /// The server whose file it is.
    pub server: String,
    /// SHA-256 of the file.
    pub checksum: String,
    /// The objects that the file made.
    pub objects: Vec<Held>,
    /// The checksum that was applied without a failure.
    pub applied: String,
    /// Why it is not in force as its file says; empty if it is.
    pub error: String,
}

/// The resource.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kedge.io", "v1", "AddOn"), "addons")
}

impl AddOn {
    /// Reads the API's form.
    pub fn of(object: &DynamicObject) -> AddOn {
        let text = |path: &str| object.data.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let objects = object.data.pointer("/status/objects").cloned().unwrap_or_default();
        AddOn {
            name: object.metadata.name.clone().unwrap_or_default(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            source: text("/spec/source"),
            server: text("/spec/server"),
            checksum: text("/spec/checksum"),
            objects: serde_json::from_value(objects).unwrap_or_default(),
            applied: text("/status/applied"),
            error: text("/status/error"),
        }
    }

    /// The part that is applied.
    pub fn spec(&self) -> Value {
        json!({
            "apiVersion": "kedge.io/v1", "kind": "AddOn", "metadata": { "name": self.name, "namespace": NAMESPACE },
            "spec": { "source": self.source, "server": self.server, "checksum": self.checksum },
        })
    }

    /// The part that is applied to the status.
    pub fn status(&self) -> Value {
        json!({
            "apiVersion": "kedge.io/v1", "kind": "AddOn", "metadata": { "name": self.name, "namespace": NAMESPACE },
            "status": { "objects": self.objects, "applied": self.applied, "error": self.error },
        })
    }

    /// For events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("kedge.io/v1".to_owned()),
            kind: Some("AddOn".to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// The definition of the kind.
pub fn definition() -> Value {
    let text = |about: &str| json!({ "type": "string", "description": about });
    let held = json!({ "type": "object", "required": ["apiVersion", "kind", "name"], "properties": {
        "apiVersion": text("API version of the object."), "kind": text("Kind of the object."),
        "namespace": text("Namespace of the object, if its kind has one."), "name": text("Name of the object."),
    } });
    let schema = json!({
        "type": "object",
        "description": "AddOn is a manifest in a server's folder server/manifests and what it holds of the cluster.",
        "properties": {
            "spec": { "type": "object", "properties": {
                "source": text("Path of the manifest."), "server": text("The server whose file it is."),
                "checksum": text("SHA-256 of the file."),
            } },
            "status": { "type": "object", "properties": {
                "objects": {
                    "type": "array", "items": held,
                    "description": "What the add-on holds of the cluster. It goes when it leaves the file.",
                },
                "applied": text("SHA-256 of the content that was applied in full."),
                "error": text("Why the cluster is not as the file says."),
            } },
        },
    });
    let column = |name: &str, path: &str| json!({ "name": name, "type": "string", "jsonPath": path });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "addons.kedge.io" },
        "spec": {
            "group": "kedge.io", "scope": "Namespaced",
            "names": { "kind": "AddOn", "listKind": "AddOnList", "plural": "addons", "singular": "addon" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": schema },
                "additionalPrinterColumns": [
                    column("Source", ".spec.source"), column("Server", ".spec.server"),
                    column("Error", ".status.error"),
                    { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                ],
            }],
        },
    })
}
