//! A request on its way through the stages to its verb.

use std::sync::Arc;

use base::sync::Mutex;
use base::url::Query;
use http::header::HeaderValue;
use registry::attributes::Attributes;
use registry::metrics::{Series, verb_label};
use schema::catalog::Catalog;
use wire::{Body, ConnInfo};

use crate::audit::auditor::Record;
use crate::capabilities::Capabilities;
use crate::heavy::{DecodedPermit, Weight};

/// One request on its way.
pub struct Exchange<'a> {
    /// Capabilities of the server.
    pub server: &'a Capabilities,
    /// Every resource as it was served when the request came in.
    pub catalog: Arc<Catalog>,
    /// Method, URL and headers.
    pub parts: http::request::Parts,
    /// The body, until a verb takes it. (The lock is never held: it makes the exchange shareable between threads.)
    pub body: Mutex<Option<Body>>,
    /// Where it came in.
    pub conn: Arc<ConnInfo>,
    /// The URL's query.
    pub query: Query,
    /// Attributes of the request; the user is filled in by authentication.
    pub attributes: Attributes,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
    /// `Audit-ID` of the request.
    pub audit_id: HeaderValue,
    /// When it came in.
    pub received: jiff::Timestamp,
    /// Its audit record, if the policy wants one.
    pub record: Option<Record>,
    /// Its place among the requests being answered.
    pub seat: Option<registry::metrics::Gauge>,
    /// Where its answer counts, once it has begun to be made.
    pub held: Option<Arc<wire::held::Hold>>,
    /// Whether it is heavy.
    pub weight: Weight,
    /// Its permit to be among the requests whose heavy bodies are decoded.
    pub decoded: Option<DecodedPermit>,
    /// Verdict of flow control.
    pub admitted: Option<crate::flow::controller::Admitted>,
}

impl Exchange<'_> {
    /// Takes the body; a second time there is none.
    pub fn take_body(&mut self) -> Option<Body> {
        self.body.get_mut().take()
    }

    /// Series under which a request is counted.
    pub fn series(&self, found: bool) -> Series {
        let a = &self.attributes;
        let scope = match (a.is_resource, a.name.is_empty() && a.verb != "create", a.namespace.is_empty()) {
            (false, ..) => "",
            (_, false, _) => "resource",
            (_, _, false) => "namespace",
            _ => "cluster",
        };
        // Of all verbs a patch alone is named by it.
        let media_type = match a.verb.as_str() {
            "patch" => registry::negotiate::media_type(&self.parts.headers),
            _ => String::new(),
        };
        let named = |name: &String| if a.is_resource && found { name.clone() } else { String::new() };
        Series {
            verb: verb_label(a, &media_type),
            dry_run: if self.query.all("dryRun").any(|value| value == "All") { "All" } else { "" },
            group: named(&a.group),
            version: named(&a.version),
            resource: named(&a.resource),
            subresource: named(&a.subresource),
            scope,
        }
    }
}

/// Whether somebody else may have answered: a node, a pod, a service, an aggregated API.
pub fn is_foreign(x: &Exchange<'_>) -> bool {
    let streams = matches!(x.attributes.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward" | "log");
    streams || x.server.aggregation.registry.backend(&x.attributes.path).is_some()
}
