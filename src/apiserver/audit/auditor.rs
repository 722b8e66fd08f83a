//! From a request to its events, and the events to their backends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::chain::Chain;
use base::files::FileError;
use base::task::Group;
use base::time::{Clock, rfc3339_micros};
use bytes::Bytes;
use jiff::Timestamp;
use registry::attributes::Attributes;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::Remote;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::error;

use super::file::{Keeping, Log};
use super::policy::{Level, Policy, Stage, Verdict};
use crate::arguments::Audit;
use crate::arguments::error::{FileFault, UnusableFile};

/// Events that wait for the webhook; more are dropped and counted, as upstream's batch mode does.
const BACKLOG: usize = 10_000;
/// A batch is offered this often, with growing pauses between.
const TRIES: u32 = 5;
/// The webhook must take a batch within this.
const ANSWER: Duration = Duration::from_secs(30);

/// The parts of an audit set-up that come from files.
pub struct Plan {
    policy: Policy,
    log: Option<Log>,
    webhook: Option<Remote>,
    batch: (usize, Duration),
}

impl Plan {
    /// Reads the policy and opens the log; `None` without a policy.
    ///
    /// Errors: a file cannot be used; the error names its flag.
    pub fn read(settings: &Audit) -> Result<Option<Plan>, UnusableFile> {
        let Some(path) = &settings.policy_file else { return Ok(None) };
        let flag = "audit-policy-file";
        let text = std::fs::read_to_string(path)
            .map_err(FileError::at("cannot read", path))
            .map_err(UnusableFile::of(flag))?;
        let policy = Policy::parse(&text).map_err(FileFault::of(path)).map_err(UnusableFile::of(flag))?;
        let keeping = Keeping {
            max_bytes: settings.max_size_mb * 1024 * 1024,
            max_backups: settings.max_backups,
            max_age_days: settings.max_age_days,
        };
        let open = |path: &PathBuf| Log::open(path, keeping).map_err(FileError::at("cannot open", path));
        let log = settings.log_path.as_ref().map(open).transpose().map_err(UnusableFile::of("audit-log-path"))?;
        let remote = settings.webhook.as_deref().map(Remote::read);
        let webhook = remote.transpose().map_err(UnusableFile::of("audit-webhook-config-file"))?;
        Ok(Some(Plan { policy, log, webhook, batch: settings.webhook_batch }))
    }
}

/// Writes events.
pub struct Auditor {
    policy: Policy,
    log: Option<Log>,
    queue: Option<mpsc::Sender<Value>>,
    clock: Clock,
    dropped: AtomicU64,
}

/// Record of one request so far.
pub struct Record {
    verdict: Verdict,
    received: Timestamp,
    head: Value,
}

impl Auditor {
    /// Starts the webhook's sender in `group`.
    pub fn start(plan: Plan, webhooks: Arc<Webhooks>, clock: Clock, group: &Group) -> Auditor {
        let queue = plan.webhook.map(|remote| {
            let (queue, events) = mpsc::channel(BACKLOG);
            group.spawn("audit-webhook", send_batches(remote, webhooks, events, plan.batch));
            queue
        });
        Auditor { policy: plan.policy, log: plan.log, queue, clock, dropped: AtomicU64::new(0) }
    }

