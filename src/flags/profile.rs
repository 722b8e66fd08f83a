//! `--profile=cis`: the flags that the CIS benchmark asks of a k3s, behind one word. What a person says explicitly goes
//! before it.

use std::path::Path;

use clap::ValueEnum;

use crate::flags::roles::{AgentArgs, CommonArgs, NodeArgs, ServerArgs};

/// A set of settings that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Demands of the CIS Kubernetes benchmark.
    Cis,
}

/// Suites that the benchmark lets through (1.2.29 and 4.2.12).
const SUITES: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
                      TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
                      TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";

/// A flag that a profile gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// Without dashes.
    pub(crate) flag: &'static str,
    pub(crate) value: String,
}

fn added(flag: &'static str, value: impl Into<String>) -> Added {
    Added { flag, value: value.into() }
}

/// The name of the packaged manifest that belongs to the profile.
pub(crate) const MANIFEST: &str = "profile-cis";

/// Whether a person names this flag of one of upstream's programs.
fn names(args: &[String], flag: &str) -> bool {
    args.iter().any(|arg| base::flags::Given::of(arg).name == flag)
}

/// Flags that the profile gives a server.
pub(crate) fn of_server(args: &ServerArgs) -> Vec<Added> {
    if args.common.profile.is_none() {
        return Vec::new();
    }
    let server = args.common.state.layout.server();
    let folder = server.profile();
    let file = |name: &str| folder.join(name).display().to_string();
    let api = |text: String| added("kube-apiserver-arg", text);
    let mut all = of_node(&args.common, &args.node);
    if !args.common.switched_off.contains("secrets-encryption") {
        all.push(added("secrets-encryption", "true"));
    }
    // A file of the person's own says what is configured: EventRateLimit may not be.
    let own = names(&args.kube_apiserver_arg, "admission-control-config-file");
    let plugins = if own { "NodeRestriction" } else { "NodeRestriction,EventRateLimit" };
    all.extend([
        api("anonymous-auth=false".to_owned()),
        api(format!("enable-admission-plugins={plugins}")),
        api(format!("audit-policy-file={}", file(AUDIT_FILE))),
        api(format!("audit-log-path={}", server.logs().join("audit.log").display())),
        api("audit-log-maxage=30".to_owned()),
        api("audit-log-maxbackup=10".to_owned()),
        api("audit-log-maxsize=100".to_owned()),
        api("service-account-extend-token-expiration=false".to_owned()),
        api("tls-min-version=VersionTLS12".to_owned()),
        api(format!("tls-cipher-suites={SUITES}")),
        added("kube-controller-manager-arg", "terminated-pod-gc-threshold=10"),
    ]);
    if !own {
        all.push(api(format!("admission-control-config-file={}", file(ADMISSION_FILE))));
    }
    all
}

/// Flags that the profile gives an agent.
pub(crate) fn of_agent(args: &AgentArgs) -> Vec<Added> {
    of_node(&args.common, &args.node)
}

fn of_node(common: &CommonArgs, node: &NodeArgs) -> Vec<Added> {
    if common.profile.is_none() {
        return Vec::new();
    }
    let mut all = Vec::new();
    if !common.switched_off.contains("protect-kernel-defaults") && !node.protect_kernel_defaults {
        all.push(added("protect-kernel-defaults", "true"));
    }
    let kubelet = ["streaming-connection-idle-timeout=5m".to_owned(), format!("tls-cipher-suites={SUITES}")];
    // A kubelet that has no such setting has nothing that it could bound.
    let known = |arg: &String| kubelet::settings::Settings::parse([arg.as_str()]).is_ok();
    all.extend(kubelet.into_iter().filter(known).map(|arg| added("kubelet-arg", arg)));
    all
}

/// Puts the profile's flags before the person's: of two values of one name the later counts.
pub(crate) fn expand_server(args: &mut ServerArgs) {
    let all = of_server(args);
    args.secrets_encryption |= all.iter().any(|added| added.flag == "secrets-encryption");
    put_first(&all, "kube-apiserver-arg", &mut args.kube_apiserver_arg);
    put_first(&all, "kube-controller-manager-arg", &mut args.kube_controller_manager_arg);
    expand_node(&all, &mut args.node);
}

/// The same for an agent.
pub(crate) fn expand_agent(args: &mut AgentArgs) {
    let all = of_agent(args);
    expand_node(&all, &mut args.node);
}

fn expand_node(all: &[Added], node: &mut NodeArgs) {
    node.protect_kernel_defaults |= all.iter().any(|added| added.flag == "protect-kernel-defaults");
    put_first(all, "kubelet-arg", &mut node.kubelet_arg);
}

fn put_first(all: &[Added], flag: &str, own: &mut Vec<String>) {
    let values = all.iter().filter(|added| added.flag == flag).map(|added| added.value.clone());
    own.splice(0..0, values.collect::<Vec<_>>());
}

const ADMISSION_FILE: &str = "admission.yaml";
const AUDIT_FILE: &str = "audit.yaml";

