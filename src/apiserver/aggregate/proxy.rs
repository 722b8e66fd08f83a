//! Passing a request on to the server behind an APIService, as the user who asked, with this server's own proof of who
//! it is.

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
    let Some(endpoint) = service.service.clone().filter(|_| service.available) else {
        return Ok(unavailable("service unavailable"));
    };
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
    let said = says_who(&x.attributes.user).ok_or_else(|| {
        Status::bad_request("the user's name, groups or extra cannot be told to the server behind this API: they are no text of a header")
    })?;
    let answer = wire::proxy::forward_over(
        request,
        stream,
        &endpoint.authority(),
        &path,
        said,
        x.server.guards.webhooks.group(),
    )
    .await;
    x.parts.headers = headers;
    Ok(answer
        .unwrap_or_else(|err| unavailable(&format!("error trying to reach service: {}\n", base::chain::Chain(&err)))))
}

fn unavailable(text: &str) -> Response<Body> {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
}

/// `X-Remote-*` headers of a user. `None` if something of them is no header text (a line break): with less than all of
/// it the server behind would judge another user.
pub fn says_who(user: &UserInfo) -> Option<HeaderMap> {
    let mut said = vec![("x-remote-user".to_owned(), &user.name)];
    said.extend((!user.uid.is_empty()).then(|| ("x-remote-uid".to_owned(), &user.uid)));
    said.extend(user.groups.iter().map(|group| ("x-remote-group".to_owned(), group)));
    for (key, values) in &user.extra {
        said.extend(values.iter().map(|value| (format!("x-remote-extra-{}", escaped(key)), value)));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in said {
        headers.try_append(HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?).ok()?;
    }
    Some(headers)
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
