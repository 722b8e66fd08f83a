//! Client certificates: the common name is the user, the organizations are the groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;
use base::time::Clock;
use jiff::Timestamp;
use pki::bundle::Bundle;
use pki::identity::{self, REGISTERED};
use registry::user::UserInfo;

use super::AuthnError;
use super::records::{Fingerprint, Records};

/// Certificates whose verdict is remembered; when full, all are forgotten and looked at anew.
const REMEMBERED_MAX: usize = 1024;

/// Authenticates by client certificate.
pub struct ClientCerts {
    ca: Bundle,
    clock: Clock,
    records: Arc<Records>,
    /// Leaf → its verdict. A connection asks for every request.
    known: Mutex<BTreeMap<Vec<u8>, Known>>,
}

/// A certificate that the authority vouches for.
#[derive(Clone)]
struct Known {
    until: Timestamp,
    user: UserInfo,
    sha256_hex: String,
}

impl ClientCerts {
    /// Trusts what `ca` vouches for.
    pub fn new(ca: Bundle, clock: Clock, records: Arc<Records>) -> ClientCerts {
        ClientCerts { ca, clock, records, known: Mutex::default() }
    }

    /// `Ok(None)` without a certificate.
    ///
    /// The handshake let users' and front proxies' certificates in: only here it is asked whether this is a user's.
    pub async fn authenticate(&self, conn: &wire::ConnInfo) -> Result<Option<UserInfo>, AuthnError> {
        let Some(known) = self.known(conn)? else { return Ok(None) };
        if known.user.in_group(REGISTERED) {
            self.records.admit(Fingerprint(&known.sha256_hex), conn).await?;
        }
        Ok(Some(known.user))
    }

    fn known(&self, conn: &wire::ConnInfo) -> Result<Option<Known>, AuthnError> {
        let Some(leaf) = conn.client_certs.first() else { return Ok(None) };
        let now = self.clock.now();
        let mut all = self.known.lock();
        if let Some(known) = all.get(leaf.as_ref())
            && now < known.until
        {
            registry::metrics::certificate_seen(known.until.duration_since(now).as_secs_f64());
            return Ok(Some(known.clone()));
        }
        let seen = identity::parse(leaf).map_err(|err| AuthnError(err.to_string()))?;
        self.ca
            .verify_client(&conn.client_certs, now)
            .map_err(|err| AuthnError(format!("verifying certificate of {:?} failed: {err}", seen.common_name)))?;
        if seen.common_name.is_empty() {
            return Err(AuthnError("the certificate's subject has no common name".to_owned()));
        }
        let credential = vec![format!("X509SHA256={}", seen.sha256_hex)];
        let user = UserInfo {
            name: seen.common_name,
            uid: seen.uid.unwrap_or_default(),
            groups: seen.organizations,
            extra: BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), credential)]),
        };
        let known = Known { until: seen.not_after, user, sha256_hex: seen.sha256_hex };
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        all.insert(leaf.to_vec(), known.clone());
        Ok(Some(known))
    }
}
