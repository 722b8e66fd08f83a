//! Metrics that an adapter serves: custom.metrics.k8s.io (of pods and of other objects) and external.metrics.k8s.io.
//!
//! Spec: k8s.io/metrics' clients (1.36.2): an adapter's preferred version is asked; both versions of the custom API are
//! read.

use std::collections::BTreeMap;

use base::url;
use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v2::MetricIdentifier;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use model::labels::Selector;
use model::labels::error::SelectorError;
use model::quantity::Quantity;
use model::reference::GroupResource;
use serde_json::Value;

use super::error::ScaleError;
use super::replicas::Reading;

const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";

/// Asks adapters as the user behind `client`, about one namespace.
pub(super) struct Adapters<'a> {
    pub(super) client: &'a kube::Client,
    pub(super) namespace: &'a str,
}

impl Adapters<'_> {
    async fn get(&self, path: &str) -> Result<Value, ScaleError> {
        Ok(self.client.request(http::Request::get(path).body(Vec::new())?).await?)
    }

    async fn version(&self, group: &'static str) -> Result<String, ScaleError> {
        let served = self.get(&format!("/apis/{group}")).await?;
        let version = served["preferredVersion"]["version"].as_str().or(served["versions"][0]["version"].as_str());
        version.map(str::to_owned).ok_or(ScaleError::NoVersion { group })
    }

    /// A metric of the pods that `selector` picks, by name of the pod.
    pub(super) async fn of_pods(
        &self,
        metric: &MetricIdentifier,
        selector: &str,
    ) -> Result<BTreeMap<String, Reading>, ScaleError> {
        let version = self.version(CUSTOM).await?;
        let path = format!("/apis/{CUSTOM}/{version}/namespaces/{}/pods/*/{}", self.namespace, encoded(&metric.name));
        let query = Query { pods: Some(selector), series: metric.selector.as_ref() };
        let found = self.get(&query.of(&path)?).await?;
        let items = found["items"].as_array().filter(|items| !items.is_empty());
        let items = items.ok_or(ScaleError::NoMetrics { api: "custom" })?;
        let one = |item: &Value| Some((item["describedObject"]["name"].as_str()?.to_owned(), reading(item)?));
        Ok(items.iter().filter_map(one).collect())
    }

    /// A metric of the object `name`, in thousandths. `resource` is that of its kind.
    pub(super) async fn of_object(
        &self,
        metric: &MetricIdentifier,
        name: &str,
        resource: GroupResource<'_>,
    ) -> Result<i64, ScaleError> {
        let version = self.version(CUSTOM).await?;
        let (name, described) = (encoded(name), encoded(&resource.to_string()));
        let (base, metric_name) = (format!("/apis/{CUSTOM}/{version}/namespaces"), encoded(&metric.name));
        let path = match resource {
            // A namespace is described by itself.
            GroupResource { group: "", resource: "namespaces" } => format!("{base}/{name}/metrics/{metric_name}"),
            _ => format!("{base}/{}/{described}/{name}/{metric_name}", self.namespace),
        };
        let found = self.get(&Query { pods: None, series: metric.selector.as_ref() }.of(&path)?).await?;
        let item = found["items"].as_array().and_then(|items| items.first()).unwrap_or(&found);
        milli(item).ok_or(ScaleError::NoMetrics { api: "custom" })
    }

    /// The sum of all series of an external metric, in thousandths.
    pub(super) async fn external(&self, metric: &MetricIdentifier) -> Result<i64, ScaleError> {
        let version = self.version(EXTERNAL).await?;
        let path = format!("/apis/{EXTERNAL}/{version}/namespaces/{}/{}", self.namespace, encoded(&metric.name));
        let series = metric.selector.as_ref().map(text_of).transpose()?;
        let found = self.get(&Query { pods: series.as_deref(), series: None }.of(&path)?).await?;
        let items = found["items"].as_array().filter(|items| !items.is_empty());
        let items = items.ok_or(ScaleError::NoMetrics { api: "external" })?;
        Ok(items.iter().filter_map(milli).fold(0, i64::saturating_add))
    }
}

fn milli(item: &Value) -> Option<i64> {
    Some(Quantity::from_value(&item["value"]).ok()?.milli_value())
}

fn reading(item: &Value) -> Option<Reading> {
    let secs = item["windowSeconds"].as_i64().or(item["window"].as_i64()).unwrap_or(60);
    let at = item["timestamp"].as_str().and_then(|text| text.parse().ok()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    Some(Reading { milli: milli(item)?, at, window: SignedDuration::from_secs(secs) })
}

/// Selectors of a request for metrics.
struct Query<'a> {
    /// `labelSelector`: picks pods; among external metrics, series.
    pods: Option<&'a str>,
    /// `metricLabelSelector`: picks among the series of a metric.
    series: Option<&'a LabelSelector>,
}

impl Query<'_> {
    /// The path with the selectors behind it.
    fn of(&self, path: &str) -> Result<String, SelectorError> {
        let parts = [
            ("labelSelector", self.pods.map(str::to_owned)),
            ("metricLabelSelector", self.series.map(text_of).transpose()?),
        ];
        let asked = parts.into_iter().filter_map(|(name, text)| Some((name, text.filter(|text| !text.is_empty())?)));
        let query: Vec<String> = asked.map(|(name, text)| format!("{name}={}", encoded(&text))).collect();
        Ok(if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) })
    }
}

/// A selector as a query has it: `app=web,!old,tier in (a,b)`.
fn text_of(selector: &LabelSelector) -> Result<String, SelectorError> {
    Ok(Selector::from_label_selector(Some(selector))?.to_string())
}

/// Percent-encoded, so that what somebody wrote into an autoscaler stays one part of the path or one value of the
/// query.
fn encoded(text: &str) -> String {
    url::encode(text, url::COMPONENT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_become_a_query_and_names_cannot_leave_their_place() {
        let of: LabelSelector = serde_json::from_value(json!({"matchLabels": {"verb": "GET"},
            "matchExpressions": [{"key": "code", "operator": "In", "values": ["200", "201"]},
                {"key": "old", "operator": "DoesNotExist"}]}))
        .unwrap();
        let query = Query { pods: Some("app=web"), series: Some(&of) }.of("/p").unwrap();
        assert_eq!(
            query,
            "/p?labelSelector=app%3Dweb&metricLabelSelector=code%20in%20%28200%2C201%29%2C%21old%2Cverb%3DGET"
        );
        assert_eq!(encoded("../../secrets?x"), "..%2F..%2Fsecrets%3Fx");
    }

    #[test]
    fn both_versions_of_a_value_are_read() {
        let second =
            reading(&json!({"value": "1500m", "windowSeconds": 30, "timestamp": "2026-01-01T00:00:00Z"})).unwrap();
        assert_eq!((second.milli, second.window.as_secs()), (1500, 30));
        let first = reading(&json!({"value": "2", "window": 10, "metricName": "m"})).unwrap();
        assert_eq!((first.milli, first.window.as_secs()), (2000, 10));
        assert!(reading(&json!({"value": "many"})).is_none());
    }
}
