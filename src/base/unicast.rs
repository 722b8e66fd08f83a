//! Addresses that mean one machine, the same one to everybody.

use std::net::IpAddr;

/// Whether an address is one machine's, whoever uses it: neither loopback, link-local, multicast or broadcast, nor none
/// at all. Others are another machine to each machine, so nobody follows them who has them from somebody else.
///
/// Spec: Go's `IP.IsGlobalUnicast`, as upstream asks it of addresses that it proxies to.
pub fn is_global(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_link_local() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_each_machine_has_is_no_machines() {
        let is = |text: &str| is_global(text.parse().unwrap());
        assert!(["10.0.0.1", "192.0.2.1", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1"].into_iter().all(is));
        for text in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(!is(text), "{text}");
        }
        assert!(!is("::ffff:127.0.0.1"));
    }
}
