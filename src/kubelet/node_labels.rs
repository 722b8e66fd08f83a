//! The labels that a node registers with.

use std::collections::BTreeMap;

use crate::config::Config;

/// The labels that the node registers with.
pub(crate) fn labels(config: &Config) -> BTreeMap<String, String> {
    let arch = arch().to_owned();
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", config.hostname.clone()),
        ("kubernetes.io/os", "linux".to_owned()),
        ("kubernetes.io/arch", arch.clone()),
        ("beta.kubernetes.io/os", "linux".to_owned()),
        ("beta.kubernetes.io/arch", arch),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    labels.extend(config.labels.clone());
    labels
}

pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
