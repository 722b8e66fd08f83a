//! Settings from flags and files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use base::chain::Chain;
use serde_json::Value;

use super::read::Folders;
use super::*;

const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

fn parse(words: &[&str]) -> Settings {
    Settings::parse(words.iter().copied()).unwrap_or_else(|err| panic!("{}", Chain(&err)))
}

fn why(words: &[&str]) -> String {
    Chain(&Settings::parse(words.iter().copied()).unwrap_err()).to_string()
}

/// Writes a file of settings; its head is written, too.
fn write(path: &Path, body: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{HEAD}{body}")).unwrap();
}

/// The outcome of one file as `config=`, with its path left out.
fn file(body: &str) -> Result<Settings, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, body).unwrap();
    let read = Settings::parse([format!("config={}", path.display()).as_str()]);
    read.map_err(|err| Chain(&err).to_string().replace(path.to_str().unwrap(), "FILE"))
}

#[test]
fn every_setting_of_upstream_has_one_row() {
    let names = |list: &'static str| list.split_ascii_whitespace().collect::<BTreeSet<_>>();
    let rows = |name: fn(&row::Row) -> &'static str| {
        let all: Vec<&str> = table::all().map(name).filter(|name| !name.is_empty()).collect();
        let once: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), once.len(), "a name stands twice");
        once
    };
    assert_eq!(rows(|row| row.field), names(names::FIELDS));
    assert_eq!(rows(|row| row.flag), names(names::FLAGS));
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_program() {
    let mut settings = Settings::default();
    for row in table::all() {
        if let Some(value) = row.default() {
            row.apply(&mut settings, &value).unwrap_or_else(|err| panic!("{}{}: {err}", row.field, row.flag));
        } else {
            assert_eq!(row.default, "", "{}{}", row.field, row.flag);
        }
    }
    assert_eq!(format!("{settings:?}"), format!("{:?}", Settings::default()));
}

#[test]
fn a_row_that_refuses_says_why() {
    for row in table::all() {
        let because = match &row.stand {
            row::Stand::Done(_) => continue,
            row::Stand::Fixed { because, .. } | row::Stand::Any { because } | row::Stand::Refused { because } => {
                because
            }
        };
        assert!(because.len() > 10 && !because.ends_with('.'), "{}{}: {because}", row.field, row.flag);
        assert!(!because.contains('|'), "it stands in a table of the documentation");
    }
}

#[test]
fn settings_are_read_as_upstream_spells_them_and_unknown_ones_are_refused() {
    let settings = parse(&[
        "max-pods=50",
        "eviction-hard=memory.available<200Mi,nodefs.available<7%",
        "--container-log-max-size=1Mi",
        "kube-reserved=cpu=100m,memory=64Mi",
        "system_reserved=cpu=100m",
        "eviction-pressure-transition-period=1m30s",
        "seccomp-default",
    ]);
    assert_eq!((settings.max_pods, settings.log_bytes_max, settings.seccomp_default), (50, 1 << 20, true));
    assert_eq!(settings.eviction_hard["memory.available"], Threshold::Amount(200 << 20));
    assert_eq!(settings.eviction_hard["nodefs.available"].of(1000), 70);
    assert_eq!(settings.eviction_hard["imagefs.available"], Threshold::Share(5_000), "merged over the defaults");
    assert_eq!((settings.reserved_of("cpu"), settings.reserved_of("memory")), (200, 64 << 20));
    assert_eq!(settings.pressure_transition, Duration::from_secs(90));
    assert!(!parse(&["enforce-node-allocatable=none", "kernel-memcg-notification=false"]).enforce_allocatable);
    let off = parse(&["eviction-hard=memory.available<0%,pid.available<10%"]).eviction_hard;
    assert!(!off.contains_key("memory.available") && off.contains_key("pid.available"));
}

