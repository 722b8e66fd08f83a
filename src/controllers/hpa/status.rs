//! Status of an autoscaler. Pure.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use model::quantity::Quantity;

use super::replicas::Count;

/// A condition of an autoscaler, and whether it holds.
#[derive(Clone, Copy)]
pub(super) enum Fact {
    AbleToScale(bool),
    ScalingActive(bool),
    ScalingLimited(bool),
}

/// The status while it is worked out.
pub(super) struct Report {
    pub(super) status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl Report {
    /// Begins with what was so.
    pub(super) fn of(hpa: &HorizontalPodAutoscaler, now: Timestamp) -> Report {
        let mut status = hpa.status.clone().unwrap_or_default();
        status.observed_generation = hpa.metadata.generation;
        Report { status, now }
    }

    /// Writes a condition; its time moves with its status only.
    pub(super) fn set(&mut self, fact: Fact, reason: &str, message: impl Into<String>) {
        let (kind, holds) = match fact {
            Fact::AbleToScale(holds) => ("AbleToScale", holds),
            Fact::ScalingActive(holds) => ("ScalingActive", holds),
            Fact::ScalingLimited(holds) => ("ScalingLimited", holds),
        };
        let status = if holds { "True" } else { "False" };
        let conditions = self.status.conditions.get_or_insert_default();
        let fresh = HorizontalPodAutoscalerCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.into()),
            last_transition_time: Some(Time(self.now)),
        };
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            Some(old) => {
                let since = old.last_transition_time.take().filter(|_| old.status == status);
                let last_transition_time = since.or(fresh.last_transition_time);
                *old = HorizontalPodAutoscalerCondition { last_transition_time, ..fresh };
            }
            None => conditions.push(fresh),
        }
    }

    pub(super) fn scaled(&mut self, now: Timestamp) {
        self.status.last_scale_time = Some(Time(now));
    }
}

fn text(milli: i64) -> Text {
    Text(Quantity::from_milli(milli).to_string())
}

/// A metric as status shows it.
pub(super) fn shown(metric: &MetricSpec, count: &Count) -> MetricStatus {
    let current = MetricValueStatus {
        average_utilization: count.percent,
        average_value: count.average_milli.map(text),
        value: count.value_milli.map(text),
    };
    let mut status = MetricStatus { type_: metric.type_.clone(), ..MetricStatus::default() };
    if let Some(source) = &metric.resource {
        status.resource = Some(ResourceMetricStatus { name: source.name.clone(), current });
    } else if let Some(source) = &metric.container_resource {
        status.container_resource = Some(ContainerResourceMetricStatus {
            name: source.name.clone(),
            container: source.container.clone(),
            current,
        });
    } else if let Some(source) = &metric.pods {
        status.pods = Some(PodsMetricStatus { metric: source.metric.clone(), current });
    } else if let Some(source) = &metric.object {
        let (described_object, metric) = (source.described_object.clone(), source.metric.clone());
        status.object = Some(ObjectMetricStatus { described_object, metric, current });
    } else if let Some(source) = &metric.external {
        status.external = Some(ExternalMetricStatus { metric: source.metric.clone(), current });
    }
    status
}
