//! How often each probe was tried, with which result.

use std::collections::BTreeMap;

use base::sync::Mutex;

/// Tries of probes since the start: by pod, container, kind and result.
#[derive(Default)]
pub(crate) struct ProbeCounts(Mutex<BTreeMap<ProbeKey, u64>>);

/// One kind of result of one probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbeKey {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
    /// `Liveness`, `Readiness` or `Startup`.
    pub(crate) kind: &'static str,
    /// `successful`, `failed` or `unknown`.
    pub(crate) result: &'static str,
}

impl ProbeCounts {
    /// All counts, in order.
    pub(crate) fn all(&self) -> BTreeMap<ProbeKey, u64> {
        self.0.lock().clone()
    }

    pub(crate) fn count(&self, key: ProbeKey) {
        *self.0.lock().entry(key).or_default() += 1;
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().retain(|key, _| key.uid != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_by_container_and_forgotten_with_their_pod() {
        let counts = ProbeCounts::default();
        let key = |uid: &str, result: &'static str| ProbeKey {
            namespace: "ns".to_owned(),
            pod: "p".to_owned(),
            uid: uid.to_owned(),
            container: "c".to_owned(),
            kind: "Liveness",
            result,
        };
        counts.count(key("1", "successful"));
        counts.count(key("1", "successful"));
        counts.count(key("1", "failed"));
        counts.count(key("2", "failed"));
        let all = counts.all();
        assert_eq!((all[&key("1", "successful")], all[&key("1", "failed")], all[&key("2", "failed")]), (2, 1, 1));
        counts.forget("1");
        assert_eq!(counts.all().into_keys().collect::<Vec<_>>(), [key("2", "failed")]);
    }
}
