//! Flags of another program that a command line passes on: what becomes of each that the program knows.
//!
//! None is taken and ignored without a word: a flag acts, or asks for what is so in any case, or bounds something that
//! has no bound here, or is refused with the reason.

use std::time::Duration;

/// A flag of that program.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Without dashes.
    pub name: &'static str,
    /// Its fate.
    pub fate: Fate,
}

/// The fate of a flag.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It acts.
    Acts,
    /// Taken with one of these values, which say what is so in any case; with another it is refused.
    Holds {
        /// As the program spells them.
        values: &'static [&'static str],
        /// Why no other value is taken: a part of a sentence.
        why: &'static str,
    },
    /// Taken with any good value: what it tunes does not exist here, and nothing depends on it.
    Moot {
        /// The form of a good value.
        form: Form,
        /// Why nothing depends on it: a part of a sentence.
        why: &'static str,
    },
    /// Refused: why, a part of a sentence.
    Refused(&'static str),
}

/// The form of a good value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number that is not negative.
    Count,
    /// A number that is not negative.
    Number,
    /// Such as `1m30s`.
    Duration,
    /// `true` or `false`.
    Switch,
    /// Any text but none.
    Text,
}

/// A flag as it is given.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Without dashes.
    pub name: &'a str,
    /// The text behind `=`; `true` where there is none.
    pub value: &'a str,
}

impl<'a> Given<'a> {
    /// Takes `--name=value` apart, with or without dashes.
    #[must_use]
    pub fn of(arg: &'a str) -> Given<'a> {
        let arg = arg.trim_start_matches('-');
        let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
        Given { name, value }
    }
}

/// Why a flag is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody has it.
    #[error("unknown flag")]
    Unknown,
    /// Its value is none.
    #[error("{value:?} is {wanted}")]
    Value {
        /// As given.
        value: String,
        /// The form that it has not.
        wanted: &'static str,
    },
    /// It asks for something else than what is so.
    #[error("only {taken} is taken: {why}")]
    Other {
        /// The values that hold.
        taken: String,
        /// Why no other.
        why: &'static str,
    },
    /// Nothing here can follow it.
    #[error("{0}; remove it")]
    NotHere(&'static str),
}

/// A step about a flag that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller has to follow it.
    Follow,
    /// It is so already.
    Holds,
    /// There is nothing to tune: why. A person should be told.
    Moot(&'static str),
}

/// Judges a flag by a table.
pub fn judge(table: &[Known], Given { name, value }: Given<'_>) -> Result<Verdict, Refusal> {
    let known = table.iter().find(|known| known.name == name).ok_or(Refusal::Unknown)?;
    match known.fate {
        Fate::Acts => Ok(Verdict::Follow),
        Fate::Holds { values, .. } if values.iter().any(|holds| holds.eq_ignore_ascii_case(value)) => {
            Ok(Verdict::Holds)
        }
        Fate::Holds { values, why } => Err(Refusal::Other { taken: values.join(" or "), why }),
        Fate::Moot { form, why } => form.check(value).map(|()| Verdict::Moot(why)),
        Fate::Refused(why) => Err(Refusal::NotHere(why)),
    }
}

impl Form {
    fn check(self, value: &str) -> Result<(), Refusal> {
        match self {
            Form::Count => count(value).map(drop),
            Form::Number => number(value).map(drop),
            Form::Duration => duration(value).map(drop),
            Form::Switch => switch(value).map(drop),
            Form::Text if value.is_empty() => Err(not("no value")(value)),
            Form::Text => Ok(()),
        }
    }
}

/// For a value that is none.
fn not(wanted: &'static str) -> impl Fn(&str) -> Refusal {
    move |value| Refusal::Value { value: value.to_owned(), wanted }
}

/// A whole number that is not negative.
pub fn count(value: &str) -> Result<usize, Refusal> {
    value.parse().map_err(|_| not("not a whole number of at least 0")(value))
}

/// A number that is not negative.
pub fn number(value: &str) -> Result<f64, Refusal> {
    let number = value.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| not("not a number of at least 0")(value))
}

/// As Go reads it.
pub fn switch(value: &str) -> Result<bool, Refusal> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(not("not true or false")(value)),
    }
}

/// Go's durations in whole seconds and larger, `40s`, `1m30s`, `0`: none is shorter than a second here.
pub fn duration(value: &str) -> Result<Duration, Refusal> {
    let bad = || not("no duration such as 40s")(value);
    if value == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut total, mut digits) = (0_u64, String::new());
    for c in value.chars() {
        let factor = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(bad()),
        };
        let n: u64 = digits.parse().map_err(|_| bad())?;
        total = n.checked_mul(factor).and_then(|n| n.checked_add(total)).ok_or_else(bad)?;
        digits.clear();
    }
    if value.is_empty() || !digits.is_empty() { Err(bad()) } else { Ok(Duration::from_secs(total)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Known] = &[
        Known { name: "acts", fate: Fate::Acts },
        Known { name: "holds", fate: Fate::Holds { values: &["true"], why: "it is so" } },
        Known { name: "moot", fate: Fate::Moot { form: Form::Count, why: "there is no bound" } },
        Known { name: "gone", fate: Fate::Refused("there is no such part") },
    ];

    #[test]
    fn a_flag_acts_or_holds_or_is_refused_with_the_reason() {
        for (arg, verdict) in [
            ("--acts=5", Ok(Verdict::Follow)),
            ("holds", Ok(Verdict::Holds)),
            ("--holds=True", Ok(Verdict::Holds)),
            ("holds=false", Err("only true is taken: it is so")),
            ("moot=7", Ok(Verdict::Moot("there is no bound"))),
            ("moot=-7", Err("\"-7\" is not a whole number of at least 0")),
            ("gone=x", Err("there is no such part; remove it")),
            ("odd", Err("unknown flag")),
            ("", Err("unknown flag")),
        ] {
            let said = judge(TABLE, Given::of(arg)).map_err(|err| err.to_string());
            assert_eq!(said, verdict.map_err(str::to_owned), "{arg}");
        }
    }

    #[test]
    fn values_have_their_forms() {
        for (text, secs) in
            [("40s", Some(40)), ("1m30s", Some(90)), ("0", Some(0)), ("0s", Some(0)), ("40", None), ("1ms", None)]
        {
            assert_eq!(duration(text).ok().map(|d| d.as_secs()), secs, "{text}");
        }
        for text in ["", "s", "-1s", "1d", "99999999999999999999s", "99999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!((number("0.5"), number("inf").is_err(), number("-1").is_err()), (Ok(0.5), true, true));
        assert_eq!((switch("T"), switch("yes").is_err()), (Ok(true), true));
    }
}
