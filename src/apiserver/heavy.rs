//! Heavy requests: what they compute is computed beside the async threads, and for few of them at a time.
//!
//! A body of megabytes is decoded, patched, judged and merged for seconds, as is a list of thousands of objects, and no
//! timeout ends what does not wait. On the async threads a request for each of them would stop the whole server: its
//! API, its leases, its Raft. So each step of a heavy request, from one wait to the next, needs one of fewer permits
//! than there are cores, and leaves its thread's other tasks to another thread.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// A request with a longer body, or about a longer object, is heavy.
const LIGHT_BYTES_MAX: usize = 64 * 1024;

/// Requests with heavy bodies that may be decoded and not yet answered, for each that may compute: one waits for the
/// store or a webhook while another computes, and no more hold what came of their bodies.
const DECODED_PER_PERMIT: usize = 4;

static PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(n_permits())));
static DECODED_PERMITS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(n_permits() * DECODED_PER_PERMIT)));

/// Fewer than there are cores, at least one.
fn n_permits() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// Whether a request has turned out to be heavy. Clones speak of the same request.
#[derive(Clone, Debug, Default)]
pub struct Weight(Arc<AtomicBool>);

impl Weight {
    /// Of work that is heavy from its beginning.
    pub fn heavy() -> Weight {
        Weight(Arc::new(AtomicBool::new(true)))
    }

    /// Notes how much the request is about to work on. What follows in a heavy request is done beside the async
    /// threads.
    pub async fn add(&self, bytes: usize) {
        if bytes > LIGHT_BYTES_MAX && !self.0.swap(true, Ordering::Relaxed) {
            // The step that read the bytes ends here, so that the next one begins beside.
            tokio::task::yield_now().await;
        }
    }

    fn is_heavy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Leave to hold what comes of a heavy body. With it goes the memory that was taken: the allocator would keep it for
/// each thread that ever did heavy work.
#[derive(Debug)]
pub struct DecodedPermit(#[expect(dead_code, reason = "held, and given back when it is dropped")] OwnedSemaphorePermit);

impl Drop for DecodedPermit {
    fn drop(&mut self) {
        base::sys::give_back_free_memory();
    }
}

impl DecodedPermit {
    /// Waits until a body of so many bytes may be decoded, if it is a heavy one. It is held until the request is
    /// answered: an object takes many times the memory of its body, and each heavy step lets others begin between.
    pub async fn of(bytes: usize) -> Option<DecodedPermit> {
        if bytes <= LIGHT_BYTES_MAX {
            return None;
        }
        Some(DecodedPermit(Arc::clone(&DECODED_PERMITS).acquire_owned().await.expect("nobody closes the places")))
    }
}

type Permit = BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>;

/// A request's work, which goes on beside the async threads from where its weight says that it is heavy.
pub struct Beside<'w, T> {
    work: BoxFuture<'w, T>,
    weight: Weight,
    permit: Option<Permit>,
}

impl<'w, T> Beside<'w, T> {
    /// The work of a request of this weight.
    pub fn new(work: BoxFuture<'w, T>, weight: Weight) -> Beside<'w, T> {
        Beside { work, weight, permit: None }
    }
}

impl<T> Future for Beside<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if !this.weight.is_heavy() {
            return this.work.as_mut().poll(cx);
        }
        let permit = this.permit.get_or_insert_with(|| Box::pin(Arc::clone(&PERMITS).acquire_owned()));
        let Poll::Ready(permit) = permit.as_mut().poll(cx) else { return Poll::Pending };
        this.permit = None;
        // Held for this step alone: a request that waits for a webhook or the store keeps nobody out.
        let _permit = permit.expect("nobody closes the permits");
        // A runtime of one thread, as tests have it, has no other thread to give its tasks to.
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return this.work.as_mut().poll(cx);
        }
        tokio::task::block_in_place(|| this.work.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    // issue 12: two patches that computed for minutes held both threads of a machine with two cores.
    #[test]
    fn heavy_work_keeps_no_light_task_waiting_and_is_done_for_few_at_a_time() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (group, _reports) = base::task::Group::root("test");
        let (told, done) = mpsc::channel();
        let (n_now, n_most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        runtime.block_on(async {
            for _ in 0..4 {
                let (told, n_now, n_most) = (told.clone(), Arc::clone(&n_now), Arc::clone(&n_most));
                let (asks, asked) = mpsc::channel();
                let (answers, answer) = mpsc::channel();
                let weight = Weight::default();
                let own = weight.clone();
                let work = async move {
                    own.add(LIGHT_BYTES_MAX + 1).await;
                    n_most.fetch_max(n_now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    asks.send(()).unwrap();
                    // It computes, and does not end before a light task has run.
                    let is_answered = answer.recv_timeout(LIMIT).is_ok();
                    n_now.fetch_sub(1, Ordering::SeqCst);
                    told.send(is_answered).unwrap();
                };
                group.spawn_short("heavy", Beside::new(work.boxed(), weight));
                group.spawn_short("light", async move {
                    while asked.try_recv().is_err() {
                        tokio::task::yield_now().await;
                    }
                    let _heavy_work_waits = answers.send(());
                });
            }
        });
        for _ in 0..4 {
            assert!(done.recv_timeout(5 * LIMIT).unwrap(), "a light task waited for a heavy one");
        }
        assert!(n_most.load(Ordering::SeqCst) <= n_permits());
    }

    #[tokio::test]
    async fn few_heavy_bodies_are_decoded_at_once_and_light_ones_wait_for_none() {
        let mut held = Vec::new();
        for _ in 0..n_permits() * DECODED_PER_PERMIT {
            held.push(tokio::time::timeout(LIMIT, DecodedPermit::of(LIGHT_BYTES_MAX + 1)).await.unwrap().unwrap());
        }
        assert!(
            DecodedPermit::of(LIGHT_BYTES_MAX + 1).now_or_never().is_none(),
            "a heavy body waits for another's end"
        );
        assert!(DecodedPermit::of(LIGHT_BYTES_MAX).now_or_never().unwrap().is_none(), "a light one needs no place");
        drop(held.pop());
        assert!(tokio::time::timeout(LIMIT, DecodedPermit::of(LIGHT_BYTES_MAX + 1)).await.unwrap().is_some());
    }
}
