//! Completion indexes: how status lists them, and which a pod has. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use model::pod::Pod;

pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often the index has failed before this pod; and how often that was ignored.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The completion index of a pod of an indexed job.
pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX)?.parse().ok()
}

/// A count among the pod's annotations, 0 if it is not there.
pub(super) fn count_of(pod: &Pod, annotation: &str) -> i32 {
    pod.annotations().get(annotation).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// `1,3-5`: the form in which status lists indexes.
pub(super) fn format_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let text = |(first, last): &(i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The reverse of [`format_indexes`], without indexes from `end` on; what is no number is skipped.
pub(super) fn parse_indexes(text: &str, end: i32) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first..=last.min(end - 1));
        }
    }
    indexes
}
