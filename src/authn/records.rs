//! Records of the client certificates that `kedge kubeconfig` has given to people, and what becomes of one that is
//! revoked.
//!
//! Kubernetes cannot take a certificate back. So these carry a group of their own, and one that does is let in only
//! while its record stands in `kube-system` and does not say that it is revoked: a record that is deleted, or that is
//! not in a restored snapshot, revokes, too. Who may write Secrets there may become anybody already.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use base::sync::Mutex;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup;
use serde_json::Value;
use wire::End;

use super::AuthnError;

/// The namespace of records.
pub const NAMESPACE: &str = "kube-system";
/// The type of the Secrets that are records.
pub const TYPE: &str = "kedge.io/client-certificate";
/// The key of the time at which a certificate was revoked, RFC 3339.
pub const REVOKED: &str = "revoked";
/// The key of a person's words about that.
pub const REASON: &str = "reason";
/// The key of a certificate's whole fingerprint.
pub const FINGERPRINT: &str = "fingerprint";
/// Hex digits of the fingerprint in a record's name: 160 bits.
const NAME_DIGITS: usize = 40;

/// The SHA-256 of a certificate, lower-case hex.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint<'a>(pub &'a str);

impl Fingerprint<'_> {
    /// The name of the certificate's record.
    #[must_use]
    pub fn record(self) -> String {
        format!("client-certificate-{}", self.0.get(..NAME_DIGITS).unwrap_or(self.0))
    }
}

/// Judges certificates by their records.
pub struct Records {
    lookup: Arc<dyn Lookup>,
    /// Certificates with open connections, by fingerprint.
    open: Mutex<BTreeMap<String, Open>>,
}

/// A certificate that came in.
#[derive(Default)]
struct Open {
    /// Whether its record was seen: one that was never seen may only not have arrived here yet.
    seen: bool,
    connections: Vec<Weak<End>>,
}

fn field(record: &Value, name: &str) -> String {
    let bytes = record["data"][name].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Errors: the certificate of this record, if there is one, is not let in.
fn judged(record: Option<&Value>, fingerprint: Fingerprint<'_>) -> Result<(), AuthnError> {
    let refused = |why: String| Err(AuthnError(format!("certificate X509SHA256={} {why}", fingerprint.0)));
    let is_its = |record: &&Value| record["type"] == TYPE && field(record, FINGERPRINT) == fingerprint.0;
    let Some(record) = record.filter(is_its) else {
        return refused("has no record in kube-system: it was revoked, or its record was deleted".to_owned());
    };
    // Whatever stands there: a time that cannot be read is no reason to let anybody in.
    if record["data"].get(REVOKED).is_some() {
        return refused(format!("was revoked at {}: {}", field(record, REVOKED), field(record, REASON)));
    }
    if !record["metadata"]["deletionTimestamp"].is_null() {
        return refused("has a record that is being deleted".to_owned());
    }
    Ok(())
}

impl Records {
    /// Reads the records through `lookup`.
    pub fn new(lookup: Arc<dyn Lookup>) -> Records {
        Records { lookup, open: Mutex::default() }
    }

    /// Whether a certificate of [`REGISTERED`] is let in. If it is, its connection ends when it is revoked.
    pub async fn admit(&self, fingerprint: Fingerprint<'_>, conn: &wire::ConnInfo) -> Result<(), AuthnError> {
        // Noted first: what is revoked from now on is seen by the follower.
        self.remember(fingerprint, conn);
        let name = fingerprint.record();
        let named = NamespacedName { namespace: NAMESPACE, name: &name };
        // Another server may have written it a moment ago.
        judged(self.lookup.sure(GroupResource::core("secrets"), named).await.as_deref(), fingerprint)?;
        if let Some(open) = self.open.lock().get_mut(fingerprint.0) {
            open.seen = true;
        }
        Ok(())
    }

    fn remember(&self, fingerprint: Fingerprint<'_>, conn: &wire::ConnInfo) {
        let end = Arc::downgrade(&conn.end);
        let mut open = self.open.lock();
        let own = &mut open.entry(fingerprint.0.to_owned()).or_default().connections;
        if !own.iter().any(|known| known.ptr_eq(&end)) {
            own.retain(|known| known.strong_count() > 0);
            own.push(end);
        }
    }

    /// Ends the connections of certificates that are revoked, for ever: watches and terminals run on them.
    pub async fn follow(self: Arc<Self>) {
        let mut changes = self.lookup.changed(GroupResource::core("secrets"));
        loop {
            self.cut();
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn cut(&self) {
        let mut open = self.open.lock();
        open.retain(|fingerprint, Open { seen, connections }| {
            connections.retain(|end| end.strong_count() > 0);
            let fingerprint = Fingerprint(fingerprint);
            let name = fingerprint.record();
            let record =
                self.lookup.get(GroupResource::core("secrets"), NamespacedName { namespace: NAMESPACE, name: &name });
            let is_cut = (record.is_some() || *seen) && judged(record.as_deref(), fingerprint).is_err();
            if is_cut {
                connections.iter().filter_map(Weak::upgrade).for_each(|end| end.now());
            }
            !is_cut && !connections.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(data: Value) -> Value {
        let data = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(STANDARD.encode(value.as_str().unwrap()))));
        json!({"type": TYPE, "metadata": {}, "data": data.collect::<serde_json::Map<_, _>>()})
    }

    fn said(record: Option<Value>) -> Result<(), String> {
        judged(record.as_ref(), Fingerprint("ab12")).map_err(|err| err.0)
    }

    #[test]
    fn a_certificate_needs_its_own_record_and_none_that_says_it_is_revoked() {
        assert_eq!(said(Some(record(json!({"fingerprint": "ab12"})))), Ok(()));
        let missing = "certificate X509SHA256=ab12 has no record in kube-system";
        assert!(said(None).unwrap_err().starts_with(missing));
        assert!(said(Some(record(json!({"fingerprint": "ab13"})))).unwrap_err().starts_with(missing), "another's");
        let other = json!({"type": "Opaque", "metadata": {}, "data": {"fingerprint": STANDARD.encode("ab12")}});
        assert!(said(Some(other)).unwrap_err().starts_with(missing), "another kind of Secret");
        let revoked =
            record(json!({"fingerprint": "ab12", "revoked": "2026-11-25T00:00:00Z", "reason": "lost laptop"}));
        assert_eq!(
            said(Some(revoked)).unwrap_err(),
            "certificate X509SHA256=ab12 was revoked at 2026-11-25T00:00:00Z: lost laptop"
        );
        assert!(said(Some(record(json!({"fingerprint": "ab12", "revoked": ""})))).is_err(), "whatever stands there");
    }
}
