//! Signs the ConfigMap `cluster-info` of kube-public with every bootstrap token that may sign: a machine that has a
//! token and nothing else learns from it which authority to trust. The ConfigMap itself is made by whoever wants it,
//! e.g. kubeadm.
//!
//! Spec: upstream v1.36.2, `pkg/controller/bootstrap/bootstrapsigner.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::time::Clock;
use client::informer::{Informer, Key};
use client::queue::Queue;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};

use super::BOOTSTRAP_TYPE;
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::signer::{BootstrapToken, Signer};

const NAME: &str = "bootstrap-signer";
const NAMESPACE: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
/// The content that is signed.
const CONTENT: &str = "kubeconfig";
/// A signature's key, before the token's id.
const SIGNATURE: &str = "jws-kubeconfig-";

struct BootstrapSigner {
    client: kube::Client,
    maps: Informer<ConfigMap>,
    secrets: Informer<Secret>,
    signer: Arc<dyn Signer>,
    clock: Clock,
}

/// Starts the controller.
pub(super) fn start(context: &Context, signer: Arc<dyn Signer>) {
    let maps = context
        .informers
        .selected::<ConfigMap>(&format!("metadata.name={CLUSTER_INFO},metadata.namespace={NAMESPACE}"));
    let secrets = context.informers.selected::<Secret>(BOOTSTRAP_TYPE);
    let queue = Arc::new(Queue::default());
    context.feed_own(&maps, &queue);
    context.feed(&secrets, &queue, |_| vec![Key { namespace: NAMESPACE.to_owned(), name: CLUSTER_INFO.to_owned() }]);
    let controller = BootstrapSigner {
        client: context.client(NAME),
        maps: maps.clone(),
        secrets: secrets.clone(),
        signer,
        clock: context.clock.clone(),
    };
    context.start(NAME, &queue, controller, async move {
        maps.synced().await;
        secrets.synced().await;
    });
}

/// A token that may sign.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    id: String,
    secret: String,
    end: Option<Timestamp>,
}

/// Reads a token that is good for signing at `now`.
fn token(secret: &Secret, now: Timestamp) -> Option<Token> {
    if secret.namespace().as_deref() != Some("kube-system") {
        return None;
    }
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).filter(|text| !text.is_empty())
    };
    let id = text("token-id")?;
    let is_id = id.len() == 6 && id.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !is_id || secret.name_any() != format!("bootstrap-token-{id}") || text("usage-bootstrap-signing")? != "true" {
        return None;
    }
    // What is no time has passed, as with upstream.
    let end = text("expiration").map(|text| text.parse().unwrap_or(Timestamp::UNIX_EPOCH));
    if end.is_some_and(|end| end <= now) {
        return None;
    }
    Some(Token { id, secret: text("token-secret")?, end })
}

/// The map with the signatures of these tokens and no others; `None` if it has them.
fn signed(map: &ConfigMap, tokens: &[Token], sign: impl Fn(&str, &Token) -> String) -> Option<ConfigMap> {
    let data = map.data.as_ref()?;
    let content = data.get(CONTENT)?;
    let mut wanted: BTreeMap<String, String> = data.clone();
    wanted.retain(|key, _| !key.starts_with(SIGNATURE));
    wanted.extend(tokens.iter().map(|token| (format!("{SIGNATURE}{}", token.id), sign(content, token))));
    (wanted != *data).then(|| ConfigMap { data: Some(wanted), ..map.clone() })
}

#[async_trait::async_trait]
impl Reconcile for BootstrapSigner {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(map) = self.maps.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let now = self.clock.now();
        let tokens: Vec<Token> = self.secrets.list().iter().filter_map(|secret| token(secret, now)).collect();
        let sign = |content: &str, token: &Token| {
            self.signer.detached(content, BootstrapToken { id: &token.id, secret: &token.secret })
        };
        if let Some(signed) = signed(&map, &tokens, sign) {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
            driver::gone_is_fine(api.replace(CLUSTER_INFO, &PostParams::default(), &signed).await)?;
        }
        // A token whose time is over signs no more, also before its Secret goes.
        let next = tokens.iter().filter_map(|token| token.end).min();
        Ok(next.map_or(Next::Wait, |end| Next::After(end.duration_since(now).unsigned_abs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn secret(name: &str, data: Value) -> Secret {
        let data: serde_json::Map<String, Value> = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, text)| {
                (key.clone(), serde_json::to_value(k8s_openapi::ByteString(text.as_str().unwrap().into())).unwrap())
            })
            .collect();
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "kube-system" }, "data": data }))
            .unwrap()
    }

    #[test]
    fn a_token_signs_if_it_says_so_and_its_time_is_not_over() {
        let now: Timestamp = "2026-11-20T00:00:00Z".parse().unwrap();
        let good = json!({ "token-id": "abcdef", "token-secret": "s", "usage-bootstrap-signing": "true" });
        let with = |key: &str, value: &str| {
            let mut data = good.clone();
            data[key] = json!(value);
            token(&secret("bootstrap-token-abcdef", data), now)
        };
        assert_eq!(with("x", "y").unwrap(), Token { id: "abcdef".to_owned(), secret: "s".to_owned(), end: None });
        assert!(with("expiration", "2026-11-20T00:00:01Z").is_some());
        for (key, value) in [
            ("expiration", "2026-11-20T00:00:00Z"),
            ("expiration", "soon"),
            ("usage-bootstrap-signing", "True"),
            ("token-secret", ""),
            ("token-id", "ghijkl"),
        ] {
            assert_eq!(with(key, value), None, "{key}={value}");
        }
        assert_eq!(token(&secret("bootstrap-token-other", good), now), None);
    }

    #[test]
    fn signatures_are_those_of_the_tokens_and_no_others() {
        let map =
            |data: Value| -> ConfigMap { serde_json::from_value(json!({ "metadata": {}, "data": data })).unwrap() };
        let tokens = [Token { id: "abcdef".to_owned(), secret: "s".to_owned(), end: None }];
        let sign = |content: &str, token: &Token| format!("{content} by {}", token.secret);
        let old =
            map(json!({ "kubeconfig": "k", "other": "stays", "jws-kubeconfig-ghijkl": "of a token that is gone" }));
        let new = signed(&old, &tokens, sign).unwrap();
        assert_eq!(
            new.data,
            map(json!({ "kubeconfig": "k", "other": "stays", "jws-kubeconfig-abcdef": "k by s" })).data
        );
        assert_eq!(signed(&new, &tokens, sign), None);
        assert_eq!(signed(&map(json!({ "other": "nothing to sign" })), &tokens, sign), None);
    }
}
