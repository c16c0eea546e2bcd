//! Cron expressions of schedules: five fields in a time zone, `@daily` and its kin, `@every 5m`.
//!
//! The dialect is `vectors/cron.json`. Start at [`Cron::parse`], then read [`Cron::next_after`], a pure function of the
//! given time. `parser` reads the text, `calendar` finds matching local minutes, and `zone` turns them into points in
//! time, including clock changes. `forecast` describes the next fire times for people. The caller remembers which runs
//! have fired.

mod calendar;
mod forecast;
mod parser;
mod zone;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod second_opinion;
#[cfg(test)]
mod tests;

pub use forecast::{ClockChange, Firing, Remark};

use crate::time::Timestamp;
use calendar::Fields;
use jiff::tz::TimeZone;
use std::fmt;

/// Longest expression in bytes, including the zone. Longer ones are rejected.
const TEXT_BYTES_MAX: usize = 512;
/// Shortest `@every`; every interval is a multiple of it, because schedules have a resolution of one minute.
const EVERY_MS_UNIT: u64 = 60_000;
/// Longest `@every`. Longer ones are rejected.
const EVERY_MS_MAX: u64 = 365 * 86_400_000;
/// Largest step. Larger ones are rejected. A step beyond the field's range matches only its first value.
const STEP_MAX: u16 = 9_999;
/// How far ahead a search for a fire time looks. Calendar, weekdays and clock changes repeat after 400 years, so an
/// expression that does not match within them never fires.
const SEARCH_YEARS_MAX: i16 = 400;

/// A parsed cron expression.
///
/// A clock change neither loses nor repeats a run. A fixed time that the clock skips fires at the end of the gap, and a
/// fixed time that occurs twice fires the first time only. Expressions whose minute or hour begins with `*` or `?`
/// follow elapsed time instead: they fire in every minute whose local time matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron {
    text: String,
    plan: Plan,
}

/// When to fire.
#[derive(Clone, Debug, PartialEq)]
enum Plan {
    /// At the multiples of an interval since the Unix epoch, so that all nodes agree, also after a restart.
    Every { interval_ms: u64 },
    /// At the matching local times.
    Fields { fields: Fields, zone: TimeZone, pace: Pace },
}

/// The effect of a clock change on local times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Every local time happens once: at the end of the gap that contains it, or in the first of two passes.
    Once,
    /// Local times happen as the clock shows them: never in a gap, twice in an overlap.
    WallClock,
}

impl Cron {
    /// Reads an expression: `[CRON_TZ=<zone> | TZ=<zone>]`, then five fields, a descriptor or `@every`.
    ///
    /// The zone defaults to UTC. Expressions that never fire, such as 30 February, are rejected.
    pub fn parse(text: &str) -> Result<Cron, InvalidCron> {
        let text = text.trim_ascii();
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidCron::TooLong);
        }
        Ok(Cron { text: text.to_owned(), plan: parser::parse(text)? })
    }

    /// The expression as given, without outer white space.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same expression, but following the wall clock literally, as robfig/cron does: a fixed time that the clock
    /// skips does not fire that day, and one that occurs twice fires twice.
    pub fn by_wall_clock(mut self) -> Cron {
        if let Plan::Fields { pace, .. } = &mut self.plan {
            *pace = Pace::WallClock;
        }
        self
    }

    /// The first fire time after `time`, never `time` itself.
    ///
    /// Returns `None` if it never fires again: nothing matches within `SEARCH_YEARS_MAX`, or the calendar ends (year
    /// 9999).
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        match &self.plan {
            Plan::Every { interval_ms } => {
                let next = (time.0 / interval_ms + 1).checked_mul(*interval_ms).map(Timestamp)?;
                (next <= Timestamp::MAX).then_some(next)
            }
            Plan::Fields { fields, zone, pace } => {
                let after = jiff::Timestamp::from_millisecond(i64::try_from(time.0).ok()?).ok()?;
                let next = match pace {
                    Pace::Once => zone::next_once(fields, zone, after),
                    Pace::WallClock => zone::next_by_wall_clock(fields, zone, after),
                };
                u64::try_from(next?.as_millisecond()).ok().map(Timestamp)
            }
        }
    }

    /// The last fire time after `after` and not after `until`. A schedule that missed several runs catches up with this
    /// one.
    ///
    /// Takes about forty times as long as [`Cron::next_after`], no matter how many runs were missed.
    pub fn latest_between(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut latest = self.next_after(after).filter(|fire| *fire <= until)?;
        let mut end = until;
        while latest < end {
            let middle = latest.plus_millis(end.millis_since(latest) / 2);
            match self.next_after(middle) {
                Some(fire) if fire <= end => latest = fire,
                _ => end = middle,
            }
        }
        Some(latest)
    }
}

/// Why a text is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidCron {
    /// Over 512 bytes.
    TooLong,
    /// A line break, another control character, or a character outside ASCII.
    Character,
    /// Not the name of a time zone.
    UnknownZone(String),
    /// A second zone after the first.
    SecondZone,
    /// `@` followed by an unknown descriptor.
    UnknownDescriptor(String),
    /// `@every` with an unusable interval.
    Interval(String),
    /// The number of fields, which is not five.
    FieldCount(usize),
    /// An invalid entry of a field.
    Field {
        /// The name of the field.
        field: &'static str,
        /// The entry, as written.
        entry: String,
        /// The values that the field accepts.
        accepts: &'static str,
        /// The problem with the entry.
        problem: FieldProblem,
    },
    /// No calendar has such a day.
    NeverFires,
}

/// The problem with an entry of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// Not a value of the field.
    Value,
    /// A range that ends before it begins.
    Backwards,
    /// A step that is not a positive number.
    Step,
}

impl fmt::Display for InvalidCron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid cron expression: ")?;
        match self {
            InvalidCron::TooLong => write!(f, "at most {TEXT_BYTES_MAX} bytes are accepted"),
            InvalidCron::Character => f.write_str("only printable ASCII, spaces and tabs are accepted"),
            InvalidCron::UnknownZone(name) => {
                write!(f, "unknown time zone {name:?}, write an IANA name such as Europe/Berlin or UTC")
            }
            InvalidCron::SecondZone => f.write_str("more than one time zone, at most one CRON_TZ= or TZ= is accepted"),
            InvalidCron::UnknownDescriptor(name) => write!(
                f,
                "unknown descriptor {name:?}, accepted are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, \
                 @annually and @every <duration>"
            ),
            InvalidCron::Interval(text) => {
                write!(f, "@every does not accept {text:?}, write whole minutes from 1m to 365d, such as 5m or 1h30m")
            }
            InvalidCron::FieldCount(count) => {
                write!(f, "{count} fields, accepted are five: minute, hour, day of month, month, day of week")
            }
            InvalidCron::Field { field, entry, accepts, problem } => match problem {
                FieldProblem::Value => {
                    write!(f, "{field} does not accept {entry:?}, write *, {accepts}, or lists, ranges and steps")
                }
                FieldProblem::Backwards => {
                    write!(f, "{field} range {entry:?} ends before it begins, write it upwards within {accepts}")
                }
                FieldProblem::Step => write!(f, "{field} step in {entry:?} is not a number from 1 to {STEP_MAX}"),
            },
            InvalidCron::NeverFires => f.write_str("it never fires, none of its months has such a day"),
        }
    }
}

impl std::error::Error for InvalidCron {}
