//! The pods that each metric of an autoscaler asks for: readings from metrics.k8s.io or from adapters, held against the
//! metric's target.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::chain::Chain;
use client::informer::Key;
use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, MetricSpec, MetricTarget, ObjectMetricSource, PodsMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use model::phase;
use model::pod::Pod;
use model::quantity::Quantity;
use model::reference::GroupResource;
use serde_json::Value;

use super::adapters::Adapters;
use super::error::ScaleError;
use super::replicas::{self, Count, Measured, Question, Reading, Target, Whole, WholeTarget};
use super::{Controller, Trouble, group_of};
use crate::discovery;

/// Subject of a metric: the pods that `selector` picks, as many as the spec wants and as there are.
pub(super) struct About<'a> {
    pub(super) key: &'a Key,
    pub(super) selector: &'a str,
    pub(super) current: i32,
    pub(super) present: i32,
    /// Differences that are none, downwards and upwards.
    pub(super) tolerances: (f64, f64),
}

impl Controller {
    /// The number of pods that the metric asks for, and the metric's name in texts.
    pub(super) async fn ask(&self, metric: &MetricSpec, about: &About<'_>) -> Result<(Count, String), Trouble> {
        let trouble = |reason: &'static str, of: &str| {
            let of = of.to_owned();
            move |err: ScaleError| (reason, format!("failed to get {of} metric value: {}", Chain(&err)))
        };
        if let Some(source) = &metric.resource {
            let measured = Measured { resource: &source.name, container: None };
            let asked = self.ask_resource(measured, &source.target, about).await;
            return asked.map_err(trouble("FailedGetResourceMetric", &format!("{} resource", source.name)));
        }
        if let Some(source) = &metric.container_resource {
            let measured = Measured { resource: &source.name, container: Some(&source.container) };
            let asked = self.ask_resource(measured, &source.target, about).await;
            return asked.map_err(trouble("FailedGetContainerResourceMetric", &format!("{} resource", source.name)));
        }
        if let Some(source) = &metric.pods {
            return self.ask_pods(source, about).await.map_err(trouble("FailedGetPodsMetric", "pods"));
        }
        if let Some(source) = &metric.object {
            return self.ask_object(source, about).await.map_err(trouble("FailedGetObjectMetric", "object"));
        }
        if let Some(source) = &metric.external {
            let of = format!("{} external", source.metric.name);
            return self.ask_external(source, about).await.map_err(trouble("FailedGetExternalMetric", &of));
        }
        Err(("InvalidMetricSourceType", format!("unknown metric source type {:?}", metric.type_)))
    }

    async fn ask_pods(&self, source: &PodsMetricSource, about: &About<'_>) -> Result<(Count, String), ScaleError> {
        let name = &source.metric.name;
        let target = target_of(&source.target).filter(|target| matches!(target, Target::Average(_)));
        let target = target.ok_or(ScaleError::Target { metric: "pods", missing: "no average value target" })?;
        let readings = self.adapters(about).of_pods(&source.metric, about.selector).await;
        let readings = readings.map_err(|err| err.of_value(format!("metric {name}")))?;
        let count = self.counted(about, &readings, Measured { resource: "", container: None }, target).await?;
        Ok((count, format!("pods metric {name}")))
    }

    async fn ask_object(&self, source: &ObjectMetricSource, about: &About<'_>) -> Result<(Count, String), ScaleError> {
        let (name, object) = (&source.metric.name, &source.described_object);
        let target = whole_target_of("object", &source.target)?;
        let group = group_of(object.api_version.as_deref());
        let kinds = discovery::kinds(&self.client).await?;
        let found = kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == object.kind);
        let none = || ScaleError::NoKind { kind: object.kind.clone(), group: group.clone() };
        let plural = found.ok_or_else(none)?.resource.plural;
        let resource = GroupResource { group: &group, resource: &plural };
        let unable = |err: ScaleError| ScaleError::ObjectValue {
            metric: name.clone(),
            on: format!("{} {}/{}", object.kind, about.key.namespace, object.name),
            cause: Box::new(err),
        };
        let used = self.adapters(about).of_object(&source.metric, &object.name, resource).await.map_err(unable)?;
        let count = replicas::count_whole(self.whole(about).await?, used, target, about.tolerances);
        Ok((count, format!("{} metric {name}", object.kind)))
    }

    async fn ask_external(
        &self,
        source: &ExternalMetricSource,
        about: &About<'_>,
    ) -> Result<(Count, String), ScaleError> {
        let name = &source.metric.name;
        let target = whole_target_of("external", &source.target)?;
        let used = self.adapters(about).external(&source.metric).await;
        let used = used.map_err(|err| err.of_value(format!("external metric {}/{name}", about.key.namespace)))?;
        let count = replicas::count_whole(self.whole(about).await?, used, target, about.tolerances);
        Ok((count, format!("external metric {name}")))
    }

    async fn ask_resource(
        &self,
        measured: Measured<'_>,
        target: &MetricTarget,
        about: &About<'_>,
    ) -> Result<(Count, String), ScaleError> {
        let missing = "neither a utilization target nor a value target";
        let wanted = target_of(target).ok_or(ScaleError::Target { metric: "resource", missing })?;
        let readings = self.readings(about, measured).await?;
        let count = self.counted(about, &readings, measured, wanted).await?;
        let resource = measured.resource;
        let name = match (wanted, measured.container) {
            (Target::Utilization(_), None) => format!("{resource} resource utilization (percentage of request)"),
            (Target::Utilization(_), Some(container)) => {
                format!("{resource} container resource utilization (percentage of request) of {container}")
            }
            (Target::Average(_), None) => format!("{resource} resource"),
            (Target::Average(_), Some(container)) => format!("{resource} container resource of {container}"),
        };
        Ok((count, name))
    }

    fn adapters<'a>(&'a self, about: &'a About<'_>) -> Adapters<'a> {
        Adapters { client: &self.client, namespace: &about.key.namespace }
    }

    async fn whole(&self, about: &About<'_>) -> Result<Whole, ScaleError> {
        let covered = self.covered(about).await?;
        let ready = covered.iter().filter(|pod| phase::phase(pod) == "Running" && phase::is_ready(pod)).count();
        Ok(Whole { wanted: about.current, present: about.present, ready })
    }

    async fn counted(
        &self,
        about: &About<'_>,
        readings: &BTreeMap<String, Reading>,
        measured: Measured<'_>,
        target: Target,
    ) -> Result<Count, ScaleError> {
        let covered = self.covered(about).await?;
        Ok(replicas::count(&Question {
            current: about.current,
            covered: &covered,
            readings,
            measured,
            target,
            tuning: self.tuning,
            tolerances: about.tolerances,
            now: self.clock.now(),
        })?)
    }

    async fn covered(&self, about: &About<'_>) -> Result<Vec<Arc<Pod>>, ScaleError> {
        let namespace = &about.key.namespace;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let listed = api.list_metadata(&ListParams::default().labels(about.selector)).await?;
        Ok(listed.iter().filter_map(|pod| self.pods.get(namespace, &pod.name_any())).collect())
    }

    async fn readings(
        &self,
        about: &About<'_>,
        measured: Measured<'_>,
    ) -> Result<BTreeMap<String, Reading>, ScaleError> {
        let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let resource = ApiResource::from_gvk_with_plural(&kind, "pods");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &about.key.namespace, &resource);
        let unable = |source| ScaleError::Readings { resource: measured.resource.to_owned(), source: Box::new(source) };
        let all = api.list(&ListParams::default().labels(about.selector)).await;
        let all = all.map_err(|err| unable(ScaleError::Fetch(err)))?;
        if all.items.is_empty() {
            return Err(unable(ScaleError::NoMetrics { api: "resource" }));
        }
        Ok(all.iter().filter_map(|pod| Some((pod.name_any(), reading(&pod.data, measured)?))).collect())
    }
}

