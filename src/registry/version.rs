//! The version that this server speaks and is: `/version`.

use serde_json::{Value, json};

/// The API level we speak.
pub const MAJOR: &str = "1";
/// Its minor version.
pub const MINOR: &str = "36";
/// As `kubectl version` shows it.
pub const GIT_VERSION: &str = base::version::GIT_VERSION;

/// Where the program comes from. `Default` is for tests.
#[derive(Clone, Debug)]
pub struct Build {
    /// The commit, or `unknown`.
    pub commit: &'static str,
    /// `clean`, `dirty` or `unknown`.
    pub tree: &'static str,
    /// RFC 3339.
    pub date: String,
}

impl Default for Build {
    fn default() -> Build {
        Build { commit: "unknown", tree: "unknown", date: "1970-01-01T00:00:00Z".to_owned() }
    }
}

/// The answer of `/version`.
pub fn version(build: &Build) -> Value {
    json!({
        "major": MAJOR, "minor": MINOR, "emulationMajor": MAJOR, "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR, "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION, "gitCommit": build.commit, "gitTreeState": build.tree, "buildDate": build.date,
        "goVersion": "none", "compiler": "rustc", "platform": format!("linux/{}",
            if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    })
}