#[test]
fn settings_that_cannot_be_used_say_why() {
    let both = "image-credential-provider-config and image-credential-provider-bin-dir are given together";
    for (words, text) in [
        (&["max-pods"][..], "\"max-pods\": expected name=value"),
        (&["warp-speed=1"], "warp-speed: this kubelet has no such setting"),
        (&["warp-speed"], "warp-speed: this kubelet has no such setting"),
        (&["--max-pods=many"], "max-pods: \"many\" is not a number"),
        (&["max-pods=-1"], "max-pods: -1 is not between 0 and 2147483647"),
        (&["serialize-image-pulls=maybe"], "serialize-image-pulls: want true or false"),
        (&["container-log-max-files=1"], "container-log-max-files: 1 is not between 2 and 2147483647"),
        (&["root-dir=var/lib"], "root-dir: must be an absolute path"),
        (
            &["tls-min-version=VersionTLS10"],
            "tls-min-version: VersionTLS10 is not spoken: want VersionTLS12 or VersionTLS13",
        ),
        (&["anonymous-auth=true"], "anonymous-auth: false only: nobody is let in without a name"),
        (&["eviction-hard=memory.available<"], "eviction-hard: \"\" is not a quantity"),
        (&["eviction-hard=memory.available"], "eviction-hard: \"memory.available\": expected signal<threshold"),
        (
            &["enforce-node-allocatable=pods,system-reserved"],
            "enforce-node-allocatable: pods or none: \
             kube-reserved and system-reserved have no control group here",
        ),
        (
            &["image-gc-high-threshold=80", "image-gc-low-threshold=80"],
            "image-gc-low-threshold (imageGCLowThresholdPercent) 80 must be less than image-gc-high-threshold \
             (imageGCHighThresholdPercent) 80",
        ),
        (
            &["eviction-soft=memory.available<1Gi"],
            "eviction-soft: grace period must be specified for the soft eviction threshold memory.available: set \
             evictionSoftGracePeriod (eviction-soft-grace-period)",
        ),
        (&["image-credential-provider-config=/x"], both),
        (&["image-credential-provider-bin-dir=/x"], both),
        (
            &["image-credential-provider-config=/no/such", "image-credential-provider-bin-dir=/x"],
            "image-credential-provider-config: /no/such: No such file or directory (os error 2)",
        ),
        (
            &["kubeconfig=/x"],
            "kubeconfig: refused: the node's credentials are those of its join; there is no kubeconfig to choose",
        ),
    ] {
        assert_eq!(why(words), text);
    }
}

#[test]
fn images_are_pulled_one_after_another_where_that_is_wanted() {
    let pulls = |words: &[&str]| parse(words).parallel_pulls();
    assert_eq!(pulls(&["serialize-image-pulls=true"]), 1);
    assert_eq!(pulls(&["serialize-image-pulls=false"]), Settings::default().parallel_pulls());
    let body = |text: &str| file(&format!("{HEAD}{text}"));
    assert_eq!(body("maxParallelImagePulls: 9\n").unwrap().parallel_pulls(), 9);
    assert!(body("maxParallelImagePulls: 9\nserializeImagePulls: true\n").unwrap_err().contains("cannot be larger"));
    assert!(body("maxParallelImagePulls: 0\n").unwrap_err().contains("0 is not between 1"));
}

#[test]
fn a_small_machine_takes_fewer_pods() {
    let pods = |per_core, cpus| Settings { pods_per_core: per_core, ..Settings::default() }.pods_max(cpus);
    assert_eq!((pods(0, 2), pods(10, 2), pods(100, 2)), (110, 20, 110));
    assert_eq!(pods(u32::MAX, i64::MAX), 110, "as many as it likes");
}

#[test]
fn thresholds_are_told_as_they_are_written() {
    for (at, text) in [(Threshold::Amount(7), "7"), (Threshold::Share(5_000), "5%"), (Threshold::Share(500), "0.500%")]
    {
        assert_eq!(at.to_string(), text);
    }
    assert_eq!(Threshold::Share(100_000).of(u64::MAX), u64::MAX);
    assert_eq!(Threshold::Share(1).of(99_999), 0, "rounded down");
}

