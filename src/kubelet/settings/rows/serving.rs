//! Rows about the kubelet's server, its callers, its events and requests.

use super::super::form::Form::{Bool, Duration, Int, Text, Texts, Whole};
use super::super::form::{I32, Take as _, put};
use super::super::row::{Row, any, done, fixed, refused};
use super::super::value::ValueError;

const NO_CACHE: &str = "answers are not kept: each request is asked about";
const NOT_GO: &str = "kedge is not a Go program; use perf";
const CERTIFICATE: &str = "the kubelet's certificate is signed by the cluster's authority and renewed by kedge";
const CALLS: &str = "the kubelet's requests have no limit of their own; the API's flow control (APF) bounds them";

pub(in super::super) const ROWS: &[Row] = &[
    fixed(("enableServer", "enable-server"), "true", Bool, "logs, exec and metrics go through it"),
    fixed(("address", "address"), "0.0.0.0", Text, "the kubelet listens on all addresses").also(&["::"]),
    done(("port", "port"), "", Int(1, 65535), |s, v| {
        s.port = Some(u16::take(v)?);
        Ok(())
    }),
    fixed(
        ("readOnlyPort", "read-only-port"),
        "0",
        Int(0, 65535),
        "a port without authentication is not there; the metrics are on the kubelet's own port",
    ),
    refused(("tlsCertFile", "tls-cert-file"), Text, CERTIFICATE),
    refused(("tlsPrivateKeyFile", "tls-private-key-file"), Text, CERTIFICATE),
    done(("tlsCipherSuites", "tls-cipher-suites"), "", Texts, |s, v| {
        let suites: Vec<String> = Vec::take(v)?;
        s.tls.set_suites(&suites).map_err(ValueError::Tls)
    }),
    done(("tlsMinVersion", "tls-min-version"), "VersionTLS12", Text, |s, v| {
        s.tls.set_min_version(&String::take(v)?).map_err(ValueError::Tls)
    }),
    refused(("tlsCurvePreferences", ""), Whole, "the curves are those of the TLS library: X25519, P-256 and P-384"),
    fixed(("rotateCertificates", "rotate-certificates"), "true", Bool, "the client's certificate is always renewed"),
    fixed(("serverTLSBootstrap", "rotate-server-certificates"), "true", Bool, CERTIFICATE),
    refused(
        ("authentication.x509.clientCAFile", "client-ca-file"),
        Text,
        "callers with certificates are judged by the cluster's own client authority",
    ),
    fixed(
        ("authentication.webhook.enabled", "authentication-token-webhook"),
        "true",
        Bool,
        "the API server judges tokens",
    ),
    any(("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl"), "2m", Duration, NO_CACHE),
    fixed(("authentication.anonymous.enabled", "anonymous-auth"), "false", Bool, "nobody is let in without a name"),
    fixed(("authorization.mode", "authorization-mode"), "Webhook", Text, "the API server judges each request"),
    any(
        ("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl"),
        "5m",
        Duration,
        NO_CACHE,
    ),
    any(
        ("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl"),
        "30s",
        Duration,
        NO_CACHE,
    ),
    done(("eventRecordQPS", "event-qps"), "50", Int(0, I32), |s, v| put(&mut s.event_qps, v)).keeps_zero(),
    done(("eventBurst", "event-burst"), "100", Int(0, I32), |s, v| put(&mut s.event_burst, v)),
    done(("enableDebuggingHandlers", "enable-debugging-handlers"), "true", Bool, |s, v| {
        put(&mut s.debugging_handlers, v)
    }),
    fixed(("enableContentionProfiling", "contention-profiling"), "false", Bool, NOT_GO),
    fixed(("enableProfilingHandler", ""), "false", Bool, NOT_GO),
    fixed(("enableDebugFlagsHandler", ""), "false", Bool, "the level of the log is that of --debug"),
    done(("enableSystemLogHandler", ""), "true", Bool, |s, v| put(&mut s.log_handler, v)),
    fixed(("enableSystemLogQuery", ""), "false", Bool, "'kubectl get --raw …/proxy/logs/' reads files of /var/log"),
    fixed(
        ("healthzPort", "healthz-port"),
        "0",
        Int(0, 65535),
        "the node's health is GET /healthz on the kubelet's own port; there is no port without authentication",
    )
    .keeps_zero(),
    any(("healthzBindAddress", "healthz-bind-address"), "127.0.0.1", Text, "there is no healthzPort"),
    done(("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout"), "4h", Duration, |s, v| {
        put(&mut s.stream_idle, v)
    }),
    fixed(
        ("contentType", "kube-api-content-type"),
        "application/json",
        Text,
        "the kubelet speaks JSON with the API server",
    )
    .also(&["application/vnd.kubernetes.protobuf"]),
    fixed(("kubeAPIQPS", "kube-api-qps"), "50", Int(0, I32), CALLS).keeps_zero(),
    fixed(("kubeAPIBurst", "kube-api-burst"), "100", Int(0, I32), CALLS),
    refused(("tracing.endpoint", ""), Text, "kedge sends no traces"),
    refused(("tracing.samplingRatePerMillion", ""), Int(0, 1_000_000), "kedge sends no traces"),
    refused(("showHiddenMetricsForVersion", ""), Text, "there are no hidden metrics"),
];
