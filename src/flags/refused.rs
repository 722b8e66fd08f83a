//! Flags of k3s that kedge refuses: why, and what to do instead. Any other unknown flag is a misspelling.

/// A flag without dashes, and the sentence that follows "--flag is refused: ".
const REFUSED: [(&str, &str); 29] = [
    (
        "rootless",
        "kedge runs containers as root; run it in a virtual machine, or with --disable-agent for an API server alone",
    ),
    ("docker", "kedge drives containerd; images of Docker come in by 'docker save' and the folder agent/images"),
    ("selinux", "kedge has no SELinux policy"),
    (
        "vpn-auth",
        "kedge has no VPN of its own; run one on the nodes and name its addresses with --node-ip and --flannel-iface",
    ),
    (
        "vpn-auth-file",
        "kedge has no VPN of its own; run one on the nodes and name its addresses with --node-ip and --flannel-iface",
    ),
    ("flannel-conf", "the overlay is kedge's own; use --flannel-backend, --flannel-iface and --flannel-external-ip"),
    (
        "flannel-cni-conf",
        "kedge writes the CNI configuration itself; with --flannel-backend=none another plugin brings its own",
    ),
    (
        "embedded-registry",
        "nodes do not share images; name a mirror in registries.yaml, or put archives into agent/images",
    ),
    ("system-default-registry", "images of system pods are made of the program itself, nothing is pulled for them"),
    ("airgap-extra-registry", "images of archives keep the names they have"),
    (
        "disable-apiserver",
        "store, API and controllers of a server are one process; use an agent for a machine without them",
    ),
    ("disable-controller-manager", "store, API and controllers of a server are one process; the leader runs them"),
    (
        "disable-etcd",
        "store, API and controllers of a server are one process; use --datastore-endpoint for a store elsewhere",
    ),
    ("disable-apiserver-lb", "an agent reaches servers over its balancer only"),
    ("supervisor-port", "the supervisor is on the port of the API"),
    ("apiserver-port", "the API is on --https-listen-port"),
    ("apiserver-bind-address", "the API listens on --bind-address"),
    ("servicelb-namespace", "a LoadBalancer needs no pods here: its rules are in the nodes' own table"),
    (
        "helm-job-image",
        "charts are installed by the servers' own helm, not by a job; name the program with --helm-binary",
    ),
    (
        "helm-controller-arg",
        "the Helm controller is kedge's own and has no settings but --helm-binary and --disable-helm-controller",
    ),
    ("kube-cloud-controller-manager-arg", "there is no cloud controller"),
    ("etcd-arg", "the store is kedge's own, with etcd's API, and has no settings of etcd's"),
    ("etcd-expose-metrics", "there is no etcd process; kedge status and GET /metrics of the API tell how the store is"),
    ("etcd-snapshot-reconcile-interval", "'kedge snapshot ls' reads the folder of snapshots itself"),
    ("enable-pprof", "kedge is not a Go program; use perf"),
    (
        "prefer-bundled-bin",
        "the order is --runtime-from, which begins with the bundle's programs unless it is told otherwise",
    ),
    ("image-service-endpoint", "images come from the runtime of --container-runtime-endpoint"),
    ("vmodule", "kedge's log has one level; use --debug or --v"),
    ("kine-tls", "there is no kine; the store speaks TLS"),
];

/// All of them, with their reasons.
#[cfg(test)]
pub(crate) fn all() -> &'static [(&'static str, &'static str)] {
    &REFUSED
}

/// Why a flag of k3s (with or without dashes) is refused; `None` for one that k3s does not know either.
pub(crate) fn why(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-');
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_k3s_are_refused_with_a_reason_and_misspelt_ones_are_not_known() {
        assert!(why("--rootless").unwrap().contains("root"));
        assert!(why("docker=true").unwrap().contains("containerd"));
        assert_eq!(why("--rootles"), None);
    }

    #[test]
    fn each_refused_flag_has_one_reason_which_is_a_part_of_a_sentence() {
        let mut names: Vec<&str> = REFUSED.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REFUSED.len());
        for (name, why) in REFUSED {
            assert!(!name.starts_with('-') && !why.is_empty() && !why.ends_with('.'), "{name}: {why}");
            assert_eq!(super::why(&format!("--{name}=x")), Some(why));
        }
    }
}
