//! Moments in time as Go counts and writes them: all of the years 1 to 9999, with the offset they were written with.
//! jiff's years end two days before them.

use std::cmp::Ordering;
use std::fmt;
use std::num::IntErrorKind;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The first second of the year 1.
const SECONDS_MIN: i64 = -62_135_596_800;
/// The last second of the year 9999.
const SECONDS_MAX: i64 = 253_402_300_799;
/// Of a time outside of those.
pub const BEYOND: &str = "timestamp overflow";
const NO_TIME: &str = "type conversion error from 'string' to 'google.protobuf.Timestamp'";
const DAY: i64 = 86_400;
const BILLION: i64 = 1_000_000_000;

/// A zone of time that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// `1x:00`
    #[error(transparent)]
    Number(#[from] NumberError),
    /// A name that is a path.
    #[error("time: invalid location name")]
    Path,
    /// A name that no zone has.
    #[error("unknown time zone {0}")]
    Unknown(String),
}

/// A text that is no number, in the words of Go's `strconv`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strconv.Atoi: parsing {text:?}: {}", if *.is_large { "value out of range" } else { "invalid syntax" })]
pub struct NumberError {
    /// As it was given.
    pub text: String,
    /// It is a number, but a larger one than an `int64` holds.
    pub is_large: bool,
}

/// The name of a zone, as an expression gives it: `UTC`, `Europe/Berlin`, `-08:00`, `Local`.
#[derive(Clone, Copy, Debug)]
pub struct Zone<'a>(pub &'a str);

/// A moment; two are equal that are at the same time, whatever their offsets.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since 1970.
    seconds: i64,
    /// Of the second that has begun.
    nanos: i64,
    /// Seconds east of UTC, as it was written.
    offset: i64,
}

impl Moment {
    /// A moment in UTC, in seconds since 1970; `None` outside of the years 1 to 9999.
    pub fn from_seconds(seconds: i64) -> Option<Moment> {
        Moment { seconds, nanos: 0, offset: 0 }.in_range()
    }

    /// Reads RFC 3339, as Go's `time.Parse` does: an hour may have one digit, a comma may stand before the fraction,
    /// digits beyond nanoseconds are dropped, and an offset goes up to `25:00`.
    ///
    /// Errors: cel-go's text; it is no time, or one outside of the years 1 to 9999.
    pub fn read(text: &str) -> Result<Moment, &'static str> {
        Moment::parse(text).ok_or(NO_TIME)?.in_range().ok_or(BEYOND)
    }

    fn parse(text: &str) -> Option<Moment> {
        let (at, zone) = local(text)?;
        let offset = match zone.as_bytes() {
            b"Z" => 0,
            [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
                let (hours, minutes) = (two(*h1, *h2, 24)?, two(*m1, *m2, 60)?);
                (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
            }
            _ => return None,
        };
        Some(Moment { seconds: at.seconds - offset, offset, ..at })
    }

    /// Reads what a field of a custom object may hold: the same, also without an offset; `None` if it is neither.
    pub fn read_field(text: &str) -> Option<Moment> {
        let without = || local(text).filter(|(_, zone)| zone.is_empty()).map(|(at, _)| at);
        Moment::parse(text).or_else(without)?.in_range()
    }

    /// Whether a text is a date as Go reads RFC 3339's: `2024-02-29`.
    pub fn is_date(text: &str) -> bool {
        matches!(local(&format!("{text}T00:00:00")), Some((_, "")))
    }

    /// Whole seconds since 1970, rounded down.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Later by so many nanoseconds; `None` outside of the years 1 to 9999.
    pub fn shifted(self, nanos: i128) -> Option<Moment> {
        let nanos = i128::from(self.nanos) + nanos;
        let seconds = i64::try_from(nanos.div_euclid(i128::from(BILLION))).ok()?.checked_add(self.seconds)?;
        let nanos = i64::try_from(nanos.rem_euclid(i128::from(BILLION))).ok()?;
        Moment { seconds, nanos, ..self }.in_range()
    }

    /// Nanoseconds since another moment; `None` if there are too many.
    pub fn since(self, other: Moment) -> Option<i64> {
        let seconds = i128::from(self.seconds) - i128::from(other.seconds);
        i64::try_from(seconds * i128::from(BILLION) + i128::from(self.nanos) - i128::from(other.nanos)).ok()
    }

    /// Whether it is what Go begins with: the first moment of the year 1.
    pub fn is_zero(self) -> bool {
        (self.seconds, self.nanos) == (SECONDS_MIN, 0)
    }

    /// `getHours` and its like, in a zone; `None` for another name.
    ///
    /// Errors: there is no such zone.
    pub fn field(self, name: &str, zone: Zone<'_>) -> Result<Option<i64>, ZoneError> {
        let at = self.seconds + self.offset_in(zone)?;
        let (days, second) = (at.div_euclid(DAY), at.rem_euclid(DAY));
        let (year, month, day) = date(days);
        Ok(Some(match name {
            "getFullYear" => year,
            "getMonth" => month - 1,
            "getDate" => day,
            "getDayOfMonth" => day - 1,
            // The first day of 1970 was a Thursday.
            "getDayOfWeek" => (days + 4).rem_euclid(7),
            "getDayOfYear" => days - day_number(year, 1, 1),
            "getHours" => second / 3600,
            "getMinutes" => second / 60 % 60,
            "getSeconds" => second % 60,
            "getMilliseconds" => self.nanos / 1_000_000,
            _ => return Ok(None),
        }))
    }

    fn offset_in(self, Zone(zone): Zone<'_>) -> Result<i64, ZoneError> {
        if let Some((hours, minutes)) = zone.split_once(':') {
            let (hours, minutes) = (go_number(hours)?, go_number(minutes)?);
            let minutes = if zone.starts_with('-') { minutes.wrapping_neg() } else { minutes };
            // Go counts in nanoseconds that wrap around, and takes hours and minutes of any size.
            return Ok(hours.wrapping_mul(60).wrapping_add(minutes).wrapping_mul(60 * BILLION) / BILLION);
        }
        let zone = match zone {
            "" | "UTC" => return Ok(0),
            "Local" => TimeZone::system(),
            name if name.contains("..") || name.starts_with(['/', '\\']) => {
                return Err(ZoneError::Path);
            }
            // jiff does not mind upper and lower case.
            name => TimeZone::get(name)
                .ok()
                .filter(|zone| zone.iana_name() == Some(name))
                .ok_or_else(|| ZoneError::Unknown(name.to_owned()))?,
        };
        let seconds = self.seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let at = Timestamp::from_second(seconds).expect("within jiff's own bounds");
        Ok(i64::from(zone.to_offset(at).seconds()))
    }

    fn in_range(self) -> Option<Moment> {
        (SECONDS_MIN..=SECONDS_MAX).contains(&self.seconds).then_some(self)
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Moment) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Moment) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Moment) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.seconds + self.offset;
        let (year, month, day) = date(at.div_euclid(DAY));
        let second = at.rem_euclid(DAY);
        write!(f, "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)?;
        if self.nanos > 0 {
            write!(f, ".{}", format!("{:09}", self.nanos).trim_end_matches('0'))?;
        }
        if self.offset == 0 {
            return f.write_str("Z");
        }
        let minutes = self.offset.abs() / 60;
        write!(f, "{}{:02}:{:02}", if self.offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
    }
}

