//! Client certificates: the common name is the user, the organizations are the groups.

use std::collections::BTreeMap;

use base::sync::Mutex;
use base::time::Clock;
use jiff::Timestamp;
use pki::bundle::Bundle;
use pki::identity;
use registry::user::UserInfo;

use super::AuthnError;

/// Certificates whose verdict is remembered; when full, all are forgotten and looked at anew.
const REMEMBERED_MAX: usize = 1024;

/// Authenticates by client certificate.
pub struct ClientCerts {
    ca: Bundle,
    clock: Clock,
    /// Leaf → until when its verdict holds, and the user. A connection asks for every request.
    known: Mutex<BTreeMap<Vec<u8>, (Timestamp, UserInfo)>>,
}

impl ClientCerts {
    /// Trusts what `ca` vouches for.
    pub fn new(ca: Bundle, clock: Clock) -> ClientCerts {
        ClientCerts { ca, clock, known: Mutex::default() }
    }

    /// `Ok(None)` without a certificate.
    ///
    /// The handshake let users' and front proxies' certificates in: only here it is asked whether this is a user's.
    pub fn authenticate(&self, conn: &wire::ConnInfo) -> Result<Option<UserInfo>, AuthnError> {
        let Some(leaf) = conn.client_certs.first() else { return Ok(None) };
        let now = self.clock.now();
        let mut known = self.known.lock();
        if let Some((until, user)) = known.get(leaf.as_ref())
            && now < *until
        {
            registry::metrics::certificate_seen(until.duration_since(now).as_secs_f64());
            return Ok(Some(user.clone()));
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
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(leaf.to_vec(), (seen.not_after, user.clone()));
        Ok(Some(user))
    }
}
