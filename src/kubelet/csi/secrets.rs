//! Secrets that a driver is shown.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::SecretReference;
use model::reference::NamespacedName;

use super::error::{CsiError, SecretError};
use crate::volumes::content;

/// A Secret as drivers are given it: its values are text. Empty without a reference; `field` is what holds that.
pub(super) async fn secrets(
    client: &kube::Client,
    reference: Option<&SecretReference>,
    field: &'static str,
) -> Result<HashMap<String, String>, CsiError> {
    let Some(reference) = reference else { return Ok(HashMap::new()) };
    let (ns, name) = (reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
    match content::secret(client, NamespacedName { namespace: &ns, name: &name }).await {
        Ok(values) => {
            Ok(values.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned())).collect())
        }
        Err(source) => {
            let source = Box::new(SecretError { ns: ns.clone(), name: name.clone(), source });
            Err(CsiError::Secret { field, ns, name, source })
        }
    }
}
