//! Tokens that an earlier Kubernetes made for every service account and nobody uses: marked as invalid after a year
//! without use, and deleted after another. The API server writes down when one was used (`authn/legacy.rs`).
//!
//! Spec: upstream v1.36.2, `pkg/controller/serviceaccount/legacy_serviceaccount_token_cleaner.go`.

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::informer::{Informer, Key};
use client::queue::Queue;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tracing::info;

use super::{ACCOUNT_UID, TOKEN_TYPE, TOKENS_USER, account_of};
use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "legacy-service-account-token-cleaner";
const NAMESPACE: &str = "kube-system";
/// Says since when uses are written down.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Between two looks at all of them.
const LOOK: Duration = Duration::from_secs(24 * 3600);
/// Pods that are read at a time.
const PAGE: u32 = 500;

struct Cleaner {
    client: kube::Client,
    /// Reads pods, as upstream's shared caches do.
    reader: kube::Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    clock: Clock,
    life: Duration,
}

/// Starts the controller. `life` is for how long a token may rest.
pub(super) fn start(context: &Context, life: Duration) {
    let (secrets, accounts) =
        (context.informers.selected::<Secret>(TOKEN_TYPE), context.informers.get::<ServiceAccount>());
    let queue = Arc::new(Queue::default());
    // One key for all: it comes back every day.
    queue.add(Key { namespace: NAMESPACE.to_owned(), name: TRACKING.to_owned() });
    let cleaner = Cleaner {
        client: context.client(NAME),
        reader: context.client_as(TOKENS_USER),
        secrets: secrets.clone(),
        accounts: accounts.clone(),
        clock: context.clock.clone(),
        life,
    };
    context.start(NAME, &queue, cleaner, async move {
        secrets.synced().await;
        accounts.synced().await;
    });
}

/// The step for a token that nobody uses.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Keep,
    /// It is marked: from now on it counts no more.
    Mark,
    Delete,
}

/// The limits of one look.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Tokens that were made at this time or later stay.
    made: Timestamp,
    /// Tokens that were used, or marked, on this day or later stay.
    used: Date,
}

impl Limits {
    /// `None`: uses are not written down for long enough.
    fn at(now: Timestamp, since: Date, life: Duration) -> Option<Limits> {
        let made = now.checked_sub(SignedDuration::try_from(life).ok()?).ok()?;
        // The whole first day counts as before.
        let tracked = since.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
        (made >= tracked).then(|| Limits { made, used: made.to_zoned(TimeZone::UTC).date() })
    }
}

/// A day as labels hold it.
fn day(text: &str) -> Option<Date> {
    text.parse().ok().filter(|date: &Date| date.to_string() == text)
}

/// Fate of a token, beside what its service account and its pods say.
fn step(secret: &Secret, limits: &Limits) -> Step {
    let made = secret.creation_timestamp().map(|time| time.0);
    if made.is_none_or(|made| made >= limits.made) || secret.metadata.deletion_timestamp.is_some() {
        return Step::Keep;
    }
    let label = |name: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(name));
    // A day that cannot be read tells nothing; no day at all means that it was not used since uses are written down.
    if label(LAST_USED).is_some_and(|text| day(text).is_none_or(|day| day >= limits.used)) {
        return Step::Keep;
    }
    match label(INVALID_SINCE).and_then(|text| day(text)) {
        None => Step::Mark,
        Some(since) if since >= limits.used => Step::Keep,
        Some(_) => Step::Delete,
    }
}

/// Whether a pod's spec names the Secret: as a volume, in its environment, for a driver, or to pull images.
fn names(part: &Value, secret: &str) -> bool {
    match part {
        Value::Array(items) => items.iter().any(|item| names(item, secret)),
        Value::Object(fields) => fields.iter().any(|(field, value)| {
            let named = |value: &Value| value["name"] == secret;
            match field.as_str() {
                "secretName" if value == secret => true,
                "imagePullSecrets" => value.as_array().is_some_and(|all| all.iter().any(named)),
                "secret" if named(value) => true,
                field if field.ends_with("ecretRef") || field == "secretKeyRef" => named(value),
                _ => names(value, secret),
            }
        }),
        _ => false,
    }
}

impl Cleaner {
    /// Whether it is a token that was made for a service account, not one that a person made and manages.
    fn was_made_by_itself(&self, secret: &Secret) -> bool {
        let Some(account) =
            account_of(secret).and_then(|name| self.accounts.get(&secret.namespace().unwrap_or_default(), name))
        else {
            return false;
        };
        let uid = secret.annotations().get(ACCOUNT_UID).filter(|uid| !uid.is_empty());
        let name = secret.name_any();
        let named = account.secrets.iter().flatten().any(|named| named.name.as_deref() == Some(name.as_str()));
        named && uid.is_none_or(|uid| account.uid().as_ref() == Some(uid))
    }

