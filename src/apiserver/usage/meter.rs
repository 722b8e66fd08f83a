//! Usage of nodes and pods, asked of their kubelets when somebody wants to know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::Request;
use model::labels::Selector;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::connect::{Connector, Target};
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use registry::status::Status;
use schema::fields::FieldSelector;
use serde_json::Value;
use tracing::debug;

use super::history::{Histories, Pair};
use super::page;

/// A kubelet that does not answer by then is left out.
const ANSWER: Duration = Duration::from_secs(10);
/// Kubelets that are asked at once.
const AT_ONCE: usize = 32;
/// A kubelet's page is not longer.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Measures what nodes and pods use.
pub struct Meter {
    objects: Arc<Objects>,
    /// Reaches kubelets.
    connector: Arc<dyn Connector>,
    /// Answers of kubelets, when they were asked last.
    histories: Histories,
}

impl Meter {
    /// Of the nodes among `objects`.
    pub fn new(objects: Arc<Objects>, connector: Arc<dyn Connector>) -> Meter {
        Meter { objects, connector, histories: Histories::default() }
    }

    /// The nodes, or the pods that run, whose use is asked for.
    pub(super) fn wanted(&self, a: &Attributes, filter: &Filter) -> Vec<Arc<Value>> {
        let (cache, runs) =
            (&self.objects.cache, |object: &Value| a.resource == "nodes" || object["status"]["phase"] == "Running");
        let all = match a.name.as_str() {
            "" => cache.list(GroupResource::core(&a.resource), Some(a.namespace.as_str()).filter(|ns| !ns.is_empty())),
            name => cache
                .get(GroupResource::core(&a.resource), NamespacedName { namespace: &a.namespace, name })
                .into_iter()
                .collect(),
        };
        all.into_iter().filter(|object| runs(object) && filter.matches(object)).collect()
    }

    /// Looks at every node that matters, many at once. Who does not answer is missing.
    pub(super) async fn measure(&self, objects: &[Arc<Value>]) -> BTreeMap<String, Pair> {
        let names: BTreeSet<&str> = objects.iter().map(|object| node_of(object)).collect();
        self.histories
            .keep(|name| self.objects.cache.get(GroupResource::core("nodes"), NamespacedName::cluster(name)).is_some());
        let looks = names
            .into_iter()
            .filter_map(|name| self.objects.cache.get(GroupResource::core("nodes"), NamespacedName::cluster(name)))
            .map(|node| async move {
                let name = meta::name(&node).to_owned();
                let now = || self.objects.clock.now();
                let pair = self.histories.pair(&name, || self.look(Arc::clone(&node)).boxed(), now);
                match tokio::time::timeout(ANSWER, pair).await {
                    Ok(Ok(pair)) => Some((name, pair)),
                    Ok(Err(status)) => {
                        debug!(node = %name, why = %status, "cannot read what a node uses");
                        None
                    }
                    Err(_) => {
                        debug!(node = %name, "a kubelet does not say in time what its node uses");
                        None
                    }
                }
            });
        // Boxed: the compiler cannot prove the stream of borrowing futures Send otherwise.
        let looks: Vec<futures_util::future::BoxFuture<'_, Option<(String, Pair)>>> =
            looks.map(|look| Box::pin(look) as _).collect();
        stream::iter(looks).buffer_unordered(AT_ONCE).filter_map(async |found| found).collect().await
    }

    async fn look(&self, node: Arc<Value>) -> Result<page::Page, Status> {
        let path = "/metrics/resource".to_owned();
        let request = Request::get(&path).body(wire::body::empty()).map_err(Status::internal)?;
        let target = Target::Kubelet { node, path_and_query: path };
        let answer = self.connector.connect(target, request).await?;
        let code = answer.status();
        let bytes = wire::body::collect(answer.into_body(), PAGE_BYTES_MAX).await.map_err(Status::internal)?;
        let text = String::from_utf8_lossy(&bytes);
        if !code.is_success() {
            return Err(Status::internal(format!("the kubelet answers {code}: {}", text.trim())));
        }
        Ok(page::parse(&text))
    }
}

/// Both selectors of a list; what they see is the node or pod.
pub(super) struct Filter {
    labels: Selector,
    fields: FieldSelector,
}

impl Filter {
    pub(super) fn of(a: &Attributes) -> Result<Filter, Status> {
        let labels = Selector::parse(&a.label_selector).map_err(|err| Status::bad_request(err.to_string()))?;
        let fields = FieldSelector::parse(&a.field_selector).map_err(|err| Status::bad_request(err.to_string()))?;
        if let Some(term) =
            fields.terms().iter().find(|t| !matches!(t.field.as_str(), "metadata.name" | "metadata.namespace"))
        {
            return Err(Status::bad_request(format!("field label not supported: {}", term.field)));
        }
        Ok(Filter { labels, fields })
    }

    fn matches(&self, object: &Value) -> bool {
        self.labels.matches_object(object) && self.fields.matches_object(object)
    }
}

/// The node on which an object is, or which it is.
pub(super) fn node_of(object: &Value) -> &str {
    object["spec"]["nodeName"].as_str().unwrap_or_else(|| meta::name(object))
}
