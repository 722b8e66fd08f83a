//! Amounts for which pods count when nodes are compared.

use model::pod::Pod;
use model::requests::{self, Amounts, of_pod};

/// A pod without requests still counts as this much when nodes are compared (upstream's `DefaultMilliCPURequest`).
const SCORE_CPU_MILLI: i64 = 100;
/// Likewise `DefaultMemoryRequest`, 200 MiB.
const SCORE_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

/// The same, with upstream's stand-ins for pods that name no CPU or memory, so that they do not all pile up on one
/// node.
pub fn of_pod_for_score(pod: &Pod) -> Amounts {
    let mut need = of_pod(pod);
    need.entry("cpu".to_owned()).or_insert(SCORE_CPU_MILLI);
    need.entry("memory".to_owned()).or_insert(SCORE_MEMORY_BYTES);
    need
}

/// Adds what `pod` needs to `total`.
pub fn add_pod(total: &mut Amounts, pod: &Pod) {
    requests::add(total, &of_pod(pod));
}

/// Adds what `pod` counts for in comparisons to `total`.
pub fn add_pod_for_score(total: &mut Amounts, pod: &Pod) {
    requests::add(total, &of_pod_for_score(pod));
}