    async fn is_in_use(&self, secret: &Secret) -> Result<bool, Error> {
        let pods = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.reader.clone(), &secret.namespace().unwrap_or_default(), &pods);
        let (name, mut page) = (secret.name_any(), ListParams::default().limit(PAGE));
        loop {
            let pods = api.list(&page).await?;
            if pods.items.iter().any(|pod| names(&pod.data["spec"], &name)) {
                return Ok(true);
            }
            match pods.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(false),
            }
        }
    }

    async fn carry_out(&self, secret: &Secret, step: &Step, today: Date) -> Result<(), Error> {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        if *step == Step::Mark {
            info!(ns = namespace, name, "a service account's token that nobody uses is marked as invalid");
            let mark = json!({ "metadata": { "uid": secret.uid(), "labels": { (INVALID_SINCE): today.to_string() } } });
            return Ok(driver::gone_is_fine(api.patch(&name, &PatchParams::default(), &Patch::Merge(mark)).await)?);
        }
        info!(ns = namespace, name, "a service account's token that nobody uses is deleted");
        let same = Preconditions { uid: None, resource_version: secret.resource_version() };
        Ok(driver::gone_is_fine(api.delete(&name, &DeleteParams::default().preconditions(same)).await)?)
    }
}

#[async_trait::async_trait]
impl Reconcile for Cleaner {
    async fn reconcile(&self, _key: &Key) -> Result<Next, Error> {
        let tracking = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE).get(TRACKING).await?;
        let since = tracking.data.as_ref().and_then(|data| day(data.get("since")?));
        let since = since.ok_or_else(|| Error::Object(format!("ConfigMap {TRACKING} does not say since when")))?;
        let now = self.clock.now();
        let Some(limits) = Limits::at(now, since, self.life) else { return Ok(Next::After(LOOK)) };
        let today = now.to_zoned(TimeZone::UTC).date();
        for secret in self.secrets.list() {
            let step = step(&secret, &limits);
            if step != Step::Keep && self.was_made_by_itself(&secret) && !self.is_in_use(&secret).await? {
                self.carry_out(&secret, &step, today).await?;
            }
        }
        Ok(Next::After(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn limits() -> Limits {
        Limits::at("2026-11-20T12:00:00Z".parse().unwrap(), "2024-01-01".parse().unwrap(), YEAR).unwrap()
    }

    fn secret(made: &str, labels: Value) -> Secret {
        serde_json::from_value(json!({ "metadata": { "name": "t", "creationTimestamp": made, "labels": labels } }))
            .unwrap()
    }

    #[test]
    fn a_token_rests_a_year_before_it_is_marked_and_another_before_it_goes() {
        let old = "2020-01-01T00:00:00Z";
        for (made, labels, expected) in [
            (old, json!({}), Step::Mark),
            ("2025-11-20T12:00:00Z", json!({}), Step::Keep),
            ("2025-11-20T11:59:59Z", json!({}), Step::Mark),
            (old, json!({ (LAST_USED): "2025-11-20" }), Step::Keep),
            (old, json!({ (LAST_USED): "2025-11-19" }), Step::Mark),
            (old, json!({ (LAST_USED): "lately" }), Step::Keep),
            (old, json!({ (INVALID_SINCE): "2025-11-20" }), Step::Keep),
            (old, json!({ (INVALID_SINCE): "2025-11-19" }), Step::Delete),
            (old, json!({ (INVALID_SINCE): "once" }), Step::Mark),
            (old, json!({ (INVALID_SINCE): "2025-01-01", (LAST_USED): "2026-11-01" }), Step::Keep),
        ] {
            assert_eq!(step(&secret(made, labels.clone()), &limits()), expected, "{made} {labels}");
        }
    }

    #[test]
    fn nothing_goes_before_uses_were_written_down_for_a_year() {
        let now: Timestamp = "2026-11-20T12:00:00Z".parse().unwrap();
        let at = |since: &str| Limits::at(now, since.parse().unwrap(), YEAR);
        assert!(at("2025-11-19").is_some() && at("2025-11-20").is_none() && at("2026-11-20").is_none());
    }

    #[test]
    fn a_pod_names_a_secret_in_many_ways_and_nothing_else_of_that_name_counts() {
        for spec in [
            json!({ "volumes": [{ "secret": { "secretName": "t" } }] }),
            json!({ "volumes": [{ "projected": { "sources": [{ "secret": { "name": "t" } }] } }] }),
            json!({ "volumes": [{ "csi": { "nodePublishSecretRef": { "name": "t" } } }] }),
            json!({ "volumes": [{ "cephfs": { "secretRef": { "name": "t" } } }] }),
            json!({ "containers": [{ "envFrom": [{ "secretRef": { "name": "t" } }] }] }),
            json!({ "initContainers": [{ "env": [{ "valueFrom": { "secretKeyRef": { "name": "t",
                "key": "k" } } }] }] }),
            json!({ "imagePullSecrets": [{ "name": "t" }] }),
        ] {
            assert!(names(&spec, "t") && !names(&spec, "other"), "{spec}");
        }
        assert!(!names(&json!({ "containers": [{ "name": "t", "env": [{ "name": "t", "value": "t" }] }] }), "t"));
    }
}
