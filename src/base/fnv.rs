//! FNV-1a, 64 bits: a short name for a long one, stable over releases. It is no defence against one who chooses the
//! input.
//!
//! Spec: RFC 9923. No crate: three lines, and the state can be handed on between pieces.

/// Where a sum begins.
pub const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const PRIME: u64 = 0x0100_0000_01b3;

/// The sum of `bytes`.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    resume(BASIS, bytes)
}

/// Goes on with a sum: `resume(sum(a), b)` is the sum of `a` followed by `b`.
#[must_use]
pub fn resume(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 9923.
    #[test]
    fn sums_are_those_of_the_specification() {
        for (text, expected) in [("", BASIS), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)] {
            assert_eq!(sum(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(resume(sum(b"foo"), b"bar"), sum(b"foobar"));
    }
}
