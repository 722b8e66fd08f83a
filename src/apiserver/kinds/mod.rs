//! Subresources that are more than a part of their object: single kinds need the server for them, beyond their rows.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::Response;
use model::reference::GroupResource;
use registry::status::Status;
use wire::Body;

use crate::verbs::Call;

mod eviction;
mod nodes;
mod passing;
mod pods;
mod posted;
mod service_accounts;
mod services;

/// Answers a request.
type Handler = for<'c, 'x, 'a> fn(&'c mut Call<'x, 'a>) -> BoxFuture<'c, Result<Response<Body>, Status>>;

/// Methods that a subresource answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    /// Those that the table of resources says.
    Table,
    /// Reads.
    Get,
    /// All.
    Any,
}

/// One subresource and who answers it.
pub(crate) struct Subresource {
    /// Group, plural and the name of the subresource; empty for the resource itself.
    path: (&'static str, &'static str, &'static str),
    /// Which methods it answers.
    pub(crate) methods: Methods,
    /// Answers it.
    pub(crate) run: Handler,
}

const fn row(path: (&'static str, &'static str, &'static str), methods: Methods, run: Handler) -> Subresource {
    Subresource { path, methods, run }
}

static SUBRESOURCES: &[Subresource] = &[
    // The old address of `pods/binding`.
    row(("", "bindings", ""), Methods::Table, |call| pods::bind_by_name(call).boxed()),
    row(("", "pods", "attach"), Methods::Any, |call| pods::stream(call).boxed()),
    row(("", "pods", "binding"), Methods::Table, |call| pods::binding(call).boxed()),
    row(("", "pods", "eviction"), Methods::Table, |call| pods::evict(call).boxed()),
    row(("", "pods", "exec"), Methods::Any, |call| pods::stream(call).boxed()),
    row(("", "pods", "log"), Methods::Get, |call| pods::log(call).boxed()),
    row(("", "pods", "portforward"), Methods::Any, |call| pods::forward(call).boxed()),
    row(("", "pods", "proxy"), Methods::Any, |call| pods::proxy(call).boxed()),
    row(("", "nodes", "proxy"), Methods::Any, |call| nodes::proxy(call).boxed()),
    row(("", "serviceaccounts", "token"), Methods::Table, |call| service_accounts::token(call).boxed()),
    row(("", "services", "proxy"), Methods::Any, |call| services::proxy(call).boxed()),
];

/// The subresource of this name (empty: the resource) that the server itself answers.
pub(crate) fn subresource(of: GroupResource<'_>, name: &str) -> Option<&'static Subresource> {
    SUBRESOURCES.iter().find(|row| row.path == (of.group, of.resource, name))
}
