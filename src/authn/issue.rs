//! Issuing service-account tokens: the `serviceaccounts/token` subresource.

use async_trait::async_trait;
use base::rng::Rng;
use base::time::{Clock, rfc3339_secs};
use jiff::Timestamp;
use model::meta;
use model::reference::{GroupKind, GroupResource, NamespacedName};
use pki::jwt::{OpenIdIssuer, Signer, Verifier};
use registry::lookup::Lookup;
use registry::status::{Cause, Status};
use serde_json::{Value, json};

use super::TokenIssuer;

/// Shortest life that may be asked for.
const LIFE_SECS_MIN: i64 = 10 * 60;
/// Longest life that may be asked for.
const LIFE_SECS_MAX: i64 = 1 << 32;
/// Lifetime that a pod's default token asks for: one hour and seven seconds, by which the server knows it.
pub const WARN_ONLY_LIFE_SECS: i64 = 60 * 60 + 7;
/// How long a pod's default token really holds, for clients that do not read it anew.
const EXTENDED_LIFE_SECS: i64 = 365 * 24 * 60 * 60;

/// Signs tokens.
pub struct Issuer {
    /// The key.
    pub signer: Signer,
    /// For the published keys.
    pub verifier: Verifier,
    /// `https://kubernetes.default.svc.<domain>`.
    pub issuer: String,
    /// Seconds that a token lives at most, for any request.
    pub life_secs_max: Option<i64>,
    /// Whether a pod's default token is good for longer than it asks.
    pub stretches: bool,
    /// Where the keys are published, e.g. `https://192.0.2.7:6443/openid/v1/jwks`.
    pub jwks_uri: String,
    /// Audiences of the API server: for requests that name none.
    pub audiences: Vec<String>,
    /// Wall time.
    pub clock: Clock,
    /// Token ids.
    pub rng: Rng,
}

/// Object to which a token is bound besides its service account.
struct Bound {
    claim: &'static str,
    name: String,
    uid: String,
    /// Of a pod: the node it runs on.
    node: Option<(String, String)>,
}

#[async_trait]
impl TokenIssuer for Issuer {
    async fn issue(&self, account: &Value, mut request: Value, lookup: &dyn Lookup) -> Result<Value, Status> {
        let spec = &request["spec"];
        check_life(spec, meta::name(account))?;
        let life = spec["expirationSeconds"].as_i64().unwrap_or(60 * 60).min(self.life_secs_max.unwrap_or(i64::MAX));
        let audiences: Vec<String> = match spec["audiences"].as_array().filter(|list| !list.is_empty()) {
            Some(list) => list.iter().filter_map(|aud| aud.as_str().map(str::to_owned)).collect(),
            None => self.audiences.clone(),
        };
        let bound = bound_object(account, &spec["boundObjectRef"], lookup)?;
        let now = self.clock.now().as_second();
        // Only a pod's own default token is stretched, and only towards this server: other readers believe what they
        // asked for.
        let stretch = self.stretches
            && life == WARN_ONLY_LIFE_SECS
            && bound.as_ref().is_some_and(|b| b.claim == "pod")
            && audiences == self.audiences;
        let (until, warn_after) =
            if stretch { (now + EXTENDED_LIFE_SECS, Some(now + life)) } else { (now + life, None) };
        let claims = self.claims(account, &audiences, bound.as_ref(), (now, until, warn_after));
        let token = self.signer.sign(&claims).map_err(Status::internal)?;
        let expires = Timestamp::from_second(now + life).map_err(Status::internal)?;
        request["spec"]["audiences"] = json!(audiences);
        request["spec"]["expirationSeconds"] = json!(life);
        request["status"] = json!({"token": token, "expirationTimestamp": rfc3339_secs(expires)});
        Ok(request)
    }

    fn openid_configuration(&self) -> Value {
        self.verifier.openid_configuration(OpenIdIssuer { issuer: &self.issuer, jwks_uri: &self.jwks_uri })
    }

    fn jwks(&self) -> Value {
        self.verifier.jwks()
    }
}

impl Issuer {
    fn claims(
        &self,
        account: &Value,
        audiences: &[String],
        bound: Option<&Bound>,
        times: (i64, i64, Option<i64>),
    ) -> Value {
        let (now, until, warn_after) = times;
        let (namespace, name) = (meta::namespace(account), meta::name(account));
        let mut private = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": meta::uid(account)}});
        if let Some(bound) = bound {
            private[bound.claim] = json!({"name": bound.name, "uid": bound.uid});
            if let Some((node, uid)) = &bound.node {
                private["node"] = json!({"name": node, "uid": uid});
            }
        }
        if let Some(warn_after) = warn_after {
            private["warnafter"] = json!(warn_after);
        }
        json!({
            "iss": self.issuer, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
            "iat": now, "nbf": now, "exp": until, "jti": self.rng.uuid(), "kubernetes.io": private,
        })
    }
}

fn check_life(spec: &Value, name: &str) -> Result<(), Status> {
    let Some(life) = spec["expirationSeconds"].as_i64() else { return Ok(()) };
    let why = if life < LIFE_SECS_MIN {
        "may not specify a duration less than 10 minutes"
    } else if life > LIFE_SECS_MAX {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!("Invalid value: {life}: {why}"),
        field: "spec.expirationSeconds".to_owned(),
    };
    Err(Status::invalid(GroupKind { group: "authentication.k8s.io", kind: "TokenRequest" }, name, vec![cause]))
}

/// The pod, secret or node of a request, if it is there and fits the account.
fn bound_object(account: &Value, reference: &Value, lookup: &dyn Lookup) -> Result<Option<Bound>, Status> {
    if !reference.is_object() {
        return Ok(None);
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (name, namespace) = (text("name"), meta::namespace(account));
    let (claim, resource, namespace) = match (text("apiVersion"), text("kind")) {
        ("v1", "Pod") => ("pod", "pods", namespace),
        ("v1", "Secret") => ("secret", "secrets", namespace),
        ("v1", "Node") => ("node", "nodes", ""),
        (version, kind) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let object = lookup
        .get(GroupResource::core(resource), NamespacedName { namespace, name })
        .ok_or_else(|| Status::not_found(GroupResource::core(resource), name))?;
    let (asked, uid) = (text("uid"), meta::uid(&object));
    if !asked.is_empty() && asked != uid {
        let why = format!(
            "the UID in the bound object reference ({asked}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(Status::conflict(GroupResource::core(resource), name, &why));
    }
    let mut node = None;
    if claim == "pod" {
        let of_pod = object["spec"]["serviceAccountName"].as_str().unwrap_or_default();
        if of_pod != meta::name(account) {
            let why = format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                meta::name(account)
            );
            return Err(Status::bad_request(why));
        }
        if let Some(node_name) = object["spec"]["nodeName"].as_str().filter(|name| !name.is_empty()) {
            let uid = lookup
                .get(GroupResource::core("nodes"), NamespacedName::cluster(node_name))
                .map(|node| meta::uid(&node).to_owned())
                .unwrap_or_default();
            node = Some((node_name.to_owned(), uid));
        }
    }
    if claim == "secret" && object["type"] == "kubernetes.io/service-account-token" {
        // As upstream: such a secret is a token itself.
        return Err(Status::bad_request("cannot bind token to a secret of type kubernetes.io/service-account-token"));
    }
    Ok(Some(Bound { claim, name: name.to_owned(), uid: uid.to_owned(), node }))
}
