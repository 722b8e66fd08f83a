//! Every flag of kube-controller-manager v1.36.2, and what becomes of it.

use base::flags::Fate::{Acts, Holds, Moot, Refused};
use base::flags::Form::{Count, Duration, Number, Switch, Text};
use base::flags::{Fate, Known};

const NO_PORT: &str = "controllers have no port of their own: what it would serve is on the API's";
const NO_GO: &str = "kedge is not a Go program; use perf";
const NO_CLOUD: &str = "there is no cloud provider";
const NO_CLAIMS: &str = "kedge has no dynamic resource allocation";
const NO_CLIENT: &str = "controllers call the API in this process, where priority and fairness bounds them";
const NO_RESYNC: &str = "controllers follow every change, and wait for no period";
const AT_ONCE: &str = "changes are written at once";
const STORE_LEADS: &str = "the store's leader runs the controllers, by the store's own election";
const OWN_KEYS: &str = "the cluster's own authorities sign; 'kedge certificate rotate-ca' gives them other keys";
const LOGS: &str = "the log is that of the whole server; use --v of kedge server";
const METRICS: &str = "metrics are as they are; choose at the scraper";

/// Flags that say how many keys a controller works on at once, and the controllers.
pub(super) const CONCURRENT: &[(&str, &str)] = &[
    ("concurrent-cron-job-syncs", "cronjob-controller"),
    ("concurrent-daemonset-syncs", "daemonset-controller"),
    ("concurrent-deployment-syncs", "deployment-controller"),
    ("concurrent-endpoint-syncs", "endpoints-controller"),
    ("concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller"),
    ("concurrent-gc-syncs", "garbage-collector-controller"),
    ("concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller"),
    ("concurrent-job-syncs", "job-controller"),
    ("concurrent-namespace-syncs", "namespace-controller"),
    ("concurrent-rc-syncs", "replicationcontroller-controller"),
    ("concurrent-replicaset-syncs", "replicaset-controller"),
    ("concurrent-resource-quota-syncs", "resourcequota-controller"),
    ("concurrent-service-endpoint-syncs", "endpointslice-controller"),
    ("concurrent-service-syncs", "service-lb-controller"),
    ("concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller"),
    ("concurrent-statefulset-syncs", "statefulset-controller"),
    ("concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller"),
    ("mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller"),
];

