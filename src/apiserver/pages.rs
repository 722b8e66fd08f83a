//! Documents about the API that everybody with credentials may ask for: discovery and OpenAPI. To make one takes up to
//! a second of a core and tens of megabytes, and it changes only when what is served changes. So one is made at a time,
//! beside the async threads, for all who ask; it is kept compressed and let go of when nobody asks any more.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use base::task::Group;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use registry::negotiate::Format;
use registry::status::Status;
use schema::catalog::Catalog;
use schema::discovery::Aggregated;
use schema::openapi;
use tokio::time::Instant;
use wire::{Body, gzip};

use crate::aggregate::registry::Known;
use crate::heavy::{Beside, Weight};
use crate::respond;

/// A document that nobody asked for so long is dropped.
const IDLE: Duration = Duration::from_secs(60);
/// Others are asked again after this what they say of themselves.
const FRESH: Duration = Duration::from_secs(30);
/// Of all that are kept, compressed.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// Which document, in which form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// `/openapi/v2`
    V2 {
        /// Not in JSON.
        protobuf: bool,
    },
    /// `/openapi/v3`
    V3Index(Format),
    /// `/openapi/v3/apis/GROUP/VERSION`
    V3(Format, String, String),
    /// `/api` or `/apis`, aggregated.
    Discovery {
        /// `/api`
        legacy: bool,
        /// Its version.
        form: Aggregated,
    },
}

/// Origin of documents: they are as good as it is.
#[derive(Clone)]
pub(crate) struct Origin {
    /// Kinds that this server serves.
    pub(crate) catalog: Arc<Catalog>,
    /// Groups that others serve.
    pub(crate) known: Arc<Known>,
}

/// A document as it was made: its media type and its bytes; nothing if there is no such document.
pub(crate) type Made = Result<Option<(&'static str, Vec<u8>)>, Status>;

/// A document.
#[derive(Debug)]
pub(crate) struct Page {
    media: &'static str,
    /// Its hash.
    pub(crate) hash: String,
    packed: Bytes,
    /// Bytes, before they were packed.
    length: usize,
}

impl Page {
    fn of(media: &'static str, bytes: Vec<u8>) -> Result<Page, Status> {
        let (hash, length) = (openapi::hash_of(&bytes), bytes.len());
        Ok(Page { media, hash, packed: gzip::compress(&[bytes.into()]).map_err(Status::internal)?, length })
    }

    /// For a client that sent these headers.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Response<Body> {
        respond::packed(self.media, &self.packed, self.length, headers)
    }
}

struct Kept {
    page: Arc<Page>,
    catalog: Weak<Catalog>,
    known: Weak<Known>,
    made: Instant,
    used: Instant,
}

impl Kept {
    /// Whether it is made of this. (A `Weak` keeps its address from being given to another.)
    fn is_of(&self, origin: &Origin) -> bool {
        let is_same = std::ptr::eq(self.catalog.as_ptr(), Arc::as_ptr(&origin.catalog))
            && std::ptr::eq(self.known.as_ptr(), Arc::as_ptr(&origin.known));
        is_same && (self.made.elapsed() < FRESH || origin.known.remote.values().all(|service| service.computed))
    }
}

#[derive(Default)]
struct Shelf {
    pages: HashMap<Name, Kept>,
    is_swept: bool,
}

/// The documents that were asked for lately.
#[derive(Default)]
pub(crate) struct Pages {
    shelf: Mutex<Shelf>,
    making: tokio::sync::Mutex<()>,
}

