//! Every pod runs as a service account, and finds that account's token where clients look for it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use authn::issue::WARN_ONLY_LIFE_SECS;
use base::rng::Rng;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::trusted::MIRROR;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review, references};

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// As long as upstream tries again, ten times in all.
const DEFAULT_ACCOUNT_WAIT: Duration = Duration::from_millis(1500);

/// Upstream's `ServiceAccount`.
pub struct ServiceAccount {
    /// Names of volumes.
    pub rng: Rng,
}

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let late = a.group.is_empty()
            && a.resource == "pods"
            && a.subresource == "ephemeralcontainers"
            && operation == Operation::Update;
        late || (a.is(GroupResource::core("pods")) && operation == Operation::Create)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        // A mirror shows what runs already: it is judged below, never changed.
        if review.operation != Operation::Create || meta::annotation(review.object, MIRROR).is_some() {
            return Ok(());
        }
        let asked = review.object["spec"]["serviceAccountName"].as_str().unwrap_or_default();
        let name = if asked.is_empty() { "default" } else { asked }.to_owned();
        let account = find_soon(review, &name).await?;
        let spec = &mut review.object["spec"];
        spec["serviceAccountName"] = json!(name);
        spec["serviceAccount"] = json!(name);
        let automount =
            spec["automountServiceAccountToken"].as_bool().or(account["automountServiceAccountToken"].as_bool());
        if automount.unwrap_or(true) {
            mount_token(spec, &self.rng);
        }
        let secrets = account["imagePullSecrets"].as_array().filter(|list| !list.is_empty());
        if let (true, Some(secrets)) = (spec["imagePullSecrets"].as_array().is_none_or(Vec::is_empty), secrets) {
            spec["imagePullSecrets"] = Value::Array(secrets.clone());
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let spec = &review.object["spec"];
        if meta::annotation(review.object, MIRROR).is_some() {
            return match references::of_pod(spec) {
                Some(what) => Err(review.forbidden(&format!("a mirror pod may not reference {what}"))),
                None => Ok(()),
            };
        }
        let name = spec["serviceAccountName"].as_str().unwrap_or_default();
        let account = find(review, name).await?;
        // As Go reads a boolean.
        let enforced = meta::annotation(&account, "kubernetes.io/enforce-mountable-secrets");
        if enforced.is_some_and(|said| matches!(said, "1" | "t" | "T" | "true" | "TRUE" | "True")) {
            limit_secrets(review, &account)?;
        }
        Ok(())
    }
}

async fn find(review: &Review<'_>, name: &str) -> Result<Arc<Value>, Status> {
    let namespace = &review.attributes.namespace;
    let why = || format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
    review
        .lookup
        .sure(GroupResource::core("serviceaccounts"), NamespacedName { namespace, name })
        .await
        .ok_or_else(|| review.forbidden(&why()))
}

/// The same, but a new namespace gets a moment for its default account: whoever makes both a namespace and a pod is
/// quicker than the controller that makes the account.
async fn find_soon(review: &Review<'_>, name: &str) -> Result<Arc<Value>, Status> {
    if name != "default" {
        return find(review, name).await;
    }
    let mut changed = review.lookup.changed(GroupResource::core("serviceaccounts"));
    let arrives = async {
        // Marked as seen before the look: an account that comes after it wakes us.
        while changed.has_changed().is_ok() {
            changed.mark_unchanged();
            if let Ok(account) = find(review, name).await {
                return Some(account);
            }
            if changed.changed().await.is_err() {
                break;
            }
        }
        None
    };
    match tokio::time::timeout(DEFAULT_ACCOUNT_WAIT, arrives).await {
        Ok(Some(account)) => Ok(account),
        _ => find(review, name).await,
    }
}

/// Adds the token's volume, and a mount for each container that has none at the place.
fn mount_token(spec: &mut Value, rng: &Rng) {
    let volume = free_name(spec, rng);
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        // Not spec[list]: indexing for change would add a null where there is no such list.
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array();
            if mounts.into_iter().flatten().any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            let mut mounts = mounts.cloned().unwrap_or_default();
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            container["volumeMounts"] = Value::Array(mounts);
            needed = true;
        }
    }
    if !needed {
        return;
    }
    let mut volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    volumes.push(json!({"name": volume, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": WARN_ONLY_LIFE_SECS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}}));
    spec["volumes"] = Value::Array(volumes);
}

fn free_name(spec: &Value, rng: &Rng) -> String {
    loop {
        let name = format!("kube-api-access-{}", rng.name_suffix(5));
        if !spec["volumes"].as_array().into_iter().flatten().any(|volume| volume["name"] == name) {
            return name;
        }
    }
}

/// The account lists the secrets that its pods may mount.
fn limit_secrets(review: &Review<'_>, account: &Value) -> Result<(), Status> {
    let listed =
        |field: &str, name: &str| account[field].as_array().into_iter().flatten().any(|secret| secret["name"] == name);
    let (spec, who) = (&review.object["spec"], meta::name(account));
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        if let Some(name) = volume["secret"]["secretName"].as_str().filter(|name| !listed("secrets", name)) {
            let why = format!(
                "volume with secret.secretName={name:?} is not allowed because service account {who} does not \
                 reference that secret"
            );
            return Err(review.forbidden(&why));
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let from = container["envFrom"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|from| from["secretRef"]["name"].as_str());
            if let Some(name) = from.into_iter().find(|name| !listed("secrets", name)) {
                let container = container["name"].as_str().unwrap_or_default();
                let why = format!(
                    "container {container} with envFrom referencing secret.secretName={name:?} is not allowed because \
                     service account {who} does not reference that secret"
                );
                return Err(review.forbidden(&why));
            }
            for env in container["env"].as_array().into_iter().flatten() {
                let name = env["valueFrom"]["secretKeyRef"]["name"].as_str();
                if let Some(name) = name.filter(|name| !listed("secrets", name)) {
                    let (container, env) =
                        (container["name"].as_str().unwrap_or_default(), env["name"].as_str().unwrap_or_default());
                    let why = format!(
                        "container {container} with envVar {env} referencing secret.secretName={name:?} is not allowed \
                         because service account {who} does not reference that secret"
                    );
                    return Err(review.forbidden(&why));
                }
            }
        }
    }
    for secret in spec["imagePullSecrets"].as_array().into_iter().flatten() {
        if let Some(name) = secret["name"].as_str().filter(|name| !listed("imagePullSecrets", name)) {
            let why = format!(
                "imagePullSecret.name={name:?} is not allowed because service account {who} does not reference that \
                 imagePullSecret"
            );
            return Err(review.forbidden(&why));
        }
    }
    Ok(())
}