// The settings of k3s's CIS hardening guide (docs.k3s.io/security/hardening-guide) and of kube-bench's chapter 4.
#[test]
fn the_settings_of_the_cis_guides_are_taken() {
    let settings = parse(&[
        "streaming-connection-idle-timeout=5m",
        "tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
         TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
         TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,\
         TLS_RSA_WITH_AES_256_GCM_SHA384,TLS_RSA_WITH_AES_128_GCM_SHA256",
        "tls-min-version=VersionTLS12",
        "make-iptables-util-chains=true",
        "pod-max-pids=4096",
        "seccomp-default=true",
        "anonymous-auth=false",
        "authorization-mode=Webhook",
        "read-only-port=0",
        "event-qps=0",
        "rotate-certificates=true",
        "rotate-server-certificates=true",
        "feature-gates=RotateKubeletServerCertificate=true",
        "protect-kernel-defaults=true",
    ]);
    assert_eq!((settings.stream_idle, settings.pod_max_pids), (Duration::from_secs(300), Some(4096)));
    assert_eq!((settings.event_qps, settings.seccomp_default), (0, true));
}

// What `kubeadm init` of v1.36 writes into /var/lib/kubelet/config.yaml, without the files of its certificates.
#[test]
fn zeros_of_a_file_say_nothing() {
    let settings = file(&format!(
        "{HEAD}authentication:\n  anonymous: {{enabled: false}}\n  webhook: {{cacheTTL: 0s, enabled: true}}\n\
         authorization:\n  mode: Webhook\n  webhook: {{cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}\n\
         cpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {{}}\nevictionPressureTransitionPeriod: 0s\n\
         fileCheckFrequency: 0s\nhttpCheckFrequency: 0s\nimageMaximumGCAge: 0s\nimageMinimumGCAge: 0s\n\
         logging:\n  flushFrequency: 0\n  options:\n    json: {{infoBufferSize: \"0\"}}\n    text:\n      \
         infoBufferSize: \"0\"\n  verbosity: 0\nmemorySwap: {{}}\nnodeStatusReportFrequency: 0s\n\
         nodeStatusUpdateFrequency: 0s\nrotateCertificates: true\nruntimeRequestTimeout: 0s\n\
         shutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\nstreamingConnectionIdleTimeout: 0s\n\
         syncFrequency: 0s\nvolumeStatsAggPeriod: 0s\nmaxPods: 0\nclusterDNS: [10.43.0.10]\n"
    ))
    .unwrap();
    assert_eq!((settings.max_pods, settings.stream_idle.as_secs()), (110, 4 * 3600));
    assert_eq!(settings.cluster_dns, ["10.43.0.10".parse::<IpAddr>().unwrap()]);
    assert_eq!(parse(&["streaming-connection-idle-timeout=0"]).stream_idle, Duration::ZERO, "a flag's zero counts");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_field() {
    let deep = format!("{HEAD}a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bomb = {
        let level = |n: usize| format!("x{n}: &x{n} [{}]\n", vec![format!("*x{}", n - 1); 10].join(","));
        format!("{HEAD}x0: &x0 [1,1,1,1,1,1,1,1,1,1]\n{}", (1..12).map(level).collect::<String>())
    };
    for (body, said) in [
        ("", "FILE: must be KubeletConfiguration of kubelet.config.k8s.io/v1beta1: set kind and apiVersion"),
        ("maxPods: 5\n", "FILE: must be KubeletConfiguration"),
        ("kind: KubeletConfiguration\napiVersion: v1\n", "FILE: must be KubeletConfiguration"),
        ("- 1\n", "FILE: must be KubeletConfiguration"),
        ("\u{0}", "FILE: is neither YAML nor JSON"),
        (&format!("{HEAD}authentication: {{foo: 1}}\n"), "FILE: unknown field \"authentication.foo\""),
        (&format!("{HEAD}max-pods: 5\n"), "FILE: unknown field \"max-pods\""),
        (&format!("{HEAD}maxPods: 5\nmaxPods: 6\n"), "FILE: is neither YAML nor JSON"),
        (&format!("{HEAD}maxPods: \"5\"\n"), "FILE: maxPods: want a whole number"),
        (&format!("{HEAD}maxPods: 5.5\n"), "FILE: maxPods: want a whole number"),
        (&format!("{HEAD}maxPods: 1000000000000000000000000000000\n"), "FILE: maxPods: want a whole number"),
        (&format!("{HEAD}maxPods: 4294967296\n"), "FILE: maxPods: 4294967296 is not between 0 and 2147483647"),
        (&format!("{HEAD}maxPods: -5\n"), "FILE: maxPods: -5 is not between 0 and 2147483647"),
        (&format!("{HEAD}maxPods: {{}}\n"), "FILE: maxPods: want a whole number"),
        (&format!("{HEAD}authentication: 5\n"), "FILE: unknown field \"authentication\""),
        (&format!("{HEAD}evictionHard: memory.available<5\n"), "FILE: evictionHard: want names with texts"),
        (
            &format!("{HEAD}evictionHard: {{nodefs.available: 110%}}\n"),
            "FILE: evictionHard: \"110%\" is not between 0% and 100%",
        ),
        (&format!("{HEAD}imageMinimumGCAge: -5m\n"), "FILE: imageMinimumGCAge: \"-5m\" must not be negative"),
        (&format!("{HEAD}imageMinimumGCAge: 5\n"), "FILE: imageMinimumGCAge: want a duration such as 5m, as text"),
        (&format!("{HEAD}authorization: {{mode: AlwaysAllow}}\n"), "FILE: authorization.mode: Webhook only: "),
        (&format!("{HEAD}cpuManagerPolicy: static\n"), "FILE: cpuManagerPolicy: none only: "),
        (&format!("{HEAD}tlsCertFile: /x\n"), "FILE: tlsCertFile: refused: "),
        (&format!("{HEAD}shutdownGracePeriod: 30s\n"), "FILE: shutdownGracePeriod: 0s only: "),
        (&format!("{HEAD}reservedMemory: [{{numaNode: 0}}]\n"), "FILE: reservedMemory: refused: "),
        (&deep, "FILE: is neither YAML nor JSON"),
        (&bomb, "FILE: is neither YAML nor JSON"),
        (&format!("{HEAD}# {}", "x".repeat(1 << 20)), "FILE: is larger than 1 MiB"),
    ] {
        let text = file(body).map(drop).unwrap_err();
        assert!(text.starts_with(said), "{}: {text}", body.chars().take(120).collect::<String>());
        assert!(text.len() < 2000, "{text}");
    }
}

#[test]
fn what_is_no_file_or_lies_where_containers_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let folders = Folders { drop_ins: Some(at("conf.d")), of_pods: vec![at("pods"), at("not there")] };
    let read = || Settings::read([], &folders).map(drop).map_err(|err| Chain(&err).to_string());
    assert_eq!(read(), Ok(()), "no folder is no file");
    let drop_in = at("conf.d/x.conf");
    write(&at("pods/u/volumes/x.conf"), "");
    fs::create_dir(at("conf.d")).unwrap();
    symlink(at("pods/u/volumes/x.conf"), &drop_in).unwrap();
    assert!(read().unwrap_err().ends_with("pods, which containers write"));
    fs::remove_file(&drop_in).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &drop_in, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(read().unwrap_err(), format!("--: {}: is no regular file", drop_in.display())[4..].to_owned());
    fs::remove_file(&drop_in).unwrap();
    fs::create_dir(&drop_in).unwrap();
    write(&at("conf.d/x.conf/y.conf"), "maxPods: 7\n");
    assert_eq!(Settings::read([], &folders).unwrap().max_pods, 7, "a folder may have any name");
    fs::File::create(at("conf.d/big.conf")).unwrap().set_len(1 << 30).unwrap();
    assert!(read().unwrap_err().ends_with("is larger than 1 MiB, which no configuration is"));
    fs::remove_file(at("conf.d/big.conf")).unwrap();
    symlink(at("nowhere"), at("conf.d/z.conf")).unwrap();
    assert!(read().unwrap_err().contains("z.conf: cannot be read: No such file"));
}

