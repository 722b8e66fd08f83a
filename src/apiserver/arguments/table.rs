//! Every flag of kube-apiserver v1.36.2, and what becomes of it.

use base::flags::Fate::{Acts, Holds, Refused};
use base::flags::{Fate, Known};

const ADDRESS: &str = "use --advertise-address, --bind-address, --https-listen-port and --tls-san of kedge server";
const OWN_CERTS: &str = "the API shows the certificate of the cluster's own authority; names come by --tls-san";
const STORE: &str = "the store is kedge's own; use --datastore-endpoint for an etcd elsewhere";
const CACHE: &str = "every watch is served from the store's own memory";
const AUDIT: &str = "an event is written before the request is answered, whole and as JSON";
const KUBELETS: &str = "nodes are reached through the tunnels that they open, as the cluster's own client";
const OWN_PROXY: &str = "the front proxy's authority and headers are the cluster's own";
const LOGS: &str = "the log is that of the whole server; use --v of kedge server";
const METRICS: &str = "metrics are as they are; choose at the scraper";
const ONE_VERSION: &str = "kedge is of one version in all its parts";
const SERVERS: &str = "servers know each other by the store";
const CONNECTIONS: &str = "bounds of connections are fixed";
const SHUTDOWN: &str = "a server that ends lets go of its requests by itself";

