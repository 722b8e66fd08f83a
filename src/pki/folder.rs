//! The files in a folder of certificates and keys: nobody else knows their names.

use std::path::{Path, PathBuf};

/// Ending of certificates.
pub const CERTIFICATE: &str = "crt";
/// Ending of private keys.
pub const KEY: &str = "key";
/// The key of service accounts, by its stem. Servers alone have it, and all of them have the same.
pub const SERVICE: &str = "service";

/// The file of a certificate. A stem is that of a [`Ca`](crate::leaf::Ca) or [`Leaf`](crate::leaf::Leaf).
#[must_use]
pub fn certificate(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!("{stem}.{CERTIFICATE}"))
}

/// The file of the private key beside a certificate.
#[must_use]
pub fn key(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!("{stem}.{KEY}"))
}

/// The key of service accounts.
#[must_use]
pub fn service_key(dir: &Path) -> PathBuf {
    key(dir, SERVICE)
}

/// The certificates of the store lie in a folder of their own, as k3s has it.
#[must_use]
pub fn etcd(dir: &Path) -> PathBuf {
    dir.join("etcd")
}
