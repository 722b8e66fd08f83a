//! Which version this program is, and from which commit it is built.

/// The version, followed by the Kubernetes API level.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.36)");

/// The version once more, behind a mark: `kedge bundle build` reads it off a program of another processor, which it
/// cannot run.
static MARKED: &str = concat!("KEDGE-VERSION=", env!("CARGO_PKG_VERSION"), ";");

/// The mark. Taking it off the text keeps the text in the program.
pub(crate) fn mark() -> &'static str {
    std::hint::black_box(MARKED).split_inclusive('=').next().unwrap_or_default()
}

/// From which commit, and when; see build.rs.
pub(crate) fn build() -> registry::version::Build {
    let date = env!("KEDGE_BUILD_UNIX").parse().ok().and_then(|secs| jiff::Timestamp::from_second(secs).ok());
    let date = base::time::rfc3339_secs(date.unwrap_or_default());
    registry::version::Build { commit: env!("KEDGE_COMMIT"), tree: env!("KEDGE_TREE"), date }
}
