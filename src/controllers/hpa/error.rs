//! Why an autoscaler does not know how many pods to ask for. The texts are upstream's: its conditions and events show
//! them, causes after a colon.

use base::chain::Chain;
use model::labels::error::SelectorError;

/// Whether and how a number of pods could be worked out.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScaleError {
    /// The API refused or was not reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// A selector of the autoscaler's cannot be read.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A name in the autoscaler makes no path of the API.
    #[error(transparent)]
    Path(#[from] http::Error),
    /// The API has no such kind.
    #[error("no matches for kind {kind:?} in group {group:?}")]
    NoKind { kind: String, group: String },
    /// A metric's target is not of a kind that its source can have.
    #[error("invalid {metric} metric source: {missing} was set")]
    Target { metric: &'static str, missing: &'static str },
    /// No adapter serves the metrics of this group.
    #[error("no version of {group} is served")]
    NoVersion { group: &'static str },
    /// The server of these metrics (`resource`, `custom`, `external`) knows none that fits.
    #[error("no metrics returned from {api} metrics API")]
    NoMetrics { api: &'static str },
    /// The request for readings of the pods failed.
    #[error("unable to fetch metrics from resource metrics API")]
    Fetch(#[source] kube::Error),
    /// There are no readings of this resource.
    #[error("unable to get metrics for resource {resource}")]
    Readings { resource: String, source: Box<ScaleError> },
    /// There is no value of a metric of pods (`metric NAME`) or of one outside (`external metric NAMESPACE/NAME`).
    #[error("unable to get {metric}")]
    Value { metric: String, source: Box<ScaleError> },
    /// There is no value of a metric of one object. Upstream names the object after the cause, which is for that
    /// reason no `source`.
    #[error("unable to get metric {metric}: {} on {on}", Chain(&**cause))]
    ObjectValue { metric: String, on: String, cause: Box<ScaleError> },
    /// There are readings, and no number follows from them.
    #[error(transparent)]
    Count(#[from] CountError),
}

impl ScaleError {
    /// As the cause of the missing value of `metric`.
    pub(super) fn of_value(self, metric: String) -> ScaleError {
        ScaleError::Value { metric, source: Box::new(self) }
    }
}

/// No number follows from the readings of some pods.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CountError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoReadings,
    /// A share of what pods request needs every container's request.
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest { resource: String, container: String, pod: String },
    #[error("no metrics returned matched known pods")]
    Unmatched,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Upstream's texts: replica_calculator.go, horizontal.go, metrics/client.go (1.36.2).
    #[test]
    fn a_failure_reads_as_upstream_writes_it_with_its_causes() {
        let none = |api| ScaleError::NoMetrics { api };
        let object = ScaleError::ObjectValue {
            metric: "hits".to_owned(),
            on: "Ingress default/web".to_owned(),
            cause: Box::new(none("custom")),
        };
        let readings = ScaleError::Readings { resource: "cpu".to_owned(), source: Box::new(none("resource")) };
        let missing = "neither a value target nor an average value target";
        let request =
            CountError::NoRequest { resource: "cpu".to_owned(), container: "app".to_owned(), pod: "web-1".to_owned() };
        let table: [(ScaleError, &str); 7] = [
            (
                none("external").of_value("external metric default/queue".to_owned()),
                "unable to get external metric default/queue: no metrics returned from external metrics API",
            ),
            (object, "unable to get metric hits: no metrics returned from custom metrics API on Ingress default/web"),
            (readings, "unable to get metrics for resource cpu: no metrics returned from resource metrics API"),
            (
                ScaleError::Target { metric: "object", missing },
                "invalid object metric source: neither a value target nor an average value target was set",
            ),
            (
                ScaleError::NoKind { kind: "Cart".to_owned(), group: "shop".to_owned() },
                "no matches for kind \"Cart\" in group \"shop\"",
            ),
            (ScaleError::NoVersion { group: "custom.metrics.k8s.io" }, "no version of custom.metrics.k8s.io is served"),
            (request.into(), "missing request for cpu in container app of Pod web-1"),
        ];
        for (err, text) in table {
            assert_eq!(Chain(&err).to_string(), text);
        }
    }
}