/// Reads date and time, as if in UTC; gives what follows.
fn local(text: &str) -> Option<(Moment, &str)> {
    let bytes = text.as_bytes();
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', time @ ..] = bytes else { return None };
    let (year, month) = (two(*y1, *y2, 99)? * 100 + two(*y3, *y4, 99)?, two(*m1, *m2, 12)?);
    let day = two(*d1, *d2, 31)?;
    let days = day_number(year, month, day);
    let (hour, rest) = match time {
        [h1, h2, b':', rest @ ..] => (two(*h1, *h2, 23)?, rest),
        [h, b':', rest @ ..] => (two(b'0', *h, 23)?, rest),
        _ => return None,
    };
    let [m1, m2, b':', s1, s2, rest @ ..] = rest else { return None };
    let second = hour * 3600 + two(*m1, *m2, 59)? * 60 + two(*s1, *s2, 59)?;
    // A day that the month does not have is one of the next.
    if month == 0 || day == 0 || date(days) != (year, month, day) {
        return None;
    }
    let (nanos, rest) = fraction(rest);
    Some((Moment { seconds: days * DAY + second, nanos, offset: 0 }, text.get(text.len() - rest.len()..)?))
}

/// Nanoseconds, and what follows them.
fn fraction(text: &[u8]) -> (i64, &[u8]) {
    let [b'.' | b',', digits @ ..] = text else { return (0, text) };
    let count = digits.iter().take_while(|c| c.is_ascii_digit()).count();
    if count == 0 {
        return (0, text);
    }
    let digit = |at: usize| if at < count { i64::from(digits[at] - b'0') } else { 0 };
    ((0..9).fold(0, |nanos, at| nanos * 10 + digit(at)), &digits[count..])
}

/// A number of two digits, up to a limit.
fn two(tens: u8, ones: u8, max: i64) -> Option<i64> {
    let number = i64::from(char::from(tens).to_digit(10)? * 10 + char::from(ones).to_digit(10)?);
    (number <= max).then_some(number)
}

/// A number as Go's `strconv.Atoi` reads it.
pub(super) fn go_number(text: &str) -> Result<i64, NumberError> {
    text.parse().map_err(|err: std::num::ParseIntError| {
        let is_large = matches!(err.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow);
        NumberError { text: text.to_owned(), is_large }
    })
}

/// Days from 1970 to a date of the Gregorian calendar. A year begins with March here: its odd day is the last one.
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Year, month and day that many days after 1970 began.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (of_year * 5 + 2) / 153;
    let day = of_year - (month * 153 + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// jiff counts them on its own.
    #[test]
    fn days_are_those_of_the_calendar() {
        let first = jiff::civil::date(-9999, 1, 1);
        let begin = day_number(-9999, 1, 1);
        for day in (0..7_304_000).step_by(61) {
            let wanted = first.checked_add(jiff::Span::new().days(day)).unwrap();
            let (year, month, day) = date(begin + day);
            assert_eq!(
                (year, month, day),
                (i64::from(wanted.year()), i64::from(wanted.month()), i64::from(wanted.day()))
            );
            assert_eq!(date(day_number(year, month, day)), (year, month, day));
        }
    }

    /// A field of a custom object, as `strfmt.ParseDateTime` of kube-openapi reads it.
    #[test]
    fn a_field_may_lack_its_offset() {
        let shown = |text| Moment::read_field(text).map(|at| at.to_string());
        for (text, wanted) in [
            ("2024-01-02T03:04:05", Some("2024-01-02T03:04:05Z")),
            ("9999-12-31T23:59:59.5Z", Some("9999-12-31T23:59:59.5Z")),
            ("2024-01-02T03:04:05+01:00", Some("2024-01-02T03:04:05+01:00")),
            ("2024-01-02 03:04:05Z", None),
            ("2024-01-02T03:04:05Z[UTC]", None),
            ("2024-01-02T03:04:05é", None),
        ] {
            assert_eq!(shown(text).as_deref(), wanted, "{text}");
        }
    }
}
