//! Not more events than agreed: of the whole server, a namespace, a user, or one source about one object.

use std::collections::HashMap;

use async_trait::async_trait;
use base::sync::Mutex;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::strict::known;
use schema::read;
use schema::validate::error::FieldError;
use serde_json::Value;
use tokio::time::Instant;

use super::error::ConfigurationError;
use super::{Operation, Plugin, Review};

const VERSION: &str = "eventratelimit.admission.k8s.io/v1alpha1";
const KINDS: [&str; 4] = ["Namespace", "Server", "SourceAndObject", "User"];
/// Buckets that a limit remembers where its configuration does not say.
const BUCKETS: usize = 4096;

/// One limit of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    kind: &'static str,
    /// Events a second, in the long run.
    qps: u32,
    /// Events at once.
    burst: u32,
    /// Buckets that are remembered.
    buckets_max: usize,
}

impl Limit {
    /// The limits of a configuration that stands at `path`.
    ///
    /// Errors: upstream's text about the first thing that is wrong.
    pub fn all_of(value: &Value, path: &str) -> Result<Vec<Limit>, ConfigurationError> {
        if (read::text(value, "apiVersion"), read::text(value, "kind")) != (VERSION, "Configuration") {
            return Err(ConfigurationError::kind(value, path));
        }
        known(value, path, &["apiVersion", "kind", "limits"])?;
        let limits = read::list(value, "limits");
        if limits.is_empty() {
            return Err(FieldError::invalid("limits", Value::Null, "must not be empty").into());
        }
        limits.iter().enumerate().map(|(idx, limit)| Limit::of(limit, &format!("limits[{idx}]"))).collect()
    }

    fn of(value: &Value, at: &str) -> Result<Limit, ConfigurationError> {
        known(value, at, &["type", "qps", "burst", "cacheSize"])?;
        let kind = read::text(value, "type");
        let kind = KINDS
            .into_iter()
            .find(|known| *known == kind)
            .ok_or_else(|| FieldError::not_supported(format!("{at}.type"), kind, &KINDS))?;
        let positive = |field: &str| {
            let number = read::number(value, field);
            let fits = u32::try_from(number).ok().filter(|n| *n > 0);
            fits.ok_or_else(|| FieldError::invalid(format!("{at}.{field}"), number, "must be positive"))
        };
        let size = read::number(value, "cacheSize");
        let buckets_max = usize::try_from(size)
            .map_err(|_| FieldError::invalid(format!("{at}.cacheSize"), size, "must not be negative"))?;
        let (burst, qps) = (positive("burst")?, positive("qps")?);
        Ok(Limit { kind, qps, burst, buckets_max: if buckets_max == 0 { BUCKETS } else { buckets_max } })
    }

    fn key(&self, review: &Review<'_>) -> String {
        let text = |path: &str| read::text(review.object, path);
        match self.kind {
            "Namespace" => review.attributes.namespace.clone(),
            "User" => review.attributes.user.name.clone(),
            "SourceAndObject" => {
                let of = ["kind", "namespace", "name", "uid", "apiVersion"]
                    .map(|field| text(&format!("involvedObject.{field}")));
                [text("source.component"), text("source.host")].into_iter().chain(of).collect()
            }
            _ => String::new(),
        }
    }
}

/// Rest of one client's events.
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// Upstream's `EventRateLimit`.
pub struct EventRateLimit(Vec<(Limit, Mutex<HashMap<String, Bucket>>)>);

impl EventRateLimit {
    /// With these limits.
    pub fn new(limits: &[Limit]) -> EventRateLimit {
        EventRateLimit(limits.iter().map(|limit| (limit.clone(), Mutex::default())).collect())
    }
}

/// Takes one event off the bucket of `key`; false if there is none.
fn take(limit: &Limit, buckets: &mut HashMap<String, Bucket>, key: &str, now: Instant) -> bool {
    if !buckets.contains_key(key) && buckets.len() >= limit.buckets_max {
        let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.at).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| buckets.remove(&oldest));
    }
    let bucket = buckets.entry(key.to_owned()).or_insert(Bucket { tokens: f64::from(limit.burst), at: now });
    bucket.tokens =
        f64::from(limit.burst).min(bucket.tokens + f64::from(limit.qps) * now.duration_since(bucket.at).as_secs_f64());
    bucket.at = now;
    let has = bucket.tokens >= 1.0;
    bucket.tokens -= if has { 1.0 } else { 0.0 };
    has
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
            && (a.is(GroupResource::core("events"))
                || a.is(GroupResource { group: "events.k8s.io", resource: "events" }))
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        if review.dry_run {
            return Ok(());
        }
        let now = Instant::now();
        // Every limit is asked, as upstream: an event that one refuses counts with the others, too.
        let refused = self.0.iter().filter_map(|(limit, buckets)| {
            let key = limit.key(review);
            let mut buckets = buckets.lock();
            let text = || format!("Too many requests: limit reached on type {} for key {key}", limit.kind);
            if take(limit, &mut buckets, &key, now) { None } else { Some(text()) }
        });
        let refused: Vec<String> = refused.collect();
        match refused.as_slice() {
            [] => Ok(()),
            [one] => Err(Status::too_many_requests(format!("Too many requests: {one}"), 0)),
            many => Err(Status::too_many_requests(format!("Too many requests: [{}]", many.join(", ")), 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_holds_a_burst_fills_with_time_and_the_oldest_is_forgotten() {
        let limit = Limit { kind: "User", qps: 2, burst: 2, buckets_max: 2 };
        let (mut buckets, start) = (HashMap::new(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut take = |key: &str, millis: u64| take(&limit, &mut buckets, key, at(millis));
        assert!(take("a", 0) && take("a", 0) && !take("a", 0));
        assert!(!take("a", 400) && take("a", 500) && !take("a", 600));
        assert!(take("b", 700) && take("c", 800), "others have buckets of their own");
        assert!(take("a", 900) && take("a", 900), "the oldest of three was forgotten");
    }
}
