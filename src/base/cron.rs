//! Schedules as robfig/cron v3 reads them (that is what Kubernetes promises): five fields or an `@` word, in a time
//! zone.
//!
//! No crate fits: those at hand read `L`, `W`, `#` or a seconds field, want 7 for Sunday, or have no `@every`.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _, Unit, Zoned};

/// When something is to happen, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Always this long after the last time; whole seconds.
    Every(SignedDuration),
    /// At the minutes that these fields pick.
    Fields(Fields),
}

/// Five fields as sets of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// Whether both days count (one of them is a star) or either does.
    both_days: bool,
}

/// Whether this is the name of a time zone. The table of zones is part of the program.
pub fn is_zone(name: &str) -> bool {
    TimeZone::get(name).is_ok()
}

struct Bounds {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOURS: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAYS: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };
/// A schedule that meets no day within this many years has none (30 February).
const YEARS_MAX: i16 = 5;

/// Why a text is no schedule, in the words of robfig/cron.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Nothing.
    #[error("empty spec string")]
    Empty,
    /// Not five fields.
    #[error("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" "))]
    Fields {
        /// The fields that were found.
        fields: Vec<String>,
    },
    /// An `@` word that is none.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// `@every` with something that is no duration.
    #[error("failed to parse duration {text}: time: invalid duration {length:?}")]
    Every {
        /// The whole text.
        text: String,
        /// The part after the word.
        length: String,
    },
    /// More than two ends of a range.
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    /// More than one step.
    #[error("too many slashes: {0}")]
    Slashes(String),
    /// A range that begins too early.
    #[error("beginning of range ({low}) below minimum ({minimum}): {text}")]
    Below {
        /// Its beginning.
        low: u32,
        /// The field's least number.
        minimum: u32,
        /// The range.
        text: String,
    },
    /// A range that ends too late.
    #[error("end of range ({high}) above maximum ({maximum}): {text}")]
    Above {
        /// Its end.
        high: u32,
        /// The field's greatest number.
        maximum: u32,
        /// The range.
        text: String,
    },
    /// A range that ends before it begins.
    #[error("beginning of range ({low}) beyond end of range ({high}): {text}")]
    Backwards {
        /// Its beginning.
        low: u32,
        /// Its end.
        high: u32,
        /// The range.
        text: String,
    },
    /// A step of 0.
    #[error("step of range should be a positive number: {0}")]
    Step(String),
    /// A number below 0.
    #[error("negative number ({number}) not allowed: {text}")]
    Negative {
        /// The number.
        number: i64,
        /// The number as it stands there.
        text: String,
    },
    /// No number.
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    Syntax(String),
    /// A number that no field could have.
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: value out of range")]
    OutOfRange(String),
}

impl Schedule {
    /// Reads a schedule.
    pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        if text.starts_with('@') {
            return descriptor(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let &[minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(ScheduleError::Fields { fields: fields.into_iter().map(str::to_owned).collect() });
        };
        let ((minute, _), (hour, _)) = (field(minute, &MINUTES)?, field(hour, &HOURS)?);
        let ((day, any_day), (month, _)) = (field(day, &DAYS)?, field(month, &MONTHS)?);
        let (weekday, any_weekday) = field(weekday, &WEEKDAYS)?;
        Ok(Schedule::Fields(Fields { minute, hour, day, month, weekday, both_days: any_day || any_weekday }))
    }

    /// The first time after `after`, as clocks in `zone` show it; `None` if there is none in the next five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(every) => after.round(Unit::Second).ok()?.min(floor(after)?).checked_add(*every).ok(),
            Schedule::Fields(fields) => fields.next(after, zone),
        }
    }
}

fn floor(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(at.as_nanosecond().div_euclid(1_000_000_000).try_into().ok()?).ok()
}

fn descriptor(text: &str) -> Result<Schedule, ScheduleError> {
    let five = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let every = text.strip_prefix("@every ").ok_or_else(|| ScheduleError::Descriptor(text.to_owned()))?;
            let length = duration(every)
                .ok_or_else(|| ScheduleError::Every { text: text.to_owned(), length: every.to_owned() })?;
            return Ok(Schedule::Every(SignedDuration::from_secs(length.as_secs().max(1))));
        }
    };
    Schedule::parse(five)
}

