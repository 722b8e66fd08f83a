//! Every flag of kube-proxy v1.36.2, and what becomes of it.

use base::flags::Fate::{Acts, Holds, Moot, Refused};
use base::flags::Form::{Count, Duration, Number, Text};
use base::flags::{Fate, Known};

const NO_GO: &str = "kedge is not a Go program; use perf";
const NO_CLIENT: &str = "the proxy reads what the node reads anyway";
const NO_IPTABLES: &str = "the proxy is in nftables, where each change is one transaction";
const NO_IPVS: &str = "the proxy is in nftables, not in ipvs";
const SYSCTL: &str = "set it in /etc/sysctl.d, below net.netfilter";
const SYSCTL_MAX: &str = "for another bound set net.netfilter.nf_conntrack_max in /etc/sysctl.d: it is never lowered";
const LOGS: &str = "the log is that of the whole node; use --v of kedge";

const fn flag(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

/// All flags, in the order of their names.
pub const TABLE: &[Known] = &[
    flag("bind-address", Holds { values: &["0.0.0.0", "::"], why: "the node's addresses are those of --node-ip" }),
    flag(
        "bind-address-hard-fail",
        Holds { values: &["false"], why: "a port that is taken is told of, and Services are served" },
    ),
    flag("cleanup", Holds { values: &["false"], why: "use 'kedge killall'" }),
    flag("cluster-cidr", Refused("the ranges of pods are those of kedge server --cluster-cidr")),
    flag("config", Refused("there is no file of the proxy: give its settings as flags")),
    flag("config-sync-period", Moot { form: Duration, why: "the proxy follows every change, and waits for no period" }),
    flag("conntrack-max-per-core", Holds { values: &["32768"], why: SYSCTL_MAX }),
    flag("conntrack-min", Holds { values: &["131072"], why: SYSCTL_MAX }),
    flag(
        "conntrack-tcp-be-liberal",
        Holds { values: &["false"], why: "packets of connections that the kernel forgot are dropped" },
    ),
    flag("conntrack-tcp-timeout-close-wait", Holds { values: &["1h", "1h0m0s", "3600s"], why: SYSCTL }),
    flag("conntrack-tcp-timeout-established", Holds { values: &["0", "0s"], why: SYSCTL }),
    flag("conntrack-udp-timeout", Holds { values: &["0", "0s"], why: SYSCTL }),
    flag("conntrack-udp-timeout-stream", Holds { values: &["0", "0s"], why: SYSCTL }),
    flag("detect-local-mode", Holds { values: &["ClusterCIDR"], why: "what comes from --cluster-cidr is local" }),
    flag("feature-gates", Acts),
    flag(
        "healthz-bind-address",
        Holds { values: &["0.0.0.0:10256", "[::]:10256"], why: "load balancers look for it there" },
    ),
    flag("healthz-port", Holds { values: &["10256"], why: "load balancers look for it there" }),
    flag("hostname-override", Refused("the node's name is that of --node-name")),
    flag("init-only", Holds { values: &["false"], why: "the proxy is a part of the node" }),
    flag("iptables-localhost-nodeports", Refused(NO_IPTABLES)),
    flag("iptables-masquerade-bit", Moot { form: Count, why: NO_IPTABLES }),
    flag("iptables-min-sync-period", Moot { form: Duration, why: NO_IPTABLES }),
    flag("iptables-sync-period", Moot { form: Duration, why: NO_IPTABLES }),
    flag("ipvs-exclude-cidrs", Refused(NO_IPVS)),
    flag("ipvs-min-sync-period", Refused(NO_IPVS)),
    flag("ipvs-scheduler", Refused(NO_IPVS)),
    flag("ipvs-strict-arp", Refused(NO_IPVS)),
    flag("ipvs-sync-period", Refused(NO_IPVS)),
    flag("ipvs-tcp-timeout", Refused(NO_IPVS)),
    flag("ipvs-tcpfin-timeout", Refused(NO_IPVS)),
    flag("ipvs-udp-timeout", Refused(NO_IPVS)),
    flag("kube-api-burst", Moot { form: Count, why: NO_CLIENT }),
    flag("kube-api-content-type", Moot { form: Text, why: NO_CLIENT }),
    flag("kube-api-qps", Moot { form: Number, why: NO_CLIENT }),
    flag("kubeconfig", Refused("the proxy calls the API as its node")),
    flag("log-flush-frequency", Refused(LOGS)),
    flag("log-json-info-buffer-size", Refused(LOGS)),
    flag("log-json-split-stream", Refused(LOGS)),
    flag("log-text-info-buffer-size", Refused(LOGS)),
    flag("log-text-split-stream", Refused(LOGS)),
    flag("logging-format", Holds { values: &["text"], why: "the log is that of the whole node" }),
    flag("masquerade-all", Holds { values: &["false"], why: "pods see who calls them" }),
    flag("master", Refused("the proxy calls the API as its node")),
    flag(
        "metrics-bind-address",
        Holds { values: &["127.0.0.1:10249"], why: "whoever reaches the port reads the names of all Services" },
    ),
    flag("metrics-port", Holds { values: &["10249"], why: "scrapers look for it there" }),
    flag("nodeport-addresses", Acts),
    flag("oom-score-adj", Refused("the score is that of the whole node; set OOMScoreAdjust= in its unit")),
    flag("pod-bridge-interface", Refused("local is what comes from --cluster-cidr, whatever the interface")),
    flag("pod-interface-name-prefix", Refused("local is what comes from --cluster-cidr, whatever the interface")),
    flag("profiling", Holds { values: &["false"], why: NO_GO }),
    flag(
        "proxy-mode",
        Holds {
            values: &["nftables"],
            why: "the proxy is kedge's own, in nftables; for iptables or ipvs run kube-proxy with --disable-kube-proxy",
        },
    ),
    flag("show-hidden-metrics-for-version", Refused("metrics are as they are; choose at the scraper")),
    flag("v", Refused(LOGS)),
    flag("vmodule", Refused(LOGS)),
    flag("write-config-to", Refused("there is no file of the proxy: give its settings as flags")),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// `kube-proxy --help` of v1.36.2, from the declarations in its source.
    const UPSTREAM: &str = "

        bind-address bind-address-hard-fail cleanup cluster-cidr config config-sync-period conntrack-max-per-core
        conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait conntrack-tcp-timeout-established
        conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode feature-gates healthz-bind-address
        healthz-port hostname-override init-only iptables-localhost-nodeports iptables-masquerade-bit
        iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler
        ipvs-strict-arp ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst
        kube-api-content-type kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size
        log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format masquerade-all master
        metrics-bind-address metrics-port nodeport-addresses oom-score-adj pod-bridge-interface
        pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v vmodule write-config-to
    ";

    #[test]
    fn every_flag_of_upstream_has_its_fate_and_no_other_has_one() {
        let names: Vec<&str> = TABLE.iter().map(|known| known.name).collect();
        assert_eq!(names, UPSTREAM.split_whitespace().collect::<Vec<_>>());
    }
}
