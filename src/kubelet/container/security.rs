//! Security contexts of pod and container merged into the runtime's form.

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile, SecurityContext};

use crate::container::error::ConfigError;
use crate::container::making::Making;
use crate::pods::spec::pod_text;

/// Begins the annotation that held a container's AppArmor profile before there was a field: `…/<container>`.
pub(crate) const APPARMOR_NOTE: &str = "container.apparmor.security.beta.kubernetes.io/";

const MASKED: [&str; 13] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/devices/system/cpu/cpu0/thermal_throttle",
];
const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Namespaces shared with the host or between the pod's containers.
pub(crate) fn namespaces(spec: &PodSpec) -> cri::NamespaceOption {
    let host = |on: Option<bool>, otherwise: cri::NamespaceMode| {
        let mode = if on == Some(true) { cri::NamespaceMode::Node } else { otherwise };
        mode as i32
    };
    let pid = if spec.share_process_namespace == Some(true) {
        cri::NamespaceMode::Pod
    } else {
        cri::NamespaceMode::Container
    };
    cri::NamespaceOption {
        network: host(spec.host_network, cri::NamespaceMode::Pod),
        pid: host(spec.host_pid, pid),
        ipc: host(spec.host_ipc, cri::NamespaceMode::Pod),
        ..Default::default()
    }
}

pub(crate) fn selinux(options: SELinuxOptions) -> cri::SeLinuxOption {
    cri::SeLinuxOption {
        user: options.user.unwrap_or_default(),
        role: options.role.unwrap_or_default(),
        r#type: options.type_.unwrap_or_default(),
        level: options.level.unwrap_or_default(),
    }
}

/// The profile in both forms of the CRI: the container's own word, its old annotation, the pod's word.
fn apparmor(
    making: &Making<'_>,
    own: &SecurityContext,
    pod: &PodSecurityContext,
) -> Option<(cri::SecurityProfile, String)> {
    use cri::security_profile::ProfileType;
    let note = making
        .pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|notes| notes.get(&format!("{APPARMOR_NOTE}{}", making.container.name)));
    let text = match (&own.app_armor_profile, note, &pod.app_armor_profile) {
        (None, Some(note), _) => note.clone(),
        (Some(profile), ..) | (None, None, Some(profile)) => match profile.type_.as_str() {
            "RuntimeDefault" => "runtime/default".to_owned(),
            "Localhost" => format!("localhost/{}", profile.localhost_profile.as_deref().unwrap_or_default()),
            _ => "unconfined".to_owned(),
        },
        (None, None, None) => return None,
    };
    let (kind, local) = match text.strip_prefix("localhost/") {
        Some(name) => (ProfileType::Localhost, name.to_owned()),
        None if text == "runtime/default" => (ProfileType::RuntimeDefault, String::new()),
        None => (ProfileType::Unconfined, String::new()),
    };
    Some((cri::SecurityProfile { profile_type: kind as i32, localhost_ref: local }, text))
}

pub(crate) fn groups_policy(context: &PodSecurityContext) -> i32 {
    match context.supplemental_groups_policy.as_deref() {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict as i32,
        _ => cri::SupplementalGroupsPolicy::Merge as i32,
    }
}

/// The identity of a container's process: the container's word before the pod's, and at last the image's.
pub(super) fn of_container(making: &Making<'_>) -> Result<cri::LinuxContainerSecurityContext, ConfigError> {
    let spec = making.pod.spec.clone().unwrap_or_default();
    let pod = spec.security_context.clone().unwrap_or_default();
    let own = making.container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(pod.run_as_user);
    check_non_root(making, &pod, &own, user)?;
    let privileged = own.privileged.unwrap_or(false);
    let mut groups = pod.supplemental_groups.clone().unwrap_or_default();
    groups.extend(pod.fs_group);
    let mut namespace_options = namespaces(&spec);
    namespace_options.userns_options = making.userns.clone();
    if let Some(target) = &making.target {
        namespace_options.pid = cri::NamespaceMode::Target as i32;
        namespace_options.target_id = target.clone();
    }
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let paths = |list: &[&str]| if unmasked { Vec::new() } else { list.iter().map(|p| (*p).to_owned()).collect() };
    let apparmor = apparmor(making, &own, &pod);
    let profile = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()).filter(|_| !privileged);
    let capabilities = own.capabilities.clone().unwrap_or_default();
    #[allow(deprecated, reason = "containerd before 1.7 reads only the old spelling of the AppArmor profile")]
    let made = cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        selinux_options: own.se_linux_options.or(pod.se_linux_options.clone()).map(selinux),
        apparmor_profile: apparmor.as_ref().map(|(_, old)| old.clone()).unwrap_or_default(),
        apparmor: apparmor.map(|(profile, _)| profile),
        namespace_options: Some(namespace_options),
        run_as_user: user.map(|value| cri::Int64Value { value }),
        // The runtime refuses a group without a user; the image's user is then spelt out.
        run_as_group: own.run_as_group.or(pod.run_as_group).map(|value| cri::Int64Value { value }),
        run_as_username: if user.is_none() { making.image.username.clone() } else { String::new() },
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups,
        supplemental_groups_policy: groups_policy(&pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READONLY),
        seccomp: Some(seccomp(profile, making)),
        ..Default::default()
    };
    Ok(made.with_image_user(making, user))
}

