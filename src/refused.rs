//! Flags of k3s that kedge refuses: why, and what to do instead. Any other unknown flag is a misspelling.

/// A flag without dashes, and the sentence that follows "--flag is refused: ".
const REFUSED: [(&str, &str); 35] = [
    ("rootless", "kedge runs containers as root; run it in a virtual machine, or with --disable-agent for an API server alone"),
    ("docker", "kedge drives containerd; images of Docker come in by 'docker save' and the folder agent/images"),
    ("selinux", "kedge has no SELinux policy"),
    ("vpn-auth", "kedge has no VPN of its own; run one on the nodes and name its addresses with --node-ip and --flannel-iface"),
    ("vpn-auth-file", "kedge has no VPN of its own; run one on the nodes and name its addresses with --node-ip and --flannel-iface"),
    ("flannel-conf", "the overlay is kedge's own; use --flannel-backend, --flannel-iface and --flannel-external-ip"),
    ("flannel-cni-conf", "kedge writes the CNI configuration itself; with --flannel-backend=none another plugin brings its own"),
    ("embedded-registry", "nodes do not share images; name a mirror in registries.yaml, or put archives into agent/images"),
    ("system-default-registry", "images of system pods are made of the program itself, nothing is pulled for them"),
    ("airgap-extra-registry", "images of archives keep the names they have"),
    ("disable-apiserver", "store, API and controllers of a server are one process; use an agent for a machine without them"),
    ("disable-controller-manager", "store, API and controllers of a server are one process; the leader runs them"),
    ("disable-etcd", "store, API and controllers of a server are one process; use --datastore-endpoint for a store elsewhere"),
    ("disable-apiserver-lb", "an agent reaches servers over its balancer only"),
    ("supervisor-port", "the supervisor is on the port of the API"),
    ("apiserver-port", "the API is on --https-listen-port"),
    ("apiserver-bind-address", "the API listens on --bind-address"),
    ("tls-san-security", "a certificate never takes in names that nobody asked for; add names with --tls-san"),
    ("servicelb-namespace", "a LoadBalancer needs no pods here: its rules are in the nodes' own table"),
    ("helm-job-image", "kedge has no Helm controller; use the helm program"),
    ("helm-controller-arg", "kedge has no Helm controller; use the helm program"),
    ("kube-proxy-arg", "the service proxy is kedge's own, in nftables, and has no settings"),
    ("kube-cloud-controller-manager-arg", "there is no cloud controller"),
    ("etcd-arg", "the store is kedge's own, with etcd's API, and has no settings of etcd's"),
    ("etcd-expose-metrics", "there is no etcd process; kedge status and GET /metrics of the API tell how the store is"),
    ("etcd-snapshot-reconcile-interval", "'kedge snapshot ls' reads the folder of snapshots itself"),
    ("supervisor-metrics", "the supervisor's metrics are among the API's: GET /metrics"),
    ("enable-pprof", "kedge is not a Go program; use perf"),
    ("prefer-bundled-bin", "kedge brings no programs; containerd, runc and nft are those on PATH"),
    ("image-service-endpoint", "images come from the runtime of --container-runtime-endpoint"),
    ("image-credential-provider-bin-dir", "kedge calls no credential plugins; put credentials into registries.yaml or imagePullSecrets"),
    ("image-credential-provider-config", "kedge calls no credential plugins; put credentials into registries.yaml or imagePullSecrets"),
    ("nonroot-devices", "containerd's default counts: devices belong to root"),
    ("vmodule", "kedge's log has one level; use --debug or --v"),
    ("kine-tls", "there is no kine; the store speaks TLS"),
];

/// What every flag of k3s for snapshots in S3 begins with.
const S3: &str = "etcd-s3";

/// Why a flag of k3s (with or without dashes) is refused; `None` for one that k3s does not know either.
pub(crate) fn why(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-');
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    if name == S3 || name.strip_prefix(S3).is_some_and(|rest| rest.starts_with('-')) || name == "s3" || name.starts_with("s3-") {
        return Some("snapshots are files; copy the folder of snapshots with a tool for S3, such as rclone");
    }
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_k3s_are_refused_with_a_reason_and_misspelt_ones_are_not_known() {
        assert!(why("--rootless").unwrap().contains("root"));
        assert!(why("etcd-s3-bucket=b").unwrap().contains("S3"));
        assert_eq!(why("--s3").unwrap(), why("etcd-s3").unwrap());
        assert_eq!((why("--rootles"), why("etcd-s3bucket")), (None, None));
    }
}
