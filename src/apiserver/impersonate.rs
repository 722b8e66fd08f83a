//! Acting as somebody else: the `Impersonate-*` headers, each of which has to be allowed.

use std::sync::Arc;

use base::url;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::user::{self, UserInfo};

use crate::exchange::Exchange;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Replaces the user by the one that the headers name.
///
/// Errors: 403 unless the real user may impersonate each of name, groups, uid and extras.
pub async fn stage(x: &mut Exchange<'_>) -> Result<(), Status> {
    let Some(wanted) = wanted(&x.parts.headers)? else { return Ok(()) };
    for (group, resource, subresource, namespace, name) in checks(&wanted) {
        let attributes = Attributes {
            user: Arc::clone(&x.attributes.user),
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource,
            namespace,
            name,
            is_resource: true,
            ..Attributes::default()
        };
        x.server.access.require(&attributes).await?;
    }
    x.attributes.user = Arc::new(completed(wanted));
    x.attributes.trail.impersonates(Arc::clone(&x.attributes.user));
    let headers = &mut x.parts.headers;
    let names: Vec<_> = headers.keys().filter(|k| k.as_str().starts_with("impersonate-")).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    Ok(())
}

fn wanted(headers: &http::HeaderMap) -> Result<Option<UserInfo>, Status> {
    let text = |name: &str| headers.get(name).map_or(Ok(String::new()), |value| said(name, value));
    let mut wanted = UserInfo { name: text(USER)?, uid: text(UID)?, ..UserInfo::default() };
    wanted.groups = headers.get_all(GROUP).iter().map(|value| said(GROUP, value)).collect::<Result<_, _>>()?;
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            wanted.extra.entry(url::decode(key)).or_default().push(said(name.as_str(), value)?);
        }
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == UserInfo::default() {
        return Ok(None);
    }
    Err(Status::internal("groups, uid or extra cannot be impersonated without impersonating a user"))
}

/// The text of a header that says who somebody is. Names have letters of every language, as in Go, where a header is
/// any bytes.
///
/// Errors: 400 for what is no UTF-8: who left it out would take the request for another's.
fn said(name: &str, value: &http::HeaderValue) -> Result<String, Status> {
    let text = String::from_utf8(value.as_bytes().to_vec());
    text.map_err(|_| Status::bad_request(format!("the header {name} is not valid UTF-8")))
}

type Check = (&'static str, &'static str, String, String, String);

fn checks(wanted: &UserInfo) -> Vec<Check> {
    let none = String::new;
    let mut out: Vec<Check> = Vec::new();
    match service_account(&wanted.name) {
        Some((namespace, name)) => out.push(("", "serviceaccounts", none(), namespace.to_owned(), name.to_owned())),
        None => out.push(("", "users", none(), none(), wanted.name.clone())),
    }
    out.extend(wanted.groups.iter().map(|g| ("", "groups", none(), none(), g.clone())));
    if !wanted.uid.is_empty() {
        out.push(("authentication.k8s.io", "uids", none(), none(), wanted.uid.clone()));
    }
    for (key, values) in &wanted.extra {
        out.extend(values.iter().map(|v| ("authentication.k8s.io", "userextras", key.clone(), none(), v.clone())));
    }
    out
}

fn service_account(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("system:serviceaccount:")?.split_once(':')
}

/// Adds the groups that such a user always has.
fn completed(mut wanted: UserInfo) -> UserInfo {
    if let Some((namespace, _)) = service_account(&wanted.name)
        && wanted.groups.is_empty()
    {
        wanted.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let must = if wanted.name == user::ANONYMOUS { user::GROUP_UNAUTHENTICATED } else { user::GROUP_AUTHENTICATED };
    let either = [user::GROUP_AUTHENTICATED, user::GROUP_UNAUTHENTICATED];
    if !wanted.groups.iter().any(|g| either.contains(&g.as_str())) {
        wanted.groups.push(must.to_owned());
    }
    wanted
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn a_name_with_an_umlaut_is_a_name_and_broken_text_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(USER, HeaderValue::from_bytes("jürgen".as_bytes()).unwrap());
        headers.append(GROUP, HeaderValue::from_bytes("gäste".as_bytes()).unwrap());
        headers.append("impersonate-extra-ort", HeaderValue::from_bytes("köln".as_bytes()).unwrap());
        let user = wanted(&headers).unwrap().unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups, user.extra["ort"].clone()),
            ("jürgen", vec!["gäste".to_owned()], vec!["köln".to_owned()])
        );
        for name in [USER, GROUP, UID, "impersonate-extra-ort"] {
            let mut headers = HeaderMap::new();
            headers.insert(USER, HeaderValue::from_static("bob"));
            headers.insert(name, HeaderValue::from_bytes(b"j\xfcrgen").unwrap());
            assert_eq!(wanted(&headers).unwrap_err().code, 400, "{name}");
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn each_part_of_another_identity_is_asked_for_by_itself() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let wanted = wanted(&headers(pairs)).unwrap().unwrap();
            let told = checks(&wanted).into_iter().map(|(group, resource, subresource, namespace, name)| {
                format!("{group}/{resource}/{subresource} {namespace}/{name}")
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(asked(&[(USER, "bob")]), ["/users/ /bob"]);
        assert_eq!(asked(&[(USER, "system:serviceaccount:ns:web")]), ["/serviceaccounts/ ns/web"]);
        assert_eq!(
            asked(&[(USER, "bob"), (GROUP, "a"), (GROUP, "b"), (UID, "7")]),
            ["/users/ /bob", "/groups/ /a", "/groups/ /b", "authentication.k8s.io/uids/ /7"]
        );
        assert_eq!(
            asked(&[(USER, "bob"), ("impersonate-extra-acme%2fscope", "x"), ("impersonate-extra-acme%2fscope", "y")]),
            [
                "/users/ /bob",
                "authentication.k8s.io/userextras/acme/scope /x",
                "authentication.k8s.io/userextras/acme/scope /y"
            ]
        );
    }

    #[test]
    fn nobody_is_impersonated_without_a_name() {
        assert_eq!(wanted(&headers(&[])).unwrap(), None);
        for pair in [(GROUP, "a"), (UID, "7"), ("impersonate-extra-x", "y")] {
            let status = wanted(&headers(&[pair])).unwrap_err();
            assert_eq!(
                (status.code, status.message.as_str()),
                (
                    500,
                    "Internal error occurred: groups, uid or extra cannot be impersonated without impersonating a user"
                ),
                "{pair:?}"
            );
        }
    }

    #[test]
    fn another_identity_has_the_groups_that_it_always_has() {
        let named = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            completed(UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }).groups
        };
        assert_eq!(named("bob", &[]), ["system:authenticated"]);
        assert_eq!(named("bob", &["a"]), ["a", "system:authenticated"]);
        assert_eq!(named("bob", &["system:authenticated"]), ["system:authenticated"]);
        assert_eq!(named("bob", &["system:unauthenticated"]), ["system:unauthenticated"]);
        assert_eq!(named(user::ANONYMOUS, &[]), ["system:unauthenticated"]);
        assert_eq!(
            named("system:serviceaccount:ns:web", &[]),
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
        );
        assert_eq!(named("system:serviceaccount:ns:web", &["a"]), ["a", "system:authenticated"]);
    }
}
