//! The aggregation layer of one server.

use std::sync::Arc;

use registry::lookup::Lookup;

use super::caller::Caller;
use super::fetched::Documents;
use super::registry::Registry;

/// Which APIs others answer, and how they are asked.
pub struct Aggregation {
    /// The APIServices, by group and version.
    pub(crate) registry: Registry,
    /// Discovery and OpenAPI of the others.
    pub(crate) documents: Documents,
    pub(crate) caller: Arc<Caller>,
}

impl Aggregation {
    /// By the APIServices of `lookup`; `served` are groups and versions that this server computes itself.
    pub fn new(lookup: Arc<dyn Lookup>, served: Vec<(&'static str, &'static str)>, caller: Arc<Caller>) -> Aggregation {
        let documents = Documents::new(Arc::clone(&caller));
        Aggregation { registry: Registry::new(lookup, served), documents, caller }
    }
}
