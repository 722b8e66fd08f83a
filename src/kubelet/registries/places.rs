//! Where registries are described.

use std::path::PathBuf;

/// Where registries are described, and where containerd looks.
#[derive(Clone, Debug)]
pub struct Places {
    /// `registries.yaml`.
    pub file: PathBuf,
    /// containerd's `certs.d`.
    pub certs_dir: PathBuf,
    /// Whether a registry itself is tried after its mirrors.
    pub default_endpoint: bool,
}
