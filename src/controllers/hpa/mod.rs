//! HorizontalPodAutoscalers: as many pods as their use of CPU and memory asks for, by what metrics.k8s.io says.

mod pace;
mod replicas;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use base::chain::Chain;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::pod::Pod;
use client::queue::Queue;
use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricSpec, MetricTarget,
};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use schema::quantity::Quantity;
use serde_json::Value;

use crate::discovery;
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::settings::Autoscaler;
use pace::Memory;
use replicas::{Count, Question, Reading, Target};
use status::Report;

const NAME: &str = "horizontal-pod-autoscaler";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    memory: Mutex<HashMap<Key, Memory>>,
    clock: Clock,
    /// Between two looks at one autoscaler.
    tuning: Autoscaler,
}

/// Starts the controller.
pub(crate) fn start(context: &Context, tuning: Autoscaler) {
    let (autoscalers, pods) = (context.informers.get::<HorizontalPodAutoscaler>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    context.feed(&autoscalers, &queue, |change| match change {
        Change::Modified { old, new } if old.spec == new.spec => Vec::new(),
        change => driver::objects_of(change).iter().map(|hpa| Key::of(&**hpa)).collect(),
    });
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        autoscalers: autoscalers.clone(),
        pods: pods.clone(),
        memory: Mutex::default(),
        clock: Clock::system(),
        tuning,
    };
    context.start(NAME, &queue, controller, async move {
        autoscalers.synced().await;
        pods.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(hpa) = self.autoscalers.get(&key.namespace, &key.name) else {
            self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            return Ok(Next::Wait);
        };
        let mut report = Report::of(&hpa, self.clock.now());
        if let Err((reason, why)) = self.look(&hpa, key, &mut report).await {
            self.recorder.report(&*hpa, Severity::Warning, reason, why);
        }
        self.write_status(&hpa, report.status).await?;
        Ok(Next::After(self.tuning.period))
    }
}

/// Reason and text of an event.
type Trouble = (&'static str, String);

/// Differences that are none, downwards and upwards, as the autoscaler itself says, or else as the flag does.
fn tolerances(hpa: &HorizontalPodAutoscaler, usual: f64) -> (f64, f64) {
    let behavior = hpa.spec.behavior.as_ref();
    let of = |rules: Option<&HPAScalingRules>| {
        let said = rules.and_then(|r| r.tolerance.as_ref()).and_then(|q| q.0.parse::<Quantity>().ok());
        said.map_or(usual, |q| q.milli_value() as f64 / 1000.0)
    };
    (of(behavior.and_then(|b| b.scale_down.as_ref())), of(behavior.and_then(|b| b.scale_up.as_ref())))
}

fn said(err: &kube::Error) -> String {
    Chain(err).to_string()
}

impl Controller {
    async fn look(&self, hpa: &HorizontalPodAutoscaler, key: &Key, report: &mut Report) -> Result<(), Trouble> {
        let (target, scale) = match self.target(hpa, key).await {
            Ok(found) => found,
            Err(why) => {
                let text = format!("the HPA controller was unable to get the target's current scale: {why}");
                report.set("AbleToScale", "False", "FailedGetScale", text);
                return Err(("FailedGetScale", why));
            }
        };
        report.set("AbleToScale", "True", "SucceededGetScale", "the HPA controller was able to get the target's current scale");
        let current = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        report.status.current_replicas = Some(scale.status.as_ref().map_or(0, |s| s.replicas));
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let (wanted, why) = if current == 0 && min != 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            report.set("ScalingActive", "False", "ScalingDisabled", text);
            report.status.desired_replicas = 0;
            return Ok(());
        } else if current > max {
            (max, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let (wanted, why) = self.ask_metrics(hpa, key, &scale, current, report).await?;
            let now = self.clock.now();
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let allowed = memory.entry(key.clone()).or_default().allow(hpa, current, wanted, self.tuning.down_window, now);
            let (limited, reason, text) = match allowed.limited {
                Some((reason, text)) => ("True", reason, text),
                None => ("False", "DesiredWithinRange", "the desired count is within the acceptable range"),
            };
            report.set("ScalingLimited", limited, reason, text);
            (allowed.replicas, why)
        };
        report.status.desired_replicas = wanted;
        if wanted == current {
            report.set("AbleToScale", "True", "ReadyForNewScale", "recommended size matches current size");
            return Ok(());
        }
        self.rescale(hpa, key, &target, scale, wanted, &why, report).await
    }

    #[allow(clippy::too_many_arguments, reason = "one request and all that is told about it")]
    async fn rescale(
        &self,
        hpa: &HorizontalPodAutoscaler,
        key: &Key,
        target: &ApiResource,
        mut scale: Scale,
        wanted: i32,
        why: &str,
        report: &mut Report,
    ) -> Result<(), Trouble> {
        let current = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        scale.spec.get_or_insert_default().replicas = Some(wanted);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, target);
        if let Err(err) = api.replace_scale(&hpa.spec.scale_target_ref.name, &PostParams::default(), &scale).await {
            let text = said(&err);
            report.set(
                "AbleToScale",
                "False",
                "FailedUpdateScale",
                format!("the HPA controller was unable to update the target scale: {text}"),
            );
            report.status.desired_replicas = current;
            return Err(("FailedRescale", format!("New size: {wanted}; reason: {why}; error: {text}")));
        }
        let now = self.clock.now();
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default().changed(wanted - current, now);
        report.set(
            "AbleToScale",
            "True",
            "SucceededRescale",
            format!("the HPA controller was able to update the target scale to {wanted}"),
        );
        report.scaled(now);
        self.recorder.report(hpa, Severity::Normal, "SuccessfulRescale", format!("New size: {wanted}; reason: {why}"));
        Ok(())
    }

    async fn target(&self, hpa: &HorizontalPodAutoscaler, key: &Key) -> Result<(ApiResource, Scale), String> {
        let reference = &hpa.spec.scale_target_ref;
        let version = reference.api_version.as_deref().unwrap_or_default();
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        let kinds = discovery::kinds(&self.client).await.map_err(|err| said(&err))?;
        let found = kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == reference.kind && k.namespaced);
        let resource = found.ok_or_else(|| format!("no matches for kind {:?} in group {group:?}", reference.kind))?.resource;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let scale = api.get_scale(&reference.name).await.map_err(|err| said(&err))?;
        Ok((resource, scale))
    }

    /// The greatest number that any metric asks for. A metric without answer forbids to go down.
    async fn ask_metrics(
        &self,
        hpa: &HorizontalPodAutoscaler,
        key: &Key,
        scale: &Scale,
        current: i32,
        report: &mut Report,
    ) -> Result<(i32, String), Trouble> {
        let selector = scale.status.as_ref().and_then(|s| s.selector.clone()).filter(|selector| !selector.is_empty());
        let Some(selector) = selector else {
            report.set("ScalingActive", "False", "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(("SelectorRequired", "selector is required".to_owned()));
        };
        let metrics = hpa.spec.metrics.clone().unwrap_or_default();
        let (mut best, mut first_trouble) = (None::<(i32, String)>, None);
        let mut shown = Vec::new();
        for metric in &metrics {
            match self.ask(metric, key, &selector, current, tolerances(hpa, self.tuning.tolerance)).await {
                Ok((count, name)) => {
                    shown.push(status::shown(metric, &count));
                    if best.as_ref().is_none_or(|(most, _)| count.replicas > *most) {
                        best = Some((count.replicas, name));
                    }
                }
                Err(trouble) => first_trouble = first_trouble.or(Some(trouble)),
            }
        }
        report.status.current_metrics = Some(shown).filter(|shown| !shown.is_empty());
        let down = best.as_ref().is_none_or(|(wanted, _)| *wanted < current);
        if let Some((reason, why)) = first_trouble.filter(|_| down) {
            let text = format!("the HPA was unable to compute the replica count: {why}");
            report.set("ScalingActive", "False", reason, text);
            let n = metrics.len();
            return Err(("FailedComputeMetricsReplicas", format!("invalid metrics (1 invalid out of {n}), first error is: {why}")));
        }
        let Some((wanted, name)) = best else { return Ok((current, String::new())) };
        let text = format!("the HPA was able to successfully calculate a replica count from {name}");
        report.set("ScalingActive", "True", "ValidMetricFound", text);
        let word = if wanted > current { "above" } else { "below" };
        let why = if wanted < current { "All metrics below target".to_owned() } else { format!("{name} {word} target") };
        Ok((wanted, why))
    }

    async fn ask(
        &self,
        metric: &MetricSpec,
        key: &Key,
        selector: &str,
        current: i32,
        tolerances: (f64, f64),
    ) -> Result<(Count, String), Trouble> {
        let (reason, resource, container, target) = match (&metric.resource, &metric.container_resource) {
            (Some(source), _) => ("FailedGetResourceMetric", source.name.clone(), None, &source.target),
            (None, Some(source)) => {
                ("FailedGetContainerResourceMetric", source.name.clone(), Some(source.container.clone()), &source.target)
            }
            (None, None) => {
                let why = format!(
                    "metrics of type {} need an adapter for custom or external metrics, which this controller does not ask",
                    metric.type_
                );
                return Err(("InvalidMetricSourceType", why));
            }
        };
        let trouble = |why: String| (reason, format!("failed to get {resource} resource metric value: {why}"));
        let wanted = target_of(target)
            .ok_or_else(|| trouble("invalid resource metric source: neither a utilization target nor a value target was set".to_owned()))?;
        let readings = self.readings(&key.namespace, selector, &resource, container.as_deref()).await.map_err(trouble)?;
        let covered = self.covered(&key.namespace, selector).await.map_err(trouble)?;
        let question = Question {
            current,
            covered: &covered,
            readings: &readings,
            resource: &resource,
            container: container.as_deref(),
            target: wanted,
            tuning: self.tuning,
            tolerances,
            now: self.clock.now(),
        };
        let count = replicas::count(&question).map_err(trouble)?;
        let name = match (wanted, &container) {
            (Target::Utilization(_), None) => format!("{resource} resource utilization (percentage of request)"),
            (Target::Utilization(_), Some(container)) => {
                format!("{resource} container resource utilization (percentage of request) of {container}")
            }
            (Target::Average(_), None) => format!("{resource} resource"),
            (Target::Average(_), Some(container)) => format!("{resource} container resource of {container}"),
        };
        Ok((count, name))
    }

    async fn covered(&self, namespace: &str, selector: &str) -> Result<Vec<Arc<Pod>>, String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let listed = api.list_metadata(&ListParams::default().labels(selector)).await.map_err(|err| said(&err))?;
        Ok(listed.iter().filter_map(|pod| self.pods.get(namespace, &pod.name_any())).collect())
    }

    async fn readings(
        &self,
        namespace: &str,
        selector: &str,
        resource: &str,
        container: Option<&str>,
    ) -> Result<BTreeMap<String, Reading>, String> {
        let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &ApiResource::from_gvk_with_plural(&kind, "pods"));
        let unable = |err: kube::Error| {
            format!("unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {}", said(&err))
        };
        let all = api.list(&ListParams::default().labels(selector)).await.map_err(unable)?;
        if all.items.is_empty() {
            return Err(format!("unable to get metrics for resource {resource}: no metrics returned from resource metrics API"));
        }
        Ok(all.iter().filter_map(|pod| Some((pod.name_any(), reading(&pod.data, resource, container)?))).collect())
    }

    async fn write_status(&self, hpa: &HorizontalPodAutoscaler, status: HorizontalPodAutoscalerStatus) -> Result<(), Error> {
        if hpa.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), &hpa.namespace().unwrap_or_default());
        let mut updated = hpa.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(api.replace_status(&hpa.name_any(), &PostParams::default(), &updated).await)?)
    }
}

fn target_of(target: &MetricTarget) -> Option<Target> {
    if let Some(value) = &target.average_value {
        return Some(Target::Average(value.0.parse::<Quantity>().ok()?.milli_value()));
    }
    target.average_utilization.map(Target::Utilization)
}

/// The usage of one pod's containers together, or of one of them.
fn reading(metrics: &Value, resource: &str, container: Option<&str>) -> Option<Reading> {
    let containers = metrics["containers"].as_array()?.iter();
    let mut milli = None;
    for found in containers.filter(|c| container.is_none_or(|name| c["name"] == name)) {
        let used = Quantity::from_value(&found["usage"][resource]).ok()?;
        milli = Some(milli.unwrap_or(0) + used.milli_value());
    }
    let window = metrics["window"].as_str().and_then(base::cron::duration).unwrap_or(SignedDuration::ZERO);
    Some(Reading { milli: milli?, at: metrics["timestamp"].as_str()?.parse().ok()?, window })
}
