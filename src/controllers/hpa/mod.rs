//! HorizontalPodAutoscalers: as many pods as their use of CPU and memory asks for, by what metrics.k8s.io says, or
//! other metrics, by what adapters say.

mod adapters;
mod error;
mod metrics;
mod pace;
mod replicas;
mod status;

use std::collections::HashMap;
use std::sync::Arc;

use base::chain::Chain;
use base::sync::Mutex;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use error::ScaleError;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use metrics::About;
use model::pod::Pod;
use model::quantity::Quantity;
use pace::Memory;
use status::{Fact, Report};

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

impl Controller {
    async fn look(&self, hpa: &HorizontalPodAutoscaler, key: &Key, report: &mut Report) -> Result<(), Trouble> {
        let (target, scale) = match self.target(hpa, key).await {
            Ok(found) => found,
            Err(err) => {
                let why = Chain(&err).to_string();
                let text = format!("the HPA controller was unable to get the target's current scale: {why}");
                report.set(Fact::AbleToScale(false), "FailedGetScale", text);
                return Err(("FailedGetScale", why));
            }
        };
        report.set(
            Fact::AbleToScale(true),
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let current = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        report.status.current_replicas = Some(scale.status.as_ref().map_or(0, |s| s.replicas));
        self.memory.lock().entry(key.clone()).or_default().begin(current, self.clock.now());
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let (wanted, why) = if current == 0 && min != 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            report.set(Fact::ScalingActive(false), "ScalingDisabled", text);
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
            let within = ("DesiredWithinRange", "the desired count is within the acceptable range");
            let (reason, text) = allowed.limited.unwrap_or(within);
            report.set(Fact::ScalingLimited(allowed.limited.is_some()), reason, text);
            (allowed.replicas, why)
        };
        report.status.desired_replicas = wanted;
        if wanted == current {
            report.set(Fact::AbleToScale(true), "ReadyForNewScale", "recommended size matches current size");
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
            let text = Chain(&err);
            report.set(
                Fact::AbleToScale(false),
                "FailedUpdateScale",
                format!("the HPA controller was unable to update the target scale: {text}"),
            );
            report.status.desired_replicas = current;
            return Err(("FailedRescale", format!("New size: {wanted}; reason: {why}; error: {text}")));
        }
        let now = self.clock.now();
        self.memory.lock().entry(key.clone()).or_default().changed(wanted - current, now);
        report.set(
            Fact::AbleToScale(true),
            "SucceededRescale",
            format!("the HPA controller was able to update the target scale to {wanted}"),
        );
        report.scaled(now);
        self.recorder.report(hpa, Severity::Normal, "SuccessfulRescale", format!("New size: {wanted}; reason: {why}"));
        Ok(())
    }

    async fn target(&self, hpa: &HorizontalPodAutoscaler, key: &Key) -> Result<(ApiResource, Scale), ScaleError> {
        let reference = &hpa.spec.scale_target_ref;
        let group = group_of(reference.api_version.as_deref());
        let kinds = discovery::kinds(&self.client).await?;
        let found =
            kinds.into_iter().find(|k| k.resource.group == group && k.resource.kind == reference.kind && k.namespaced);
        let none = || ScaleError::NoKind { kind: reference.kind.clone(), group };
        let resource = found.ok_or_else(none)?.resource;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let scale = api.get_scale(&reference.name).await?;
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
            report.set(Fact::ScalingActive(false), "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(("SelectorRequired", "selector is required".to_owned()));
        };
        let metrics_asked = hpa.spec.metrics.clone().unwrap_or_default();
        let (mut best, mut failures) = (None::<(i32, String)>, Vec::new());
        let mut shown = Vec::new();
        for metric in &metrics_asked {
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
                Err(trouble) => failures.push(trouble),
            }
        }
        report.status.current_metrics = Some(shown).filter(|shown| !shown.is_empty());
        let down = best.as_ref().is_none_or(|(wanted, _)| *wanted < current);
        if let Some((reason, why)) = failures.first().filter(|_| down) {
            let text = format!("the HPA was unable to compute the replica count: {why}");
            report.set(Fact::ScalingActive(false), reason, text);
            return Err(("FailedComputeMetricsReplicas", metrics::invalid(&failures, metrics_asked.len())));
        }
        let Some((wanted, name)) = best else { return Ok((current, String::new())) };
        let text = format!("the HPA was able to successfully calculate a replica count from {name}");
        report.set(Fact::ScalingActive(true), "ValidMetricFound", text);
        let word = if wanted > current { "above" } else { "below" };
        let why =
            if wanted < current { "All metrics below target".to_owned() } else { format!("{name} {word} target") };
        Ok((wanted, why))
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

fn group_of(api_version: Option<&str>) -> String {
    api_version.and_then(|version| version.rsplit_once('/')).map_or_else(String::new, |(group, _)| group.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    // Upstream: `ConfigurableTolerance` (horizontal.go, 1.36.2).
    #[test]
    fn an_autoscaler_may_have_tolerances_of_its_own_for_each_direction() {
        let of = |behavior: Value| {
            let target = json!({"kind": "Deployment", "name": "web"});
            let spec = json!({"maxReplicas": 5, "scaleTargetRef": target, "behavior": behavior});
            let hpa = serde_json::from_value(json!({"metadata": {"name": "h"}, "spec": spec})).unwrap();
            tolerances(&hpa, 0.1)
        };
        assert_eq!(of(json!(null)), (0.1, 0.1));
        assert_eq!(of(json!({"scaleUp": {"tolerance": "0"}})), (0.1, 0.0));
        assert_eq!(of(json!({"scaleDown": {"tolerance": "50m"}, "scaleUp": {"tolerance": "0.2"}})), (0.05, 0.2));
        assert_eq!(of(json!({"scaleDown": {"stabilizationWindowSeconds": 0}})), (0.1, 0.1));
    }

    #[test]
    fn the_group_of_a_version_is_what_stands_before_the_slash() {
        for (version, group) in [(Some("apps/v1"), "apps"), (Some("v1"), ""), (Some("a.b/v1"), "a.b"), (None, "")] {
            assert_eq!(group_of(version), group);
        }
    }
}