    /// Events that could not be handed to a backend.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Begins a record, once the user is known; `None` when the policy wants nothing of it.
    pub fn begin(
        &self,
        a: &Attributes,
        parts: &http::request::Parts,
        conn: &wire::ConnInfo,
        audit_id: &str,
        received: Timestamp,
    ) -> Option<Record> {
        let verdict = self.policy.judge(a);
        if verdict.level == Level::None {
            return None;
        }
        let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let mut ips: Vec<String> = header("x-forwarded-for")
            .split(',')
            .map(str::trim)
            .filter(|ip| !ip.is_empty())
            .map(str::to_owned)
            .collect();
        ips.push(conn.peer.ip().to_string());
        let head = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": verdict.level.text(), "auditID": audit_id,
            // HTTP/2 names the host in the URI too.
            "requestURI": parts.uri.path_and_query().map(http::uri::PathAndQuery::as_str),
            "verb": a.verb, "user": *a.user, "sourceIPs": ips, "userAgent": header("user-agent"),
            "requestReceivedTimestamp": rfc3339_micros(received),
        });
        let record = Record { verdict, received, head };
        self.write(&record, a, Stage::RequestReceived, None, None);
        Some(record)
    }

    /// Writes one event. `code` is that of the answer, `answer` its object.
    pub fn write(&self, record: &Record, a: &Attributes, stage: Stage, code: Option<u16>, answer: Option<Value>) {
        if !record.verdict.writes(stage) {
            return;
        }
        let mut event = record.head.clone();
        event["stage"] = json!(stage.text());
        event["stageTimestamp"] = json!(rfc3339_micros(self.clock.now().max(record.received)));
        if let Some(user) = a.trail.impersonated() {
            event["impersonatedUser"] = json!(user);
        }
        if a.is_resource {
            event["objectRef"] = object_ref(a);
        }
        if stage != Stage::RequestReceived {
            self.add_contents(&mut event, record, a, code, answer);
        }
        let line = event.to_string();
        if let Some(log) = &self.log
            && let Err(err) = log.line(&line, self.clock.now())
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            error!(err = %Chain(&err), "cannot write the audit log");
        }
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(event).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add_contents(
        &self,
        event: &mut Value,
        record: &Record,
        a: &Attributes,
        code: Option<u16>,
        answer: Option<Value>,
    ) {
        let slim = |mut object: Value| {
            if record.verdict.omit_managed_fields
                && let Some(metadata) = object["metadata"].as_object_mut()
            {
                metadata.remove("managedFields");
            }
            object
        };
        if record.verdict.level >= Level::Request
            && let Some(sent) = a.trail.sent()
        {
            event["requestObject"] = slim(sent);
        }
        if record.verdict.level >= Level::RequestResponse
            && let Some(answer) = &answer
        {
            event["responseObject"] = slim(answer.clone());
        }
        if let Some(code) = code {
            let mut status = json!({ "metadata": {}, "code": code });
            if let Some(answer) = answer.filter(|answer| answer["kind"] == "Status") {
                for field in ["status", "message", "reason"] {
                    if answer[field].is_string() {
                        status[field] = answer[field].clone();
                    }
                }
            }
            event["responseStatus"] = status;
        }
        let annotations = a.trail.annotations();
        if !annotations.is_empty() {
            event["annotations"] = json!(annotations);
        }
    }
}

impl Record {
    /// Whether the answer's object is wanted.
    pub fn wants_answer(&self) -> bool {
        self.verdict.level >= Level::RequestResponse
    }

    /// Whether what was sent is wanted.
    pub fn wants_sent(&self) -> bool {
        self.verdict.level >= Level::Request
    }
}

fn object_ref(a: &Attributes) -> Value {
    let mut out = json!({});
    let parts = [
        ("resource", &a.resource),
        ("namespace", &a.namespace),
        ("name", &a.name),
        ("apiGroup", &a.group),
        ("apiVersion", &a.version),
        ("subresource", &a.subresource),
    ];
    for (key, text) in parts {
        if !text.is_empty() {
            out[key] = json!(text);
        }
    }
    out
}

async fn send_batches(
    remote: Remote,
    webhooks: Arc<Webhooks>,
    mut events: mpsc::Receiver<Value>,
    (most, wait): (usize, Duration),
) {
    let mut batch = Vec::new();
    loop {
        let Some(first) = events.recv().await else { return };
        batch.push(first);
        let until = tokio::time::Instant::now() + wait;
        while batch.len() < most {
            // Cancel safe: an event is received or still in the channel.
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => batch.push(event),
                    None => break,
                },
                () = tokio::time::sleep_until(until) => break,
            }
        }
        let list = json!({ "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {},
            "items": std::mem::take(&mut batch) });
        let body = Bytes::from(list.to_string());
        for attempt in 0..TRIES {
            match webhooks.post(&remote.endpoint, &remote.identity, body.clone(), ANSWER).await {
                Ok(_) => break,
                Err(err) if attempt + 1 == TRIES => {
                    error!(err = %err, "audit events are lost: the webhook does not take them")
                }
                Err(_) => tokio::time::sleep(Duration::from_secs(1 << attempt)).await,
            }
        }
    }
}
