//! The pod as drivers are told of it, if their object asks for that: names, and tokens of its service account.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use serde_json::{Map, Value, json};

use super::data::PodVolume;
use super::wanted::Wanted;
use crate::node::Node;
use crate::tokens::{Token, TokenError};
use crate::volumes::content;

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// Default life of such a token, as upstream's.
const TOKEN_SECS: i64 = 3600;

/// Names of the pod, if the driver wants them.
pub(super) fn names(pod: &Pod, driver: Option<&CSIDriver>, wanted: &Wanted) -> HashMap<String, String> {
    if driver.and_then(|d| d.spec.pod_info_on_mount) != Some(true) {
        return HashMap::new();
    }
    let meta = &pod.metadata;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    [
        ("csi.storage.k8s.io/pod.name", meta.name.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/pod.namespace", meta.namespace.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/pod.uid", meta.uid.clone().unwrap_or_default()),
        ("csi.storage.k8s.io/serviceAccount.name", account.unwrap_or_default()),
        ("csi.storage.k8s.io/ephemeral", wanted.is_ephemeral.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// Where tokens go.
pub(super) struct Tokens {
    pub(super) context: HashMap<String, String>,
    pub(super) secrets: HashMap<String, String>,
    /// When they must be told anew.
    pub(super) refresh_at: Option<Timestamp>,
}

/// The tokens that the driver asks for, in its context or among its secrets.
pub(super) async fn tokens(
    node: &Node,
    pod: &Pod,
    driver: Option<&CSIDriver>,
    wanted: &Wanted,
) -> Result<Tokens, TokenError> {
    let mut tokens = Tokens { context: HashMap::new(), secrets: HashMap::new(), refresh_at: None };
    let requests = driver.and_then(|d| d.spec.token_requests.clone()).unwrap_or_default();
    if requests.is_empty() {
        return Ok(tokens);
    }
    let mut all = Map::new();
    for request in &requests {
        let (token, expires, refresh_at) = one(node, pod, request, wanted).await?;
        all.insert(
            request.audience.clone(),
            json!({"token": token, "expirationTimestamp": base::time::rfc3339_secs(expires)}),
        );
        tokens.refresh_at = Some(tokens.refresh_at.map_or(refresh_at, |at| at.min(refresh_at)));
    }
    let in_secrets = driver.and_then(|d| d.spec.service_account_token_in_secrets) == Some(true);
    let place = if in_secrets { &mut tokens.secrets } else { &mut tokens.context };
    place.insert(TOKENS.to_owned(), Value::Object(all).to_string());
    Ok(tokens)
}

/// A token, when it ends, and when it must be fetched anew: after four fifths of its life.
async fn one(
    node: &Node,
    pod: &Pod,
    request: &TokenRequest,
    wanted: &Wanted,
) -> Result<(String, Timestamp, Timestamp), TokenError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let dir = PodVolume { uid, spec: &wanted.spec }.dir(&node.config.root_dir);
    let key = format!("{}/{}", dir.display(), request.audience);
    let now = node.clock.now();
    let wish = content::TokenWish {
        account: pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or("default"),
        audience: Some(&request.audience),
        life_secs: request.expiration_seconds.unwrap_or(TOKEN_SECS),
    };
    let fresh = async {
        let (text, expires) = content::request(&node.client, pod, wish).await?;
        let wait = SignedDuration::from_secs(expires.duration_since(now).as_secs().max(0) * 4 / 5);
        Ok(Token { text, asked_at: now, refresh_at: now.checked_add(wait).unwrap_or(now), expires })
    };
    let token = node.tokens.get(key, now, fresh).await?;
    Ok((token.text, token.expires, token.refresh_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_that_asks_is_told_the_names_of_the_pod() {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "s"}}))
        .unwrap();
        let driver = |spec: Value| serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
        let wanted = Wanted::default();
        assert!(names(&pod, None, &wanted).is_empty());
        assert!(names(&pod, Some(&driver(json!({"podInfoOnMount": false}))), &wanted).is_empty());
        let told = names(&pod, Some(&driver(json!({"podInfoOnMount": true}))), &wanted);
        let of = |key: &str| told[&format!("csi.storage.k8s.io/{key}")].as_str();
        assert_eq!([of("pod.name"), of("pod.namespace"), of("pod.uid")], ["p", "d", "u"]);
        assert_eq!([of("serviceAccount.name"), of("ephemeral")], ["s", "false"]);
    }
}
