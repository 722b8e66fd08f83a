//! Demands of the CIS benchmark: the configuration of k3s's hardening guide as it stands there, and the same by one
//! flag.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::harness::{Place, SETTLE_LIMIT, Server, run_with};

/// docs.k3s.io, CIS hardening guide: config.yaml of a server. The kubelet's part is tested with the kubelet.
const GUIDE: &str = "\
protect-kernel-defaults: true
secrets-encryption: true
kube-apiserver-arg:
  - \"enable-admission-plugins=NodeRestriction,EventRateLimit\"
  - 'admission-control-config-file=DIR/psa.yaml'
  - 'audit-log-path=DIR/logs/audit.log'
  - 'audit-policy-file=DIR/audit.yaml'
  - 'audit-log-maxage=30'
  - 'audit-log-maxbackup=10'
  - 'audit-log-maxsize=100'
  - 'service-account-extend-token-expiration=false'
kube-controller-manager-arg:
  - 'terminated-pod-gc-threshold=10'
  - 'bind-address=127.0.0.1'
  - 'use-service-account-credentials=true'
kube-scheduler-arg:
  - 'profiling=false'
  - 'bind-address=127.0.0.1'
";

/// The guide's file for admission.
const ADMISSION: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1beta1
    kind: PodSecurityConfiguration
    defaults:
      enforce: \"restricted\"
      enforce-version: \"latest\"
      audit: \"restricted\"
      audit-version: \"latest\"
      warn: \"restricted\"
      warn-version: \"latest\"
    exemptions:
      usernames: []
      runtimeClasses: []
      namespaces: [kube-system, cis-operator-system]
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - type: Server
      qps: 5000
      burst: 20000
";

const PRIVILEGED: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},
    "spec":{"containers":[{"name":"c","image":"x","securityContext":{"privileged":true}}]}}"#;

/// Whether the API answers somebody without credentials.
fn answers_anybody(server: &Server) -> bool {
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let args = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, "get", "--raw", "/version"];
    server.said(&args).code == 0
}

#[test]
fn the_configuration_of_the_hardening_guide_for_k3s_starts_and_acts() {
    let mut place = Place::new(&["--disable=coredns"]);
    let dir = place.dir.path().display().to_string();
    fs::create_dir(place.path("logs")).unwrap();
    for (name, text) in [
        ("config.yaml", GUIDE.replace("DIR", &dir).as_str()),
        ("psa.yaml", ADMISSION),
        ("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"),
    ] {
        fs::write(place.path(name), text).unwrap();
    }
    place.flags.push(format!("--config={dir}/config.yaml"));
    let server = Server::start_in(place);
    assert!(server.refused_with(&["create", "-f", "-"], PRIVILEGED).contains("violates PodSecurity \"restricted"));
    assert!(fs::read_to_string(server.place.path("logs/audit.log")).unwrap().contains("\"level\":\"Metadata\""));
    server.stop();
}

#[test]
fn one_flag_turns_on_what_the_benchmark_asks_and_nothing_stays_when_it_goes() {
    let server = Server::start_in(Place::new(&["--profile=cis", "--disable=coredns"]));
    assert!(!answers_anybody(&server), "1.2.1");
    assert!(
        server.refused_with(&["create", "-f", "-"], PRIVILEGED).contains("violates PodSecurity \"restricted"),
        "5.2"
    );
    let folder = server.place.data_dir().join("server");
    let log = fs::read_to_string(folder.join("logs/audit.log")).unwrap();
    assert!(log.contains("\"level\":\"Metadata\"") && !log.contains("RequestReceived"), "3.2.1");
    for namespace in ["default", "kube-public", "kube-system"] {
        server.until(&["get", "networkpolicies", "-n", namespace, "-o", "name"], SETTLE_LIMIT, |out| {
            out.contains("networkpolicy.networking.k8s.io/intra-namespace")
        });
    }
    let mut open = Vec::new();
    wide_open(&server.place.data_dir(), &mut open);
    assert_eq!(open, Vec::<String>::new(), "1.1: nobody but the owner reads or writes below server");

    let mut place = server.stop();
    place.flags.retain(|flag| flag != "--profile=cis");
    let server = Server::start_in(place);
    server.until(&["get", "networkpolicies", "-A", "-o", "name"], SETTLE_LIMIT, str::is_empty);
    server.stop();
}

