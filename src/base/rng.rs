//! Chance, the only place that draws it: ids, jitter, generated names. With a seed the draws repeat.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

use crate::sync::Mutex;

/// Letters of generated names: no vowels and no look-alikes, as upstream's `k8s.io/apimachinery/pkg/util/rand`.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A cloneable source of random numbers; clones share one state.
#[derive(Clone, Debug)]
pub struct Rng(Arc<Mutex<StdRng>>);

impl Rng {
    /// Seeded by the operating system; fit for ids and secrets (the generator is a CSPRNG).
    pub fn from_os() -> Rng {
        Rng(Arc::new(Mutex::new(StdRng::from_os_rng())))
    }

    /// The same seed gives the same draws.
    pub fn from_seed(seed: u64) -> Rng {
        Rng(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock())
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.with(|rng| rng.random_range(0..bound)) }
    }

    /// Fills `out` with random bytes.
    pub fn fill(&self, out: &mut [u8]) {
        self.with(|rng| rng.fill_bytes(out));
    }

    /// `n` random bytes as lower-case hex, twice as many characters.
    pub fn hex(&self, n: usize) -> String {
        let mut bytes = vec![0; n];
        self.fill(&mut bytes);
        crate::hex::encode(&bytes)
    }

    /// The random tail of a generated name, `n` characters of upstream's alphabet.
    pub fn name_suffix(&self, n: usize) -> String {
        self.with(|rng| (0..n).map(|_| char::from(NAME_ALPHABET[rng.random_range(0..NAME_ALPHABET.len())])).collect())
    }

    /// A version 4 UUID in its usual form.
    pub fn uuid(&self) -> String {
        let mut b = [0u8; 16];
        self.fill(&mut b);
        b[6] = (b[6] & 0x0f) | 0x40;
        b[8] = (b[8] & 0x3f) | 0x80;
        let hex = crate::hex::encode(&b);
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// `base` plus up to `percent` per cent of it, so that many clients do not act at one instant.
    pub fn jitter(&self, base: Duration, percent: u32) -> Duration {
        let extra_max =
            u64::try_from(base.as_millis()).unwrap_or(u64::MAX / 200).saturating_mul(u64::from(percent)) / 100;
        base + Duration::from_millis(self.below(extra_max + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        assert_eq!(Rng::from_seed(7).hex(8), Rng::from_seed(7).hex(8));
        assert_ne!(Rng::from_seed(7).hex(8), Rng::from_seed(8).hex(8));
    }

    #[test]
    fn uuids_carry_version_and_variant() {
        let uuid = Rng::from_seed(1).uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "4");
        assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"));
    }
}
