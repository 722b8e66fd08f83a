//! Hearing that a container ended: the CRI's own event stream, and where that is missing (containerd 1.6) containerd's.

use std::path::Path;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::task::Group;
use containerd_client::events::{TaskExit, TaskStart};
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::types::Envelope;
use k8s_cri::v1::ContainerEventType;
use prost::Message as _;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::cri::{Cri, channel};

/// Events that wait for the manager; when full the stream waits, and containerd drops us if it takes too long: we list
/// again then.
const BACKLOG_EVENTS: usize = 1024;
/// Those of containerd's events that concern us; values with slashes must be quoted.
///
/// Not that the kernel killed a process for want of memory: if it was the container's first, its end is told, and if
/// not, it runs on.
const FILTERS: [&str; 2] =
    [r#"namespace=="k8s.io",topic=="/tasks/exit""#, r#"namespace=="k8s.io",topic=="/tasks/start""#];

/// Without an answer to the request for events, what runs is listed after so long, then after twice as long, up to the
/// last.
const SILENCE_FIRST: Duration = Duration::from_secs(1);
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// An event of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// The stream began, perhaps not for the first time: anything may have happened before.
    Began,
    /// A container or sandbox started.
    Started(String),
    /// A container or sandbox ended.
    Ended(String),
}

/// Listens until the group stops, connecting again whenever the stream breaks.
pub fn listen(cri: Cri, socket: &Path, group: &Group) -> mpsc::Receiver<RuntimeEvent> {
    let (tx, rx) = mpsc::channel(BACKLOG_EVENTS);
    let socket = socket.to_owned();
    let rng = group.rng().clone();
    group.spawn("runtime-events", async move {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut cri_has_events = true;
        loop {
            if cri_has_events {
                cri_has_events = from_cri(&cri, &tx, &mut backoff).await;
            } else {
                from_containerd(&socket, &tx, &mut backoff).await;
            }
            if cri_has_events || backoff.failures() > 0 {
                tokio::time::sleep(backoff.next(&rng)).await;
            } else {
                let _counts_the_failure = backoff.next(&rng);
            }
        }
    });
    rx
}

/// Waits for the answer to a request for events. Go's servers answer with the first event only, so silence may mean
/// that nothing happens, or that the last thing happened just before we were heard: until the answer comes, `Began` is
/// told again and again, less and less often. `None`: nobody wants events any more. Cancel safe.
async fn asked<T>(answer: impl Future<Output = T>, tx: &mpsc::Sender<RuntimeEvent>, first: Duration) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    let mut silence = first;
    loop {
        tokio::select! {
            answer = &mut answer => return Some(answer),
            () = tokio::time::sleep(silence) => tx.send(RuntimeEvent::Began).await.ok()?,
        }
        silence = (silence * 2).min(SILENCE_MAX);
    }
}

/// Returns whether the runtime has this stream at all.
async fn from_cri(cri: &Cri, tx: &mpsc::Sender<RuntimeEvent>, backoff: &mut Backoff) -> bool {
    let Some(answer) = asked(cri.container_events(), tx, SILENCE_FIRST).await else { return true };
    let mut stream = match answer {
        Ok(stream) => stream,
        Err(err) if err.is_unimplemented() => {
            info!("the runtime has no CRI events, listening to containerd's own");
            return false;
        }
        Err(err) => {
            warn!(err = %Chain(&err), "cannot listen to runtime events");
            return true;
        }
    };
    let mut begun = false;
    loop {
        // containerd answers Unimplemented only with the first message of a stream.
        if !begun && tx.send(RuntimeEvent::Began).await.is_err() {
            return true;
        }
        begun = true;
        let event = match stream.message().await {
            Ok(Some(event)) => event,
            Ok(None) => return true,
            Err(status) if status.code() == tonic::Code::Unimplemented => return false,
            Err(status) => {
                debug!(err = %Chain(&status), "runtime event stream ended");
                return true;
            }
        };
        backoff.reset();
        let event = match event.container_event_type() {
            ContainerEventType::ContainerStartedEvent => RuntimeEvent::Started(event.container_id),
            ContainerEventType::ContainerStoppedEvent | ContainerEventType::ContainerDeletedEvent => {
                RuntimeEvent::Ended(event.container_id)
            }
            ContainerEventType::ContainerCreatedEvent => continue,
        };
        if tx.send(event).await.is_err() {
            return true;
        }
    }
}

async fn from_containerd(socket: &Path, tx: &mpsc::Sender<RuntimeEvent>, backoff: &mut Backoff) {
    let mut client = EventsClient::new(channel(socket));
    let filters = FILTERS.map(str::to_owned).to_vec();
    let Some(answer) = asked(client.subscribe(SubscribeRequest { filters }), tx, SILENCE_FIRST).await else { return };
    let mut stream = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            warn!(err = %Chain(&status), "cannot listen to containerd's events");
            return;
        }
    };
    if tx.send(RuntimeEvent::Began).await.is_err() {
        return;
    }
    backoff.reset();
    loop {
        match stream.message().await {
            Ok(Some(envelope)) => {
                let Some(event) = read(&envelope) else { continue };
                if tx.send(event).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(status) => {
                warn!(err = %Chain(&status), "containerd's event stream ended");
                return;
            }
        }
    }
}

/// An exec's end carries the container's id too, but its own in `id`: such events are nobody's business.
fn read(envelope: &Envelope) -> Option<RuntimeEvent> {
    let bytes = envelope.event.as_ref()?.value.as_slice();
    match envelope.topic.as_str() {
        "/tasks/exit" => {
            let exit = TaskExit::decode(bytes).ok()?;
            (exit.id == exit.container_id).then_some(RuntimeEvent::Ended(exit.container_id))
        }
        "/tasks/start" => Some(RuntimeEvent::Started(TaskStart::decode(bytes).ok()?.container_id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(container_id: &str, id: &str) -> Envelope {
        let exit = TaskExit { container_id: container_id.to_owned(), id: id.to_owned(), ..Default::default() };
        let event = prost_types_any(exit.encode_to_vec());
        Envelope { topic: "/tasks/exit".to_owned(), event: Some(event), ..Default::default() }
    }

    fn prost_types_any(value: Vec<u8>) -> ::prost_types::Any {
        ::prost_types::Any { type_url: String::new(), value }
    }

    #[tokio::test]
    async fn a_runtime_that_does_not_answer_is_looked_at_again_and_again() {
        let ((tx, mut rx), (tell, answer)) = (mpsc::channel(1), tokio::sync::oneshot::channel());
        let first = Duration::from_millis(1);
        let looks = async {
            for _ in 0..3 {
                assert_eq!(rx.recv().await, Some(RuntimeEvent::Began));
            }
            tell.send("an event").unwrap();
            rx
        };
        let (answered, rx) = tokio::join!(asked(answer, &tx, first), looks);
        assert_eq!(answered, Some(Ok("an event")));
        drop(rx);
        assert_eq!(asked(std::future::pending::<()>(), &tx, first).await, None);
    }

    #[test]
    fn the_end_of_an_exec_is_not_the_end_of_its_container() {
        assert_eq!(read(&exit("c1", "c1")), Some(RuntimeEvent::Ended("c1".to_owned())));
        assert_eq!(read(&exit("c1", "exec-1")), None);
    }
}