/// Pods run as Pod Security's `restricted` has it, outside of the system's namespace (5.2), and events come in bounds
/// (1.2.9).
const ADMISSION: &str = "\
# Written by kedge server --profile=cis at each start. For other settings give a file of your own:
# kube-apiserver-arg: admission-control-config-file=FILE
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: PodSecurity
    configuration:
      apiVersion: pod-security.admission.config.k8s.io/v1
      kind: PodSecurityConfiguration
      defaults:
        enforce: restricted
        enforce-version: latest
        audit: restricted
        audit-version: latest
        warn: restricted
        warn-version: latest
      exemptions:
        usernames: []
        runtimeClasses: []
        namespaces: [kube-system]
  - name: EventRateLimit
    configuration:
      apiVersion: eventratelimit.admission.k8s.io/v1alpha1
      kind: Configuration
      limits:
        - type: Server
          qps: 5000
          burst: 20000
";

/// The log tells of every request, without its body: no Secret gets into the log (3.2.1).
const AUDIT: &str = "\
# Written by kedge server --profile=cis at each start. For another policy give a file of your own:
# kube-apiserver-arg: audit-policy-file=FILE
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
";

/// The profile's files, by their names in its folder.
pub(crate) const FILES: [(&str, &str); 2] = [(ADMISSION_FILE, ADMISSION), (AUDIT_FILE, AUDIT)];

/// Writes the files that the profile's flags name, for their owner alone.
pub(crate) fn write_files(folder: &Path, logs: &Path) -> Result<(), base::files::FileError> {
    base::files::create_private_dir(folder)?;
    base::files::create_private_dir(logs)?;
    for (name, text) in FILES {
        base::files::write_atomic(&folder.join(name), text.as_bytes(), 0o600)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use apiserver::arguments::Arguments;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Server {
        #[command(flatten)]
        args: ServerArgs,
    }

    fn server(flags: &[&str]) -> ServerArgs {
        let mut args = Server::try_parse_from(["kedge"].iter().chain(flags)).unwrap().args;
        expand_server(&mut args);
        args
    }

    #[test]
    fn the_profiles_files_and_flags_are_taken_by_the_api_server() {
        let dir = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", dir.path().display());
        let args = server(&["--profile=cis", &data]);
        let folder = args.common.state.layout.server();
        write_files(&folder.profile(), &folder.logs()).unwrap();
        let api = Arguments::parse(&args.kube_apiserver_arg).unwrap();
        assert_eq!((api.anonymous_auth, api.audit.max_age_days, api.audit.max_backups), (Some(false), 30, 10));
        assert_eq!((api.audit.max_size_mb, api.accounts.as_short_as_asked), (100, true));
        assert_eq!(api.admission.event_limits.len(), 1);
        assert!(args.node.protect_kernel_defaults && args.secrets_encryption);
        let controllers = controllers::settings::Settings::parse(&args.kube_controller_manager_arg).unwrap();
        assert_eq!(controllers.ended_pods_max, 10);
    }

    #[test]
    fn an_explicit_flag_goes_before_the_profile() {
        let own = server(&[
            "--profile=cis",
            "--kube-apiserver-arg=anonymous-auth=true",
            "--kube-apiserver-arg=audit-log-maxage=3",
            "--kube-apiserver-arg=disable-admission-plugins=EventRateLimit",
            "--kube-controller-manager-arg=terminated-pod-gc-threshold=99",
        ]);
        let last = |name: &str| own.kube_apiserver_arg.iter().rev().find(|arg| arg.starts_with(name)).unwrap().clone();
        assert_eq!(
            (last("anonymous-auth").as_str(), last("audit-log-maxage").as_str()),
            ("anonymous-auth=true", "audit-log-maxage=3")
        );
        let controllers = controllers::settings::Settings::parse(&own.kube_controller_manager_arg).unwrap();
        assert_eq!(controllers.ended_pods_max, 99);
        let file = server(&["--profile=cis", "--kube-apiserver-arg=admission-control-config-file=/own"]);
        let of_file: Vec<_> =
            file.kube_apiserver_arg.iter().filter(|arg| arg.starts_with("admission-control")).collect();
        assert_eq!(of_file, ["admission-control-config-file=/own"]);
        assert!(!file.kube_apiserver_arg.iter().any(|arg| arg.contains("EventRateLimit")), "it may not be configured");
    }

    #[test]
    fn a_switch_that_a_file_turns_off_stays_off() {
        let mut args = Server::try_parse_from(["kedge", "--profile=cis"]).unwrap().args;
        args.common.switched_off = ["protect-kernel-defaults", "secrets-encryption"].map(str::to_owned).into();
        expand_server(&mut args);
        assert!(!args.node.protect_kernel_defaults && !args.secrets_encryption);
        assert!(server(&[]).kube_apiserver_arg.is_empty(), "no profile, no flags");
        assert!(Server::try_parse_from(["kedge", "--profile=pci"]).is_err());
    }
}
