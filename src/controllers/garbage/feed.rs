//! From the watch of one kind's metadata into the graph. No cache lies between: what the graph needs of an object is in
//! its node.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::sync::{Mutex, MutexGuard};
use client::reflector::Sink;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;

use super::Collector;
use super::graph::{Node, ObjectKey, Type};
use crate::discovery::Kind;

/// Fields that the collector reads of an object.
#[derive(Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Meta {
    uid: Option<String>,
    name: Option<Box<str>>,
    namespace: Option<Box<str>>,
    resource_version: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    owner_references: Option<Box<[OwnerReference]>>,
    finalizers: Option<Box<[String]>>,
}

impl Meta {
    fn into_node(self, of: &Arc<Type>) -> Node {
        Node {
            key: ObjectKey {
                of: Arc::clone(of),
                ns: self.namespace.unwrap_or_default(),
                name: self.name.unwrap_or_default(),
            },
            owners: self.owner_references.unwrap_or_default(),
            finalizers: self.finalizers.unwrap_or_default(),
            deleting: self.deletion_timestamp.is_some(),
            resource_version: self.resource_version.map(String::into_boxed_str),
        }
    }
}

/// The graph's end of one watch.
pub(super) struct Feed {
    collector: Collector,
    of: Arc<Type>,
    /// The uids of a list that is not whole yet.
    fresh: Mutex<Option<BTreeSet<String>>>,
    /// Told of the first whole list.
    filled: Mutex<Option<oneshot::Sender<()>>>,
}

impl Feed {
    pub(super) fn new(collector: Collector, kind: &Kind, filled: oneshot::Sender<()>) -> Feed {
        let of = Arc::new(Type { api_version: kind.resource.api_version.clone(), kind: kind.resource.kind.clone() });
        Feed { collector, of, fresh: Mutex::default(), filled: Mutex::new(Some(filled)) }
    }

    fn fresh(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.fresh.lock()
    }
}

impl Sink for Feed {
    fn begin(&self) {
        *self.fresh() = Some(BTreeSet::new());
    }

    fn applied(&self, json: &str) -> Result<Option<String>, serde_json::Error> {
        let mut meta = serde_json::from_str::<Object>(json)?.metadata;
        let version = meta.resource_version.clone();
        let Some(uid) = meta.uid.take() else { return Ok(version) };
        self.collector.put(&uid, meta.into_node(&self.of));
        if let Some(fresh) = &mut *self.fresh() {
            fresh.insert(uid);
        }
        Ok(version)
    }

    fn deleted(&self, json: &str) -> Result<Option<String>, serde_json::Error> {
        let meta = serde_json::from_str::<Object>(json)?.metadata;
        let uid = meta.uid.unwrap_or_default();
        if let Some(fresh) = &mut *self.fresh() {
            fresh.remove(&uid);
        }
        self.collector.remove(&uid);
        Ok(meta.resource_version)
    }

    /// An object that a new list lacks was deleted while nobody watched.
    fn listed(&self) {
        let fresh = self.fresh().take().unwrap_or_default();
        let gone: Vec<String> =
            self.collector.graph().uids_of(&self.of).filter(|uid| !fresh.contains(*uid)).map(str::to_owned).collect();
        gone.iter().for_each(|uid| self.collector.remove(uid));
        if let Some(filled) = self.filled.lock().take() {
            let _nobody_waits_any_more = filled.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::queue::Queue;

    fn object(uid: &str, owner: &str) -> String {
        let owners = format!(r#"[{{"apiVersion":"v1","kind":"K","name":"o","uid":"{owner}"}}]"#);
        format!(
            r#"{{"metadata":{{"name":"{uid}","namespace":"n","uid":"{uid}","resourceVersion":"7","ownerReferences":{owners}}}}}"#
        )
    }

    fn feed() -> (Feed, oneshot::Receiver<()>) {
        let client = kube::Client::new(
            tower::service_fn(|_| std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()),
            "n",
        );
        let collector =
            Collector { client, graph: Arc::default(), kinds: Arc::default(), queue: Arc::new(Queue::default()) };
        let of = Arc::new(Type { api_version: "v1".to_owned(), kind: "K".to_owned() });
        let (filled, wait) = oneshot::channel();
        (Feed { collector, of, fresh: Mutex::default(), filled: Mutex::new(Some(filled)) }, wait)
    }

    #[tokio::test]
    async fn a_second_list_takes_away_what_it_lacks_and_nothing_else() {
        let (feed, mut wait) = feed();
        feed.begin();
        assert_eq!(feed.applied(&object("a", "o")).unwrap().as_deref(), Some("7"));
        feed.applied(&object("b", "o")).unwrap();
        assert!(wait.try_recv().is_err(), "the list is not whole yet");
        feed.listed();
        assert!(wait.try_recv().is_ok());
        feed.applied(&object("c", "o")).unwrap();
        feed.begin();
        feed.applied(&object("b", "o")).unwrap();
        feed.listed();
        let left: Vec<String> = feed.collector.graph().uids_of(&feed.of).map(str::to_owned).collect();
        assert_eq!(left, ["b"]);
        feed.deleted(&object("b", "o")).unwrap();
        assert_eq!(feed.collector.graph().uids_of(&feed.of).count(), 0);
    }
}
