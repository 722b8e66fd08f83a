//! Secrets that a driver is shown.

use std::collections::HashMap;

use super::PLUGIN;
use crate::node::Node;
use crate::volumes::content;

/// A Secret as drivers are given it. Secrets are text.
pub(super) async fn secrets(node: &Node, ns: &str, name: &str) -> Result<HashMap<String, String>, String> {
    let found = content::secret(node, ns, name, None).await;
    let values = found
        .map_err(|err| format!("{PLUGIN}: failed to find the secret {name} in the namespace {ns} with error: {err}"))?;
    Ok(values.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned())).collect())
}
