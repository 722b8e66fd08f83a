//! Every flag of kube-scheduler v1.36.2, and what becomes of it.

use base::flags::Fate::{Acts, Holds, Moot, Refused};
use base::flags::Form::{Count, Duration, Number, Text};
use base::flags::{Fate, Known};

const NO_PORT: &str = "the scheduler has no port of its own: what it would serve is on the API's";
const NO_GO: &str = "kedge is not a Go program; use perf";
const NO_CLIENT: &str = "the scheduler calls the API in this process, where priority and fairness bounds it";
const STORE_LEADS: &str = "the store's leader runs the scheduler, by the store's own election";
const LOGS: &str = "the log is that of the whole server; use --v of kedge server";
const METRICS: &str = "metrics are as they are; choose at the scraper";

const fn flag(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

/// All flags, in the order of their names.
pub const TABLE: &[Known] = &[
    flag("allow-metric-labels", Refused(METRICS)),
    flag("allow-metric-labels-manifest", Refused(METRICS)),
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
    flag("client-ca-file", Refused(NO_PORT)),
    flag(
        "config",
        Refused("there are no profiles of the scheduler yet: it has upstream's plugins with their default weights"),
    ),
    flag("contention-profiling", Holds { values: &["false"], why: NO_GO }),
    flag("disable-http2-serving", Refused(NO_PORT)),
    flag("disabled-metrics", Refused(METRICS)),
    flag("emulated-version", Refused("kedge is of one version in all its parts")),
    flag("feature-gates", Acts),
    flag("http2-max-streams-per-connection", Refused(NO_PORT)),
    flag("kube-api-burst", Moot { form: Count, why: NO_CLIENT }),
    flag("kube-api-content-type", Moot { form: Text, why: NO_CLIENT }),
    flag("kube-api-qps", Moot { form: Number, why: NO_CLIENT }),
    flag("kubeconfig", Refused("the scheduler calls the API in this process")),
    flag(
        "leader-elect",
        Holds { values: &["true"], why: "the scheduler runs on the server that leads, and there alone" },
    ),
    flag("leader-elect-lease-duration", Moot { form: Duration, why: STORE_LEADS }),
    flag("leader-elect-renew-deadline", Moot { form: Duration, why: STORE_LEADS }),
    flag("leader-elect-resource-lock", Holds { values: &["leases"], why: STORE_LEADS }),
    flag("leader-elect-resource-name", Moot { form: Text, why: STORE_LEADS }),
    flag("leader-elect-resource-namespace", Moot { form: Text, why: STORE_LEADS }),
    flag("leader-elect-retry-period", Moot { form: Duration, why: STORE_LEADS }),
    flag("log-flush-frequency", Refused(LOGS)),
    flag("log-json-info-buffer-size", Refused(LOGS)),
    flag("log-json-split-stream", Refused(LOGS)),
    flag("log-text-info-buffer-size", Refused(LOGS)),
    flag("log-text-split-stream", Refused(LOGS)),
    flag("logging-format", Holds { values: &["text"], why: "the log is that of the whole server" }),
    flag("master", Refused("the scheduler calls the API in this process")),
    flag("min-compatibility-version", Refused("kedge is of one version in all its parts")),
    flag("permit-address-sharing", Refused(NO_PORT)),
    flag("permit-port-sharing", Refused(NO_PORT)),
    flag(
        "pod-max-in-unschedulable-pods-duration",
        Refused("a pod that fits nowhere is tried again after upstream's five minutes"),
    ),
    flag("profiling", Holds { values: &["false"], why: NO_GO }),
    flag("requestheader-allowed-names", Refused(NO_PORT)),
    flag("requestheader-client-ca-file", Refused(NO_PORT)),
    flag("requestheader-extra-headers-prefix", Refused(NO_PORT)),
    flag("requestheader-group-headers", Refused(NO_PORT)),
    flag("requestheader-uid-headers", Refused(NO_PORT)),
    flag("requestheader-username-headers", Refused(NO_PORT)),
    flag("secure-port", Refused(NO_PORT)),
    flag("show-hidden-metrics-for-version", Refused(METRICS)),
    flag("tls-cert-file", Refused(NO_PORT)),
    flag("tls-cipher-suites", Refused(NO_PORT)),
    flag("tls-curve-preferences", Refused(NO_PORT)),
    flag("tls-min-version", Refused(NO_PORT)),
    flag("tls-private-key-file", Refused(NO_PORT)),
    flag("tls-sni-cert-key", Refused(NO_PORT)),
    flag("v", Refused(LOGS)),
    flag("vmodule", Refused(LOGS)),
    flag("write-config-to", Refused("there is no configuration to write")),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `kube-scheduler --help` of v1.36.2, from the declarations in its source.
    const UPSTREAM: &str = "

        allow-metric-labels allow-metric-labels-manifest authentication-kubeconfig authentication-skip-lookup
        authentication-token-webhook-cache-ttl authentication-tolerate-lookup-failure authorization-always-allow-paths
        authorization-kubeconfig authorization-webhook-cache-authorized-ttl
        authorization-webhook-cache-unauthorized-ttl bind-address cert-dir client-ca-file config contention-profiling
        disable-http2-serving disabled-metrics emulated-version feature-gates http2-max-streams-per-connection
        kube-api-burst kube-api-content-type kube-api-qps kubeconfig leader-elect leader-elect-lease-duration
        leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
        leader-elect-resource-namespace leader-elect-retry-period log-flush-frequency log-json-info-buffer-size
        log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format master
        min-compatibility-version permit-address-sharing permit-port-sharing pod-max-in-unschedulable-pods-duration
        profiling requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix
        requestheader-group-headers requestheader-uid-headers requestheader-username-headers secure-port
        show-hidden-metrics-for-version tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version
        tls-private-key-file tls-sni-cert-key v vmodule write-config-to
    ";

    #[test]
    fn every_flag_of_upstream_has_its_fate_and_no_other_has_one() {
        let names: Vec<&str> = TABLE.iter().map(|known| known.name).collect();
        assert_eq!(names, UPSTREAM.split_whitespace().collect::<Vec<_>>());
    }
}
