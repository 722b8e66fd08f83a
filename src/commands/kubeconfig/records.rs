//! The records of certificates that were given to people: who has one, until when, and which are revoked.

use authn::records::{FINGERPRINT, NAMESPACE, REASON, REVOKED, TYPE};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::commands::admin::Admin;
use crate::commands::columns::columns;
use crate::commands::kubeconfig::{Form, KubeconfigError};

/// The record of a certificate that ended so long ago tells nothing any more.
const KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);
const REASON_BYTES_MAX: usize = 1024;
/// Of a fingerprint in a table.
const ID_DIGITS: usize = 12;

/// A certificate that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    user: String,
    groups: Vec<String>,
    fingerprint: String,
    created: String,
    expires: String,
    revoked: Option<String>,
    reason: Option<String>,
    name: String,
}

/// Which certificates to revoke, and why.
#[derive(Clone, Copy)]
pub(super) struct Revocation<'a> {
    pub(super) user: &'a str,
    pub(super) id: Option<&'a str>,
    pub(super) reason: &'a str,
}

impl Record {
    fn of(secret: &Secret) -> Record {
        let some = |key: &str| {
            let bytes = secret.data.as_ref()?.get(key)?;
            Some(String::from_utf8_lossy(&bytes.0).into_owned())
        };
        let text = |key: &str| some(key).unwrap_or_default();
        Record {
            user: text("user"),
            groups: serde_json::from_str(&text("groups")).unwrap_or_default(),
            fingerprint: text(FINGERPRINT),
            created: text("created"),
            expires: text("expires"),
            revoked: some(REVOKED),
            reason: some(REASON),
            name: secret.metadata.name.clone().unwrap_or_default(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "user": self.user, "groups": self.groups, "fingerprint": self.fingerprint, "created": self.created,
            "expires": self.expires, "revoked": self.revoked, "reason": self.reason,
        })
    }

    fn ends(&self) -> Option<Timestamp> {
        self.expires.parse().ok()
    }

    fn state(&self, now: Timestamp) -> String {
        match &self.revoked {
            Some(at) => format!("revoked {at}"),
            None if self.ends().is_some_and(|end| end <= now) => "expired".to_owned(),
            None => "good".to_owned(),
        }
    }

    fn id(&self) -> &str {
        self.fingerprint.get(..ID_DIGITS).unwrap_or(&self.fingerprint)
    }
}

fn api(admin: &Admin) -> Api<Secret> {
    Api::namespaced(admin.client.clone(), NAMESPACE)
}

/// All records, by user and time.
pub(super) async fn all(admin: &Admin) -> Result<Vec<Record>, KubeconfigError> {
    let params = ListParams::default().fields(&format!("type={TYPE}"));
    let listed = api(admin).list(&params).await;
    let listed = listed.map_err(|source| KubeconfigError::Refused { doing: "list the certificates", source })?;
    let mut records: Vec<Record> = listed.items.iter().map(Record::of).collect();
    records.sort_by(|a, b| (&a.user, &a.created, &a.name).cmp(&(&b.user, &b.created, &b.name)));
    Ok(records)
}

/// Prints the records.
pub(super) fn print(records: &[Record], form: Form, now: Timestamp) {
    let json: Vec<Value> = records.iter().map(Record::json).collect();
    match form {
        Form::Text => {
            let head = ["USER", "GROUPS", "ID", "EXPIRES", "STATE"].map(str::to_owned);
            let rows = records.iter().map(|record| {
                // Names come from the store: a terminal gets none of their control characters.
                let groups = record.groups.join(",").escape_debug().to_string();
                let user = record.user.escape_debug().to_string();
                [user, groups, record.id().to_owned(), record.expires.clone(), record.state(now)]
            });
            print!("{}", columns(std::iter::once(head).chain(rows)));
        }
        Form::Json => println!("{:#}", Value::from(json)),
        Form::Yaml => print!("{}", serde_saphyr::to_string(&json).unwrap_or_default()),
    }
}

/// Revokes, and takes away records of what ended long ago. Answers with a line a certificate.
pub(super) async fn revoke(
    admin: &Admin,
    asked: Revocation<'_>,
    now: Timestamp,
) -> Result<Vec<String>, KubeconfigError> {
    if asked.reason.len() > REASON_BYTES_MAX {
        return Err(KubeconfigError::LongReason(REASON_BYTES_MAX));
    }
    let records = all(admin).await?;
    let mut meant = records
        .iter()
        .filter(|record| record.user == asked.user && record.fingerprint.starts_with(asked.id.unwrap_or_default()))
        .peekable();
    if meant.peek().is_none() {
        let of = asked.id.map(|id| format!(" with a fingerprint {id}")).unwrap_or_default();
        return Err(KubeconfigError::Nobody { user: asked.user.to_owned(), of });
    }
    let mut lines = Vec::new();
    for record in meant {
        // The first revocation counts: another server's command may have been quicker.
        if let Some(at) = &record.revoked {
            lines.push(format!("{} of {} was revoked at {at}", record.id(), record.user));
            continue;
        }
        let patch = json!({"stringData": {(REVOKED): base::time::rfc3339_secs(now), (REASON): asked.reason}});
        let done = api(admin).patch(&record.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match done {
            // Without its record it is let in nowhere.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => drop(done.map_err(|source| KubeconfigError::Refused { doing: "revoke a certificate", source })?),
        }
        lines.push(format!("{} of {} is revoked", record.id(), record.user));
    }
    for old in records.iter().filter(|record| record.ends().is_some_and(|end| end + KEPT < now)) {
        match api(admin).delete(&old.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => {
                drop(done.map_err(|source| KubeconfigError::Refused { doing: "delete an old record", source })?);
            }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_its_state() {
        let secret = |data: serde_json::Value| -> Record {
            let secret: Secret =
                serde_json::from_value(json!({"metadata": {"name": "client-certificate-ab"}, "data": data})).unwrap();
            Record::of(&secret)
        };
        let now: Timestamp = "2026-11-25T00:00:00Z".parse().unwrap();
        let text = |text: &str| {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(text)
        };
        let (past, future) = (text("2026-11-24T23:59:59Z"), text("2026-11-26T00:00:00Z"));
        let groups = text("[\"a,b\",\"c\"]");
        let good =
            secret(json!({"user": text("ann"), "groups": groups, "expires": future, "fingerprint": text("ab12")}));
        assert_eq!(
            (good.state(now).as_str(), good.groups.clone(), good.id()),
            ("good", vec!["a,b".to_owned(), "c".to_owned()], "ab12")
        );
        assert_eq!(secret(json!({"expires": past})).state(now), "expired");
        assert_eq!(secret(json!({"expires": past, "revoked": text("x")})).state(now), "revoked x");
        assert_eq!(secret(json!({})).state(now), "good", "as the API server sees it: by the certificate's own end");
    }
}
