//! Passing a request on to the server behind an APIService, as the user who asked, with this server's own proof of who it is.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use wire::Body;

use super::registry::ApiService;
use crate::pipeline::Exchange;
use crate::respond;
use crate::status::Status;
use crate::user::UserInfo;
use crate::webhook::client::Identity;

/// Passes the request on, upgrades and watches included; what this server computes it answers.
pub async fn run(x: &mut Exchange<'_>, service: &ApiService) -> Result<Response<Body>, Status> {
    if service.computed {
        return crate::usage::serve::run(x).await;
    }
    let Some(endpoint) = service.service.clone().filter(|_| service.available) else { return Ok(unavailable("service unavailable")) };
    let mut identity = x.server.guards.front_proxy.clone();
    identity.insecure = service.insecure;
    let path = x.parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
    let stream = match x.server.guards.webhooks.open(&endpoint, &identity).await {
        Ok(stream) => stream,
        Err(why) => return Ok(unavailable(&format!("error trying to reach service: {why}\n"))),
    };
    let body = x.take_body().unwrap_or_else(wire::body::empty);
    let parts = std::mem::replace(&mut x.parts, http::Request::new(()).into_parts().0);
    let headers = parts.headers.clone();
    let request = http::Request::from_parts(parts, body);
    let said = says_who(&x.attributes.user);
    let answer = wire::proxy::forward_over(request, stream, &endpoint.authority(), &path, said, x.server.guards.webhooks.group()).await;
    x.parts.headers = headers;
    Ok(answer.unwrap_or_else(|err| unavailable(&format!("error trying to reach service: {}\n", base::chain::Chain(&err)))))
}

fn unavailable(text: &str) -> Response<Body> {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
}

/// `X-Remote-*` headers of a user; what is no header text is left out.
pub fn says_who(user: &UserInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    for group in &user.groups {
        add("x-remote-group", group);
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", escaped(key));
        for value in values {
            add(&name, value);
        }
    }
    headers
}

/// A key of `extra` as a header's name: what is no token character, and the percent sign, is percent-encoded.
fn escaped(key: &str) -> String {
    let mut out = String::new();
    for byte in key.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        if plain { out.push(char::from(byte)) } else { out.push_str(&format!("%{byte:02x}")) }
    }
    out
}

/// Who the server is to those behind it: its front-proxy certificate.
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
        let headers = says_who(&user);
        assert_eq!(headers["x-remote-user"], "bob");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers.get_all("x-remote-extra-example.org%2fteam").iter().count(), 2);
    }
}
