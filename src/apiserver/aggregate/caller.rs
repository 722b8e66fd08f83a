//! This server as a client of those whose APIs it aggregates: its own proof of who it is, and the user it speaks for.

use std::sync::Arc;
use std::time::Duration;

use base::url;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use registry::user::UserInfo;
use registry::webhook::call::Endpoint;
use registry::webhook::client::{CallError, Identity, Webhooks};

use super::registry::ApiService;

/// Calls servers behind this one.
pub struct Caller {
    pub(super) webhooks: Arc<Webhooks>,
    /// This server's identity, to them.
    identity: Identity,
}

impl Caller {
    /// With the front proxy's certificate.
    pub fn new(webhooks: Arc<Webhooks>, identity: Identity) -> Caller {
        Caller { webhooks, identity }
    }

    /// This server's identity to the one that answers for `service`, and the trust in it.
    pub(super) fn identity_to(&self, service: &ApiService) -> Identity {
        Identity { insecure: service.insecure, ..self.identity.clone() }
    }

    /// Asks for a document, as the aggregator itself.
    ///
    /// Errors: nobody answers in time.
    pub(super) async fn get(
        &self,
        to: &Endpoint,
        service: &ApiService,
        within: Duration,
    ) -> Result<Response<Bytes>, CallError> {
        let user = UserInfo::new("system:kube-aggregator", &["system:masters"]);
        let says_who = says_who(&user).unwrap_or_default();
        self.webhooks.send_with(http::Method::GET, to, &self.identity_to(service), says_who, within).await
    }
}

/// `X-Remote-*` headers of a user. `None` if something of them is no header text (a line break): with less than all of
/// it the server behind would judge another user.
pub fn says_who(user: &UserInfo) -> Option<HeaderMap> {
    let mut said = vec![("x-remote-user".to_owned(), &user.name)];
    said.extend((!user.uid.is_empty()).then(|| ("x-remote-uid".to_owned(), &user.uid)));
    said.extend(user.groups.iter().map(|group| ("x-remote-group".to_owned(), group)));
    for (key, values) in &user.extra {
        said.extend(
            values.iter().map(|value| (format!("x-remote-extra-{}", url::encode(key, url::HEADER_NAME)), value)),
        );
    }
    let mut headers = HeaderMap::new();
    for (name, value) in said {
        headers.try_append(HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?).ok()?;
    }
    Some(headers)
}

/// The identity of the server to those behind it: its front-proxy certificate.
pub fn identity(certificate: Arc<pki::certstore::CertStore>) -> Identity {
    Identity { certificate: Some(certificate), ..Identity::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_told_in_headers() {
        let mut user = UserInfo::new("bob", &["dev"]);
        user.extra.insert("example.org/Team".into(), vec!["a".into(), "b".into()]);
        let headers = says_who(&user).unwrap();
        assert_eq!(headers["x-remote-user"], "bob");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers.get_all("x-remote-extra-example.org%2fteam").iter().count(), 2);
        user.groups.push("gäste".into());
        assert_eq!(
            says_who(&user).unwrap().get_all("x-remote-group").iter().next_back().unwrap().as_bytes(),
            "gäste".as_bytes()
        );
        user.groups.push("two\nlines".into());
        assert!(says_who(&user).is_none());
    }
}
