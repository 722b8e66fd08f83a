//! The API server's last answers about objects that containers are made of: ConfigMaps, Secrets, Services, runtime
//! classes.
//!
//! It outlives the connection: a node that lost its server starts its containers again from here. While the server
//! answers, its answer counts. In: questions with the uid of the pod that asks. Out: answers; what no pod of the node
//! asks for is forgotten.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Stopwatch;
use client::informer::Kind;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::ListParams;
use kube::{Api, Resource};
use tracing::debug;

/// A server that has not answered for so long is away, where there is an older answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long after a question without an answer the older answers are given at once.
const AWAY: Duration = Duration::from_secs(10);

/// The objects that are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    /// The plural.
    kind: &'static str,
    /// Empty in cluster scope.
    namespace: String,
    /// Empty for all of the namespace.
    name: String,
}

struct Answer {
    value: Arc<dyn Any + Send + Sync>,
    /// Pods that asked.
    users: BTreeSet<String>,
}

/// The answers.
pub(crate) struct Known {
    client: kube::Client,
    kept: Mutex<HashMap<Question, Answer>>,
    /// Since the last question that got no answer.
    away: Mutex<Option<Stopwatch>>,
}

impl Known {
    pub(crate) fn new(client: kube::Client) -> Known {
        Known { client, kept: Mutex::default(), away: Mutex::default() }
    }

    /// Asks the server, or answers from memory where it cannot be reached.
    ///
    /// Errors: the server's refusal; that it cannot be reached and was never asked this before.
    pub(crate) async fn ask<T: Clone + Send + Sync + 'static>(
        &self,
        question: Question,
        pod_uid: &str,
        asking: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let Some(before) = self.kept::<T>(&question, pod_uid) else {
            let answer = asking.await?;
            self.keep(question, pod_uid, &answer);
            return Ok(answer);
        };
        if self.is_away() {
            return Ok(before);
        }
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(answer)) => {
                self.keep(question, pod_uid, &answer);
                Ok(answer)
            }
            Ok(Err(err)) if is_refusal(&err) => Err(err),
            unanswered => {
                debug!(
                    kind = question.kind,
                    ns = question.namespace,
                    name = question.name,
                    answered = unanswered.is_ok(),
                    "the API server is away, its last answer counts"
                );
                *self.away.lock() = Some(Stopwatch::start());
                Ok(before)
            }
        }
    }

    /// Forgets a pod, and what only it asked for.
    pub(crate) fn release(&self, pod_uid: &str) {
        self.kept.lock().retain(|_, answer| {
            answer.users.remove(pod_uid);
            !answer.users.is_empty()
        });
    }

    fn kept<T: Clone + 'static>(&self, question: &Question, pod_uid: &str) -> Option<T> {
        let mut kept = self.kept.lock();
        let answer = kept.get_mut(question)?;
        answer.users.insert(pod_uid.to_owned());
        answer.value.downcast_ref::<T>().cloned()
    }

    fn keep<T: Clone + Send + Sync + 'static>(&self, question: Question, pod_uid: &str, answer: &T) {
        let mut kept = self.kept.lock();
        let value: Arc<dyn Any + Send + Sync> = Arc::new(answer.clone());
        let entry =
            kept.entry(question).or_insert_with(|| Answer { value: Arc::clone(&value), users: BTreeSet::new() });
        entry.value = value;
        entry.users.insert(pod_uid.to_owned());
    }

    fn is_away(&self) -> bool {
        self.away.lock().as_ref().is_some_and(|since| since.elapsed() < AWAY)
    }
}

impl Known {
    /// A ConfigMap of the pod's namespace.
    pub(crate) async fn config_map(&self, pod: &Pod, name: &str) -> Result<Option<ConfigMap>, kube::Error> {
        self.named("configmaps", pod, name).await
    }

    /// A Secret of the pod's namespace.
    pub(crate) async fn secret(&self, pod: &Pod, name: &str) -> Result<Option<Secret>, kube::Error> {
        self.named("secrets", pod, name).await
    }

    /// A runtime class.
    pub(crate) async fn runtime_class(&self, pod: &Pod, name: &str) -> Result<Option<RuntimeClass>, kube::Error> {
        let api: Api<RuntimeClass> = Api::all(self.client.clone());
        let question = Question { kind: "runtimeclasses", namespace: String::new(), name: name.to_owned() };
        self.ask(question, uid_of(pod), api.get_opt(name)).await
    }

    /// The Services of the pod's namespace.
    pub(crate) async fn services(&self, pod: &Pod) -> Result<Vec<Service>, kube::Error> {
        let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Service> = Api::namespaced(self.client.clone(), ns);
        let listing = async { api.list(&ListParams::default()).await.map(|list| list.items) };
        let question = Question { kind: "services", namespace: ns.to_owned(), name: String::new() };
        self.ask(question, uid_of(pod), listing).await
    }

    /// The Service `kubernetes`.
    pub(crate) async fn master_service(&self, pod: &Pod) -> Result<Option<Service>, kube::Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let question = Question { kind: "services", namespace: "default".to_owned(), name: "kubernetes".to_owned() };
        self.ask(question, uid_of(pod), api.get_opt("kubernetes")).await
    }

    async fn named<K>(&self, kind: &'static str, pod: &Pod, name: &str) -> Result<Option<K>, kube::Error>
    where
        K: Kind + Resource<Scope = NamespaceResourceScope>,
    {
        let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), ns);
        let question = Question { kind, namespace: ns.to_owned(), name: name.to_owned() };
        self.ask(question, uid_of(pod), api.get_opt(name)).await
    }
}

fn uid_of(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether an error is the server's answer about the object. A server without its store is as good as none.
fn is_refusal(err: &kube::Error) -> bool {
    matches!(err, kube::Error::Api(status) if status.code < 500 && status.code != 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question { kind: "configmaps", namespace: "ns".to_owned(), name: "m".to_owned() }
    }

    fn refused(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status { code, ..Default::default() }))
    }

    async fn answer(known: &Known, pod: &str, answer: Result<u32, kube::Error>) -> Option<u32> {
        known.ask(question(), pod, async { answer }).await.ok()
    }

    // review node.md N6
    #[tokio::test]
    async fn what_the_server_said_counts_while_it_is_away() {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let known = Known::new(kube::Client::new(silent, "default"));
        assert_eq!(answer(&known, "p", Err(refused(503))).await, None, "it never said anything");
        assert_eq!(answer(&known, "p", Ok(1)).await, Some(1));
        assert_eq!(answer(&known, "p", Err(refused(403))).await, None, "a refusal is an answer");
        assert_eq!(answer(&known, "p", Ok(2)).await, Some(2));
        assert_eq!(answer(&known, "other", Err(refused(503))).await, Some(2));
        let silent = known.ask::<u32>(question(), "p", std::future::pending()).await;
        assert_eq!(silent.ok(), Some(2), "nor is it waited for again at once");
        known.release("p");
        assert_eq!(answer(&known, "other", Err(refused(503))).await, Some(2), "somebody else asked for it, too");
        known.release("other");
        assert_eq!(answer(&known, "p", Err(refused(503))).await, None);
    }
}
