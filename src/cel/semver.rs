//! Semantic versions and their order, read as blang's semver reads them, with its errors.

use std::cmp::Ordering;

/// A version; build metadata is read and forgotten, as it has no part in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    /// major, minor, patch
    pub numbers: [u64; 3],
    /// `alpha.1`
    pub pre: Vec<String>,
}

/// A text that is no version, in blang's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SemverError {
    /// Nothing at all.
    #[error("Version string empty")]
    Empty,
    /// `1.2`
    #[error("No Major.Minor.Patch elements found")]
    Parts,
    /// `1.2-rc`, where parts may be missing.
    #[error("short version cannot contain PreRelease/Build meta data")]
    Short,
    /// `1.x.3`
    #[error("Invalid character(s) found in {part} {text:?}")]
    Characters {
        /// Such as `minor number`.
        part: &'static str,
        /// As it was given.
        text: String,
    },
    /// `1.02.3`
    #[error("{part} must not contain leading zeroes {text:?}")]
    Zeroes {
        /// Such as `Minor number`.
        part: &'static str,
        /// As it was given.
        text: String,
    },
    /// `1..3`
    #[error("strconv.ParseUint: parsing \"\": invalid syntax")]
    NoDigits,
    /// `1.99999999999999999999.3`
    #[error("strconv.ParseUint: parsing {0:?}: value out of range")]
    Range(String),
    /// `1.2.3-`
    #[error("Prerelease is empty")]
    EmptyPrerelease,
    /// `1.2.3+`
    #[error("Build meta data is empty")]
    EmptyBuild,
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_padded(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0')
}

/// A part of the version: its name in errors at their beginning, and within them.
fn number(text: &str, [first, within]: [&'static str; 2]) -> Result<u64, SemverError> {
    if !is_number(text) {
        return Err(SemverError::Characters { part: within, text: text.to_owned() });
    }
    if is_padded(text) {
        return Err(SemverError::Zeroes { part: first, text: text.to_owned() });
    }
    if text.is_empty() {
        return Err(SemverError::NoDigits);
    }
    text.parse().map_err(|_| SemverError::Range(text.to_owned()))
}

fn prerelease(text: &str) -> Result<(), SemverError> {
    match text {
        "" => Err(SemverError::EmptyPrerelease),
        text if is_number(text) && is_padded(text) => {
            Err(SemverError::Zeroes { part: "Numeric PreRelease version", text: text.to_owned() })
        }
        text if is_number(text) => text.parse::<u64>().map(drop).map_err(|_| SemverError::Range(text.to_owned())),
        text if is_word(text) => Ok(()),
        text => Err(SemverError::Characters { part: "prerelease", text: text.to_owned() }),
    }
}

fn build(text: &str) -> Result<(), SemverError> {
    match text {
        "" => Err(SemverError::EmptyBuild),
        text if is_word(text) => Ok(()),
        text => Err(SemverError::Characters { part: "build meta data", text: text.to_owned() }),
    }
}

/// A part without its leading zeros; one is left where no digit would be.
fn unpadded(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}

impl Semver {
    /// Reads `1.2.3-rc.1+build`.
    ///
    /// Errors: see [`SemverError`].
    pub fn read(text: &str) -> Result<Semver, SemverError> {
        if text.is_empty() {
            return Err(SemverError::Empty);
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(SemverError::Parts);
        };
        let major = number(major, ["Major number", "major number"])?;
        let minor = number(minor, ["Minor number", "minor number"])?;
        let (rest, metadata) = rest.split_once('+').map_or((rest, None), |(rest, after)| (rest, Some(after)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let patch = number(patch, ["Patch number", "patch number"])?;
        let pre: Vec<String> = pre.into_iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        pre.iter().try_for_each(|part| prerelease(part))?;
        metadata.into_iter().flat_map(|all| all.split('.')).try_for_each(build)?;
        Ok(Semver { numbers: [major, minor, patch], pre })
    }

    /// The same, but a `v` may stand before it, parts may be missing and have leading zeros.
    ///
    /// Errors: see [`SemverError`].
    ///
    /// Spec: `normalizeAndParse` of upstream v1.36.2 (`apiserver/pkg/cel/library/semverlib.go`).
    pub fn read_loosely(text: &str) -> Result<Semver, SemverError> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(unpadded).collect();
        if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err(SemverError::Short);
        }
        parts.resize(3, "0".to_owned());
        Semver::read(&parts.join("."))
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
