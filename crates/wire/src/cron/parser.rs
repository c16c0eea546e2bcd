//! The grammar of cron expressions. Where the vectors leave a case open, it follows Go's robfig/cron.

use super::calendar::Fields;
use super::{EVERY_MS_MAX, EVERY_MS_UNIT, FieldProblem, InvalidCron, Pace, Plan, STEP_MAX, zone};
use crate::duration::parse_duration;
use jiff::tz::TimeZone;
use std::ops::RangeInclusive;

/// The prefixes of a zone, in capitals only.
const ZONE_PREFIXES: [&str; 2] = ["CRON_TZ=", "TZ="];

/// One of the five fields.
struct Field {
    name: &'static str,
    accepts: &'static str,
    min: u16,
    /// The largest value of `*`.
    max: u16,
    /// The largest value that may be written: 7 is another name for Sunday.
    written_max: u16,
    /// Names of the values from `min` on.
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", accepts: "0-59", min: 0, max: 59, written_max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", accepts: "0-23", min: 0, max: 23, written_max: 23, names: &[] };
const DAY: Field = Field { name: "day of month", accepts: "1-31", min: 1, max: 31, written_max: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    accepts: "1-12 or JAN-DEC",
    min: 1,
    max: 12,
    written_max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
const WEEKDAY: Field = Field {
    name: "day of week",
    accepts: "0-7 (Sunday is 0 or 7) or SUN-SAT",
    min: 0,
    max: 6,
    written_max: 7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

/// Reads an expression that has no white space around it.
pub(super) fn parse(text: &str) -> Result<Plan, InvalidCron> {
    if !text.bytes().all(|byte| byte == b'\t' || byte == b' ' || byte.is_ascii_graphic()) {
        return Err(InvalidCron::Character);
    }
    let (zone, rest) = split_zone(text)?;
    if let Some(interval) = rest.strip_prefix("@every").filter(|rest| rest.starts_with([' ', '\t'])) {
        return every(interval.trim_ascii());
    }
    let (fields, pace) = five_fields(descriptor(rest)?)?;
    if !fields.ever() {
        return Err(InvalidCron::NeverFires);
    }
    Ok(Plan::Fields { fields, zone, pace })
}

/// `[("CRON_TZ=" | "TZ=") zone white-space] rest`
fn split_zone(text: &str) -> Result<(TimeZone, &str), InvalidCron> {
    let Some(after) = strip_zone_prefix(text) else { return Ok((TimeZone::UTC, text)) };
    let (name, rest) = after.split_once([' ', '\t']).unwrap_or((after, ""));
    let zone = zone::find(name).ok_or_else(|| InvalidCron::UnknownZone(name.to_owned()))?;
    let rest = rest.trim_ascii_start();
    if strip_zone_prefix(rest).is_some() {
        return Err(InvalidCron::SecondZone);
    }
    Ok((zone, rest))
}

fn strip_zone_prefix(text: &str) -> Option<&str> {
    ZONE_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix))
}

fn every(text: &str) -> Result<Plan, InvalidCron> {
    let invalid = || InvalidCron::Interval(text.to_owned());
    // A bare number would mean seconds, which users do not expect here.
    let interval_ms = parse_duration(text).ok().filter(|_| !text.ends_with(|last: char| last.is_ascii_digit()));
    let in_range = |ms: &u64| (EVERY_MS_UNIT..=EVERY_MS_MAX).contains(ms) && ms.is_multiple_of(EVERY_MS_UNIT);
    Ok(Plan::Every { interval_ms: interval_ms.filter(in_range).ok_or_else(invalid)? })
}

/// Expands a descriptor to its five fields. Any other text is returned unchanged.
fn descriptor(text: &str) -> Result<&str, InvalidCron> {
    Ok(match text {
        "@hourly" => "0 * * * *",
        "@daily" | "@midnight" => "0 0 * * *",
        "@weekly" => "0 0 * * 0",
        "@monthly" => "0 0 1 * *",
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@every" => return Err(InvalidCron::Interval(String::new())),
        _ if text.starts_with('@') => return Err(InvalidCron::UnknownDescriptor(text.to_owned())),
        _ => text,
    })
}

fn five_fields(text: &str) -> Result<(Fields, Pace), InvalidCron> {
    let texts: Vec<&str> = text.split_ascii_whitespace().collect();
    let [minute, hour, day, month, weekday] = texts[..] else { return Err(InvalidCron::FieldCount(texts.len())) };
    // As in Debian's cron, the first character decides: `*/10` is a wildcard, `1,*` is not.
    let is_wild = |field: &str| field.starts_with(['*', '?']);
    let weekdays = WEEKDAY.list(weekday)?;
    let fields = Fields {
        minutes: MINUTE.list(minute)?,
        hours: HOUR.list(hour)?,
        days: DAY.list(day)?,
        months: MONTH.list(month)?,
        weekdays: (weekdays | weekdays >> 7) & 0x7f,
        both_days: is_wild(day) || is_wild(weekday),
    };
    let pace = if is_wild(minute) || is_wild(hour) { Pace::WallClock } else { Pace::Once };
    Ok((fields, pace))
}

impl Field {
    /// `entry ("," entry)*`
    fn list(&self, text: &str) -> Result<u64, InvalidCron> {
        text.split(',').try_fold(0, |set, entry| Ok(set | self.entry(entry).map_err(|p| self.invalid(entry, p))?))
    }

    fn invalid(&self, entry: &str, problem: FieldProblem) -> InvalidCron {
        InvalidCron::Field { field: self.name, entry: entry.to_owned(), accepts: self.accepts, problem }
    }

    /// `range ["/" step]`
    fn entry(&self, text: &str) -> Result<u64, FieldProblem> {
        let (range, step) = match text.split_once('/') {
            None => (self.range(text, false)?, 1),
            Some((range, step)) => {
                let step = number(step).filter(|step| (1..=STEP_MAX).contains(step)).ok_or(FieldProblem::Step)?;
                (self.range(range, true)?, step)
            }
        };
        Ok(range.step_by(usize::from(step)).fold(0, |set, value| set | 1 << value))
    }

    /// `"*" | "?" | value | value "-" value`; a single value with a step extends to the end of the field.
    fn range(&self, text: &str, has_step: bool) -> Result<RangeInclusive<u16>, FieldProblem> {
        if text == "*" || text == "?" {
            return Ok(self.min..=self.max);
        }
        let Some((first, last)) = text.split_once('-') else {
            let value = self.value(text)?;
            return Ok(value..=if has_step { value.max(self.max) } else { value });
        };
        let (first, last) = (self.value(first)?, self.value(last)?);
        if first > last { Err(FieldProblem::Backwards) } else { Ok(first..=last) }
    }

    /// A number, or a three-letter name in upper or lower case.
    fn value(&self, text: &str) -> Result<u16, FieldProblem> {
        let named = self.names.iter().zip(self.min..).find(|(name, _)| name.eq_ignore_ascii_case(text));
        let value = named.map(|(_, value)| value).or_else(|| number(text));
        value.filter(|value| (self.min..=self.written_max).contains(value)).ok_or(FieldProblem::Value)
    }
}

/// Digits only. Rust's own parser would also accept a plus sign.
fn number(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