impl Pages {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock()
    }

    /// The document as it is kept, or as `make` makes it. `group` is for the task that lets go of it.
    ///
    /// Errors: those of `make`. Cancel safety: what was made so far is lost.
    pub(crate) async fn page(
        self: &Arc<Self>,
        name: Name,
        origin: Origin,
        group: &Group,
        make: BoxFuture<'_, Made>,
    ) -> Result<Option<Arc<Page>>, Status> {
        if let Some(page) = self.kept(&name, &origin) {
            return Ok(Some(page));
        }
        let _one_at_a_time = self.making.lock().await;
        // Whoever was before us may have made this one.
        if let Some(page) = self.kept(&name, &origin) {
            return Ok(Some(page));
        }
        let work = make.map(|made| made?.map(|(media, bytes)| Page::of(media, bytes).map(Arc::new)).transpose());
        let page = Beside::new(work.boxed(), Weight::heavy()).await?;
        if let Some(page) = &page {
            self.keep(name, page, &origin, group);
        }
        Ok(page)
    }

    fn kept(&self, name: &Name, origin: &Origin) -> Option<Arc<Page>> {
        let mut shelf = self.shelf();
        let kept = shelf.pages.get_mut(name).filter(|kept| kept.is_of(origin))?;
        kept.used = Instant::now();
        Some(Arc::clone(&kept.page))
    }

    fn keep(self: &Arc<Self>, name: Name, page: &Arc<Page>, origin: &Origin, group: &Group) {
        let now = Instant::now();
        let (catalog, known) = (Arc::downgrade(&origin.catalog), Arc::downgrade(&origin.known));
        let mut shelf = self.shelf();
        shelf.pages.insert(name, Kept { page: Arc::clone(page), catalog, known, made: now, used: now });
        while shelf.pages.len() > 1
            && shelf.pages.values().map(|kept| kept.page.packed.len()).sum::<usize>() > KEPT_BYTES_MAX
        {
            let Some(oldest) = shelf.pages.iter().min_by_key(|(_, kept)| kept.used).map(|(name, _)| name.clone())
            else {
                break;
            };
            shelf.pages.remove(&oldest);
        }
        if !std::mem::replace(&mut shelf.is_swept, true) {
            let pages = Arc::clone(self);
            group.spawn_short("documents", async move {
                loop {
                    tokio::time::sleep(IDLE / 2).await;
                    if !pages.sweep(Instant::now()) {
                        return;
                    }
                }
            });
        }
    }

    /// Lets go of what nobody asked for; whether anything is left.
    fn sweep(&self, now: Instant) -> bool {
        let mut shelf = self.shelf();
        shelf.pages.retain(|_, kept| now.saturating_duration_since(kept.used) < IDLE);
        shelf.is_swept = !shelf.pages.is_empty();
        shelf.is_swept
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const NAME: Name = Name::V2 { protobuf: false };

    fn origin() -> Origin {
        Origin { catalog: Arc::new(Catalog::with(Vec::new())), known: Arc::default() }
    }

    async fn said(page: &Page, headers: &HeaderMap) -> Bytes {
        wire::body::collect(page.answer(headers).into_body(), usize::MAX).await.unwrap()
    }

    // security-3 F4: every request made its document anew, on an async thread, and all at once.
    #[tokio::test]
    async fn a_document_is_made_once_for_all_who_ask_until_what_is_served_changes() {
        let (pages, n_made, group) = (Arc::<Pages>::default(), AtomicUsize::new(0), Group::root("test").0);
        let asked = async |origin: &Origin| {
            let make = async {
                n_made.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(Some(("application/json", b"{}".to_vec())))
            };
            pages.page(NAME, origin.clone(), &group, make.boxed()).await.unwrap().unwrap()
        };
        let first = origin();
        let all = futures_util::future::join_all((0..50).map(|_| asked(&first))).await;
        assert!(all.iter().all(|page| Arc::ptr_eq(page, &all[0])));
        assert_eq!(
            (n_made.load(Ordering::Relaxed), said(&all[0], &HeaderMap::new()).await),
            (1, Bytes::from_static(b"{}"))
        );
        asked(&origin()).await;
        assert_eq!(n_made.load(Ordering::Relaxed), 2);
        // What nobody asks for is let go of.
        assert!(pages.sweep(Instant::now()) && !pages.sweep(Instant::now() + IDLE));
        asked(&first).await;
        assert_eq!(n_made.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_document_is_sent_as_it_was_and_no_more_of_them_are_kept_than_fit() {
        let (pages, group) = (Arc::<Pages>::default(), Group::root("test").0);
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        let noise: Vec<u8> = (0..3 << 20).map(|_| next()).collect();
        let origin = origin();
        for n in 0..4 {
            let make = async { Ok(Some(("text/plain", noise.clone()))) };
            let page = pages.page(
                Name::V3(Format::Json, n.to_string(), "v1".to_owned()),
                origin.clone(),
                &group,
                make.boxed(),
            );
            let page = page.await.unwrap().unwrap();
            assert!(said(&page, &HeaderMap::new()).await == noise);
            let mut headers = HeaderMap::new();
            headers.insert(http::header::ACCEPT_ENCODING, http::HeaderValue::from_static("gzip"));
            assert!(gzip::decompress(&said(&page, &headers).await, noise.len()).unwrap() == noise);
        }
        assert_eq!(pages.shelf().pages.len(), 2);
        let none = pages.page(NAME, origin, &group, async { Ok(None) }.boxed()).await.unwrap();
        assert!(none.is_none());
    }
}