const fn flag(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

/// All flags, in the order of their names.
pub const TABLE: &[Known] = &[
    flag("admission-control", Refused("it was replaced by enable-admission-plugins")),
    flag("admission-control-config-file", Acts),
    flag("advertise-address", Refused(ADDRESS)),
    flag("aggregator-reject-forwarding-redirect", Refused("a redirect of an aggregated API is never followed")),
    flag("allow-metric-labels", Refused(METRICS)),
    flag("allow-metric-labels-manifest", Refused(METRICS)),
    flag("allow-privileged", Holds { values: &["true"], why: "privileged pods are what Pod Security judges" }),
    flag("anonymous-auth", Acts),
    flag("api-audiences", Acts),
    flag("apiserver-count", Refused(SERVERS)),
    flag("audit-log-batch-buffer-size", Refused(AUDIT)),
    flag("audit-log-batch-max-size", Refused(AUDIT)),
    flag("audit-log-batch-max-wait", Refused(AUDIT)),
    flag("audit-log-batch-throttle-burst", Refused(AUDIT)),
    flag("audit-log-batch-throttle-enable", Refused(AUDIT)),
    flag("audit-log-batch-throttle-qps", Refused(AUDIT)),
    flag("audit-log-compress", Refused(AUDIT)),
    flag("audit-log-format", Holds { values: &["json"], why: AUDIT }),
    flag("audit-log-maxage", Acts),
    flag("audit-log-maxbackup", Acts),
    flag("audit-log-maxsize", Acts),
    flag("audit-log-mode", Holds { values: &["blocking"], why: AUDIT }),
    flag("audit-log-path", Acts),
    flag("audit-log-truncate-enabled", Refused(AUDIT)),
    flag("audit-log-truncate-max-batch-size", Refused(AUDIT)),
    flag("audit-log-truncate-max-event-size", Refused(AUDIT)),
    flag("audit-log-version", Refused(AUDIT)),
    flag("audit-policy-file", Acts),
    flag("audit-webhook-batch-buffer-size", Refused(AUDIT)),
    flag("audit-webhook-batch-initial-backoff", Refused(AUDIT)),
    flag("audit-webhook-batch-max-size", Acts),
    flag("audit-webhook-batch-max-wait", Acts),
    flag("audit-webhook-batch-throttle-burst", Refused(AUDIT)),
    flag("audit-webhook-batch-throttle-enable", Refused(AUDIT)),
    flag("audit-webhook-batch-throttle-qps", Refused(AUDIT)),
    flag("audit-webhook-config-file", Acts),
    flag("audit-webhook-initial-backoff", Refused(AUDIT)),
    flag("audit-webhook-mode", Refused(AUDIT)),
    flag("audit-webhook-truncate-enabled", Refused(AUDIT)),
    flag("audit-webhook-truncate-max-batch-size", Refused(AUDIT)),
    flag("audit-webhook-truncate-max-event-size", Refused(AUDIT)),
    flag("audit-webhook-version", Refused(AUDIT)),
    flag("authentication-config", Acts),
    flag("authentication-token-webhook-cache-ttl", Acts),
    flag("authentication-token-webhook-config-file", Acts),
    flag("authentication-token-webhook-version", Acts),
    flag("authorization-config", Acts),
    flag("authorization-mode", Acts),
    flag("authorization-policy-file", Acts),
    flag("authorization-webhook-cache-authorized-ttl", Acts),
    flag("authorization-webhook-cache-unauthorized-ttl", Acts),
    flag("authorization-webhook-config-file", Acts),
    flag("authorization-webhook-version", Holds { values: &["v1"], why: "v1beta1 is gone from upstream's servers" }),
    flag("bind-address", Refused(ADDRESS)),
    flag("cert-dir", Refused(OWN_CERTS)),
    flag("client-ca-file", Acts),
    flag("contention-profiling", Refused("kedge is not a Go program; use perf")),
    flag("coordinated-leadership-lease-duration", Refused(SERVERS)),
    flag("coordinated-leadership-renew-deadline", Refused(SERVERS)),
    flag("coordinated-leadership-retry-period", Refused(SERVERS)),
    flag("cors-allowed-origins", Refused(CONNECTIONS)),
    flag("debug-socket-path", Refused("kedge is not a Go program; use perf")),
    flag("default-not-ready-toleration-seconds", Acts),
    flag("default-unreachable-toleration-seconds", Acts),
    flag("default-watch-cache-size", Refused(CACHE)),
    flag("delete-collection-workers", Refused(STORE)),
    flag("disable-admission-plugins", Acts),
    flag("disable-http2-serving", Refused(CONNECTIONS)),
    flag("disabled-metrics", Refused(METRICS)),
    flag("egress-selector-config-file", Refused(KUBELETS)),
    flag("emulated-version", Refused(ONE_VERSION)),
    flag("emulation-forward-compatible", Refused(ONE_VERSION)),
    flag("enable-admission-plugins", Acts),
    flag(
        "enable-aggregator-routing",
        Holds { values: &["true"], why: "aggregated APIs are called under their endpoints' addresses" },
    ),
    flag("enable-bootstrap-token-auth", Holds { values: &["true"], why: "nodes join with such tokens" }),
    flag(
        "enable-garbage-collector",
        Refused("the collector is the controllers'; use --kube-controller-manager-arg=enable-garbage-collector"),
    ),
    flag("enable-logs-handler", Refused("logs of nodes are read from the node")),
    flag("enable-priority-and-fairness", Acts),
    flag("encryption-provider-config", Acts),
    flag(
        "encryption-provider-config-automatic-reload",
        Refused("the file is read at the start, and keys are rotated by 'kedge secrets-encrypt'"),
    ),
    flag("endpoint-reconciler-type", Refused(SERVERS)),
    flag("etcd-cafile", Refused(STORE)),
    flag("etcd-certfile", Refused(STORE)),
    flag("etcd-compaction-interval", Refused(STORE)),
    flag("etcd-count-metric-poll-period", Refused(STORE)),
    flag("etcd-db-metric-poll-interval", Refused(STORE)),
    flag("etcd-healthcheck-timeout", Refused(STORE)),
    flag("etcd-keyfile", Refused(STORE)),
    flag("etcd-prefix", Refused(STORE)),
    flag("etcd-readycheck-timeout", Refused(STORE)),
    flag("etcd-servers", Refused(STORE)),
    flag("etcd-servers-overrides", Refused(STORE)),
    flag("event-ttl", Acts),
    flag("external-hostname", Refused(ADDRESS)),
    flag("feature-gates", Acts),
    flag("goaway-chance", Refused(CONNECTIONS)),
    flag("http2-max-streams-per-connection", Refused(CONNECTIONS)),
    flag("kubelet-certificate-authority", Refused(KUBELETS)),
    flag("kubelet-client-certificate", Refused(KUBELETS)),
    flag("kubelet-client-key", Refused(KUBELETS)),
    flag("kubelet-port", Refused(KUBELETS)),
    flag("kubelet-preferred-address-types", Refused(KUBELETS)),
    flag("kubelet-read-only-port", Refused(KUBELETS)),
    flag("kubelet-timeout", Refused(KUBELETS)),
    flag("kubernetes-service-node-port", Refused("the Service kubernetes has no node port")),
    flag("lease-reuse-duration-seconds", Refused(STORE)),
    flag("livez-grace-period", Refused(SHUTDOWN)),
    flag("log-flush-frequency", Refused(LOGS)),
    flag("log-json-info-buffer-size", Refused(LOGS)),
    flag("log-json-split-stream", Refused(LOGS)),
    flag("log-text-info-buffer-size", Refused(LOGS)),
    flag("log-text-split-stream", Refused(LOGS)),
    flag("logging-format", Refused(LOGS)),
    flag("max-connection-bytes-per-sec", Refused(CONNECTIONS)),
    flag("max-mutating-requests-inflight", Acts),
    flag("max-requests-inflight", Acts),
    flag("min-compatibility-version", Refused(ONE_VERSION)),
    flag("min-request-timeout", Acts),
    flag("oidc-ca-file", Acts),
    flag("oidc-client-id", Acts),
    flag("oidc-groups-claim", Acts),
    flag("oidc-groups-prefix", Acts),
    flag("oidc-issuer-url", Acts),
    flag("oidc-required-claim", Acts),
    flag("oidc-signing-algs", Acts),
    flag("oidc-username-claim", Acts),
    flag("oidc-username-prefix", Acts),
    flag("peer-advertise-ip", Refused(SERVERS)),
    flag("peer-advertise-port", Refused(SERVERS)),
    flag("peer-ca-file", Refused(SERVERS)),
    flag("permit-address-sharing", Refused(CONNECTIONS)),
    flag("permit-port-sharing", Refused(CONNECTIONS)),
    flag("profiling", Holds { values: &["false"], why: "kedge is not a Go program; use perf" }),
    flag("proxy-client-cert-file", Refused(OWN_PROXY)),
    flag("proxy-client-key-file", Refused(OWN_PROXY)),
    flag("request-timeout", Acts),
    flag("requestheader-allowed-names", Acts),
    flag("requestheader-client-ca-file", Refused(OWN_PROXY)),
    flag("requestheader-extra-headers-prefix", Refused(OWN_PROXY)),
    flag("requestheader-group-headers", Refused(OWN_PROXY)),
    flag("requestheader-uid-headers", Refused(OWN_PROXY)),
    flag("requestheader-username-headers", Refused(OWN_PROXY)),
    flag("runtime-config", Acts),
    flag("runtime-config-emulation-forward-compatible", Refused(ONE_VERSION)),
    flag("secure-port", Refused(ADDRESS)),
    flag("send-retry-after-while-not-ready-once", Refused(SHUTDOWN)),
    flag("service-account-extend-token-expiration", Acts),
    flag("service-account-issuer", Acts),
    flag("service-account-jwks-uri", Acts),
    flag("service-account-key-file", Acts),
    flag("service-account-lookup", Holds { values: &["true"], why: "a token ends with its account" }),
    flag("service-account-max-token-expiration", Acts),
    flag(
        "service-account-signing-endpoint",
        Refused("tokens are signed with the key of service-account-signing-key-file"),
    ),
    flag("service-account-signing-key-file", Acts),
    flag("service-cluster-ip-range", Refused("the ranges of Services are those of kedge server --service-cidr")),
    flag("service-node-port-range", Refused("the ports are those of kedge server --service-node-port-range")),
    flag("show-hidden-metrics-for-version", Refused(METRICS)),
    flag("shutdown-delay-duration", Refused(SHUTDOWN)),
    flag("shutdown-send-retry-after", Refused(SHUTDOWN)),
    flag("shutdown-watch-termination-grace-period", Refused(SHUTDOWN)),
    flag("storage-backend", Holds { values: &["etcd3"], why: STORE }),
    flag("storage-initialization-timeout", Refused(STORE)),
    flag("storage-media-type", Refused(STORE)),
    flag("strict-transport-security-directives", Refused(CONNECTIONS)),
    flag("tls-cert-file", Refused(OWN_CERTS)),
    flag("tls-cipher-suites", Acts),
    flag("tls-curve-preferences", Refused(OWN_CERTS)),
    flag("tls-min-version", Acts),
    flag("tls-private-key-file", Refused(OWN_CERTS)),
    flag("tls-sni-cert-key", Refused(OWN_CERTS)),
    flag("token-auth-file", Acts),
    flag("tracing-config-file", Refused(METRICS)),
    flag("v", Refused(LOGS)),
    flag("vmodule", Refused(LOGS)),
    flag("watch-cache", Refused(CACHE)),
    flag("watch-cache-sizes", Refused(CACHE)),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `kube-apiserver --help` of v1.36.2, from the declarations in its source.
    const UPSTREAM: &str = "

        admission-control admission-control-config-file advertise-address aggregator-reject-forwarding-redirect
        allow-metric-labels allow-metric-labels-manifest allow-privileged anonymous-auth api-audiences apiserver-count
        audit-log-batch-buffer-size audit-log-batch-max-size audit-log-batch-max-wait audit-log-batch-throttle-burst
        audit-log-batch-throttle-enable audit-log-batch-throttle-qps audit-log-compress audit-log-format
        audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-mode audit-log-path
        audit-log-truncate-enabled audit-log-truncate-max-batch-size audit-log-truncate-max-event-size
        audit-log-version audit-policy-file audit-webhook-batch-buffer-size audit-webhook-batch-initial-backoff
        audit-webhook-batch-max-size audit-webhook-batch-max-wait audit-webhook-batch-throttle-burst
        audit-webhook-batch-throttle-enable audit-webhook-batch-throttle-qps audit-webhook-config-file
        audit-webhook-initial-backoff audit-webhook-mode audit-webhook-truncate-enabled
        audit-webhook-truncate-max-batch-size audit-webhook-truncate-max-event-size audit-webhook-version
        authentication-config authentication-token-webhook-cache-ttl authentication-token-webhook-config-file
        authentication-token-webhook-version authorization-config authorization-mode authorization-policy-file
        authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
        authorization-webhook-config-file authorization-webhook-version bind-address cert-dir client-ca-file
        contention-profiling coordinated-leadership-lease-duration coordinated-leadership-renew-deadline
        coordinated-leadership-retry-period cors-allowed-origins debug-socket-path
        default-not-ready-toleration-seconds default-unreachable-toleration-seconds default-watch-cache-size
        delete-collection-workers disable-admission-plugins disable-http2-serving disabled-metrics
        egress-selector-config-file emulated-version emulation-forward-compatible enable-admission-plugins
        enable-aggregator-routing enable-bootstrap-token-auth enable-garbage-collector enable-logs-handler
        enable-priority-and-fairness encryption-provider-config encryption-provider-config-automatic-reload
        endpoint-reconciler-type etcd-cafile etcd-certfile etcd-compaction-interval etcd-count-metric-poll-period
        etcd-db-metric-poll-interval etcd-healthcheck-timeout etcd-keyfile etcd-prefix etcd-readycheck-timeout
        etcd-servers etcd-servers-overrides event-ttl external-hostname feature-gates goaway-chance
        http2-max-streams-per-connection kubelet-certificate-authority kubelet-client-certificate kubelet-client-key
        kubelet-port kubelet-preferred-address-types kubelet-read-only-port kubelet-timeout
        kubernetes-service-node-port lease-reuse-duration-seconds livez-grace-period log-flush-frequency
        log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format
        max-connection-bytes-per-sec max-mutating-requests-inflight max-requests-inflight min-compatibility-version
        min-request-timeout oidc-ca-file oidc-client-id oidc-groups-claim oidc-groups-prefix oidc-issuer-url
        oidc-required-claim oidc-signing-algs oidc-username-claim oidc-username-prefix peer-advertise-ip
        peer-advertise-port peer-ca-file permit-address-sharing permit-port-sharing profiling proxy-client-cert-file
        proxy-client-key-file request-timeout requestheader-allowed-names requestheader-client-ca-file
        requestheader-extra-headers-prefix requestheader-group-headers requestheader-uid-headers
        requestheader-username-headers runtime-config runtime-config-emulation-forward-compatible secure-port
        send-retry-after-while-not-ready-once service-account-extend-token-expiration service-account-issuer
        service-account-jwks-uri service-account-key-file service-account-lookup service-account-max-token-expiration
        service-account-signing-endpoint service-account-signing-key-file service-cluster-ip-range
        service-node-port-range show-hidden-metrics-for-version shutdown-delay-duration shutdown-send-retry-after
        shutdown-watch-termination-grace-period storage-backend storage-initialization-timeout storage-media-type
        strict-transport-security-directives tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version
        tls-private-key-file tls-sni-cert-key token-auth-file tracing-config-file v vmodule watch-cache
        watch-cache-sizes
    ";

    #[test]
    fn every_flag_of_upstream_has_its_fate_and_no_other_has_one() {
        let names: Vec<&str> = TABLE.iter().map(|known| known.name).collect();
        assert_eq!(names, UPSTREAM.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_flag_that_acts_is_known_to_its_reader() {
        for known in TABLE.iter().filter(|known| matches!(known.fate, Acts)) {
            let said = super::super::Arguments::parse(&[format!("{}=", known.name)]);
            let said = said.err().map(|err| base::chain::Chain(&err).to_string()).unwrap_or_default();
            assert!(!said.contains("unknown flag"), "{}: {said}", known.name);
        }
    }
}
