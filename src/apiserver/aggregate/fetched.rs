//! Documents of those behind this server: fetched when somebody asks, and kept for half a minute.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use registry::webhook::call::Endpoint;
use serde_json::Value;
use tokio::time::Instant;

use super::caller::Caller;
use super::registry::{ApiService, Known};

/// Others' documents are asked for again after this.
const FRESH: Duration = Duration::from_secs(30);
/// The same of those that gave nothing the last time: one that hangs costs the full wait each time.
const AGAIN: Duration = Duration::from_secs(10);
/// They must answer within this; a client waits for it.
const ANSWER: Duration = Duration::from_secs(5);
/// Backends that are asked side by side.
const ASKED_AT_ONCE: usize = 16;

/// Documents of others about what they serve.
pub struct Documents {
    caller: Arc<Caller>,
    shelf: Shelf,
}

/// Documents that were fetched, by APIService and path.
#[derive(Default)]
struct Shelf(Mutex<HashMap<String, Kept>>);

/// A backend's answer, as it was kept.
struct Kept {
    at: Instant,
    /// The one before, if it gave nothing.
    document: Option<Arc<Value>>,
    /// The APIService as it was then.
    asked: ApiService,
}

impl Kept {
    /// Whether the backend is not to be asked now. A failure of before it became available, or of other trust, says
    /// nothing of it now.
    fn is_good_for(&self, service: &ApiService) -> bool {
        let age = self.at.elapsed();
        match &self.document {
            _ if !service.available => true,
            Some(_) => age < FRESH,
            None => age < AGAIN && self.asked == *service,
        }
    }
}

impl Documents {
    /// Asked for by `caller`.
    pub fn new(caller: Arc<Caller>) -> Documents {
        Documents { caller, shelf: Shelf::default() }
    }

    /// A JSON document of a backend, as it was at most half a minute ago; the last one if it does not answer now.
    pub(super) async fn get(&self, service: &ApiService, path: &str) -> Option<Arc<Value>> {
        if service.computed {
            return crate::usage::document::at(path).map(Arc::new);
        }
        let endpoint = service.service.as_ref()?;
        let key = format!("{} {} {path}", service.name, endpoint.url());
        if let Some(kept) = self.shelf.lock().get(&key)
            && kept.is_good_for(service)
        {
            return kept.document.clone();
        }
        if !service.available {
            return None;
        }
        let said = self.ask(service, endpoint, path).await;
        self.shelf.keep(key, service, said)
    }

    /// The document of this path of each backend.
    pub(super) async fn of_all<'k>(
        &self,
        known: &'k Known,
        path: &str,
    ) -> Vec<(&'k Arc<ApiService>, Option<Arc<Value>>)> {
        let get = |service: &'k Arc<ApiService>| async move { (service, self.get(service, path).await) }.boxed();
        ask_all(known.remote.values().map(get).collect()).await
    }

    /// A backend's document as it is now; nothing if it does not answer, or no JSON.
    async fn ask(&self, service: &ApiService, endpoint: &Endpoint, path: &str) -> Option<Arc<Value>> {
        let to = Endpoint { path: path.to_owned(), ..endpoint.clone() };
        let answer = self.caller.get(&to, service, ANSWER).await.ok()?;
        let is_good = answer.status().is_success();
        is_good.then(|| serde_json::from_slice(answer.body()).ok()).flatten().map(Arc::new)
    }
}

impl Shelf {
    /// Remembers what a backend said; gives the document that counts now. One that somebody else got meanwhile outlives
    /// a failure.
    fn keep(&self, key: String, asked: &ApiService, said: Option<Arc<Value>>) -> Option<Arc<Value>> {
        let mut kept = self.lock();
        kept.retain(|_, kept| kept.at.elapsed() < FRESH * 20);
        let document = said.or_else(|| kept.get(&key)?.document.clone());
        kept.insert(key, Kept { at: Instant::now(), document: document.clone(), asked: asked.clone() });
        document
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.0.lock()
    }
}

/// Asks all backends, several at once, so that one that hangs holds up no other; the answers stand in the order of the
/// questions.
pub(super) async fn ask_all<T>(questions: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    futures_util::stream::iter(questions).buffered(ASKED_AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each answers when all are asked.
    #[tokio::test]
    async fn backends_are_asked_side_by_side_and_keep_their_order() {
        let all = tokio::sync::Barrier::new(ASKED_AT_ONCE);
        let question = |n: usize| {
            let all = &all;
            let answer = async move {
                all.wait().await;
                n
            };
            answer.boxed()
        };
        let said = ask_all((0..ASKED_AT_ONCE).map(question).collect()).await;
        assert_eq!(said, (0..ASKED_AT_ONCE).collect::<Vec<_>>());
    }

    const MORNING: &str = "2026-01-01T08:00:00Z";
    const NOON: &str = "2026-01-01T12:00:00Z";

    /// Whether one that was asked so long ago, when its APIService was `asked`, and gave nothing is not asked yet.
    fn is_held_back(asked: &ApiService, now: &ApiService, ago: Duration) -> bool {
        let kept = Kept { at: Instant::now().checked_sub(ago).unwrap(), document: None, asked: asked.clone() };
        kept.is_good_for(now)
    }

    #[test]
    fn one_that_gave_nothing_is_not_asked_at_once_again() {
        let it = ApiService::since(MORNING);
        assert!(is_held_back(&it, &it, ANSWER) && !is_held_back(&it, &it, AGAIN));
        assert!(is_held_back(&it, &ApiService::since(""), FRESH));
    }

    #[test]
    fn one_that_has_become_available_is_asked_at_once_whatever_it_gave_before() {
        let now = ApiService::since(NOON);
        let mut trusted = now.clone();
        trusted.insecure = true;
        for before in [ApiService::since(""), ApiService::since(MORNING), trusted] {
            assert!(!is_held_back(&before, &now, Duration::ZERO), "{before:?}");
        }
    }

    #[test]
    fn a_failure_that_ends_late_takes_no_document_away() {
        let (shelf, it) = (Shelf::default(), ApiService::since(MORNING));
        let keep = |said| shelf.keep("v1.g".into(), &it, said);
        assert_eq!(keep(None), None);
        let said = Some(Arc::new(json!({ "kind": "APIResourceList" })));
        assert_eq!((keep(said.clone()), keep(None)), (said.clone(), said));
    }
}
