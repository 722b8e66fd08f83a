//! Front proxies: a certificate of the request-header authority may say in headers for whom it speaks.

use std::collections::BTreeMap;

use base::time::Clock;
use http::request::Parts;
use pki::bundle::Bundle;
use pki::identity;

use super::AuthnError;
use crate::query;
use crate::user::UserInfo;

const USER: &str = "x-remote-user";
const UID: &str = "x-remote-uid";
const GROUP: &str = "x-remote-group";
const EXTRA: &str = "x-remote-extra-";

/// Believes headers of trusted proxies.
pub struct FrontProxy {
    ca: Bundle,
    names: Vec<String>,
    clock: Clock,
}

impl FrontProxy {
    /// `names` are the common names that may speak for others; empty is all.
    pub fn new(ca: Bundle, names: Vec<String>, clock: Clock) -> FrontProxy {
        FrontProxy { ca, names, clock }
    }

    /// `Ok(None)` when no user is named, or by somebody who is no proxy: the headers of others mean nothing.
    pub fn authenticate(&self, parts: &Parts, conn: &wire::ConnInfo) -> Result<Option<UserInfo>, AuthnError> {
        let text = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().trim().to_owned();
        let name = text(USER);
        let Some(leaf) = conn.client_certs.first().filter(|_| !name.is_empty()) else { return Ok(None) };
        if self.ca.verify_client(&conn.client_certs, self.clock.now()).is_err() {
            return Ok(None);
        }
        let proxy = identity::parse(leaf).map_err(|err| AuthnError(err.to_string()))?.common_name;
        if !self.names.is_empty() && !self.names.contains(&proxy) {
            return Err(AuthnError(format!("x509: subject with cn={proxy} is not in the allowed list")));
        }
        let mut user = UserInfo { name, uid: text(UID), ..UserInfo::default() };
        user.groups = parts.headers.get_all(GROUP).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in &parts.headers {
            if let (Some(key), Ok(value)) = (header.as_str().strip_prefix(EXTRA), value.to_str()) {
                extra.entry(query::decode(key, false)).or_default().push(value.to_owned());
            }
        }
        user.extra = extra;
        Ok(Some(user))
    }
}