/// The text of an event about the metrics of which nothing is known, by the first one's failure.
pub(super) fn invalid(failures: &[Trouble], n_metrics: usize) -> String {
    let first = failures.first().map_or("", |(_, why)| why);
    format!("invalid metrics ({} invalid out of {n_metrics}), first error is: {first}", failures.len())
}

/// A value for all pods together, or one that they share, of the source named `metric`.
fn whole_target_of(metric: &'static str, target: &MetricTarget) -> Result<WholeTarget, ScaleError> {
    let milli = |text: &Text| Some(text.0.parse::<Quantity>().ok()?.milli_value());
    let average = target.average_value.as_ref().and_then(milli).map(WholeTarget::Average);
    let found = average.or_else(|| target.value.as_ref().and_then(milli).map(WholeTarget::Value));
    found.ok_or(ScaleError::Target { metric, missing: "neither a value target nor an average value target" })
}

fn target_of(target: &MetricTarget) -> Option<Target> {
    if let Some(value) = &target.average_value {
        return Some(Target::Average(value.0.parse::<Quantity>().ok()?.milli_value()));
    }
    target.average_utilization.map(Target::Utilization)
}

/// The usage of one pod's containers together, or of one of them.
fn reading(metrics: &Value, measured: Measured<'_>) -> Option<Reading> {
    let containers = metrics["containers"].as_array()?.iter();
    let mut milli = None;
    for found in containers.filter(|c| measured.container.is_none_or(|name| c["name"] == name)) {
        let used = Quantity::from_value(&found["usage"][measured.resource]).ok()?;
        milli = Some(milli.unwrap_or(0) + used.milli_value());
    }
    let window = metrics["window"].as_str().and_then(base::cron::duration).unwrap_or(SignedDuration::ZERO);
    Some(Reading { milli: milli?, at: metrics["timestamp"].as_str()?.parse().ok()?, window })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(value: Value) -> MetricTarget {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_target_is_read_from_the_field_that_its_source_knows() {
        let of = |value: Value| target_of(&target(value));
        assert_eq!(of(json!({"type": "Utilization", "averageUtilization": 80})), Some(Target::Utilization(80)));
        assert_eq!(of(json!({"type": "AverageValue", "averageValue": "250m"})), Some(Target::Average(250)));
        assert_eq!(of(json!({"type": "AverageValue", "averageValue": "much"})), None);
        assert_eq!(of(json!({"type": "Value", "value": "3"})), None, "pods share no one value");
    }

    // The event said "1 invalid" however many were. Upstream: `computeReplicasForMetrics` (horizontal.go, 1.36.2).
    #[test]
    fn all_metrics_that_fail_are_counted() {
        let failures = ["a", "b"].map(|why| ("FailedGetResourceMetric", why.to_owned()));
        assert_eq!(invalid(&failures, 3), "invalid metrics (2 invalid out of 3), first error is: a");
    }

    #[test]
    fn a_metric_of_no_pod_has_a_value_or_an_average_and_else_is_refused() {
        let of = |value: Value| whole_target_of("object", &target(value)).map_err(|err| err.to_string());
        assert_eq!(of(json!({"type": "Value", "value": "3"})), Ok(WholeTarget::Value(3000)));
        assert_eq!(of(json!({"type": "AverageValue", "averageValue": "500m"})), Ok(WholeTarget::Average(500)));
        let neither = "invalid object metric source: neither a value target nor an average value target was set";
        assert_eq!(of(json!({"type": "Utilization", "averageUtilization": 80})), Err(neither.to_owned()));
    }

    #[test]
    fn a_reading_is_the_sum_of_the_containers_and_needs_each_of_them() {
        let cpu = |container| Measured { resource: "cpu", container };
        let metrics = json!({"timestamp": "2026-01-01T00:00:00Z", "window": "15s", "containers": [
            {"name": "app", "usage": {"cpu": "250m", "memory": "1Ki"}}, {"name": "proxy", "usage": {"cpu": "50m"}}]});
        let milli = |measured| reading(&metrics, measured).map(|found| (found.milli, found.window.as_secs()));
        assert_eq!(milli(cpu(None)), Some((300, 15)));
        assert_eq!(milli(cpu(Some("proxy"))), Some((50, 15)));
        assert_eq!(milli(cpu(Some("other"))), None);
        let memory = |container| Measured { resource: "memory", container };
        assert_eq!(milli(memory(None)), None, "one container does not say");
        assert_eq!(milli(memory(Some("app"))), Some((1_024_000, 15)));
    }
}
