//! The volumes of one pod as they are mounted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};

/// The volumes of one pod as they are mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounted {
    /// Where each volume lies on the host.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// Volumes that the spec's author made read-only as a whole.
    pub(crate) read_only: BTreeMap<String, bool>,
    /// When tokens must be fetched again.
    pub(crate) refresh_at: Option<Timestamp>,
    /// The labels and annotations that files of the downward API show.
    pub(crate) shown: Option<(Texts, Texts)>,
}

pub(crate) type Texts = BTreeMap<String, String>;

impl Mounted {
    /// Something of a volume must be looked at again at this time, if not before.
    pub(super) fn look_again_at(&mut self, at: Timestamp) {
        self.refresh_at = Some(self.refresh_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether files of the downward API show labels or annotations that the pod no longer has.
    pub(crate) fn is_outdated(&self, pod: &Pod) -> bool {
        self.shown.is_some() && self.shown != shown(pod)
    }
}

/// The labels and annotations of the pod, which files of the downward API may show; `None` if it has no such files.
pub(crate) fn shown(pod: &Pod) -> Option<(Texts, Texts)> {
    let projects =
        |v: &Volume| v.projected.iter().flat_map(|p| p.sources.iter().flatten()).any(|s| s.downward_api.is_some());
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let shows = volumes.any(|v| v.downward_api.is_some() || projects(v));
    shows.then(|| {
        (pod.metadata.labels.clone().unwrap_or_default(), pod.metadata.annotations.clone().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_is_the_one_to_look_again_at() {
        let at = |secs: i64| Timestamp::from_second(secs).unwrap();
        let mut mounted = Mounted::default();
        for secs in [20, 10, 30] {
            mounted.look_again_at(at(secs));
        }
        assert_eq!(mounted.refresh_at, Some(at(10)));
    }

    #[test]
    fn a_new_label_outdates_only_pods_that_show_it() {
        let labelled = |volumes: serde_json::Value, label: &str| -> Pod {
            let spec = serde_json::json!({"containers": [], "volumes": volumes});
            serde_json::from_value(serde_json::json!({"metadata": {"labels": {"a": label}}, "spec": spec})).unwrap()
        };
        let show = serde_json::json!([{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": []}}]}}]);
        let mounted = Mounted { shown: shown(&labelled(show.clone(), "1")), ..Mounted::default() };
        assert!(!mounted.is_outdated(&labelled(show.clone(), "1")));
        assert!(mounted.is_outdated(&labelled(show, "2")));
        let plain = serde_json::json!([{"name": "v", "emptyDir": {}}]);
        let mounted = Mounted { shown: shown(&labelled(plain.clone(), "1")), ..Mounted::default() };
        assert!(!mounted.is_outdated(&labelled(plain, "2")));
    }
}
