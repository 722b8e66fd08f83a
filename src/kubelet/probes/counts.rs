//! How often each probe was tried, with which result.

use std::collections::BTreeMap;

use base::sync::Mutex;

/// Tries of probes since the start: by pod, container, kind and result.
#[derive(Default)]
pub(crate) struct ProbeCounts(pub(crate) Mutex<BTreeMap<ProbeKey, u64>>);

/// Namespace, pod, uid, container, kind, result.
pub(crate) type ProbeKey = [String; 6];

impl ProbeCounts {
    pub(crate) fn count(&self, key: ProbeKey) {
        *self.0.lock().entry(key).or_default() += 1;
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().retain(|key, _| key[2] != uid);
    }
}
