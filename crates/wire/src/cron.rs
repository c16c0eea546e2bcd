//! Cron expressions of schedules: five fields in a time zone, `@daily` and its kin, `@every 5m`.
//!
//! The dialect is `vectors/cron.json`. Start at [`Cron::parse`]; then [`Cron::next_after`], which is a pure
//! function of the time it is given. `parser` reads the text, `calendar` finds matching local minutes and
//! `zone` turns them into points in time, clock changes included; `forecast` tells people of them. Remembering what fired is
//! for the caller.

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

/// Longest expression, zone included; longer ones are refused.
const TEXT_BYTES_MAX: usize = 512;
/// Shortest `@every`, and what it must be a multiple of: schedules have a resolution of one minute.
const EVERY_MS_UNIT: u64 = 60_000;
/// Longest `@every`; longer ones are refused.
const EVERY_MS_MAX: u64 = 365 * 86_400_000;
/// Largest step, larger ones are refused; those beyond the field leave its first value only.
const STEP_MAX: u16 = 9_999;
/// How far ahead a fire time is looked for. Calendar, weekdays and clock changes repeat after 400 years, so
/// what does not fire within them never does.
const SEARCH_YEARS_MAX: i16 = 400;

/// A parsed cron expression.
///
/// A clock change neither loses nor repeats a run: a fixed time that the clock skips fires at the end of the
/// gap, one that comes twice fires the first time only. Expressions whose minute or hour begins with `*` or
/// `?` follow elapsed time instead: they fire in every minute whose local time matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron {
    text: String,
    plan: Plan,
}

/// When to fire.
#[derive(Clone, Debug, PartialEq)]
enum Plan {
    /// At the multiples of an interval since the Unix epoch, so that every node and every restart agrees.
    Every { interval_ms: u64 },
    /// At the local times that match.
    Fields { fields: Fields, zone: TimeZone, pace: Pace },
}

/// What a clock change does to local times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Every local time happens once: at the end of the gap it fell into, at the first of two passes.
    Once,
    /// Local times happen as the clock shows them: not at all in a gap, twice in an overlap.
    WallClock,
}

impl Cron {
    /// Reads an expression: `[CRON_TZ=<zone> | TZ=<zone>]`, then five fields, a descriptor or `@every`.
    ///
    /// Without a zone it is UTC. Expressions that never fire, such as 30 February, are refused.
    pub fn parse(text: &str) -> Result<Cron, InvalidCron> {
        let text = text.trim_ascii();
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidCron::TooLong);
        }
        Ok(Cron { text: text.to_owned(), plan: parser::parse(text)? })
    }

    /// The expression as it was given, without white space around it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same expression, but following the wall clock literally, as robfig/cron does: a fixed time that the
    /// clock skips does not fire that day, one that comes twice fires twice.
    pub fn by_wall_clock(mut self) -> Cron {
        if let Plan::Fields { pace, .. } = &mut self.plan {
            *pace = Pace::WallClock;
        }
        self
    }

    /// The first fire time after `time`, never `time` itself.
    ///
    /// `None` when it never fires again: nothing within `SEARCH_YEARS_MAX`, or the calendar ends (year 9999).
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

    /// The last fire time after `after` and not after `until`: the one to catch up with when some were missed.
    ///
    /// Takes about forty times as long as [`Cron::next_after`], however many were missed.
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
    /// A line break, another control character, or something outside ASCII.
    Character,
    /// Not the name of a time zone.
    UnknownZone(String),
    /// A second zone after the first.
    SecondZone,
    /// `@` and something that is no descriptor.
    UnknownDescriptor(String),
    /// `@every` with something that is not a usable interval.
    Interval(String),
    /// This many fields, not five.
    FieldCount(usize),
    /// One entry of a field cannot be read.
    Field {
        /// Which field.
        field: &'static str,
        /// The entry, as written.
        entry: String,
        /// What the field accepts.
        accepts: &'static str,
        /// What is wrong with the entry.
        problem: FieldProblem,
    },
    /// No calendar has such a day.
    NeverFires,
}

/// What is wrong with an entry of a field.
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
