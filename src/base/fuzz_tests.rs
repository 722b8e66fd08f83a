//! Seeded fuzzing of texts that are read everywhere: schedules and durations.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cron::{self, Schedule};
use crate::fuzz::{self, mutated_text, pick, rounds};

#[test]
fn schedules_of_any_words_are_read_or_refused_and_have_a_next_time_or_none() {
    let rng = fuzz::rng(1);
    let seeds =
        ["*/5 1-4,7 ? JAN-MAR mon,FRI", "59 23 31 12 6", "@every 1h30m", "@daily", "0 0 29 2 *", "1.5h-3ms+7us"];
    let words =
        ["*", "/", "-", ",", "0", "60", "99999999999999999999", "@every ", "1e9h", " ", "L", "TZ=UTC ", "ns", "?"];
    for round in rounds(2_000) {
        let text = mutated_text(&rng, pick::<&str>(&rng, &seeds), &words);
        let _length = cron::duration(&text);
        let _zone = cron::is_zone(&text);
        let Ok(schedule) = Schedule::parse(&text) else { continue };
        let at = Timestamp::from_second(i64::try_from(rng.below(4_000_000_000)).unwrap()).unwrap();
        let next = schedule.next(at, &TimeZone::UTC);
        assert!(next.is_none_or(|next| next > at), "round {round}: {text:?} after {at} is {next:?}");
        let _at_the_end = schedule.next(Timestamp::MAX, &TimeZone::UTC);
    }
}
