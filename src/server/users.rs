//! Users as which the parts of this process call the API server: each its own user, judged by the same RBAC as
//! anybody.

use std::sync::Arc;

use apiserver::ApiServer;
use authn::service_account;
use client::transport::{Clients, Transport};
use pki::leaf::SUPERVISOR;
use registry::user::{GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_NODES, UserInfo};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

/// The user behind a name, with the groups that its certificate or token would give it.
fn user(name: &str) -> UserInfo {
    if let Some((namespace, account)) = service_account::split_user(name) {
        let mut user = service_account::user_of(namespace, account, "");
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
        return user;
    }
    match name {
        SUPERVISOR => UserInfo::new(name, &[GROUP_MASTERS]),
        _ if name.starts_with("system:node:") => UserInfo::new(name, &[GROUP_NODES]),
        _ => UserInfo::new(name, &[]),
    }
}

/// Clients that call `server` in this process: no TCP, no TLS, the same pipeline.
pub(crate) fn clients(server: &Arc<ApiServer>) -> Clients {
    let server = Arc::clone(server);
    Clients::new(move |name| -> Transport {
        let service = server.in_process(user(name));
        let service = service.map_request(|req: http::Request<kube::client::Body>| req.map(wire::body::from_http));
        BoxCloneSyncService::new(service.map_err(|never| -> BoxError { match never {} }))
    })
}
