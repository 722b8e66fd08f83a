//! Acting as somebody else: the `Impersonate-*` headers, each of which has to be allowed.

use std::sync::Arc;

use crate::attributes::Attributes;
use crate::pipeline::{Exchange, require};
use crate::query;
use crate::status::Status;
use crate::user::{self, UserInfo};

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
        require(x.server, &attributes).await?;
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
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let mut wanted = UserInfo { name: text(USER), uid: text(UID), ..UserInfo::default() };
    wanted.groups = headers.get_all(GROUP).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    for (name, value) in headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(EXTRA), value.to_str()) {
            wanted.extra.entry(query::decode(key, false)).or_default().push(value.to_owned());
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
