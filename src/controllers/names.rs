//! Names of controllers, as upstream's `--controllers` has them, and which of them run.

use std::collections::{BTreeMap, BTreeSet};

/// Keys that a controller works on at once, where `--concurrent-*-syncs` says nothing.
const WORKERS: usize = 5;

/// The part behind one of upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// A controller of this room, by the name that its workers have; some are a part of one of another name.
    Here(&'static str),
    /// Something that is always done: by whom.
    Always(&'static str),
    /// Nothing: why.
    Nothing(&'static str),
}

/// One of upstream's names.
struct Known {
    name: &'static str,
    /// Its name before v1.28.
    old: &'static str,
    behind: Behind,
}

const fn here([name, old, ours]: [&'static str; 3]) -> Known {
    Known { name, old, behind: Behind::Here(ours) }
}

const NO_CLOUD: Behind = Behind::Nothing("there is no cloud provider");
const NO_CLAIMS: Behind = Behind::Nothing("kedge has no dynamic resource allocation");
const ALPHA: Behind = Behind::Nothing("its feature is alpha, and off");

/// Upstream's controllers of v1.36.2 (cmd/kube-controller-manager/names and its descriptors).
const KNOWN: &[Known] = &[
    here(["bootstrap-signer-controller", "bootstrapsigner", "bootstrap-signer"]),
    here(["certificatesigningrequest-approving-controller", "csrapproving", "certificate-controller"]),
    here(["certificatesigningrequest-cleaner-controller", "csrcleaner", "certificate-controller"]),
    here(["certificatesigningrequest-signing-controller", "csrsigning", "certificate-controller"]),
    Known { name: "cloud-node-lifecycle-controller", old: "cloud-node-lifecycle", behind: NO_CLOUD },
    Known {
        name: "clusterrole-aggregation-controller",
        old: "clusterrole-aggregation",
        behind: Behind::Always("the API server aggregates roles itself"),
    },
    here(["cronjob-controller", "cronjob", "cronjob-controller"]),
    here(["daemonset-controller", "daemonset", "daemon-set-controller"]),
    here(["deployment-controller", "deployment", "deployment-controller"]),
    Known { name: "device-taint-eviction-controller", old: "", behind: NO_CLAIMS },
    here(["disruption-controller", "disruption", "disruption-controller"]),
    here(["endpoints-controller", "endpoint", "endpointslice-controller"]),
    here(["endpointslice-controller", "endpointslice", "endpointslice-controller"]),
    here(["endpointslice-mirroring-controller", "endpointslicemirroring", "endpointslicemirroring-controller"]),
    here(["ephemeral-volume-controller", "ephemeral-volume", "ephemeral-volume-controller"]),
    here(["garbage-collector-controller", "garbagecollector", "generic-garbage-collector"]),
    here(["horizontal-pod-autoscaler-controller", "horizontalpodautoscaling", "horizontal-pod-autoscaler"]),
    here(["job-controller", "job", "job-controller"]),
    Known { name: "kube-apiserver-serving-clustertrustbundle-publisher-controller", old: "", behind: ALPHA },
    here([
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy-service-account-token-cleaner",
        "legacy-service-account-token-cleaner",
    ]),
    here(["namespace-controller", "namespace", "namespace-controller"]),
    here(["node-ipam-controller", "nodeipam", "node-ipam-controller"]),
    here(["node-lifecycle-controller", "nodelifecycle", "node-lifecycle-controller"]),
    Known { name: "node-route-controller", old: "route", behind: NO_CLOUD },
    here(["persistentvolume-attach-detach-controller", "attachdetach", "attachdetach-controller"]),
    here(["persistentvolume-binder-controller", "persistentvolume-binder", "persistent-volume-binder"]),
    Known {
        name: "persistentvolume-expander-controller",
        old: "persistentvolume-expander",
        behind: Behind::Nothing("volumes of CSI drivers are expanded by the driver's own resizer"),
    },
    here(["persistentvolume-protection-controller", "pv-protection", "pv-protection-controller"]),
    here(["persistentvolumeclaim-protection-controller", "pvc-protection", "pvc-protection-controller"]),
    here(["pod-garbage-collector-controller", "podgc", "pod-garbage-collector"]),
    Known { name: "podcertificaterequest-cleaner-controller", old: "", behind: ALPHA },
    Known { name: "podgroup-protection-controller", old: "", behind: ALPHA },
    here(["replicaset-controller", "replicaset", "replicaset-controller"]),
    here(["replicationcontroller-controller", "replicationcontroller", "replication-controller"]),
    Known { name: "resourceclaim-controller", old: "resource-claim-controller", behind: NO_CLAIMS },
    Known { name: "resourcepoolstatusrequest-controller", old: "", behind: NO_CLAIMS },
    here(["resourcequota-controller", "resourcequota", "resourcequota-controller"]),
    here(["root-ca-certificate-publisher-controller", "root-ca-cert-publisher", "root-ca-cert-publisher"]),
    Known { name: "selinux-warning-controller", old: "", behind: Behind::Nothing("kedge has no SELinux policy") },
    Known {
        name: "service-ca-certificate-publisher-controller",
        old: "service-ca-cert-publisher",
        behind: Behind::Nothing("it is OpenShift's"),
    },
    here(["service-cidr-controller", "", "service-cidrs-controller"]),
    here(["service-lb-controller", "service", "service-controller"]),
    here(["serviceaccount-controller", "serviceaccount", "service-account-controller"]),
    here(["serviceaccount-token-controller", "serviceaccount-token", "serviceaccount-token-controller"]),
    here(["statefulset-controller", "statefulset", "statefulset-controller"]),
    Known { name: "storage-version-migrator-controller", old: "svm", behind: ALPHA },
    Known { name: "storageversion-garbage-collector-controller", old: "storage-version-gc", behind: ALPHA },
    here(["taint-eviction-controller", "", "taint-eviction-controller"]),
    here(["token-cleaner-controller", "tokencleaner", "token-cleaner"]),
    here(["ttl-after-finished-controller", "ttl-after-finished", "job-controller"]),
    here(["ttl-controller", "ttl", "ttl-controller"]),
    Known {
        name: "validatingadmissionpolicy-status-controller",
        old: "",
        behind: Behind::Always("the API server types policies itself"),
    },
    Known {
        name: "volumeattributesclass-protection-controller",
        old: "",
        behind: Behind::Nothing("kedge does not modify volumes"),
    },
];

/// Workers that are a part of another controller.
const HELPERS: [(&str, &str); 2] =
    [("job-orphan-pods", "job-controller"), ("stale-disruptions", "disruption-controller")];

/// Why `--controllers` cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("{name:?} is not in the list of known controllers: {}", all_names())]
    Unknown { name: String },
    #[error("{name} cannot be run: {why}")]
    Nothing { name: &'static str, why: &'static str },
    #[error("{name} cannot be switched off: {why}")]
    Always { name: &'static str, why: &'static str },
}

fn all_names() -> String {
    KNOWN.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")
}

/// Controllers that are switched off, and how many keys each of the others works on at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    off: BTreeSet<&'static str>,
    workers: BTreeMap<&'static str, usize>,
}

impl Chosen {
    /// Reads the value of `--controllers`: `*` for those that are on by default, `name`, `-name`. As upstream, the
    /// first word about a controller counts, and one that no word speaks of runs only where there is a `*`.
    pub(crate) fn choose(&mut self, list: &str) -> Result<(), NameError> {
        let mut said: BTreeMap<&'static str, bool> = BTreeMap::new();
        let mut others = false;
        for word in list.split(',').map(str::trim) {
            if word == "*" {
                others = true;
                continue;
            }
            let (word, on) = word.strip_prefix('-').map_or((word, true), |name| (name, false));
            let known = KNOWN.iter().find(|known| known.name == word || (!word.is_empty() && known.old == word));
            let known = known.ok_or_else(|| NameError::Unknown { name: word.to_owned() })?;
            match known.behind {
                Behind::Nothing(why) if on => return Err(NameError::Nothing { name: known.name, why }),
                Behind::Always(why) if !on => return Err(NameError::Always { name: known.name, why }),
                _ => said.entry(known.name).or_insert(on),
            };
        }
        let runs = |known: &Known| said.get(known.name).copied().unwrap_or(others);
        self.off.extend(KNOWN.iter().filter(|known| !runs(known)).map(|known| known.name));
        Ok(())
    }

    /// `enable-garbage-collector=false`
    pub(crate) fn leave_garbage(&mut self) {
        self.off.insert("garbage-collector-controller");
    }

    /// Has the controller of upstream's name work on so many keys at once.
    pub(crate) fn set_workers(&mut self, name: &'static str, n_workers: usize) {
        self.workers.insert(name, n_workers);
    }

    /// Whether the controller of upstream's name runs.
    pub(crate) fn runs(&self, name: &str) -> bool {
        debug_assert!(KNOWN.iter().any(|known| known.name == name), "{name} is none of upstream's names");
        !self.off.contains(name)
    }

    /// Whether any of the controllers that these workers are for runs. Workers of no name of upstream's do.
    pub(crate) fn runs_workers(&self, ours: &str) -> bool {
        let ours = HELPERS.iter().find(|(helper, _)| *helper == ours).map_or(ours, |(_, main)| main);
        let mut names = names_of(ours).peekable();
        names.peek().is_none() || names.any(|name| self.runs(name))
    }

    /// Keys that these workers take at once.
    pub(crate) fn n_workers(&self, ours: &str) -> usize {
        names_of(ours).filter_map(|name| self.workers.get(name)).max().copied().unwrap_or(WORKERS)
    }
}

/// Upstream's names for workers of this name.
fn names_of(ours: &str) -> impl Iterator<Item = &'static str> {
    KNOWN.iter().filter(move |known| matches!(known.behind, Behind::Here(name) if name == ours)).map(|known| known.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Result<Chosen, String> {
        let mut chosen = Chosen::default();
        chosen.choose(list).map(|()| chosen).map_err(|err| err.to_string())
    }

    // `IsControllerEnabled`, v1.36.2.
    #[test]
    fn a_list_names_what_runs_and_the_first_word_about_a_controller_counts() {
        for (list, job, ttl) in [
            ("*", true, true),
            ("*,-job-controller", false, true),
            ("-job-controller,*", false, true),
            ("job-controller", true, false),
            ("job,-ttl", true, false),
            ("*,job,-job", true, true),
            ("*,-job,job", false, true),
            ("-job", false, false),
            (" * , -ttl ", true, false),
        ] {
            let chosen = chosen(list).unwrap();
            assert_eq!((chosen.runs("job-controller"), chosen.runs("ttl-controller")), (job, ttl), "{list}");
        }
        assert!(Chosen::default().runs("job-controller"));
    }

    #[test]
    fn workers_of_two_controllers_stop_when_both_are_off() {
        let both = chosen("*,-endpoint,-endpointslice").unwrap();
        assert!(!both.runs_workers("endpointslice-controller"));
        assert!(chosen("*,-endpoint").unwrap().runs_workers("endpointslice-controller"));
        assert!(chosen("job").unwrap().runs_workers("local-path-provisioner"), "upstream has none of it");
    }

    #[test]
    fn a_name_that_means_nothing_is_an_error() {
        let said = |list: &str| chosen(list).unwrap_err();
        assert!(said("*,jobs").starts_with("\"jobs\" is not in the list of known controllers: bootstrap-signer-contr"));
        assert!(said("").starts_with("\"\" is not in the list"));
        assert!(said("-").starts_with("\"\" is not in the list"));
        assert_eq!(said("*,route"), "node-route-controller cannot be run: there is no cloud provider");
        assert!(chosen("*,-route").is_ok(), "it does not run");
        assert_eq!(
            said("*,-clusterrole-aggregation"),
            "clusterrole-aggregation-controller cannot be switched off: the API server aggregates roles itself"
        );
    }

    #[test]
    fn each_name_is_one_controllers_and_old_names_are_no_others() {
        let mut names: Vec<&str> = KNOWN.iter().flat_map(|known| [known.name, known.old]).collect();
        names.retain(|name| !name.is_empty());
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((KNOWN.len(), names.len()), (53, all));
    }
}
