//! The Node object of this machine, as the API has it.

use std::sync::Arc;

use base::sync::Mutex;
use client::informer::{Changes, Informer, Informers};
use k8s_openapi::api::core::v1::Node;

/// This machine's Node: labels, taints and capacity that people set count. Clones are the same object.
#[derive(Clone)]
pub(crate) struct NodeObject {
    informer: Informer<Node>,
    name: String,
    /// Its uid when it was registered last.
    registered: Arc<Mutex<Option<String>>>,
}

impl NodeObject {
    pub(crate) fn new(informers: &Informers, name: &str) -> NodeObject {
        let informer = informers.selected(&format!("metadata.name={name}"));
        NodeObject { informer, name: name.to_owned(), registered: Arc::default() }
    }

    /// The name of the object, whether it is there or not.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The object, when it was seen.
    pub(crate) fn object(&self) -> Option<Arc<Node>> {
        self.informer.get("", &self.name)
    }

    /// The uid of the object: a Node that was deleted and made anew has another.
    pub(crate) fn uid(&self) -> Option<String> {
        newest_uid(self.object().as_deref(), self.registered.lock().as_deref())
    }

    /// Notes that it was registered.
    pub(crate) fn note_registered(&self, object: Node) {
        *self.registered.lock() = object.metadata.uid;
    }

    /// Changes of the object from now on.
    pub(crate) fn changes(&self) -> Changes<Node> {
        self.informer.changes()
    }

    /// Waits until the API has told of the object, or that there is none.
    pub(crate) async fn synced(&self) {
        self.informer.synced().await;
    }
}

/// The uid that the Node has now. While none is shown it is the one of the last registration: the list may be behind.
fn newest_uid(shown: Option<&Node>, registered: Option<&str>) -> Option<String> {
    shown.and_then(|object| object.metadata.uid.as_deref()).or(registered).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md L1: mirror pods and the lease named the owner that was there at the start, and went with it
    #[test]
    fn a_node_that_was_made_anew_has_another_uid() {
        let node: Node =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "n", "uid": "second"}})).unwrap();
        assert_eq!(newest_uid(Some(&node), Some("first")).as_deref(), Some("second"));
        assert_eq!(newest_uid(None, Some("third")).as_deref(), Some("third"));
        assert_eq!(newest_uid(None, None), None);
    }
}
