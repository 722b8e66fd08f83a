//! Old tokens of service accounts, in Secrets: when each was used last is written into its Secret, a day's use once,
//! and since when that is done into a ConfigMap. Whoever takes tokens away that nobody uses reads both.
//!
//! Spec: upstream v1.36.2, `pkg/serviceaccount/legacy.go` and `pkg/controlplane/controller/legacytokentracking`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use model::meta;
use model::reference::NamespacedName;
use registry::registrar::Registrar;
use registry::status::Status;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::warn;

/// The label of an old token's Secret that says from when on it counts no more.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label that says when it was used last.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Says since when uses are written down.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const NAMESPACE: &str = "kube-system";
const SINCE: &str = "since";
/// Between two looks at that.
const LOOK: Duration = Duration::from_secs(1800);
/// Uses that wait to be written down; what comes beyond is heard at its next use.
const WAITING_MAX: usize = 1024;
/// Somebody else may write the Secret at the same time.
const TRIES: usize = 4;

/// Secrets whose tokens were used, by namespace, name and uid.
#[derive(Debug, Default)]
pub struct Uses {
    waiting: Mutex<BTreeSet<(String, String, String)>>,
    come: Notify,
}

/// The day of the clock, and the one after: a server whose clock is ahead may have written it.
fn days(now: jiff::Timestamp) -> (Date, Option<Date>) {
    let today = now.to_zoned(TimeZone::UTC).date();
    (today, today.tomorrow().ok())
}

impl Uses {
    /// The token of this Secret was used, or tried. Most uses are of a day that is written down.
    pub fn note(&self, secret: &Value, now: jiff::Timestamp) {
        let (today, tomorrow) = days(now);
        let written = meta::label(secret, LAST_USED).unwrap_or_default();
        if written == today.to_string() || tomorrow.is_some_and(|day| written == day.to_string()) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            let part = |text: &str| text.to_owned();
            waiting.insert((part(meta::namespace(secret)), part(meta::name(secret)), part(meta::uid(secret))));
            self.come.notify_one();
        }
    }

    fn take(&self) -> BTreeSet<(String, String, String)> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Writes uses down for as long as the group lives.
pub fn keep(registrar: &Arc<Registrar>, uses: &Arc<Uses>, group: &Group) {
    let (registrar, uses) = (Arc::clone(registrar), Arc::clone(uses));
    group.spawn("legacy-tokens", async move {
        loop {
            if let Err(status) = track(&registrar).await {
                warn!(why = %status, "cannot write down since when uses of old tokens are known");
            }
            let end = tokio::time::Instant::now() + LOOK;
            // Cancel safe: what waits is in the set.
            while tokio::time::timeout_at(end, uses.come.notified()).await.is_ok() {
                for (namespace, name, uid) in uses.take() {
                    if let Err(status) = mark(&registrar, &namespace, &name, &uid).await {
                        warn!(ns = namespace, name, why = %status, "cannot write down that an old token was used");
                    }
                }
            }
        }
    });
}

/// Makes the ConfigMap if it is not there, or does not say a day.
pub async fn track(registrar: &Registrar) -> Result<(), Status> {
    let map = |data: Value| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": TRACKING, "namespace": NAMESPACE }, "data": data })
    };
    let (today, _) = days(registrar.objects.clock.now());
    let resource = registrar.objects.row_of(&map(json!({})))?;
    let found = registrar
        .objects
        .read(&resource, NamespacedName { namespace: NAMESPACE, name: TRACKING })
        .await?
        .map(|entry| entry.value());
    let is_day = |text: &str| text.parse().is_ok_and(|day: Date| day.to_string() == text);
    if found.as_ref().is_some_and(|map| map["data"][SINCE].as_str().is_some_and(is_day)) {
        return Ok(());
    }
    let mut data = found.map(|mut map| map["data"].take()).filter(Value::is_object).unwrap_or_else(|| json!({}));
    data[SINCE] = json!(today.to_string());
    registrar.reconcile(map(data)).await.map(drop)
}

async fn mark(registrar: &Registrar, namespace: &str, name: &str, uid: &str) -> Result<(), Status> {
    let resource = registrar.objects.row_of(&json!({ "apiVersion": "v1", "kind": "Secret" }))?;
    let (today, _) = days(registrar.objects.clock.now());
    for _ in 0..TRIES {
        let Some(have) = registrar.objects.read(&resource, NamespacedName { namespace, name }).await? else {
            return Ok(());
        };
        let mut new = have.value();
        if meta::uid(&new) != uid {
            return Ok(());
        }
        meta::set_label(&mut new, LAST_USED, &today.to_string());
        if registrar.objects.put(&resource, NamespacedName { namespace, name }, &mut new, have.rv).await?.is_some() {
            return Ok(());
        }
    }
    Err(Status::modified(resource.group_resource(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_noted_once_a_day_and_no_flood_of_them_fills_the_memory() {
        let uses = Uses::default();
        let now = "2026-11-20T23:59:00Z".parse().unwrap();
        let secret = |name: &str, labels: Value| {
            json!({ "metadata": { "namespace": "a", "name": name, "uid": "u",
            "labels": labels } })
        };
        for day in ["2026-11-20", "2026-11-21"] {
            uses.note(&secret("s", json!({ (LAST_USED): day })), now);
        }
        assert!(uses.take().is_empty());
        for labels in [json!({}), json!({ (LAST_USED): "2026-11-19" })] {
            uses.note(&secret("s", labels), now);
        }
        assert_eq!(uses.take().into_iter().collect::<Vec<_>>(), [("a".to_owned(), "s".to_owned(), "u".to_owned())]);
        (0..2 * WAITING_MAX).for_each(|n| uses.note(&secret(&n.to_string(), json!({})), now));
        assert_eq!(uses.take().len(), WAITING_MAX);
    }
}
