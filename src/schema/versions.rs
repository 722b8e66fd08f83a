//! The order of an API's versions.

use std::cmp::Ordering;

/// Upstream's order of versions: GA before beta before alpha, higher numbers first, then everything else by name.
pub fn version_order(a: &str, b: &str) -> Ordering {
    let parse = |v: &str| -> Option<(u8, u64, u64)> {
        let rest = v.strip_prefix('v')?;
        let number = |t: &str| if t.is_empty() || t.starts_with('0') { None } else { t.parse().ok() };
        for (word, rank) in [("alpha", 1), ("beta", 2)] {
            if let Some((major, minor)) = rest.split_once(word) {
                return Some((rank, number(major)?, number(minor)?));
            }
        }
        Some((3, number(rest)?, 0))
    };
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}
