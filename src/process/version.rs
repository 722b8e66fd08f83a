//! Which version this program is, and from which commit it is built.

/// The version, followed by the Kubernetes API level.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.36)");

/// From which commit, and when; see build.rs.
pub(crate) fn build() -> registry::version::Build {
    let date = env!("KEDGE_BUILD_UNIX").parse().ok().and_then(|secs| jiff::Timestamp::from_second(secs).ok());
    let date = base::time::rfc3339_secs(date.unwrap_or_default());
    registry::version::Build { commit: env!("KEDGE_COMMIT"), tree: env!("KEDGE_TREE"), date }
}
