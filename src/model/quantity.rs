//! Amounts of resources as Kubernetes writes them: `100m`, `1.5Gi`, `2e3`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The three ways in which an amount may be written; kept through arithmetic so that `1Gi` + `1Gi` prints `2Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `Ki`, `Mi`, `Gi`, `Ti`, `Pi`, `Ei`.
    BinarySi,
    /// `n`, `u`, `m`, none, `k`, `M`, `G`, `T`, `P`, `E`.
    DecimalSi,
    /// `e3`, `E-6`.
    DecimalExponent,
}

/// An exact amount, no finer than one nano unit (finer input is rounded away from zero, as upstream does).
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

/// Why a text is no quantity; the texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Does not look like a number with a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The digits are fine, the suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANOS: i128 = 1_000_000_000;
const MAX_UNITS: i128 = i64::MAX as i128;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Nothing at all, in decimal notation.
    pub const ZERO: Quantity = Quantity { nanos: 0, notation: Notation::DecimalSi };

    /// A whole number of units.
    pub fn from_units(units: i64, notation: Notation) -> Quantity {
        Quantity { nanos: i128::from(units) * NANOS, notation }
    }

    /// A number of thousandths (CPU's unit).
    pub fn from_milli(milli: i64) -> Quantity {
        Quantity { nanos: i128::from(milli) * 1_000_000, notation: Notation::DecimalSi }
    }

    /// Reads a JSON string or number, the two forms the API accepts.
    pub fn from_value(value: &serde_json::Value) -> Result<Quantity, QuantityError> {
        match value {
            serde_json::Value::String(text) => text.trim().parse(),
            serde_json::Value::Number(number) => number.to_string().parse(),
            _ => Err(QuantityError::Format),
        }
    }

    /// The notation it was written in.
    pub fn notation(&self) -> Notation {
        self.notation
    }

    /// Whole units, rounded up as upstream's `Value()`.
    pub fn value(&self) -> i64 {
        self.scaled(NANOS)
    }

    /// Thousandths, rounded up as upstream's `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        self.scaled(1_000_000)
    }

    /// The exact amount, in billionths.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    /// An exact amount in billionths, held at what a quantity can say.
    pub fn from_nanos(nanos: i128, notation: Notation) -> Quantity {
        Quantity { nanos: clamp(nanos), notation }
    }

    /// Whether it is exactly nothing.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.nanos.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Whether it is a whole number of units.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0
    }

    /// The sum; a zero takes over the other's notation, as upstream does.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "an operator would hide that the notation follows the first operand"
    )]
    pub fn add(self, other: Quantity) -> Quantity {
        let notation = if self.is_zero() { other.notation } else { self.notation };
        Quantity { nanos: clamp(self.nanos + other.nanos), notation }
    }

    /// The difference.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "an operator would hide that the notation follows the first operand"
    )]
    pub fn sub(self, other: Quantity) -> Quantity {
        let notation = if self.is_zero() { other.notation } else { self.notation };
        Quantity { nanos: clamp(self.nanos - other.nanos), notation }
    }

    fn scaled(&self, unit: i128) -> i64 {
        let whole = div_away(self.nanos, unit);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }
}

fn clamp(nanos: i128) -> i128 {
    nanos.clamp(-MAX_UNITS * NANOS, MAX_UNITS * NANOS)
}

/// Division rounded away from zero.
fn div_away(n: i128, by: i128) -> i128 {
    let q = n / by;
    if n % by == 0 { q } else { q + n.signum() }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
            None => return Err(QuantityError::Format),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(QuantityError::Format);
        }
        if !suffix.chars().all(|c| c.is_ascii_digit() || "eEinumkKMGTP+-".contains(c)) {
            return Err(QuantityError::Format);
        }
        let (notation, exponent, shift) = read_suffix(suffix)?;
        let nanos = nanos_of(whole, fraction, exponent, shift);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, notation })
    }
}

/// Notation, power of ten, power of two.
fn read_suffix(suffix: &str) -> Result<(Notation, i32, u32), QuantityError> {
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Ok((Notation::BinarySi, 0, *shift));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Ok((Notation::DecimalSi, *exponent, 0));
    }
    let digits = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
    let exponent: i32 = digits.parse().map_err(|_| QuantityError::Suffix)?;
    Ok((Notation::DecimalExponent, exponent, 0))
}