/// Files and folders of keys, the store and the profile that others than the owner reach.
fn wide_open(data: &Path, open: &mut Vec<String>) {
    let mut folders = vec![data.join("server")];
    // Whoever cannot pass a folder reaches nothing in it.
    while let Some(folder) = folders.pop() {
        let meta = fs::symlink_metadata(&folder).unwrap();
        if meta.is_dir() && meta.permissions().mode() & 0o077 == 0 {
            assert_eq!(meta.uid(), nix_uid(), "{}", folder.display());
            continue;
        }
        if meta.is_dir() {
            folders.extend(fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()));
        } else if !meta.is_symlink() && meta.permissions().mode() & 0o077 != 0 {
            open.push(folder.display().to_string());
        }
    }
}

fn nix_uid() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

#[test]
fn a_word_that_names_no_component_and_a_flag_of_upstream_that_is_none_stop_the_start() {
    for (flag, part) in [
        ("--disable=treafik", "there is no component treafik"),
        ("--disable=helm-controller", "use --disable-helm-controller"),
        ("--kube-controller-manager-arg=controllers=*,-jobs", "\"jobs\" is not in the list of known controllers"),
        ("--kube-controller-manager-arg=node-cidr-mask-size=8", "/8 does not fit --cluster-cidr 10.42.0.0/16"),
        ("--kube-scheduler-arg=config=/x", "there are no profiles of the scheduler yet"),
        ("--kube-proxy-arg=proxy-mode=ipvs", "only nftables is taken"),
        ("--profile=pci", "--profile"),
        ("--config=https://example.com/config.yaml", "settings are not read from a URL"),
    ] {
        let said = Place::new(&[flag]).refused();
        assert!(said.err.contains(part), "{flag}: {said:?}");
    }
}

#[test]
fn controllers_that_are_switched_off_do_nothing_and_the_others_work() {
    let mut server = Server::start_in(Place::new(&[
        "--disable=traefik,coredns",
        "--kube-controller-manager-arg=controllers=*,-job-controller,-ttl",
        "--kube-controller-manager-arg=node-cidr-mask-size=26",
        "--kube-controller-manager-arg=kube-api-qps=100",
        "--kube-proxy-arg=proxy-mode=nftables",
    ]));
    server.announce("has nothing to tune");
    server.ok(&["create", "job", "waits", "--image=x"]);
    server.ok(&["create", "deployment", "works", "--image=x"]);
    server.until(&["get", "pods", "-l", "app=works", "-o", "name"], SETTLE_LIMIT, |out| !out.is_empty());
    assert_eq!(server.ok(&["get", "pods", "-l", "job-name=waits", "-o", "name"]), "");
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"one"}}"#;
    server.ok_with(&["create", "-f", "-"], node);
    server.until(&["get", "node", "one", "-o", "jsonpath={.spec.podCIDR}"], SETTLE_LIMIT, |out| out == "10.42.0.0/26");
    server.stop();
}

#[test]
fn settings_in_force_are_shown_without_a_server_and_without_secrets() {
    let place = Place::new(&[]);
    fs::write(place.path("config.yaml"), "token: hunter2\ntls-san: [a]\nprofile: cis\n").unwrap();
    let mut view = Command::new(env!("CARGO_BIN_EXE_kedge"));
    view.args(["config", "view", "-o", "json", "--config"]).arg(place.path("config.yaml"));
    let said = run_with(&mut view, "");
    assert!(said.code == 0 && !said.out.contains("hunter2"), "{said:?}");
    assert!(said.out.contains("config.yaml:2") && said.out.contains("\"profile\""), "{said:?}");
}