trait WithImageUser {
    fn with_image_user(self, making: &Making<'_>, user: Option<i64>) -> Self;
}

impl WithImageUser for cri::LinuxContainerSecurityContext {
    /// As upstream: without a wish of the pod, the image's numeric user is passed on.
    fn with_image_user(mut self, making: &Making<'_>, user: Option<i64>) -> Self {
        if user.is_none()
            && let Some(uid) = &making.image.uid
        {
            self.run_as_user = Some(*uid);
            self.run_as_username = String::new();
        }
        self
    }
}

fn check_non_root(
    making: &Making<'_>,
    pod: &PodSecurityContext,
    own: &SecurityContext,
    user: Option<i64>,
) -> Result<(), ConfigError> {
    if own.run_as_non_root.or(pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod_text, name) = (pod_text(making.pod), &making.container.name);
    let refuse = |why: String| Err(ConfigError::new(format!("{why} (pod: \"{pod_text}\", container: {name})")));
    match (user, making.image.uid.as_ref(), making.image.username.as_str()) {
        (Some(0), ..) => refuse("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), ..) => Ok(()),
        (None, Some(uid), _) if uid.value == 0 => {
            refuse("container has runAsNonRoot and image will run as root".to_owned())
        }
        (None, Some(_), _) => Ok(()),
        (None, None, "") => refuse("container has runAsNonRoot and image will run as root".to_owned()),
        (None, None, user) => refuse(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
    }
}

/// The profile in the runtime's form; without one nothing is confined, unless `seccompDefault` says so. Privileged
/// containers have none.
fn seccomp(profile: Option<&SeccompProfile>, making: &Making<'_>) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let root = making.seccomp_root;
    let is_privileged = making.container.security_context.as_ref().is_some_and(|own| own.privileged == Some(true));
    let (kind, file) = match profile.map(|p| p.type_.as_str()) {
        None if making.host.seccomp_default && !is_privileged => (ProfileType::RuntimeDefault, String::new()),
        Some("RuntimeDefault") => (ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let file = profile.and_then(|p| p.localhost_profile.clone()).unwrap_or_default();
            (ProfileType::Localhost, root.join(file).display().to_string())
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    cri::SecurityProfile { profile_type: kind as i32, localhost_ref: file }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    /// A pod with one container.
    fn pod(context: Value, own: Value) -> Pod {
        let container = json!({"name": "c", "securityContext": own});
        let spec = json!({"securityContext": context, "containers": [container]});
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn made(context: Value, own: Value) -> cri::LinuxContainerSecurityContext {
        let image = cri::Image::default();
        of_container(&Making::first_of(&pod(context, own), &image)).unwrap()
    }

    // As upstream's `verifyRunAsNonRoot`, pkg/kubelet/kuberuntime/security_context.go v1.36.
    #[test]
    fn a_container_that_must_not_be_root_is_refused_if_it_would_be() {
        let outcome = |own: Value, uid: Option<i64>, username: &str| {
            let (uid, username) = (uid.map(|value| cri::Int64Value { value }), username.to_owned());
            let image = cri::Image { uid, username, ..Default::default() };
            let made = of_container(&Making::first_of(&pod(json!({"runAsNonRoot": true}), own), &image));
            made.map(drop).map_err(|err| err.message)
        };
        let refused = |why: &str| Err(format!("{why} (pod: \"p_d(u)\", container: c)"));
        let as_root = refused("container has runAsNonRoot and image will run as root");
        assert_eq!(outcome(json!({"runAsUser": 7}), Some(0), ""), Ok(()), "the pod's word is before the image's");
        assert_eq!(outcome(json!({}), Some(7), ""), Ok(()));
        assert_eq!(outcome(json!({"runAsNonRoot": false}), Some(0), ""), Ok(()), "the container's word is the last");
        assert_eq!(
            outcome(json!({"runAsUser": 0}), Some(7), ""),
            refused("container's runAsUser breaks non-root policy")
        );
        assert_eq!(outcome(json!({}), Some(0), ""), as_root);
        assert_eq!(outcome(json!({}), None, ""), as_root);
        assert_eq!(
            outcome(json!({}), None, "web"),
            refused("container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root")
        );
    }

    #[test]
    fn a_seccomp_profile_is_the_containers_or_the_pods_and_none_of_a_privileged_one() {
        use cri::security_profile::ProfileType;
        let profile = |context: Value, own: Value| {
            let profile = made(context, own).seccomp.unwrap();
            (profile.profile_type, profile.localhost_ref)
        };
        let default = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
        let unconfined = (ProfileType::Unconfined as i32, String::new());
        assert_eq!(profile(json!({}), json!({})), unconfined);
        assert_eq!(profile(default.clone(), json!({})), (ProfileType::RuntimeDefault as i32, String::new()));
        assert_eq!(profile(default, local), (ProfileType::Localhost as i32, "/seccomp/a/b.json".to_owned()));
        let privileged = json!({"privileged": true, "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(profile(json!({}), privileged), unconfined);
    }

    #[test]
    fn a_container_without_a_profile_has_the_runtimes_where_the_node_says_so() {
        use cri::security_profile::ProfileType;
        let profile = |own: Value| {
            let (pod, image) = (pod(json!({}), own), cri::Image::default());
            let mut making = Making::first_of(&pod, &image);
            making.host.seccomp_default = true;
            of_container(&making).unwrap().seccomp.unwrap().profile_type
        };
        assert_eq!(profile(json!({})), ProfileType::RuntimeDefault as i32);
        for own in [json!({"privileged": true}), json!({"seccompProfile": {"type": "Unconfined"}})] {
            assert_eq!(profile(own), ProfileType::Unconfined as i32);
        }
    }

    #[test]
    fn an_apparmor_profile_is_the_containers_its_annotations_or_the_pods() {
        let image = cri::Image::default();
        let told = |note: Option<&str>, context: Value, own: Value| {
            let mut pod = pod(context, own);
            let key = format!("{APPARMOR_NOTE}c");
            pod.metadata.annotations = note.map(|note| [(key, note.to_owned())].into());
            let made = of_container(&Making::first_of(&pod, &image)).unwrap();
            #[allow(deprecated, reason = "containerd before 1.7 reads only the old spelling")]
            let told = made.apparmor_profile;
            told
        };
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}});
        let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        assert_eq!(told(None, json!({}), json!({})), "");
        assert_eq!(told(None, default.clone(), json!({})), "runtime/default");
        assert_eq!(told(Some("unconfined"), default.clone(), json!({})), "unconfined");
        assert_eq!(told(Some("unconfined"), default, local), "localhost/web");
    }

    #[test]
    fn paths_of_proc_are_masked_unless_the_container_may_see_all() {
        assert_eq!(made(json!({}), json!({})).masked_paths, MASKED);
        assert_eq!(made(json!({}), json!({})).readonly_paths, READONLY);
        for own in [json!({"procMount": "Unmasked"}), json!({"privileged": true})] {
            let made = made(json!({}), own);
            assert!(made.masked_paths.is_empty() && made.readonly_paths.is_empty());
        }
    }

    #[test]
    fn a_process_has_the_containers_user_or_the_pods_or_the_images() {
        let user = |context: Value, own: Value, image: &cri::Image| {
            let made = of_container(&Making::first_of(&pod(context, own), image)).unwrap();
            (made.run_as_user.map(|user| user.value), made.run_as_username)
        };
        let numbered = cri::Image { uid: Some(cri::Int64Value { value: 5 }), ..Default::default() };
        let named = cri::Image { username: "web".to_owned(), ..Default::default() };
        assert_eq!(user(json!({"runAsUser": 1}), json!({"runAsUser": 2}), &numbered), (Some(2), String::new()));
        assert_eq!(user(json!({"runAsUser": 1}), json!({}), &named), (Some(1), String::new()));
        assert_eq!(user(json!({}), json!({}), &numbered), (Some(5), String::new()));
        assert_eq!(user(json!({}), json!({}), &named), (None, "web".to_owned()));
    }

    #[test]
    fn groups_are_the_pods_supplemental_ones_and_that_of_its_volumes() {
        let context = made(json!({"supplementalGroups": [3, 4], "fsGroup": 9}), json!({}));
        assert_eq!(context.supplemental_groups, [3, 4, 9]);
        let policy = |name: &str| made(json!({"supplementalGroupsPolicy": name}), json!({})).supplemental_groups_policy;
        assert_eq!(policy("Strict"), cri::SupplementalGroupsPolicy::Strict as i32);
        assert_eq!(policy("Merge"), cri::SupplementalGroupsPolicy::Merge as i32);
    }

    #[test]
    fn namespaces_are_the_hosts_the_pods_or_the_containers_own() {
        let of = |spec: Value| {
            let mut whole = json!({"containers": []});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let made = namespaces(&serde_json::from_value(whole).unwrap());
            [made.network, made.pid, made.ipc]
        };
        let [node, pod, own] =
            [cri::NamespaceMode::Node, cri::NamespaceMode::Pod, cri::NamespaceMode::Container].map(|mode| mode as i32);
        assert_eq!(of(json!({})), [pod, own, pod]);
        assert_eq!(of(json!({"shareProcessNamespace": true})), [pod, pod, pod]);
        assert_eq!(of(json!({"hostNetwork": true, "hostPID": true, "hostIPC": true})), [node, node, node]);
    }
}
