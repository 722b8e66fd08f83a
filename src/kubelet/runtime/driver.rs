//! The two ways in which cgroups are made.

/// The maker of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Slices and scopes made by systemd.
    Systemd,
    /// Folders made by runc.
    Cgroupfs,
}
