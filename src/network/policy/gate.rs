//! The socket on which the CNI plugin `kedge-policy` tells of sandboxes: one line of JSON each way.
//!
//! `{"command":"ADD","sandbox":"…","namespace":"…","name":"…","uid":"…","addresses":["10.42.0.5"]}` is answered with
//! `{}` when the pod's policies are in force, and with `{"error":"…"}` when that cannot be said in time: then the pod
//! must not start.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::task::Group;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use crate::error::NetworkError;
use crate::policy::Request;
use crate::policy::claims::Claim;
use crate::policy::pod_ref::PodRef;

/// A question is some hundred bytes.
const QUESTION_BYTES_MAX: u64 = 16 * 1024;
/// How long a pod may wait for its policies; the kubelet tries again after that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
struct Question {
    command: String,
    sandbox: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    #[serde(default)]
    netns: Option<PathBuf>,
}

#[derive(Debug, Default, Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Listens; only root can call.
pub(crate) fn listen(socket: &Path, requests: mpsc::Sender<Request>, group: &Group) -> Result<(), NetworkError> {
    let failed = |source| NetworkError::Io { doing: "cannot listen for the CNI plugin", source };
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    // What an earlier run left; a bind would refuse it.
    let _stale = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(failed)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let calls = group.child("calls");
    group.spawn("policy-gate", async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => calls.spawn_short("call", serve(stream, requests.clone())),
                Err(err) => {
                    warn!(err = %err, "cannot accept a call of the CNI plugin");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn serve(stream: UnixStream, requests: mpsc::Sender<Request>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(QUESTION_BYTES_MAX));
    let answer = match tokio::time::timeout(ANSWER_TIMEOUT, read.read_line(&mut line)).await {
        Ok(Ok(_)) => match tokio::time::timeout(ANSWER_TIMEOUT, answer(&line, &requests)).await {
            Ok(answer) => answer,
            Err(_) => refused(
                "the pod's network policies could not be put in force in time: the API server does not tell about the \
                 pod",
            ),
        },
        _ => return,
    };
    let mut text = serde_json::to_vec(&answer).unwrap_or_default();
    text.push(b'\n');
    if let Err(err) = write.write_all(&text).await {
        debug!(err = %err, "the CNI plugin did not wait for its answer");
    }
}

fn refused(why: &str) -> Answer {
    Answer { error: Some(why.to_owned()) }
}

async fn answer(line: &str, requests: &mpsc::Sender<Request>) -> Answer {
    let question: Question = match serde_json::from_str(line) {
        Ok(question) => question,
        Err(err) => return refused(&format!("cannot read the question: {err}")),
    };
    let (done, heard) = oneshot::channel();
    let request = match question.command.as_str() {
        "ADD" => return add(question, requests).await,
        "CHECK" => return check(question, requests).await,
        "DEL" => Request::Remove { sandbox: question.sandbox, done },
        other => return refused(&format!("unknown command {other:?}")),
    };
    if requests.send(request).await.is_err() || heard.await.is_err() {
        return refused("kedge is stopping");
    }
    Answer::default()
}

async fn add(question: Question, requests: &mpsc::Sender<Request>) -> Answer {
    let (done, heard) = oneshot::channel();
    let pod = PodRef { ns: question.namespace, name: question.name, uid: question.uid };
    let claim = Claim { pod, ips: question.addresses, netns: question.netns, seen: None };
    if requests.send(Request::Add { sandbox: question.sandbox, claim, done }).await.is_err() {
        return refused("kedge is stopping");
    }
    match heard.await {
        Ok(Ok(())) => Answer::default(),
        Ok(Err(err)) => refused(&err.to_string()),
        Err(_) => refused("kedge is stopping"),
    }
}

/// Whether the sandbox is guarded as it was when it began.
async fn check(question: Question, requests: &mpsc::Sender<Request>) -> Answer {
    let (done, heard) = oneshot::channel();
    let request = Request::Check { sandbox: question.sandbox, ips: question.addresses, done };
    if requests.send(request).await.is_err() {
        return refused("kedge is stopping");
    }
    match heard.await {
        Ok(true) => Answer::default(),
        Ok(false) => {
            refused("kedge does not know the sandbox with these addresses: its network policies are not in force")
        }
        Err(_) => refused("kedge is stopping"),
    }
}
