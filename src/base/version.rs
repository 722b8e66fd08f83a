//! Which Kubernetes this program is.

/// As the API's `/version`, every node's `kubeletVersion` and the metrics say it: the release of Kubernetes, then
/// kedge's own.
pub const GIT_VERSION: &str =
    concat!("v1.36.2+kedge", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
