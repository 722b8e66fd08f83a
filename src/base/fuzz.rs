//! Seeded damage for the tests that fuzz what reads the bytes of strangers: the same seed, the same bytes.

use crate::rng::Rng;

/// Bytes that mean something to one decoder or another.
const ODD: &[u8] = b"{}[]\",:;=&%\r\n 0-9\0\x01\x7f\x80\xff";

/// How many rounds a fuzzer runs: `KEDGE_FUZZ_ROUNDS` at build time, else `few`.
pub fn rounds(few: u64) -> u64 {
    option_env!("KEDGE_FUZZ_ROUNDS").and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// Bytes with some of them changed, doubled, cut or taken out. At most some hundred bytes longer than before.
pub fn mutated(rng: &Rng, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=rng.below(6) {
        let len = u64::try_from(out.len()).unwrap_or(u64::MAX);
        if len == 0 {
            return out;
        }
        let at = usize::try_from(rng.below(len)).unwrap_or(0);
        match rng.below(7) {
            0 => out[at] = u8::try_from(rng.below(256)).unwrap_or(0),
            1 => out.truncate(at),
            2 => {
                let odd = u64::try_from(ODD.len()).unwrap_or(1);
                out.insert(at, ODD[usize::try_from(rng.below(odd)).unwrap_or(0)]);
            }
            3 => {
                let piece = out[at..(at + 16).min(out.len())].to_vec();
                out.splice(at..at, piece);
            }
            4 => drop(out.remove(at)),
            // Lengths and counters at their ends.
            5 => out[at] = if rng.below(2) == 0 { 0 } else { 0xff },
            _ => out[at] ^= 1 << rng.below(8),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_does_the_same_damage() {
        let damage = |seed| {
            let rng = Rng::from_seed(seed);
            (0..50).map(|_| mutated(&rng, b"some bytes")).collect::<Vec<_>>()
        };
        assert_eq!(damage(1), damage(1));
        assert_ne!(damage(1), damage(2));
        assert!(mutated(&Rng::from_seed(1), b"").is_empty());
    }
}
