//! The grace period of a deletion: seconds that an object has between the request and its end.

use serde_json::Value;

use crate::phase;

/// Grace period of a pod's spec that names none. Defaulting writes it, so only an object that was put into the store by
/// other means is without.
const POD_SECS: i64 = 30;

/// The grace period of a pod for which a deletion asks `asked` seconds, or does not say.
///
/// None is left to a pod that runs nowhere: no node has it yet, or it has ended. Spec: upstream v1.36
/// `podStrategy.CheckGracefulDelete`.
pub fn of_pod(pod: &Value, asked: Option<i64>) -> i64 {
    let has_ended = pod["status"]["phase"].as_str().is_some_and(phase::is_terminal);
    let has_no_node = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    if has_ended || has_no_node {
        return 0;
    }
    read(asked.or(pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(POD_SECS))
}

/// A period as it is meant: less than nothing is one second.
pub fn read(secs: i64) -> i64 {
    if secs < 0 { 1 } else { secs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_that_runs_nowhere_is_deleted_at_once() {
        let spec = |node: &str, phase: &str| {
            json!({"spec": {"nodeName": node, "terminationGracePeriodSeconds": 20},
            "status": {"phase": phase}})
        };
        assert_eq!(of_pod(&spec("", "Pending"), Some(5)), 0);
        assert_eq!(of_pod(&spec("n", "Succeeded"), None), 0);
        assert_eq!(of_pod(&spec("n", "Failed"), Some(5)), 0);
        assert_eq!(of_pod(&spec("n", "Running"), None), 20);
    }

    #[test]
    fn the_request_comes_before_the_spec_and_the_spec_before_the_default() {
        let running = |spec: Value| json!({"spec": spec, "status": {"phase": "Running"}});
        let said = running(json!({"nodeName": "n", "terminationGracePeriodSeconds": 20}));
        let silent = running(json!({"nodeName": "n"}));
        assert_eq!((of_pod(&said, Some(5)), of_pod(&said, Some(0)), of_pod(&said, Some(-7))), (5, 0, 1));
        assert_eq!((of_pod(&silent, None), of_pod(&silent, Some(2))), (30, 2));
    }
}
