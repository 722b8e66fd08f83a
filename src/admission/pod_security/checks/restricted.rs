//! Controls of the restricted level that the baseline does not have.

use serde_json::Value;

use super::{Pod, added_beyond, counted, name, quoted, strings, unique};

pub(super) fn privilege_escalation(pod: &Pod<'_>) -> Option<String> {
    let containers = pod.named(|container| container["securityContext"]["allowPrivilegeEscalation"] != false);
    (!containers.is_empty()).then(|| {
        format!("{} must set securityContext.allowPrivilegeEscalation=false", counted("container", &containers))
    })
}

pub(super) fn capabilities(pod: &Pod<'_>) -> Option<String> {
    let keeps =
        pod.named(|container| !strings(&container["securityContext"]["capabilities"]["drop"]).any(|cap| cap == "ALL"));
    let mut why: Vec<String> = Vec::new();
    if !keeps.is_empty() {
        why.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", counted("container", &keeps)));
    }
    why.extend(added_beyond(pod, &["NET_BIND_SERVICE"]));
    (!why.is_empty()).then(|| why.join("; "))
}

pub(super) fn volume_types(pod: &Pod<'_>) -> Option<String> {
    // A volume without a source becomes an emptyDir.
    const ALLOWED: [&str; 10] = [
        "",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let kind = |volume: &Value| {
        volume.as_object().and_then(|fields| fields.keys().find(|key| *key != "name")).cloned().unwrap_or_default()
    };
    let bad: Vec<&Value> = pod.volumes().filter(|volume| !ALLOWED.contains(&kind(volume).as_str())).collect();
    let (names, kinds) = (
        bad.iter().map(|volume| name(volume)).collect::<Vec<_>>(),
        unique(bad.iter().map(|volume| kind(volume)).collect()),
    );
    let verb = if names.len() == 1 { "uses" } else { "use" };
    let plural = if kinds.len() == 1 { "" } else { "s" };
    (!names.is_empty())
        .then(|| format!("{} {verb} restricted volume type{plural} {}", counted("volume", &names), quoted(&kinds)))
}

pub(super) fn run_as_non_root(pod: &Pod<'_>) -> Option<String> {
    let own = &pod.security()["runAsNonRoot"];
    let explicit = pod.named(|container| container["securityContext"]["runAsNonRoot"] == false);
    if own == false || !explicit.is_empty() {
        // A pod-wide "false" matters only where a container does not say better.
        let mut setters: Vec<String> = Vec::new();
        if own == false {
            setters.push("pod".to_owned());
        }
        if !explicit.is_empty() {
            setters.push(counted("container", &explicit));
        }
        return Some(format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and ")));
    }
    let open = pod.named(|container| container["securityContext"]["runAsNonRoot"].is_null());
    (own != true && !open.is_empty())
        .then(|| format!("pod or {} must set securityContext.runAsNonRoot=true", counted("container", &open)))
}

pub(super) fn run_as_user(pod: &Pod<'_>) -> Option<String> {
    let containers = pod.named(|container| container["securityContext"]["runAsUser"] == 0);
    let mut setters: Vec<String> = Vec::new();
    if pod.security()["runAsUser"] == 0 {
        setters.push("pod".to_owned());
    }
    if !containers.is_empty() {
        setters.push(counted("container", &containers));
    }
    (!setters.is_empty()).then(|| format!("{} must not set runAsUser=0", setters.join(" and ")))
}

pub(super) fn seccomp_required(pod: &Pod<'_>) -> Option<String> {
    let kind = |context: &Value| context["seccompProfile"]["type"].as_str().unwrap_or_default().to_owned();
    let good = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    let own = kind(pod.security());
    let explicit = pod.named(|container| {
        let kind = kind(&container["securityContext"]);
        !kind.is_empty() && !good(&kind)
    });
    let mut setters: Vec<String> = Vec::new();
    if !own.is_empty() && !good(&own) {
        setters.push("pod".to_owned());
    }
    if !explicit.is_empty() {
        setters.push(counted("container", &explicit));
    }
    if !setters.is_empty() {
        return Some(format!(
            "{} must not set securityContext.seccompProfile.type to \"Unconfined\"",
            setters.join(" and ")
        ));
    }
    let open = pod.named(|container| kind(&container["securityContext"]).is_empty());
    (own.is_empty() && !open.is_empty()).then(|| {
        format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            counted("container", &open)
        )
    })
}
