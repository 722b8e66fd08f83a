//! The controls of the Pod Security Standards, one function a control, with upstream's words for what is wrong.

mod restricted;

use model::sysctls;
use serde_json::Value;

use super::policy::{Asked, Version};

/// How strict a namespace is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Everything goes.
    #[default]
    Privileged,
    /// No known way to the host.
    Baseline,
    /// Hardened.
    Restricted,
}

impl Level {
    /// As labels spell it.
    pub(super) fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }

    /// As labels spell it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

type Check = fn(&Pod<'_>) -> Option<String>;

/// One control of the standards.
struct Control {
    /// As refusals print it.
    name: &'static str,
    /// The minor version from which on it asks for this; before the first it asks for nothing. Oldest first.
    since: &'static [(u64, Check)],
}

/// The baseline's controls, in the order in which refusals list them (pod-security-admission `policy/check_*.go`,
/// 1.36.2).
const BASELINE: &[Control] = &[
    Control { name: "forbidden AppArmor profile", since: &[(0, app_armor)] },
    Control { name: "non-default capabilities", since: &[(0, added_capabilities)] },
    Control { name: "host namespaces", since: &[(0, host_namespaces)] },
    Control { name: "hostPath volumes", since: &[(0, host_path)] },
    Control { name: "hostPort", since: &[(0, host_ports)] },
    Control { name: "probe or lifecycle host", since: &[(34, probe_hosts)] },
    Control { name: "privileged", since: &[(0, privileged)] },
    Control {
        name: "procMount",
        since: &[(0, proc_mount), (35, |pod| unless(pod.has_user_namespace(), pod, proc_mount))],
    },
    Control {
        name: "seLinuxOptions",
        since: &[(0, |pod| selinux(pod, &SELINUX_TYPES[..4])), (31, |pod| selinux(pod, &SELINUX_TYPES))],
    },
    Control { name: "seccompProfile", since: &[(0, seccomp_annotations), (19, seccomp_unconfined)] },
    Control {
        name: "forbidden sysctls",
        since: &[
            (0, |pod| sysctls(pod, &sysctls::SAFE[..5])),
            (27, |pod| sysctls(pod, &sysctls::SAFE[..6])),
            (29, |pod| sysctls(pod, &sysctls::SAFE[..10])),
            (32, |pod| sysctls(pod, &sysctls::SAFE)),
        ],
    },
    Control { name: "hostProcess", since: &[(0, host_process)] },
];

/// Controls of the restricted level beside the baseline.
const RESTRICTED: &[Control] = &[
    Control {
        name: "allowPrivilegeEscalation != false",
        since: &[
            (8, restricted::privilege_escalation),
            (25, |pod| unless(pod.is_windows(), pod, restricted::privilege_escalation)),
        ],
    },
    Control {
        name: "unrestricted capabilities",
        since: &[(22, restricted::capabilities), (25, |pod| unless(pod.is_windows(), pod, restricted::capabilities))],
    },
    Control { name: "procMount", since: &[(35, proc_mount)] },
    Control { name: "restricted volume types", since: &[(0, restricted::volume_types)] },
    Control {
        name: "runAsNonRoot != true",
        since: &[
            (0, restricted::run_as_non_root),
            (35, |pod| unless(pod.has_user_namespace(), pod, restricted::run_as_non_root)),
        ],
    },
    Control {
        name: "runAsUser=0",
        since: &[
            (23, restricted::run_as_user),
            (35, |pod| unless(pod.has_user_namespace(), pod, restricted::run_as_user)),
        ],
    },
    Control {
        name: "seccompProfile",
        since: &[
            (19, restricted::seccomp_required),
            (25, |pod| unless(pod.is_windows(), pod, restricted::seccomp_required)),
        ],
    },
];

/// A control of the baseline, and the stricter one that stands in its place at the restricted level as soon as there is
/// one.
const REPLACED: &[(&str, &str)] = &[
    ("non-default capabilities", "unrestricted capabilities"),
    ("hostPath volumes", "restricted volume types"),
    ("seccompProfile", "seccompProfile"),
    ("procMount", "procMount"),
];

impl Control {
    fn at(&self, version: Version) -> Option<Check> {
        self.since.iter().rev().find(|(minor, _)| Version::Minor(*minor) <= version).map(|(_, check)| *check)
    }
}

/// The controls that a pod breaks, of those that are asked: their names, each with what is wrong.
pub(super) fn violations(asked: Asked, metadata: &Value, spec: &Value) -> Vec<(&'static str, String)> {
    let pod = Pod { metadata, spec };
    let in_force =
        |name: &str| RESTRICTED.iter().any(|control| control.name == name && control.at(asked.version).is_some());
    let replaced = |name: &str| REPLACED.iter().any(|(weaker, stricter)| *weaker == name && in_force(stricter));
    let controls: Vec<&Control> = match asked.level {
        Level::Privileged => Vec::new(),
        Level::Baseline => BASELINE.iter().collect(),
        Level::Restricted => BASELINE.iter().filter(|control| !replaced(control.name)).chain(RESTRICTED).collect(),
    };
    let found =
        |control: &Control| control.at(asked.version).and_then(|check| check(&pod)).map(|why| (control.name, why));
    controls.into_iter().filter_map(found).collect()
}

/// `privileged (container "c" must not set …), hostPort (…)`
pub(super) fn details(violations: &[(&str, String)]) -> String {
    violations.iter().map(|(name, why)| format!("{name} ({why})")).collect::<Vec<_>>().join(", ")
}

/// `privileged, hostPort`
pub(super) fn reasons(violations: &[(&str, String)]) -> String {
    violations.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The control, but for pods that it does not concern.
fn unless(exempt: bool, pod: &Pod<'_>, check: Check) -> Option<String> {
    if exempt { None } else { check(pod) }
}

struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| spec[list].as_array().into_iter().flatten())
    }

    fn volumes(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.spec["volumes"].as_array().into_iter().flatten()
    }

    fn security(&self) -> &'a Value {
        &self.spec["securityContext"]
    }

    /// Names of the containers of which `wrong` holds.
    fn named(&self, wrong: impl Fn(&'a Value) -> bool) -> Vec<String> {
        self.containers().filter(|container| wrong(container)).map(name).collect()
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    fn has_user_namespace(&self) -> bool {
        self.spec["hostUsers"] == false
    }
}

fn name(container: &Value) -> String {
    container["name"].as_str().unwrap_or_default().to_owned()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
fn counted(word: &str, names: &[String]) -> String {
    format!("{word}{} {}", if names.len() == 1 { "" } else { "s" }, quoted(names))
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn unique(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}

fn app_armor(pod: &Pod<'_>) -> Option<String> {
    let bad = |profile: &Value| profile["type"] == "Unconfined";
    let mut setters: Vec<String> = Vec::new();
    if bad(&pod.security()["appArmorProfile"]) {
        setters.push("pod must not set AppArmor profile type to \"Unconfined\"".to_owned());
    }
    let containers = pod.named(|container| bad(&container["securityContext"]["appArmorProfile"]));
    if !containers.is_empty() {
        setters.push(format!(
            "{} must not set AppArmor profile type to \"Unconfined\"",
            counted("container", &containers)
        ));
    }
    for (key, value) in pod.metadata["annotations"].as_object().into_iter().flatten() {
        let profile = value.as_str().unwrap_or_default();
        let allowed = profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/");
        if key.starts_with("container.apparmor.security.beta.kubernetes.io/") && !allowed {
            setters.push(format!("annotation {key:?} must not be set to {profile:?}"));
        }
    }
    (!setters.is_empty()).then(|| setters.join("; "))
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added_capabilities(pod: &Pod<'_>) -> Option<String> {
    added_beyond(pod, &DEFAULT_CAPABILITIES)
}

fn added_beyond(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let bad = |container: &Value| -> Vec<String> {
        strings(&container["securityContext"]["capabilities"]["add"])
            .filter(|cap| !allowed.contains(cap))
            .map(str::to_owned)
            .collect()
    };
    let containers = pod.named(|container| !bad(container).is_empty());
    let capabilities = unique(pod.containers().flat_map(bad).collect());
    let must = "must not include";
    (!containers.is_empty()).then(|| {
        format!(
            "{} {must} {} in securityContext.capabilities.add",
            counted("container", &containers),
            quoted(&capabilities)
        )
    })
}

fn host_namespaces(pod: &Pod<'_>) -> Option<String> {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.spec[**field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    (!set.is_empty()).then(|| set.join(", "))
}

fn host_path(pod: &Pod<'_>) -> Option<String> {
    let names: Vec<String> = pod.volumes().filter(|volume| volume["hostPath"].is_object()).map(name).collect();
    (!names.is_empty()).then(|| counted("volume", &names))
}

fn host_ports(pod: &Pod<'_>) -> Option<String> {
    let ports = |container: &Value| -> Vec<i64> {
        let ports = container["ports"].as_array().into_iter().flatten();
        ports.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0).collect()
    };
    let containers = pod.named(|container| !ports(container).is_empty());
    let mut used: Vec<i64> = pod.containers().flat_map(ports).collect();
    used.sort_unstable();
    used.dedup();
    let list = used.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let (verb, plural) = (if containers.len() == 1 { "uses" } else { "use" }, if used.len() == 1 { "" } else { "s" });
    (!containers.is_empty()).then(|| format!("{} {verb} hostPort{plural} {list}", counted("container", &containers)))
}

fn probe_hosts(pod: &Pod<'_>) -> Option<String> {
    let handlers = |container: &Value| -> Vec<String> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|field| container[field].clone());
        let hooks = ["postStart", "preStop"].map(|field| container["lifecycle"][field].clone());
        let hosts = probes
            .into_iter()
            .chain(hooks)
            .flat_map(|handler| ["httpGet", "tcpSocket"].map(|kind| handler[kind]["host"].clone()));
        hosts.filter_map(|host| host.as_str().filter(|host| !host.is_empty()).map(str::to_owned)).collect()
    };
    let containers = pod.named(|container| !handlers(container).is_empty());
    let hosts = unique(pod.containers().flat_map(handlers).collect());
    let verb = if containers.len() == 1 { "uses" } else { "use" };
    (!containers.is_empty()).then(|| {
        format!(
            "{} {verb} probe or lifecycle host{} {}",
            counted("container", &containers),
            if hosts.len() == 1 { "" } else { "s" },
            quoted(&hosts)
        )
    })
}

fn privileged(pod: &Pod<'_>) -> Option<String> {
    let containers = pod.named(|container| container["securityContext"]["privileged"] == true);
    (!containers.is_empty())
        .then(|| format!("{} must not set securityContext.privileged=true", counted("container", &containers)))
}

fn proc_mount(pod: &Pod<'_>) -> Option<String> {
    let mount = |container: &Value| {
        container["securityContext"]["procMount"].as_str().filter(|mount| *mount != "Default").map(str::to_owned)
    };
    let containers = pod.named(|container| mount(container).is_some());
    let mounts = unique(pod.containers().filter_map(mount).collect());
    (!containers.is_empty()).then(|| {
        format!("{} must not set securityContext.procMount to {}", counted("container", &containers), quoted(&mounts))
    })
}

/// The last one is allowed since 1.31.
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

fn selinux(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let text = |options: &Value, field: &str| options[field].as_str().unwrap_or_default().to_owned();
    let bad = |options: &Value| {
        !allowed.contains(&text(options, "type").as_str())
            || !text(options, "user").is_empty()
            || !text(options, "role").is_empty()
    };
    let own = bad(&pod.security()["seLinuxOptions"]);
    let containers = pod.named(|container| bad(&container["securityContext"]["seLinuxOptions"]));
    if !own && containers.is_empty() {
        return None;
    }
    let who = match (own, containers.is_empty()) {
        (true, true) => "pod".to_owned(),
        (true, false) => format!("pod and {}", counted("container", &containers)),
        _ => counted("container", &containers),
    };
    let all: Vec<&Value> = std::iter::once(&pod.security()["seLinuxOptions"])
        .chain(pod.containers().map(|c| &c["securityContext"]["seLinuxOptions"]))
        .collect();
    let types = unique(
        all.iter().map(|options| text(options, "type")).filter(|kind| !allowed.contains(&kind.as_str())).collect(),
    );
    let mut why: Vec<String> = Vec::new();
    if !types.is_empty() {
        why.push(format!("type{} {}", if types.len() == 1 { "" } else { "s" }, quoted(&types)));
    }
    for field in ["user", "role"] {
        if all.iter().any(|options| !text(options, field).is_empty()) {
            why.push(format!("{field} may not be set"));
        }
    }
    Some(format!("{who} set forbidden securityContext.seLinuxOptions: {}", why.join("; ")))
}

fn seccomp_unconfined(pod: &Pod<'_>) -> Option<String> {
    let bad = |context: &Value| context["seccompProfile"]["type"] == "Unconfined";
    let containers = pod.named(|container| bad(&container["securityContext"]));
    let mut setters: Vec<String> = Vec::new();
    if bad(pod.security()) {
        setters.push("pod".to_owned());
    }
    if !containers.is_empty() {
        setters.push(counted("container", &containers));
    }
    (!setters.is_empty()).then(|| {
        format!("{} must not set securityContext.seccompProfile.type to \"Unconfined\"", setters.join(" and "))
    })
}

/// Seccomp before it had a field: annotations.
fn seccomp_annotations(pod: &Pod<'_>) -> Option<String> {
    let keys =
        pod.containers().map(|container| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(container)));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(keys);
    let bad = |key: String| {
        let profile = pod.metadata["annotations"][&key].as_str()?;
        let allowed = matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/");
        (!allowed).then(|| format!("{key}={profile:?}"))
    };
    let bad = unique(keys.filter_map(bad).collect());
    (!bad.is_empty())
        .then(|| format!("forbidden annotation{} {}", if bad.len() == 1 { "" } else { "s" }, bad.join(", ")))
}

fn sysctls(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let set = pod.security()["sysctls"].as_array().into_iter().flatten().map(name);
    let bad: Vec<String> = set.filter(|name| !allowed.contains(&name.as_str())).collect();
    (!bad.is_empty()).then(|| bad.join(", "))
}

fn host_process(pod: &Pod<'_>) -> Option<String> {
    let bad = |context: &Value| context["windowsOptions"]["hostProcess"] == true;
    let containers = pod.named(|container| bad(&container["securityContext"]));
    let mut setters: Vec<String> = Vec::new();
    if bad(pod.security()) {
        setters.push("pod".to_owned());
    }
    if !containers.is_empty() {
        setters.push(counted("container", &containers));
    }
    (!setters.is_empty())
        .then(|| format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and ")))
}
