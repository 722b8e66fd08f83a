//! Rows about the node's name, its registration, its files, and what is served where.

use std::path::PathBuf;

use super::super::form::Form::{Bool, Bools, Duration, Int, Map, Taints, Text, Texts, Whole};
use super::super::form::{I32, Take as _, put};
use super::super::row::{Row, any, done, fixed, refused};
use super::super::value;

const NAME: &str = "name the node with --node-name";
const ADDRESS: &str = "name the node's addresses with --node-ip";
const CREDENTIALS: &str = "the node's credentials are those of its join; there is no kubeconfig to choose";
const RUNTIME: &str = "name the socket of a running one with kedge's own flag --container-runtime-endpoint";
const CADVISOR: &str = "there is no cAdvisor here: usage is read when somebody asks for it";
const NO_LOCK: &str = "a second kedge on the same data folder is refused in any case";

pub(in super::super) const ROWS: &[Row] = &[
    // These two are read before all others.
    done(("", "config"), "", Text, |_, _| Ok(())),
    done(("", "config-dir"), "", Text, |_, _| Ok(())),
    fixed(
        ("podLogsDir", ""),
        "/var/log/pods",
        Text,
        "logs of pods lie there, or in agent/pod-logs of another data folder",
    ),
    done(("", "root-dir"), "", Text, |s, v| {
        s.root_dir = Some(value::absolute(v)?);
        Ok(())
    }),
    done(("", "node-labels"), "", Map, |s, v| put(&mut s.labels, v)),
    done(("", "cloud-provider"), "", Text, |s, v| {
        s.cloud = value::cloud(v)?;
        Ok(())
    }),
    done(("", "image-credential-provider-config"), "", Text, |s, v| {
        s.provider_config = Some(PathBuf::from(String::take(v)?));
        Ok(())
    }),
    done(("", "image-credential-provider-bin-dir"), "", Text, |s, v| {
        s.provider_bin_dir = Some(PathBuf::from(String::take(v)?));
        Ok(())
    }),
    refused(("", "kubeconfig"), Text, CREDENTIALS),
    refused(("", "bootstrap-kubeconfig"), Text, CREDENTIALS),
    refused(("", "cert-dir"), Text, CREDENTIALS),
    refused(("", "hostname-override"), Text, NAME),
    refused(("", "node-ip"), Text, ADDRESS),
    refused(("", "lock-file"), Text, NO_LOCK),
    fixed(("", "exit-on-lock-contention"), "false", Bool, NO_LOCK),
    fixed(("", "version"), "false", Text, "kedge --version tells the version"),
    fixed(("", "help"), "false", Text, "docs/settings-kubelet.md lists the settings"),
    fixed(("", "minimum-container-ttl-duration"), "0s", Duration, "containers that ended go by upstream's default"),
    fixed(("", "maximum-dead-containers-per-container"), "1", Int(-I32, I32), "the last of a name is kept"),
    fixed(("", "maximum-dead-containers"), "-1", Int(-I32, I32), "the last of a name is kept"),
    refused(("", "experimental-mounter-path"), Text, "mounts are made by the kernel's calls, or by CSI drivers"),
    fixed(
        ("", "experimental-allocatable-ignore-eviction"),
        "false",
        Bool,
        "thresholds of eviction count for the allocatable memory",
    ),
    refused(("", "runtime-cgroups"), Text, "containerd runs in the group of kedge's service, which its unit chooses"),
    refused(("", "housekeeping-interval"), Text, CADVISOR),
    refused(("", "max-housekeeping-interval"), Text, CADVISOR),
    refused(("", "global-housekeeping-interval"), Text, CADVISOR),
    refused(("", "application-metrics-count-limit"), Text, CADVISOR),
    refused(("", "boot-id-file"), Text, CADVISOR),
    refused(("", "container-hints"), Text, CADVISOR),
    refused(("", "containerd"), Text, RUNTIME),
    refused(("", "containerd-namespace"), Text, CADVISOR),
    refused(("", "enable-load-reader"), Text, CADVISOR),
    refused(("", "event-storage-age-limit"), Text, CADVISOR),
    refused(("", "event-storage-event-limit"), Text, CADVISOR),
    refused(("", "log-cadvisor-usage"), Text, CADVISOR),
    refused(("", "machine-id-file"), Text, CADVISOR),
    refused(("", "storage-driver-buffer-duration"), Text, CADVISOR),
    refused(("", "storage-driver-db"), Text, CADVISOR),
    refused(("", "storage-driver-host"), Text, CADVISOR),
    refused(("", "storage-driver-password"), Text, CADVISOR),
    refused(("", "storage-driver-secure"), Text, CADVISOR),
    refused(("", "storage-driver-table"), Text, CADVISOR),
    refused(("", "storage-driver-user"), Text, CADVISOR),
    fixed(("registerNode", "register-node"), "true", Bool, "a node that is not registered gets no pods"),
    done(("registerWithTaints", "register-with-taints"), "", Taints, |s, v| {
        s.taints = value::taints(v)?;
        Ok(())
    }),
    done(("providerID", "provider-id"), "", Text, |s, v| put(&mut s.provider_id, v)),
    done(("featureGates", "feature-gates"), "", Bools, |s, v| put(&mut s.feature_gates, v)),
    done(("staticPodPath", "pod-manifest-path"), "", Text, |s, v| {
        s.static_pods = Some(value::absolute(v)?);
        Ok(())
    }),
    done(("fileCheckFrequency", "file-check-frequency"), "20s", Duration, |s, v| put(&mut s.file_check, v)),
    refused(
        ("staticPodURL", "manifest-url"),
        Text,
        "pods come from the API and from staticPodPath: fetch the manifest into that folder",
    ),
    refused(("staticPodURLHeader", "manifest-url-header"), Whole, "there is no staticPodURL"),
    any(("httpCheckFrequency", "http-check-frequency"), "20s", Duration, "there is no staticPodURL to ask"),
    any(
        ("syncFrequency", "sync-frequency"),
        "1m",
        Duration,
        "a change is acted on when it happens, which is sooner than any period",
    ),
    done(("nodeStatusUpdateFrequency", "node-status-update-frequency"), "10s", Duration, |s, v| {
        put(&mut s.status_period, v)
    }),
    done(("nodeStatusReportFrequency", ""), "5m", Duration, |s, v| put(&mut s.report_period, v)),
    done(("nodeLeaseDurationSeconds", ""), "40", Int(1, I32), |s, v| put(&mut s.lease_secs, v)),
    done(("nodeStatusMaxImages", "node-status-max-images"), "50", Int(-1, I32), |s, v| {
        put(&mut s.status_images_max, v)
    })
    .keeps_zero(),
    fixed(
        ("volumePluginDir", "volume-plugin-dir"),
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
        Text,
        "there are no FlexVolumes; use a CSI driver",
    ),
    refused(("containerRuntimeEndpoint", "container-runtime-endpoint"), Text, RUNTIME),
    refused(("imageServiceEndpoint", "image-service-endpoint"), Text, RUNTIME),
    refused(("podCIDR", "pod-cidr"), Text, "the node's range of pods comes from the cluster: --cluster-cidr"),
    done(("clusterDomain", "cluster-domain"), "", Text, |s, v| {
        s.cluster_domain = Some(value::domain(v)?);
        Ok(())
    }),
    done(("clusterDNS", "cluster-dns"), "", Texts, |s, v| {
        s.cluster_dns = value::addresses(v)?;
        Ok(())
    }),
    done(("resolvConf", "resolv-conf"), "", Text, |s, v| {
        s.resolv_conf = Some(PathBuf::from(String::take(v)?));
        Ok(())
    })
    .keeps_zero(),
];
