//! The kinds of volumes that have a folder in the pod's, named as upstream names them.

use k8s_openapi::api::core::v1::Volume;

/// A kind of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plugin {
    ConfigMap,
    DownwardApi,
    EmptyDir,
    Image,
    LocalVolume,
    Nfs,
    Projected,
    Secret,
}

impl Plugin {
    /// The plugin of a volume whose files are made of objects.
    pub(super) fn of_objects(volume: &Volume) -> Option<Plugin> {
        if volume.config_map.is_some() {
            Some(Plugin::ConfigMap)
        } else if volume.secret.is_some() {
            Some(Plugin::Secret)
        } else if volume.projected.is_some() {
            Some(Plugin::Projected)
        } else if volume.downward_api.is_some() {
            Some(Plugin::DownwardApi)
        } else {
            None
        }
    }

    /// The name of its folders.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Plugin::ConfigMap => "kubernetes.io~configmap",
            Plugin::DownwardApi => "kubernetes.io~downward-api",
            Plugin::EmptyDir => "kubernetes.io~empty-dir",
            Plugin::Image => "kubernetes.io~image",
            Plugin::LocalVolume => "kubernetes.io~local-volume",
            Plugin::Nfs => "kubernetes.io~nfs",
            Plugin::Projected => "kubernetes.io~projected",
            Plugin::Secret => "kubernetes.io~secret",
        }
    }

    /// Whether its files never reach a disk.
    pub(super) fn is_in_memory(self) -> bool {
        matches!(self, Plugin::DownwardApi | Plugin::Projected | Plugin::Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_tokens_never_reach_a_disk() {
        for (source, folder, is_in_memory) in [
            (serde_json::json!({"configMap": {}}), "kubernetes.io~configmap", false),
            (serde_json::json!({"secret": {}}), "kubernetes.io~secret", true),
            (serde_json::json!({"projected": {}}), "kubernetes.io~projected", true),
            (serde_json::json!({"downwardAPI": {}}), "kubernetes.io~downward-api", true),
        ] {
            let mut volume = source;
            volume["name"] = "v".into();
            let plugin = Plugin::of_objects(&serde_json::from_value(volume).unwrap()).unwrap();
            assert_eq!((plugin.folder(), plugin.is_in_memory()), (folder, is_in_memory));
        }
        let other = serde_json::from_value(serde_json::json!({"name": "v", "emptyDir": {}})).unwrap();
        assert_eq!(Plugin::of_objects(&other), None);
    }
}
