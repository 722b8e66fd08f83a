//! The engine of the seeded fuzzers: damage, rounds, seeds. The same seed makes the same bytes.
//!
//! Fuzzers stand in files named `fuzz_tests.rs`, by which `make fuzz` finds them. In every run of the tests they take a
//! fixed number of rounds from a fixed seed; `KEDGE_FUZZ_SECS` has each go on for so long, `KEDGE_SEED` gives it other
//! seeds.

use std::time::Duration;

use crate::rng::Rng;
use crate::time::Stopwatch;

/// Bytes that mean something to one decoder or another.
const ODD: &[u8] = b"{}[]\",:;=&%\r\n 0-9\0\x01\x7f\x80\xff";

/// The rounds of one fuzzer. If one of them panics, its number and the seed are told.
pub struct Rounds {
    next: u64,
    few: u64,
    /// How long to go on, where somebody wants a long run.
    lasts: Option<Duration>,
    clock: Stopwatch,
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let goes_on = match self.lasts {
            Some(lasts) => self.clock.elapsed() < lasts,
            None => self.next < self.few,
        };
        goes_on.then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("round {} with KEDGE_SEED={}", self.next.saturating_sub(1), setting("KEDGE_SEED").unwrap_or(0));
        } else if self.lasts.is_some() {
            println!("{} rounds in {} s", self.next, self.clock.elapsed().as_secs());
        }
    }
}

/// `few` rounds, or as many as fit into `KEDGE_FUZZ_SECS`.
pub fn rounds(few: u64) -> Rounds {
    Rounds { next: 0, few, lasts: setting("KEDGE_FUZZ_SECS").map(Duration::from_secs), clock: Stopwatch::start() }
}

/// The numbers of a fuzzer: its own `seed`, and another one for each `KEDGE_SEED`.
pub fn rng(seed: u64) -> Rng {
    Rng::from_seed(seed ^ setting("KEDGE_SEED").unwrap_or(0).rotate_left(16))
}

/// A number of the environment, with which somebody asks a test for a long run.
#[allow(clippy::disallowed_methods, reason = "only tests call it, and a long run is asked for from outside")]
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A number below `n`, 0 if there is none.
pub fn below(rng: &Rng, n: usize) -> usize {
    usize::try_from(rng.below(u64::try_from(n.max(1)).unwrap_or(1))).unwrap_or(0)
}

/// One of several.
pub fn pick<'a, T>(rng: &Rng, of: &'a [T]) -> &'a T {
    &of[below(rng, of.len())]
}

/// Bytes with some of them changed, doubled, cut or taken out. At most some hundred bytes longer than before.
pub fn mutated(rng: &Rng, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=rng.below(6) {
        if out.is_empty() {
            return out;
        }
        let at = below(rng, out.len());
        match rng.below(8) {
            0 => out[at] = u8::try_from(rng.below(256)).unwrap_or(0),
            1 => out.truncate(at),
            2 => out.insert(at, *pick(rng, ODD)),
            3 => {
                let piece = out[at..(at + 16).min(out.len())].to_vec();
                out.splice(at..at, piece);
            }
            4 => drop(out.remove(at)),
            // Lengths and counters at their ends.
            5 => out[at] = if rng.below(2) == 0 { 0 } else { 0xff },
            // Variable lengths that claim everything.
            6 => drop(out.splice(at..at, [0xff; 9])),
            _ => out[at] ^= 1 << rng.below(8),
        }
    }
    out
}

/// The same of a text, in which words of its language come and go, too. What is no text any more is replaced by U+FFFD.
pub fn mutated_text(rng: &Rng, text: &str, words: &[&str]) -> String {
    let mut bytes = if rng.below(2) == 0 { mutated(rng, text.as_bytes()) } else { text.as_bytes().to_vec() };
    for _ in 0..rng.below(4) {
        let (at, word) = (below(rng, bytes.len() + 1), if words.is_empty() { "" } else { *pick(rng, words) });
        bytes.splice(at..at, word.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_does_the_same_damage() {
        let damage = |seed| {
            let rng = Rng::from_seed(seed);
            (0..50).map(|_| (mutated(&rng, b"some bytes"), mutated_text(&rng, "a text", &["word"]))).collect::<Vec<_>>()
        };
        assert_eq!(damage(1), damage(1));
        assert_ne!(damage(1), damage(2));
        assert!(mutated(&Rng::from_seed(1), b"").is_empty());
    }

    #[test]
    fn rounds_are_few_where_nobody_wants_more() {
        let mut some = Rounds { next: 0, few: 3, lasts: None, clock: Stopwatch::start() };
        assert_eq!(some.by_ref().collect::<Vec<_>>(), [0, 1, 2]);
        let mut long = Rounds { next: 0, few: 3, lasts: Some(Duration::from_millis(20)), clock: Stopwatch::start() };
        assert!(long.by_ref().count() > 3);
    }
}