#[test]
fn flags_stand_over_files_and_later_files_over_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let folders = Folders { drop_ins: Some(at("own")), of_pods: Vec::new() };
    write(&at("own/05-low.conf"), "maxPods: 5\npodsPerCore: 5\nclusterDomain: low.example\n");
    write(&at("own/15-mid.conf"), "podsPerCore: 15\nkubeReserved: {cpu: 1m, memory: 1Ki}\n");
    write(&at("own/99-last/a.conf"), "kubeReserved: {cpu: null}\nclusterDomain: null\n");
    write(&at("own/50.yaml"), "nonsense: true\n");
    write(&at("main"), "maxPods: 10\nfeatureGates: {NodeSwap: true, WatchList: true}\n");
    write(&at("dir/1.conf"), "imageGCHighThresholdPercent: 90\n");
    write(&at("dir/2.conf"), "imageGCHighThresholdPercent: 91\n");
    let words = |more: &[&str]| {
        let config = [format!("config={}", at("main").display()), format!("config-dir={}", at("dir").display())];
        let words: Vec<String> = config.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect();
        Settings::read(words.iter().map(String::as_str), &folders).unwrap()
    };
    let s = words(&[]);
    assert_eq!((s.max_pods, s.pods_per_core, s.image_gc_high_percent), (10, 15, 91));
    assert_eq!((s.reserved_of("cpu"), s.reserved_of("memory"), s.cluster_domain), (0, 1024, None));
    let s = words(&["max-pods=20", "feature-gates=NodeSwap=false", "kube-reserved=pid=7", "kube-reserved=cpu=1"]);
    assert_eq!((s.max_pods, s.feature_gates["NodeSwap"], s.feature_gates["WatchList"]), (20, false, true));
    assert_eq!((s.reserved_of("pid"), s.reserved_of("cpu"), s.reserved_of("memory")), (7, 1000, 0), "a flag replaces");
    let missing = Settings::read(["config-dir=/no/such"], &folders).unwrap_err();
    assert_eq!(Chain(&missing).to_string(), "/no/such: cannot be read: No such file or directory (os error 2)");
}

