//! Semantic versions and their order.

use std::cmp::Ordering;

/// A version; build metadata is read and forgotten, as it has no part in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    /// major, minor, patch
    pub numbers: [u64; 3],
    /// `alpha.1`
    pub pre: Vec<String>,
}

impl Semver {
    /// Reads `1.2.3-rc.1+build`; `loose` allows a `v`, missing parts and leading zeros.
    pub fn read(text: &str, loose: bool) -> Option<Semver> {
        let text = if loose { text.strip_prefix('v').unwrap_or(text) } else { text };
        let text = text.split('+').next().unwrap_or_default();
        let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
        let parts: Vec<&str> = core.split('.').collect();
        if parts.len() > 3 || (!loose && parts.len() != 3) {
            return None;
        }
        let mut numbers = [0; 3];
        for (slot, part) in numbers.iter_mut().zip(&parts) {
            let padded = part.len() > 1 && part.starts_with('0') && !loose;
            *slot = if padded || part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            } else {
                part.parse().ok()?
            };
        }
        let pre: Vec<String> = pre.map(|p| p.split('.').map(str::to_owned).collect()).unwrap_or_default();
        let is_padded = |id: &String| id.len() > 1 && id.starts_with('0') && id.bytes().all(|b| b.is_ascii_digit());
        let good = |id: &String| {
            !id.is_empty() && !is_padded(id) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        pre.iter().all(good).then_some(Semver { numbers, pre })
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Semver) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Semver {
    fn cmp(&self, other: &Semver) -> Ordering {
        let identifiers = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let first =
                    self.pre.iter().zip(&other.pre).map(|(a, b)| identifiers(a, b)).find(|o| *o != Ordering::Equal);
                first.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        })
    }
}
