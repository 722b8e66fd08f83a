//! HorizontalPodAutoscalers: as many pods as their use of CPU and memory asks for, by what metrics.k8s.io says, or
//! other metrics, by what adapters say.

mod adapters;
mod pace;
mod replicas;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use adapters::Adapters;
use base::chain::Chain;
use base::sync::Mutex;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricSpec,
    MetricTarget, ObjectMetricSource, PodsMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use model::phase;
use model::pod::Pod;
use model::quantity::Quantity;
use pace::Memory;
use replicas::{Count, Question, Reading, Target, Whole, WholeTarget};
use serde_json::Value;
use status::Report;

use crate::discovery;
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::settings::Autoscaler;

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
        clock: context.clock.clone(),
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
            self.memory.lock().remove(key);
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

/// Subject of a metric: the pods that `selector` picks, as many as the spec wants and as there are.
struct About<'a> {
    key: &'a Key,
    selector: &'a str,
    current: i32,
    present: i32,
    /// Differences that are none, downwards and upwards.
    tolerances: (f64, f64),
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
        report.set(
            "AbleToScale",
            "True",
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let current = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        report.status.current_replicas = Some(scale.status.as_ref().map_or(0, |s| s.replicas));
        self.memory.lock().entry(key.clone()).or_default().begin(current, self.clock.now());
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
            let mut memory = self.memory.lock();
            let allowed =
                memory.entry(key.clone()).or_default().allow(hpa, current, wanted, self.tuning.down_window, now);
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
        self.memory.lock().entry(key.clone()).or_default().changed(wanted - current, now);
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
        let group = group_of(reference.api_version.as_deref());
        let kinds = discovery::kinds(&self.client).await.map_err(|err| said(&err))?;
        let found =
            kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == reference.kind && k.namespaced);
        let resource =
            found.ok_or_else(|| format!("no matches for kind {:?} in group {group:?}", reference.kind))?.resource;
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
            let present = scale.status.as_ref().map_or(0, |s| s.replicas);
            let about = About {
                key,
                selector: &selector,
                current,
                present,
                tolerances: tolerances(hpa, self.tuning.tolerance),
            };
            match self.ask(metric, &about).await {
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
            return Err((
                "FailedComputeMetricsReplicas",
                format!("invalid metrics (1 invalid out of {n}), first error is: {why}"),
            ));
        }
        let Some((wanted, name)) = best else { return Ok((current, String::new())) };
        let text = format!("the HPA was able to successfully calculate a replica count from {name}");
        report.set("ScalingActive", "True", "ValidMetricFound", text);
        let word = if wanted > current { "above" } else { "below" };
        let why =
            if wanted < current { "All metrics below target".to_owned() } else { format!("{name} {word} target") };
        Ok((wanted, why))
    }

    async fn ask(&self, metric: &MetricSpec, about: &About<'_>) -> Result<(Count, String), Trouble> {
        if let Some(source) = &metric.resource {
            return self.ask_resource(&source.name, None, &source.target, about).await;
        }
        if let Some(source) = &metric.container_resource {
            return self.ask_resource(&source.name, Some(&source.container), &source.target, about).await;
        }
        if let Some(source) = &metric.pods {
            let trouble = |why: String| ("FailedGetPodsMetric", format!("failed to get pods metric value: {why}"));
            return self.ask_pods(source, about).await.map_err(trouble);
        }
        if let Some(source) = &metric.object {
            let trouble = |why: String| ("FailedGetObjectMetric", format!("failed to get object metric value: {why}"));
            return self.ask_object(source, about).await.map_err(trouble);
        }
        if let Some(source) = &metric.external {
            let name = &source.metric.name;
            let trouble =
                |why: String| ("FailedGetExternalMetric", format!("failed to get {name} external metric value: {why}"));
            return self.ask_external(source, about).await.map_err(trouble);
        }
        Err(("InvalidMetricSourceType", format!("unknown metric source type {:?}", metric.type_)))
    }

    async fn ask_pods(&self, source: &PodsMetricSource, about: &About<'_>) -> Result<(Count, String), String> {
        let name = &source.metric.name;
        let target = target_of(&source.target).filter(|target| matches!(target, Target::Average(_)));
        let target = target.ok_or("invalid pods metric source: no average value target was set")?;
        let adapters = Adapters { client: &self.client, namespace: &about.key.namespace };
        let unable = |why: String| format!("unable to get metric {name}: {why}");
        let readings = adapters.of_pods(name, source.metric.selector.as_ref(), about.selector).await.map_err(unable)?;
        let count = self.counted(about, &readings, ("", None), target).await?;
        Ok((count, format!("pods metric {name}")))
    }

    async fn ask_object(&self, source: &ObjectMetricSource, about: &About<'_>) -> Result<(Count, String), String> {
        let (name, object) = (&source.metric.name, &source.described_object);
        let target = whole_target_of(&source.target)
            .ok_or("invalid object metric source: neither a value target nor an average value target was set")?;
        let (kinds, group) = (discovery::kinds(&self.client).await, group_of(object.api_version.as_deref()));
        let kinds = kinds.map_err(|err| said(&err))?;
        let found = kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == object.kind);
        let resource =
            found.ok_or_else(|| format!("no matches for kind {:?} in group {group:?}", object.kind))?.resource;
        let resource = if group.is_empty() { resource.plural } else { format!("{}.{group}", resource.plural) };
        let adapters = Adapters { client: &self.client, namespace: &about.key.namespace };
        let on = format!("{} {}/{}", object.kind, about.key.namespace, object.name);
        let unable = |why: String| format!("unable to get metric {name}: {why} on {on}");
        let used =
            adapters.of_object(name, source.metric.selector.as_ref(), object, &resource).await.map_err(unable)?;
        let count = replicas::count_whole(self.whole(about).await?, used, target, about.tolerances);
        Ok((count, format!("{} metric {name}", object.kind)))
    }

    async fn ask_external(&self, source: &ExternalMetricSource, about: &About<'_>) -> Result<(Count, String), String> {
        let name = &source.metric.name;
        let target = whole_target_of(&source.target)
            .ok_or("invalid external metric source: neither a value target nor an average value target was set")?;
        let adapters = Adapters { client: &self.client, namespace: &about.key.namespace };
        let unable = |why: String| format!("unable to get external metric {}/{name}: {why}", about.key.namespace);
        let used = adapters.external(name, source.metric.selector.as_ref()).await.map_err(unable)?;
        let count = replicas::count_whole(self.whole(about).await?, used, target, about.tolerances);
        Ok((count, format!("external metric {name}")))
    }

    async fn whole(&self, about: &About<'_>) -> Result<Whole, String> {
        let covered = self.covered(&about.key.namespace, about.selector).await?;
        let ready = covered.iter().filter(|pod| phase::phase(pod) == "Running" && phase::is_ready(pod)).count();
        Ok(Whole { wanted: about.current, present: about.present, ready })
    }

    async fn ask_resource(
        &self,
        resource: &str,
        container: Option<&str>,
        target: &MetricTarget,
        about: &About<'_>,
    ) -> Result<(Count, String), Trouble> {
        let reason = if container.is_none() { "FailedGetResourceMetric" } else { "FailedGetContainerResourceMetric" };
        let trouble = |why: String| (reason, format!("failed to get {resource} resource metric value: {why}"));
        let wanted = target_of(target).ok_or_else(|| {
            trouble(
                "invalid resource metric source: neither a utilization target nor a value target was set".to_owned(),
            )
        })?;
        let readings =
            self.readings(&about.key.namespace, about.selector, resource, container).await.map_err(trouble)?;
        let count = self.counted(about, &readings, (resource, container), wanted).await.map_err(trouble)?;
        let name = match (wanted, container) {
            (Target::Utilization(_), None) => format!("{resource} resource utilization (percentage of request)"),
            (Target::Utilization(_), Some(container)) => {
                format!("{resource} container resource utilization (percentage of request) of {container}")
            }
            (Target::Average(_), None) => format!("{resource} resource"),
            (Target::Average(_), Some(container)) => format!("{resource} container resource of {container}"),
        };
        Ok((count, name))
    }

    async fn counted(
        &self,
        about: &About<'_>,
        readings: &BTreeMap<String, Reading>,
        (resource, container): (&str, Option<&str>),
        target: Target,
    ) -> Result<Count, String> {
        let covered = self.covered(&about.key.namespace, about.selector).await?;
        replicas::count(&Question {
            current: about.current,
            covered: &covered,
            readings,
            resource,
            container,
            target,
            tuning: self.tuning,
            tolerances: about.tolerances,
            now: self.clock.now(),
        })
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
            format!(
                "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {}",
                said(&err)
            )
        };
        let all = api.list(&ListParams::default().labels(selector)).await.map_err(unable)?;
        if all.items.is_empty() {
            return Err(format!(
                "unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
            ));
        }
        Ok(all.iter().filter_map(|pod| Some((pod.name_any(), reading(&pod.data, resource, container)?))).collect())
    }

    async fn write_status(
        &self,
        hpa: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> Result<(), Error> {
        if hpa.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<HorizontalPodAutoscaler> =
            Api::namespaced(self.client.clone(), &hpa.namespace().unwrap_or_default());
        let mut updated = hpa.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(api.replace_status(&hpa.name_any(), &PostParams::default(), &updated).await)?)
    }
}

/// A value for all pods together, or one that they share.
fn whole_target_of(target: &MetricTarget) -> Option<WholeTarget> {
    let milli = |text: &Text| Some(text.0.parse::<Quantity>().ok()?.milli_value());
    let average = target.average_value.as_ref().and_then(milli).map(WholeTarget::Average);
    average.or_else(|| target.value.as_ref().and_then(milli).map(WholeTarget::Value))
}

fn group_of(api_version: Option<&str>) -> String {
    api_version.and_then(|version| version.rsplit_once('/')).map_or_else(String::new, |(group, _)| group.to_owned())
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
