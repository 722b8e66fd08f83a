//! Front proxies: a certificate of the request-header authority may say in headers for whom it speaks.

use base::time::Clock;
use base::url;
use http::request::Parts;
use pki::bundle::Bundle;
use pki::identity;
use registry::user::UserInfo;

use super::AuthnError;

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
        let Some(leaf) = conn.client_certs.first().filter(|_| parts.headers.contains_key(USER)) else {
            return Ok(None);
        };
        if self.ca.verify_client(&conn.client_certs, self.clock.now()).is_err() {
            return Ok(None);
        }
        let proxy = identity::parse(leaf).map_err(|err| AuthnError(err.to_string()))?.common_name;
        if !self.names.is_empty() && !self.names.contains(&proxy) {
            return Err(AuthnError(format!("x509: subject with cn={proxy} is not in the allowed list")));
        }
        named(&parts.headers)
    }
}

/// The user that the headers of a trusted proxy name.
///
/// Errors: a header that is no UTF-8. Without it the user would be another: nobody, or one of fewer groups.
fn named(headers: &http::HeaderMap) -> Result<Option<UserInfo>, AuthnError> {
    let said = |name: &str, value: &http::HeaderValue| {
        String::from_utf8(value.as_bytes().to_vec())
            .map_err(|_| AuthnError(format!("the header {name} is not valid UTF-8")))
    };
    let text = |name: &str| {
        headers.get(name).map_or(Ok(String::new()), |value| said(name, value).map(|text| text.trim().to_owned()))
    };
    let mut user = UserInfo { name: text(USER)?, uid: text(UID)?, ..UserInfo::default() };
    user.groups = headers.get_all(GROUP).iter().map(|value| said(GROUP, value)).collect::<Result<_, _>>()?;
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            user.extra.entry(url::decode(key)).or_default().push(said(header.as_str(), value)?);
        }
    }
    Ok(Some(user).filter(|user| !user.name.is_empty()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn a_proxy_is_understood_whole_or_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(named(&headers).unwrap(), None);
        headers.insert(USER, HeaderValue::from_bytes("jürgen".as_bytes()).unwrap());
        headers.append(GROUP, HeaderValue::from_static("dev"));
        assert_eq!(named(&headers).unwrap().unwrap().name, "jürgen");
        headers.append(GROUP, HeaderValue::from_bytes(b"denied\xff").unwrap());
        assert!(named(&headers).is_err());
    }
}