const fn flag(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

/// All flags, in the order of their names.
pub const TABLE: &[Known] = &[
    flag("allocate-node-cidrs", Holds { values: &["true"], why: "nodes have no other source of pod ranges" }),
    flag("allow-metric-labels", Refused(METRICS)),
    flag("allow-metric-labels-manifest", Refused(METRICS)),
    flag(
        "attach-detach-reconcile-max-wait-unmount-duration",
        Holds { values: &["6m", "6m0s"], why: "the wait is upstream's" },
    ),
    flag("attach-detach-reconcile-sync-period", Moot { form: Duration, why: NO_RESYNC }),
    flag("authentication-kubeconfig", Refused(NO_PORT)),
    flag("authentication-skip-lookup", Refused(NO_PORT)),
    flag("authentication-token-webhook-cache-ttl", Refused(NO_PORT)),
    flag("authentication-tolerate-lookup-failure", Refused(NO_PORT)),
    flag("authorization-always-allow-paths", Refused(NO_PORT)),
    flag("authorization-kubeconfig", Refused(NO_PORT)),
    flag("authorization-webhook-cache-authorized-ttl", Refused(NO_PORT)),
    flag("authorization-webhook-cache-unauthorized-ttl", Refused(NO_PORT)),
    flag("bind-address", Holds { values: &["127.0.0.1"], why: NO_PORT }),
    flag("cert-dir", Refused(NO_PORT)),
    flag("cidr-allocator-type", Holds { values: &["RangeAllocator"], why: NO_CLOUD }),
    flag("client-ca-file", Refused(NO_PORT)),
    flag("cloud-config", Refused(NO_CLOUD)),
    flag("cloud-provider", Holds { values: &["external", ""], why: NO_CLOUD }),
    flag("cluster-cidr", Refused("the ranges of pods are those of kedge server --cluster-cidr")),
    flag("cluster-name", Refused(NO_CLOUD)),
    flag("cluster-signing-cert-file", Refused(OWN_KEYS)),
    flag("cluster-signing-duration", Acts),
    flag("cluster-signing-key-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kube-apiserver-client-cert-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kube-apiserver-client-key-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kubelet-client-cert-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kubelet-client-key-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kubelet-serving-cert-file", Refused(OWN_KEYS)),
    flag("cluster-signing-kubelet-serving-key-file", Refused(OWN_KEYS)),
    flag("cluster-signing-legacy-unknown-cert-file", Refused(OWN_KEYS)),
    flag("cluster-signing-legacy-unknown-key-file", Refused(OWN_KEYS)),
    flag("concurrent-cron-job-syncs", Acts),
    flag("concurrent-daemonset-syncs", Acts),
    flag("concurrent-deployment-syncs", Acts),
    flag("concurrent-device-taint-eviction-syncs", Refused(NO_CLAIMS)),
    flag("concurrent-endpoint-syncs", Acts),
    flag("concurrent-ephemeralvolume-syncs", Acts),
    flag("concurrent-gc-syncs", Acts),
    flag("concurrent-horizontal-pod-autoscaler-syncs", Acts),
    flag("concurrent-job-syncs", Acts),
    flag("concurrent-namespace-syncs", Acts),
    flag("concurrent-node-syncs", Refused(NO_CLOUD)),
    flag("concurrent-rc-syncs", Acts),
    flag("concurrent-replicaset-syncs", Acts),
    flag("concurrent-resource-claim-syncs", Refused(NO_CLAIMS)),
    flag("concurrent-resource-quota-syncs", Acts),
    flag("concurrent-service-endpoint-syncs", Acts),
    flag("concurrent-service-syncs", Acts),
    flag("concurrent-serviceaccount-token-syncs", Acts),
    flag("concurrent-statefulset-syncs", Acts),
    flag("concurrent-ttl-after-finished-syncs", Acts),
    flag("concurrent-validating-admission-policy-status-syncs", Refused("the API server types policies itself")),
    flag("configure-cloud-routes", Holds { values: &["false"], why: NO_CLOUD }),
    flag("contention-profiling", Holds { values: &["false"], why: NO_GO }),
    flag(
        "controller-shutdown-timeout",
        Moot { form: Duration, why: "controllers end with the server, within its own time" },
    ),
    flag("controller-start-interval", Holds { values: &["0", "0s"], why: AT_ONCE }),
    flag("controllers", Acts),
    flag("disable-attach-detach-reconcile-sync", Moot { form: Switch, why: NO_RESYNC }),
    flag(
        "disable-force-detach-on-timeout",
        Holds { values: &["false"], why: "a volume of a node that is gone is detached" },
    ),
    flag("disable-http2-serving", Refused(NO_PORT)),
    flag("disabled-metrics", Refused(METRICS)),
    flag("emulated-version", Refused("kedge is of one version in all its parts")),
    flag(
        "enable-dynamic-provisioning",
        Holds { values: &["true"], why: "claims are given to the provisioner that their class names" },
    ),
    flag("enable-garbage-collector", Acts),
    flag(
        "enable-hostpath-provisioner",
        Holds { values: &["false"], why: "it is upstream's, for tests; use the class local-path" },
    ),
    flag("enable-leader-migration", Holds { values: &["false"], why: NO_CLOUD }),
    flag("endpoint-updates-batch-period", Holds { values: &["0", "0s"], why: AT_ONCE }),
    flag("endpointslice-updates-batch-period", Holds { values: &["0", "0s"], why: AT_ONCE }),
    flag("external-cloud-volume-plugin", Refused(NO_CLOUD)),
    flag("feature-gates", Acts),
    flag("flex-volume-plugin-dir", Refused("there are no FlexVolumes: use a CSI driver")),
    flag("horizontal-pod-autoscaler-cpu-initialization-period", Acts),
    flag("horizontal-pod-autoscaler-downscale-stabilization", Acts),
    flag("horizontal-pod-autoscaler-initial-readiness-delay", Acts),
    flag("horizontal-pod-autoscaler-sync-period", Acts),
    flag("horizontal-pod-autoscaler-tolerance", Acts),
    flag("http2-max-streams-per-connection", Refused(NO_PORT)),
    flag("kube-api-burst", Moot { form: Count, why: NO_CLIENT }),
    flag("kube-api-content-type", Moot { form: Text, why: NO_CLIENT }),
    flag("kube-api-qps", Moot { form: Number, why: NO_CLIENT }),
    flag("kubeconfig", Refused("controllers call the API in this process")),
    flag("large-cluster-size-threshold", Acts),
    flag("leader-elect", Holds { values: &["true"], why: "controllers run on the server that leads, and there alone" }),
    flag("leader-elect-lease-duration", Moot { form: Duration, why: STORE_LEADS }),
    flag("leader-elect-renew-deadline", Moot { form: Duration, why: STORE_LEADS }),
    flag("leader-elect-resource-lock", Holds { values: &["leases"], why: STORE_LEADS }),
    flag("leader-elect-resource-name", Moot { form: Text, why: STORE_LEADS }),
    flag("leader-elect-resource-namespace", Moot { form: Text, why: STORE_LEADS }),
    flag("leader-elect-retry-period", Moot { form: Duration, why: STORE_LEADS }),
    flag("leader-migration-config", Refused(NO_CLOUD)),
    flag("legacy-service-account-token-clean-up-period", Acts),
    flag("log-flush-frequency", Refused(LOGS)),
    flag("log-json-info-buffer-size", Refused(LOGS)),
    flag("log-json-split-stream", Refused(LOGS)),
    flag("log-text-info-buffer-size", Refused(LOGS)),
    flag("log-text-split-stream", Refused(LOGS)),
    flag("logging-format", Holds { values: &["text"], why: "the log is that of the whole server" }),
    flag("master", Refused("controllers call the API in this process")),
    flag("max-endpoints-per-slice", Holds { values: &["100"], why: "a slice has upstream's size" }),
    flag("min-compatibility-version", Refused("kedge is of one version in all its parts")),
    flag("min-resync-period", Moot { form: Duration, why: NO_RESYNC }),
    flag("mirroring-concurrent-service-endpoint-syncs", Acts),
    flag("mirroring-endpointslice-updates-batch-period", Holds { values: &["0", "0s"], why: AT_ONCE }),
    flag("mirroring-max-endpoints-per-subset", Holds { values: &["1000"], why: "a subset has upstream's size" }),
    flag("namespace-sync-period", Moot { form: Duration, why: NO_RESYNC }),
    flag("node-cidr-mask-size", Acts),
    flag("node-cidr-mask-size-ipv4", Acts),
    flag("node-cidr-mask-size-ipv6", Acts),
    flag("node-eviction-rate", Acts),
    flag("node-monitor-grace-period", Acts),
    flag("node-monitor-period", Acts),
    flag("node-startup-grace-period", Acts),
    flag("node-sync-period", Refused(NO_CLOUD)),
    flag("permit-address-sharing", Refused(NO_PORT)),
    flag("permit-port-sharing", Refused(NO_PORT)),
    flag("profiling", Holds { values: &["false"], why: NO_GO }),
    flag(
        "pv-recycler-increment-timeout-nfs",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag(
        "pv-recycler-minimum-timeout-hostpath",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag(
        "pv-recycler-minimum-timeout-nfs",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag(
        "pv-recycler-pod-template-filepath-hostpath",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag(
        "pv-recycler-pod-template-filepath-nfs",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag(
        "pv-recycler-timeout-increment-hostpath",
        Refused("there is no recycler: make the class of such volumes Delete or Retain"),
    ),
    flag("pvclaimbinder-sync-period", Moot { form: Duration, why: NO_RESYNC }),
    flag("requestheader-allowed-names", Refused(NO_PORT)),
    flag("requestheader-client-ca-file", Refused(NO_PORT)),
    flag("requestheader-extra-headers-prefix", Refused(NO_PORT)),
    flag("requestheader-group-headers", Refused(NO_PORT)),
    flag("requestheader-uid-headers", Refused(NO_PORT)),
    flag("requestheader-username-headers", Refused(NO_PORT)),
    flag("resource-quota-sync-period", Moot { form: Duration, why: NO_RESYNC }),
    flag("root-ca-file", Refused(OWN_KEYS)),
    flag("route-reconciliation-period", Refused(NO_CLOUD)),
    flag("secondary-node-eviction-rate", Acts),
    flag("secure-port", Refused(NO_PORT)),
    flag(
        "service-account-private-key-file",
        Refused("tokens are signed with the key of --kube-apiserver-arg=service-account-signing-key-file"),
    ),
    flag("service-cluster-ip-range", Refused("the ranges of Services are those of kedge server --service-cidr")),
    flag("show-hidden-metrics-for-version", Refused(METRICS)),
    flag("terminated-pod-gc-threshold", Acts),
    flag("tls-cert-file", Refused(NO_PORT)),
    flag("tls-cipher-suites", Refused(NO_PORT)),
    flag("tls-curve-preferences", Refused(NO_PORT)),
    flag("tls-min-version", Refused(NO_PORT)),
    flag("tls-private-key-file", Refused(NO_PORT)),
    flag("tls-sni-cert-key", Refused(NO_PORT)),
    flag("unhealthy-zone-threshold", Acts),
    flag(
        "use-service-account-credentials",
        Holds { values: &["true"], why: "each controller has an account of its own" },
    ),
    flag("v", Refused(LOGS)),
    flag("vmodule", Refused(LOGS)),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `kube-controller-manager --help` of v1.36.2, from the declarations in its source.
    const UPSTREAM: &str = "

        allocate-node-cidrs allow-metric-labels allow-metric-labels-manifest
        attach-detach-reconcile-max-wait-unmount-duration attach-detach-reconcile-sync-period
        authentication-kubeconfig authentication-skip-lookup authentication-token-webhook-cache-ttl
        authentication-tolerate-lookup-failure authorization-always-allow-paths authorization-kubeconfig
        authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bind-address cert-dir
        cidr-allocator-type client-ca-file cloud-config cloud-provider cluster-cidr cluster-name
        cluster-signing-cert-file cluster-signing-duration cluster-signing-key-file
        cluster-signing-kube-apiserver-client-cert-file cluster-signing-kube-apiserver-client-key-file
        cluster-signing-kubelet-client-cert-file cluster-signing-kubelet-client-key-file
        cluster-signing-kubelet-serving-cert-file cluster-signing-kubelet-serving-key-file
        cluster-signing-legacy-unknown-cert-file cluster-signing-legacy-unknown-key-file concurrent-cron-job-syncs
        concurrent-daemonset-syncs concurrent-deployment-syncs concurrent-device-taint-eviction-syncs
        concurrent-endpoint-syncs concurrent-ephemeralvolume-syncs concurrent-gc-syncs
        concurrent-horizontal-pod-autoscaler-syncs concurrent-job-syncs concurrent-namespace-syncs
        concurrent-node-syncs concurrent-rc-syncs concurrent-replicaset-syncs concurrent-resource-claim-syncs
        concurrent-resource-quota-syncs concurrent-service-endpoint-syncs concurrent-service-syncs
        concurrent-serviceaccount-token-syncs concurrent-statefulset-syncs concurrent-ttl-after-finished-syncs
        concurrent-validating-admission-policy-status-syncs configure-cloud-routes contention-profiling
        controller-shutdown-timeout controller-start-interval controllers disable-attach-detach-reconcile-sync
        disable-force-detach-on-timeout disable-http2-serving disabled-metrics emulated-version
        enable-dynamic-provisioning enable-garbage-collector enable-hostpath-provisioner enable-leader-migration
        endpoint-updates-batch-period endpointslice-updates-batch-period external-cloud-volume-plugin feature-gates
        flex-volume-plugin-dir horizontal-pod-autoscaler-cpu-initialization-period
        horizontal-pod-autoscaler-downscale-stabilization horizontal-pod-autoscaler-initial-readiness-delay
        horizontal-pod-autoscaler-sync-period horizontal-pod-autoscaler-tolerance http2-max-streams-per-connection
        kube-api-burst kube-api-content-type kube-api-qps kubeconfig large-cluster-size-threshold leader-elect
        leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
        leader-elect-resource-namespace leader-elect-retry-period leader-migration-config
        legacy-service-account-token-clean-up-period log-flush-frequency log-json-info-buffer-size
        log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format master
        max-endpoints-per-slice min-compatibility-version min-resync-period
        mirroring-concurrent-service-endpoint-syncs mirroring-endpointslice-updates-batch-period
        mirroring-max-endpoints-per-subset namespace-sync-period node-cidr-mask-size node-cidr-mask-size-ipv4
        node-cidr-mask-size-ipv6 node-eviction-rate node-monitor-grace-period node-monitor-period
        node-startup-grace-period node-sync-period permit-address-sharing permit-port-sharing profiling
        pv-recycler-increment-timeout-nfs pv-recycler-minimum-timeout-hostpath pv-recycler-minimum-timeout-nfs
        pv-recycler-pod-template-filepath-hostpath pv-recycler-pod-template-filepath-nfs
        pv-recycler-timeout-increment-hostpath pvclaimbinder-sync-period requestheader-allowed-names
        requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
        requestheader-uid-headers requestheader-username-headers resource-quota-sync-period root-ca-file
        route-reconciliation-period secondary-node-eviction-rate secure-port service-account-private-key-file
        service-cluster-ip-range show-hidden-metrics-for-version terminated-pod-gc-threshold tls-cert-file
        tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file tls-sni-cert-key
        unhealthy-zone-threshold use-service-account-credentials v vmodule
    ";

    #[test]
    fn every_flag_of_upstream_has_its_fate_and_no_other_has_one() {
        let names: Vec<&str> = TABLE.iter().map(|known| known.name).collect();
        assert!(names.is_sorted(), "in order, each once");
        assert_eq!(names, UPSTREAM.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_flag_that_acts_is_followed() {
        let acts = |name: &str| {
            let value = match name {
                "controllers" => "*",
                "enable-garbage-collector" => "true",
                "feature-gates" => "",
                _ if name.ends_with("period") || name.ends_with("duration") => "40s",
                _ if name.ends_with("delay") || name.ends_with("stabilization") => "40s",
                _ => "1",
            };
            super::super::Settings::parse(&[format!("{name}={value}")]).map(drop).map_err(|err| err.to_string())
        };
        for known in TABLE.iter().filter(|known| matches!(known.fate, Acts)) {
            assert_eq!(acts(known.name), Ok(()), "{}", known.name);
        }
    }
}
