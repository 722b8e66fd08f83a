//! Watches: many of them share one stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::limits;
use base::task::Group;
use futures_util::StreamExt as _;
use http::{Request, Response};
use proto::etcd as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use wire::Body;

use super::context::Context;
use super::convert::{self, signed, unsigned};
use crate::error::Error;
use crate::kv::{EventBatch, EventKind, Revision};
use crate::storage::{Storage as _, WatchRequest};

/// The id in answers that are of no single watch.
const NO_WATCH: i64 = -1;
/// How often a watch that asked for it is told how far it is, as etcd.
const PROGRESS_EVERY: std::time::Duration = std::time::Duration::from_secs(600);

type Answers = mpsc::Sender<Result<pb::WatchResponse, Status>>;

/// Serves one stream of watches.
pub async fn serve(context: Arc<Context>, req: Request<Body>) -> Response<Body> {
    let service = tower::service_fn(move |req: tonic::Request<tonic::Streaming<pb::WatchRequest>>| {
        let context = Arc::clone(&context);
        async move {
            // Full means that the client does not read: the store lets go of its watches when they fall behind.
            let (tx, rx) = mpsc::channel(limits::STORE_ETCD_STREAM);
            let group = context.group.clone();
            group.spawn_short("watch-stream", run(context, req.into_inner(), tx));
            Ok(tonic::Response::new(ReceiverStream::new(rx)))
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<pb::WatchResponse, pb::WatchRequest>::default());
    grpc.streaming(service, req).await.map(wire::body::from_http)
}

/// Message of a watch's task to its stream.
struct News {
    watch_id: i64,
    batch: Result<EventBatch, Error>,
}

struct Watching {
    group: Group,
    filters: Vec<i32>,
    /// Everything up to here was handed to the client.
    seen: Revision,
    progress_notify: bool,
}

struct Stream {
    context: Arc<Context>,
    answers: Answers,
    news: mpsc::Sender<News>,
    watches: BTreeMap<i64, Watching>,
    last_id: i64,
    /// The client asked how far all watches are: answered once all have reached this.
    asked: Option<Revision>,
}

async fn run(context: Arc<Context>, mut requests: tonic::Streaming<pb::WatchRequest>, answers: Answers) {
    let (news, mut incoming) = mpsc::channel(limits::STORE_ETCD_STREAM);
    let mut stream = Stream { context, answers, news, watches: BTreeMap::new(), last_id: NO_WATCH, asked: None };
    let mut tick = tokio::time::interval(PROGRESS_EVERY);
    tick.reset();
    loop {
        let goes_on = tokio::select! {
            request = requests.next() => match request {
                Some(Ok(pb::WatchRequest { request: Some(request) })) => stream.request(request).await,
                Some(Ok(pb::WatchRequest { request: None })) => true,
                // The client is gone or has said all it will.
                Some(Err(_)) | None => false,
            },
            Some(news) = incoming.recv() => stream.tell(news).await,
            _ = tick.tick() => stream.context.store.progress().await.is_ok(),
            () = stream.answers.closed() => false,
        };
        if !goes_on {
            break;
        }
    }
    for watching in stream.watches.into_values() {
        watching.group.shutdown().await;
    }
}

impl Stream {
    async fn request(&mut self, request: pb::watch_request::Request) -> bool {
        use pb::watch_request::Request;
        match request {
            Request::Create(create) => self.create(create).await,
            Request::Cancel(cancel) => match self.watches.remove(&cancel.watch_id) {
                Some(watching) => {
                    watching.group.shutdown().await;
                    let header = self.context.header(None);
                    self.answer(pb::WatchResponse {
                        header,
                        watch_id: cancel.watch_id,
                        canceled: true,
                        ..Default::default()
                    })
                    .await
                }
                None => true,
            },
            Request::Progress(_) => {
                let now = self.context.store.current_revision();
                self.asked = Some(now);
                // Watches that wait say by an empty batch that nothing up to now is still to come.
                self.context.store.progress().await.is_ok() && self.answer_asked().await
            }
        }
    }

    async fn create(&mut self, create: pb::WatchCreateRequest) -> bool {
        let watch_id = if create.watch_id > 0 { create.watch_id } else { self.last_id.max(NO_WATCH) + 1 };
        if self.watches.contains_key(&watch_id) {
            let header = self.context.header(None);
            let cancel_reason = "etcdserver: mvcc: duplicate watch ID provided on the WatchStream".to_owned();
            return self
                .answer(pb::WatchResponse {
                    header,
                    watch_id: NO_WATCH,
                    created: true,
                    canceled: true,
                    cancel_reason,
                    ..Default::default()
                })
                .await;
        }
        self.last_id = self.last_id.max(watch_id);
        // An empty key, or [0] with the end [0], is the first of all.
        let all = create.key.is_empty() || (create.key[..] == [0] && create.range_end[..] == [0]);
        let key = if all { bytes::Bytes::new() } else { create.key };
        let (range_end, start) = (create.range_end, Revision(unsigned(create.start_revision)));
        let opened = self.context.store.watch(WatchRequest { key, range_end, start, prev_kv: create.prev_kv }).await;
        let created =
            pb::WatchResponse { header: self.context.header(None), watch_id, created: true, ..Default::default() };
        if !self.answer(created).await {
            return false;
        }
        let mut watch = match opened {
            Ok(watch) => watch,
            Err(err) => return self.cancel(watch_id, &err).await,
        };
        let (group, news) = (self.context.group.child("watch"), self.news.clone());
        group.spawn_short("watch", async move {
            loop {
                let batch = watch.next().await;
                let ends = batch.is_err();
                if news.send(News { watch_id, batch }).await.is_err() || ends {
                    return;
                }
            }
        });
        // A watch from now on has nothing behind it; one from the past is as far as its first revision.
        let seen = if start.0 == 0 { self.context.store.current_revision() } else { Revision(start.0 - 1) };
        self.watches.insert(
            watch_id,
            Watching { group, filters: create.filters, seen, progress_notify: create.progress_notify },
        );
        true
    }

    async fn tell(&mut self, news: News) -> bool {
        let watch_id = news.watch_id;
        let batch = match news.batch {
            Ok(batch) => batch,
            Err(err) => return self.cancel(watch_id, &err).await,
        };
        let Some(watching) = self.watches.get_mut(&watch_id) else { return true };
        watching.seen = watching.seen.max(batch.revision);
        let wanted = |kind: EventKind| !watching.filters.contains(&(if kind == EventKind::Put { 0 } else { 1 }));
        let events: Vec<_> = batch.events.iter().filter(|event| wanted(event.kind)).map(convert::event).collect();
        let told = !events.is_empty() || (batch.events.is_empty() && watching.progress_notify && self.asked.is_none());
        let header = self.context.header(Some(batch.revision));
        if told && !self.answer(pb::WatchResponse { header, watch_id, events, ..Default::default() }).await {
            return false;
        }
        self.answer_asked().await
    }

    /// Says how far the stream is, once all of its watches are so far.
    async fn answer_asked(&mut self) -> bool {
        let Some(asked) = self.asked.filter(|asked| self.watches.values().all(|watching| watching.seen >= *asked))
        else {
            return true;
        };
        self.asked = None;
        self.answer(pb::WatchResponse {
            header: self.context.header(Some(asked)),
            watch_id: NO_WATCH,
            ..Default::default()
        })
        .await
    }

    async fn cancel(&mut self, watch_id: i64, why: &Error) -> bool {
        self.watches.remove(&watch_id);
        let compact_revision = if let Error::Compacted { floor, .. } = why { signed(floor.0) } else { 0 };
        let cancel_reason = convert::status(why).message().to_owned();
        let header = self.context.header(None);
        self.answer(pb::WatchResponse {
            header,
            watch_id,
            canceled: true,
            compact_revision,
            cancel_reason,
            ..Default::default()
        })
        .await
    }

    async fn answer(&self, answer: pb::WatchResponse) -> bool {
        self.answers.send(Ok(answer)).await.is_ok()
    }
}