#[test]
fn what_is_in_force_is_shown_and_means_the_same_when_it_is_given_back() {
    let words = [
        "max-pods=50",
        "eviction-hard=memory.available<200Mi,pid.available<5%,nodefs.inodesFree<0%",
        "eviction-soft=memory.available<1Gi",
        "eviction-soft-grace-period=memory.available=90s",
        "register-with-taints=gpu=yes:NoSchedule",
        "kube-reserved=cpu=100m",
        "fail-swap-on=true",
        "hairpin-mode=promiscuous-bridge",
        "event-qps=0",
    ];
    for settings in [parse(&[]), parse(&words)] {
        let shown = settings.in_force();
        assert_eq!(shown["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(shown["hairpinMode"], "hairpin-veth", "as it is");
        let mut whole = shown.clone();
        whole.insert("kind".to_owned(), "KubeletConfiguration".into());
        whole.insert("apiVersion".to_owned(), "kubelet.config.k8s.io/v1beta1".into());
        let again = file(&Value::Object(whole).to_string()).unwrap();
        assert_eq!(Value::Object(again.in_force()), Value::Object(shown));
        assert_eq!(
            (again.max_pods, again.event_qps, &again.eviction_hard),
            (settings.max_pods, settings.event_qps, &settings.eviction_hard)
        );
    }
}
