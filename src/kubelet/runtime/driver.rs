//! The two ways in which cgroups are made.

/// The maker of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Slices and scopes made by systemd.
    Systemd,
    /// Folders made by runc.
    Cgroupfs,
}

impl std::fmt::Display for CgroupDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == CgroupDriver::Systemd { "systemd" } else { "cgroupfs" })
    }
}
