//! Sysctls of pods.
//!
//! Spec: `sysctls_restricted` of upstream's pod-security-admission, and its kubelet's `safe_sysctls` (v1.36).

/// Sysctls that are namespaced and cannot hurt neighbours.
///
/// They stand in the order in which versions came to allow them: the first five always, one more since 1.27, four since
/// 1.29, two since 1.32.
pub const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
