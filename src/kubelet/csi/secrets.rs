//! Secrets that a driver is shown.

use std::collections::HashMap;

use super::PLUGIN;
use crate::volumes::content;

/// A Secret as drivers are given it. Secrets are text.
pub(super) async fn secrets(client: &kube::Client, ns: &str, name: &str) -> Result<HashMap<String, String>, String> {
    let found = content::secret(client, ns, name, None).await;
    let values = found
        .map_err(|err| format!("{PLUGIN}: failed to find the secret {name} in the namespace {ns} with error: {err}"))?;
    Ok(values.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned())).collect())
}
