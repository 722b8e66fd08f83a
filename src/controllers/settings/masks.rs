//! `--node-cidr-mask-size*`: how large a node's part of the cluster's range is.

use ipnet::IpNet;

/// More nodes than this have other problems; upstream bounds IPv6 the same.
const PIECES_BITS_MAX: u8 = 16;
/// A smaller range has no room for pods beside the gateway.
const LONGEST: (u8, u8) = (30, 126);

/// Sizes that flags ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masks {
    /// `node-cidr-mask-size`, of a cluster of one family.
    pub any: Option<u8>,
    /// `node-cidr-mask-size-ipv4`
    pub v4: Option<u8>,
    /// `node-cidr-mask-size-ipv6`
    pub v6: Option<u8>,
}

/// Lengths of the prefixes of nodes' ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMasks {
    /// Of IPv4.
    pub v4: u8,
    /// Of IPv6.
    pub v6: u8,
}

impl Default for NodeMasks {
    fn default() -> NodeMasks {
        NodeMasks { v4: 24, v6: 64 }
    }
}

/// Sizes that do not go together, or do not fit a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// In upstream's words.
    #[error("--kube-controller-manager-arg={flag}: its usage is not allowed {when}")]
    Misplaced {
        /// Without dashes.
        flag: &'static str,
        /// In which cluster, or beside which flag.
        when: &'static str,
    },
    /// The range has no pieces of this size, or too many.
    #[error("--kube-controller-manager-arg={flag}: /{bits} does not fit --cluster-cidr {range}: {wanted}")]
    Misfit {
        /// Without dashes.
        flag: &'static str,
        /// As asked.
        bits: u8,
        /// The cluster's.
        range: IpNet,
        /// Lengths that would fit.
        wanted: String,
    },
}

impl Masks {
    /// The sizes for these ranges, at most one a family (upstream's `setNodeCIDRMaskSizes`, 1.36.2).
    ///
    /// Errors: the flag that cannot be followed.
    pub fn of(&self, ranges: &[IpNet]) -> Result<NodeMasks, MaskError> {
        let misplaced = |flag, when| Err(MaskError::Misplaced { flag, when });
        let has = |v4: bool| ranges.iter().any(|range| range.addr().is_ipv4() == v4);
        if self.any.is_some() && has(true) && has(false) {
            return misplaced("node-cidr-mask-size", "with dual-stack clusters: use those of the families");
        }
        for (flag, given, is_there, when) in [
            ("node-cidr-mask-size-ipv4", self.v4, has(true), "in a single-stack IPv6 cluster"),
            ("node-cidr-mask-size-ipv6", self.v6, has(false), "in a single-stack IPv4 cluster"),
        ] {
            if given.is_some() && self.any.is_some() {
                return misplaced(flag, "if --node-cidr-mask-size is set");
            }
            if given.is_some() && !is_there {
                return misplaced(flag, when);
            }
        }
        let usual = NodeMasks::default();
        for range in ranges {
            self.fits(range)?;
        }
        let (v4, v6) = (self.any.filter(|_| has(true)), self.any.filter(|_| has(false)));
        Ok(NodeMasks { v4: self.v4.or(v4).unwrap_or(usual.v4), v6: self.v6.or(v6).unwrap_or(usual.v6) })
    }

    fn fits(&self, range: &IpNet) -> Result<(), MaskError> {
        let (own, own_flag, longest) = match range {
            IpNet::V4(_) => (self.v4, "node-cidr-mask-size-ipv4", LONGEST.0),
            IpNet::V6(_) => (self.v6, "node-cidr-mask-size-ipv6", LONGEST.1),
        };
        let flag = if own.is_some() { own_flag } else { "node-cidr-mask-size" };
        let Some(bits) = own.or(self.any) else { return Ok(()) };
        let (least, most) = (range.prefix_len(), (range.prefix_len() + PIECES_BITS_MAX).min(longest));
        if (least..=most).contains(&bits) {
            return Ok(());
        }
        Err(MaskError::Misfit { flag, bits, range: *range, wanted: format!("want /{least} to /{most}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(masks: Masks, ranges: &[&str]) -> Result<(u8, u8), String> {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        masks.of(&ranges).map(|masks| (masks.v4, masks.v6)).map_err(|err| err.to_string())
    }

    #[test]
    fn a_size_is_of_its_family_and_fits_the_range() {
        let (v4, v6) = ("10.42.0.0/16", "fd42::/56");
        let any = |bits| Masks { any: Some(bits), ..Masks::default() };
        let one = |v4, v6| Masks { any: None, v4, v6 };
        assert_eq!(said(Masks::default(), &[v4]), Ok((24, 64)));
        assert_eq!(said(any(26), &[v4]), Ok((26, 64)));
        assert_eq!(said(any(60), &[v6]), Ok((24, 60)));
        assert_eq!(said(one(Some(20), Some(72)), &[v4, v6]), Ok((20, 72)));
        for (masks, ranges, part) in [
            (any(26), &[v4, v6][..], "mask-size: its usage is not allowed with dual-stack clusters"),
            (one(None, Some(64)), &[v4], "mask-size-ipv6: its usage is not allowed in a single-stack IPv4 cluster"),
            (one(Some(24), None), &[v6], "mask-size-ipv4: its usage is not allowed in a single-stack IPv6 cluster"),
            (
                Masks { any: Some(24), v4: Some(24), v6: None },
                &[v4],
                "mask-size-ipv4: its usage is not allowed if --node-cidr-mask-size is set",
            ),
            (any(8), &[v4], "mask-size: /8 does not fit --cluster-cidr 10.42.0.0/16: want /16 to /30"),
            (any(31), &[v4], "want /16 to /30"),
            (any(73), &[v6], "want /56 to /72"),
        ] {
            let said = said(masks, ranges).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }
}