/// The amount in nano units, rounded away from zero and held at what an `i64` of whole units can say.
fn nanos_of(whole: &str, fraction: &str, exponent: i32, shift: u32) -> i128 {
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let max = MAX_UNITS * NANOS;
    // Digits d with value d * 10^power; 30 digits fit in i128 with room for the binary shift's check below.
    let digits: String = whole.chars().chain(fraction.chars()).collect();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let mut power = exponent.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX)).saturating_add(9);
    if i64::from(power) + i64::try_from(digits.len()).unwrap_or(i64::MAX) > 29 {
        return max;
    }
    let kept = digits.len().min(30);
    let mut n: i128 = digits[..kept].parse().unwrap_or(max);
    let dropped = digits.len() - kept;
    power = power.saturating_add(i32::try_from(dropped).unwrap_or(i32::MAX));
    if dropped > 0 && digits[kept..].bytes().any(|b| b != b'0') {
        n += 1;
    }
    if shift > 0 {
        // Shift before dividing, or 0.0000000001Gi would lose its digits.
        n = match n.checked_mul(1i128 << shift) {
            Some(n) => n,
            None => {
                return if power >= 0 {
                    max
                } else {
                    div_away(n, pow10(power.saturating_neg())).saturating_mul(1i128 << shift).min(max)
                };
            }
        };
    }
    let n = if power >= 0 { n.saturating_mul(pow10(power)) } else { div_away(n, pow10(power.saturating_neg())) };
    n.min(max)
}

fn pow10(power: i32) -> i128 {
    10i128.checked_pow(u32::try_from(power).unwrap_or(0)).unwrap_or(i128::MAX)
}

impl fmt::Display for Quantity {
    /// The canonical form: no fraction digits, the largest suffix that keeps the amount exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.notation == Notation::BinarySi && self.nanos.abs() >= 1024 * NANOS && self.is_whole() {
            let mut units = self.nanos / NANOS;
            let mut suffix = "";
            for (name, _) in BINARY {
                if units % 1024 != 0 {
                    break;
                }
                units /= 1024;
                suffix = name;
            }
            return write!(f, "{units}{suffix}");
        }
        // Binary notation below 1024 or with a fraction falls back to decimal, as upstream does.
        let mut amount = self.nanos;
        let mut exponent = -9;
        while amount % 1000 == 0 && exponent < 18 {
            amount /= 1000;
            exponent += 3;
        }
        if self.notation == Notation::DecimalExponent {
            return if exponent == 0 { write!(f, "{amount}") } else { write!(f, "{amount}e{exponent}") };
        }
        let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent).map_or("", |(name, _)| name);
        write!(f, "{amount}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().map_or_else(|e| e.to_string(), |q| q.to_string())
    }

    #[test]
    fn canonical_form_is_upstreams() {
        for (input, want) in [
            ("0", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000Ki", "1000Ki"),
            ("100", "100"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("12e5", "1200e3"),
            ("0.1Ki", "102400m"),
            ("512Ki", "512Ki"),
            ("0.0000000001", "1n"),
            ("-5m", "-5m"),
            ("9223372036854775807", "9223372036854775807"),
            ("10E", "9223372036854775807"),
            (".5", "500m"),
            ("5.", "5"),
        ] {
            assert_eq!(canonical(input), want, "{input}");
        }
    }

    #[test]
    fn bad_text_is_refused_with_upstreams_words() {
        assert_eq!("1.1.1".parse::<Quantity>(), Err(QuantityError::Format));
        assert_eq!("".parse::<Quantity>(), Err(QuantityError::Format));
        assert_eq!("1 Gi".parse::<Quantity>(), Err(QuantityError::Format));
        assert_eq!("1Kim".parse::<Quantity>(), Err(QuantityError::Suffix));
        assert_eq!("1K".parse::<Quantity>(), Err(QuantityError::Suffix));
    }

    #[test]
    fn values_round_up_and_compare_exactly() {
        let q: Quantity = "100m".parse().unwrap();
        assert_eq!((q.value(), q.milli_value()), (1, 100));
        assert_eq!("1Gi".parse::<Quantity>().unwrap(), "1073741824".parse().unwrap());
        assert!("1G".parse::<Quantity>().unwrap() < "1Gi".parse().unwrap());
        assert_eq!("1Gi".parse::<Quantity>().unwrap().add("512Mi".parse().unwrap()).to_string(), "1536Mi");
    }
}