/// A duration as Go writes it: `1h30m`, `1.5h`, `90s`, `200ms`. `None` if it is none.
pub fn duration(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut nanos: f64 = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        nanos += number
            * match &rest[..unit] {
                "ns" => 1.0,
                "us" | "µs" | "μs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3600e9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    let length = SignedDuration::try_from_secs_f64(nanos / 1e9).ok()?;
    Some(if negative { -length } else { length })
}

/// One field: its bits, and whether a star stands in it.
fn field(text: &str, bounds: &Bounds) -> Result<(u64, bool), ScheduleError> {
    let (mut bits, mut star) = (0, false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, any) = range(part, bounds)?;
        bits |= range;
        star |= any;
    }
    Ok((bits, star))
}

fn range(text: &str, bounds: &Bounds) -> Result<(u64, bool), ScheduleError> {
    let mut slashes = text.split('/');
    let (ends, step, more) = (slashes.next().unwrap_or_default(), slashes.next(), slashes.next());
    let mut hyphens = ends.split('-');
    let (first, last, extra) = (hyphens.next().unwrap_or_default(), hyphens.next(), hyphens.next());
    let mut star = false;
    let (low, mut high) = if matches!(first, "*" | "?") {
        star = true;
        (bounds.low, bounds.high)
    } else {
        let low = number_or_name(first, bounds)?;
        match (last, extra) {
            (None, _) => (low, low),
            (Some(last), None) => (low, number_or_name(last, bounds)?),
            (Some(_), Some(_)) => return Err(ScheduleError::Hyphens(text.to_owned())),
        }
    };
    let step = match (step, more) {
        (None, _) => 1,
        (Some(step), None) => {
            let step = number(step)?;
            // N/STEP means N-MAX/STEP.
            if last.is_none() {
                high = bounds.high;
            }
            star &= step <= 1;
            step
        }
        (Some(_), Some(_)) => return Err(ScheduleError::Slashes(text.to_owned())),
    };
    let text = text.to_owned();
    if low < bounds.low {
        return Err(ScheduleError::Below { low, minimum: bounds.low, text });
    }
    if high > bounds.high {
        return Err(ScheduleError::Above { high, maximum: bounds.high, text });
    }
    if low > high {
        return Err(ScheduleError::Backwards { low, high, text });
    }
    if step == 0 {
        return Err(ScheduleError::Step(text));
    }
    let bits = (low..=high).step_by(usize::try_from(step).unwrap_or(usize::MAX)).fold(0, |bits, n| bits | 1_u64 << n);
    Ok((bits, star))
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, ScheduleError> {
    match bounds.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        Some(at) => Ok(bounds.low + u32::try_from(at).unwrap_or(0)),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, ScheduleError> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(ScheduleError::Negative { number, text: text.to_owned() }),
        Ok(number) => u32::try_from(number).map_err(|_| ScheduleError::OutOfRange(text.to_owned())),
        Err(_) => Err(ScheduleError::Syntax(text.to_owned())),
    }
}

fn has(bits: u64, n: i8) -> bool {
    u32::try_from(n).is_ok_and(|n| bits >> n & 1 == 1)
}

impl Fields {
    fn on(&self, date: Date) -> bool {
        let (day, weekday) = (has(self.day, date.day()), has(self.weekday, date.weekday().to_sunday_zero_offset()));
        has(self.month, date.month()) && if self.both_days { day && weekday } else { day || weekday }
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // The next whole minute: all zones of today are whole minutes from UTC.
        let start = Timestamp::from_second(after.as_second().div_euclid(60) * 60 + 60).ok()?;
        let mut date = start.to_zoned(zone.clone()).date();
        let last_year = date.year() + YEARS_MAX;
        while date.year() <= last_year {
            if self.on(date) {
                let midnight = date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp();
                if let Some(found) = self.within(date, midnight.max(start), zone) {
                    return Some(found);
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The first minute of `date` from `from` on. An hour that a change of clocks skips is skipped, one that it repeats
    /// counts twice.
    fn within(&self, date: Date, from: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut at: Zoned = from.to_zoned(zone.clone());
        while at.date() == date {
            if has(self.hour, at.hour()) && has(self.minute, at.minute()) {
                return Some(at.timestamp());
            }
            let step = if has(self.hour, at.hour()) { 1 } else { 60 - i64::from(at.minute()) };
            at = at.checked_add(step.minutes()).ok()?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str, zone: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let next = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone);
        next.map_or("never".to_owned(), |at| at.to_string())
    }

    #[test]
    fn schedules_meet_the_times_that_robfig_cron_meets() {
        for (schedule, after, want) in [
            ("*/15 * * * *", "2012-07-09T14:45:00Z", "2012-07-09T15:00:00Z"),
            ("*/15 * * * *", "2012-07-09T14:59:59Z", "2012-07-09T15:00:00Z"),
            ("20-35/15 * * * *", "2012-07-09T15:45:00Z", "2012-07-09T16:20:00Z"),
            ("0 0 9 Apr-Oct ?", "2012-12-09T15:45:00Z", "2013-04-09T00:00:00Z"),
            ("0 0 * Feb Mon", "2012-07-09T23:35:00Z", "2013-02-04T00:00:00Z"),
            ("0 0 29 Feb ?", "2012-07-09T23:35:00Z", "2016-02-29T00:00:00Z"),
            ("0 0 30 Feb ?", "2012-07-09T23:35:00Z", "never"),
            ("0 0 1 * Mon", "2026-11-02T00:00:00Z", "2026-11-09T00:00:00Z"),
            ("5/20 * * * *", "2026-01-01T00:05:00Z", "2026-01-01T00:25:00Z"),
            ("@hourly", "2026-01-01T00:05:00Z", "2026-01-01T01:00:00Z"),
            ("@every 1h30m", "2026-01-01T00:05:00.7Z", "2026-01-01T01:35:00Z"),
            ("@every 300ms", "2026-01-01T00:05:00Z", "2026-01-01T00:05:01Z"),
        ] {
            assert_eq!(next(schedule, after, "UTC"), want, "{schedule} after {after}");
        }
    }

    #[test]
    fn zones_need_nothing_from_the_host_and_clocks_may_change() {
        assert_eq!(next("0 9 * * *", "2026-07-01T12:00:00Z", "Europe/Berlin"), "2026-07-02T07:00:00Z");
        assert_eq!(next("0 9 * * *", "2026-12-01T12:00:00Z", "America/New_York"), "2026-12-01T14:00:00Z");
        // 02:30 does not exist on 8 March 2026 in New York; 01:30 exists twice on 1 November.
        assert_eq!(next("30 2 * * *", "2026-03-07T08:00:00Z", "America/New_York"), "2026-03-09T06:30:00Z");
        assert_eq!(next("30 1 * * *", "2026-11-01T05:30:00Z", "America/New_York"), "2026-11-01T06:30:00Z");
        // Lebanon's clocks skip midnight: the day begins at one.
        assert_eq!(next("0 * * * *", "2026-03-28T21:30:00Z", "Asia/Beirut"), "2026-03-28T22:00:00Z");
    }

    #[test]
    fn mistakes_are_named() {
        for (schedule, want) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-2 * * * *", "beginning of range (5) beyond end of range (2): 5-2"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("5-2-1/2/3 * * * *", "too many hyphens: 5-2-1/2/3"),
            ("+-1 * * * *", "failed to parse int from +: strconv.Atoi: parsing \"+\": invalid syntax"),
            ("* * * Mai *", "failed to parse int from Mai: strconv.Atoi: parsing \"Mai\": invalid syntax"),
            (
                "4294967296 * * * *",
                "failed to parse int from 4294967296: strconv.Atoi: parsing \"4294967296\": value out of range",
            ),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every 5 minutes", "failed to parse duration @every 5 minutes: time: invalid duration \"5 minutes\""),
        ] {
            assert_eq!(Schedule::parse(schedule).unwrap_err().to_string(), want);
        }
    }
}
