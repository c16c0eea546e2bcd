//! The next fire times for people: in the zone of the expression, with a remark when the clock changes that day.

use super::calendar::Fields;
use super::{Cron, Pace, Plan};
use crate::time::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Zoned};

/// How far from a fire time a clock change may be and still fall on the same local day. A change moves the clock by up
/// to a day.
const CHANGE_WINDOW: SignedDuration = SignedDuration::from_hours(48);

/// Every hour of a day.
const ALL_HOURS: u64 = (1 << 24) - 1;

/// A fire time for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// The point in time.
    pub at: Timestamp,
    /// The local time in the zone, with its offset: `2026-03-29T03:00:00+02:00`.
    pub local: String,
    /// The effect of a clock change on that local day, if there is one.
    pub remark: Option<Remark>,
}

/// A clock change and its effect on a fire time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The kind of change.
    pub change: ClockChange,
    /// The effect as a sentence.
    pub text: String,
}

/// The kind of a clock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// The clock moves forward and skips some local times.
    Skipped,
    /// The clock moves back and repeats some local times.
    Repeated,
}

impl ClockChange {
    /// The name in API responses: `skipped` or `repeated`.
    pub fn name(self) -> &'static str {
        match self {
            ClockChange::Skipped => "skipped",
            ClockChange::Repeated => "repeated",
        }
    }
}

impl Cron {
    /// The name of the expression's time zone.
    pub fn zone(&self) -> &str {
        match &self.plan {
            Plan::Every { .. } => "UTC",
            Plan::Fields { zone, .. } => zone.iana_name().unwrap_or("UTC"),
        }
    }

    /// Up to `count` fire times after `after`.
    pub fn forecast(&self, after: Timestamp, count: usize) -> Vec<Firing> {
        let fires = std::iter::successors(self.next_after(after), |fire| self.next_after(*fire)).take(count);
        let mut previous = after;
        fires.map_while(|at| self.firing(std::mem::replace(&mut previous, at), at)).collect()
    }

    fn firing(&self, previous: Timestamp, at: Timestamp) -> Option<Firing> {
        let utc = TimeZone::UTC;
        let zone = match &self.plan {
            Plan::Every { .. } => &utc,
            Plan::Fields { zone, .. } => zone,
        };
        let zoned = instant(at)?.to_zoned(zone.clone());
        let remark = match &self.plan {
            Plan::Every { .. } => None,
            Plan::Fields { fields, pace, .. } => {
                let plan = Local { fields, pace: *pace };
                plan.on_the_day(&zoned).or_else(|| plan.lost_between(instant(previous)?, &zoned))
            }
        };
        let local = format!("{}{}", zoned.datetime(), offset(&zoned));
        Some(Firing { at, local, remark })
    }
}

fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()
}

/// `+02:00`.
fn offset(zoned: &Zoned) -> String {
    let minutes = zoned.offset().seconds() / 60;
    let sign = if minutes < 0 { '-' } else { '+' };
    format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
}

/// A clock change at `at` that skips or repeats the local times from `from` up to, but not including, `to`.
#[derive(Clone, Copy)]
struct Change {
    at: jiff::Timestamp,
    kind: ClockChange,
    from: DateTime,
    to: DateTime,
}

impl Change {
    /// The clock changes of a zone after `start` and not after `end`.
    fn between(zone: &TimeZone, start: jiff::Timestamp, end: jiff::Timestamp) -> impl Iterator<Item = Change> {
        let mut before = zone.to_offset(start);
        let following = zone.following(start).take_while(move |change| change.timestamp() <= end);
        following.filter_map(move |change| {
            let at = change.timestamp();
            let (old, new) = (before.to_datetime(at), change.offset().to_datetime(at));
            before = change.offset();
            // Some changes affect only the name of the zone.
            match old.cmp(&new) {
                std::cmp::Ordering::Less => Some(Change { at, kind: ClockChange::Skipped, from: old, to: new }),
                std::cmp::Ordering::Greater => Some(Change { at, kind: ClockChange::Repeated, from: new, to: old }),
                std::cmp::Ordering::Equal => None,
            }
        })
    }

    fn is_on(&self, day: Date) -> bool {
        let last = self.to.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(self.to);
        self.from.date() <= day && day <= last.date()
    }

    /// `02:00 to 03:00`; with dates if it spans a whole day.
    fn span(&self) -> String {
        let is_long = self.to.duration_since(self.from) >= SignedDuration::from_hours(24);
        let format = if is_long { "%Y-%m-%d %H:%M" } else { "%H:%M" };
        format!("{} to {}", self.from.strftime(format), self.to.strftime(format))
    }
}

/// The fields and pace of an expression that follows local time.
struct Local<'a> {
    fields: &'a Fields,
    pace: Pace,
}

impl Local<'_> {
    /// The remark for a fire time whose local day has a clock change.
    fn on_the_day(&self, fire: &Zoned) -> Option<Remark> {
        let start = fire.timestamp().checked_sub(CHANGE_WINDOW).ok()?;
        let end = fire.timestamp().checked_add(CHANGE_WINDOW).ok()?;
        // A change that skips a whole day ends on the next one.
        let concerns = |change: &Change| change.is_on(fire.date()) || change.at == fire.timestamp();
        let change = Change::between(fire.time_zone(), start, end).find(concerns)?;
        let effect = match change.kind {
            ClockChange::Skipped => self.effect_of_gap(&change, fire),
            ClockChange::Repeated => self.effect_of_overlap(&change, fire),
        };
        let (way, verb) = match change.kind {
            ClockChange::Skipped => ("forward", "is skipped"),
            ClockChange::Repeated => ("back", "occurs twice"),
        };
        let text = format!("the clock goes {way} on this day, and {} {verb}{effect}", change.span());
        Some(Remark { change: change.kind, text })
    }

    fn effect_of_gap(&self, gap: &Change, fire: &Zoned) -> String {
        let Some(due) = self.first_within(gap) else { return String::new() };
        match self.pace {
            Pace::Once if fire.timestamp() == gap.at => {
                format!("; {} fires when the gap ends", due.strftime("%H:%M"))
            }
            // When all hours match, the minute after the gap would have matched anyway.
            Pace::WallClock if self.fields.hours == ALL_HOURS => String::new(),
            Pace::Once => String::new(),
            Pace::WallClock => "; times in it do not fire".to_owned(),
        }
    }

    fn effect_of_overlap(&self, overlap: &Change, fire: &Zoned) -> String {
        if fire.datetime() < overlap.from || fire.datetime() >= overlap.to {
            return String::new();
        }
        match (self.pace, fire.timestamp() < overlap.at) {
            (Pace::Once, _) => "; it fires only the first time".to_owned(),
            (Pace::WallClock, true) => "; it fires both times, and this is the first".to_owned(),
            (Pace::WallClock, false) => "; it fires both times, and this is the second".to_owned(),
        }
    }

    /// The remark about local times between two fire times that do not fire because the clock skips them.
    fn lost_between(&self, previous: jiff::Timestamp, fire: &Zoned) -> Option<Remark> {
        if self.pace == Pace::Once {
            return None;
        }
        let gap = Change::between(fire.time_zone(), previous, fire.timestamp())
            .find(|change| change.kind == ClockChange::Skipped && self.first_within(change).is_some())?;
        let text = format!(
            "before this, on {}, the clock goes forward, and {} is skipped; times in it do not fire",
            gap.from.date(),
            gap.span()
        );
        Some(Remark { change: ClockChange::Skipped, text })
    }

    fn first_within(&self, change: &Change) -> Option<DateTime> {
        self.fields.at_or_after(change.from).filter(|due| *due < change.to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, vectors};
    use super::*;
    use serde_json::{Value, json};

    fn cron(text: &str) -> Cron {
        Cron::parse(text).unwrap_or_else(|invalid| panic!("{text}: {invalid}"))
    }

    fn shown(firing: &Firing) -> Value {
        let remark = firing.remark.as_ref();
        json!([firing.local, remark.map(|remark| remark.change.name()), remark.map(|remark| remark.text.as_str())])
    }

    #[test]
    fn forecasts_follow_the_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../../vectors/cron-forecast.json")).expect("vectors are JSON");
        let cases = vectors["vectors"].as_array().expect("a list");
        assert_eq!(cases.len(), 19);
        for case in cases {
            let text = case["header"].as_str().expect("an expression");
            let firings = cron(text).forecast(at(case["after"].as_str().expect("a time")), 3);
            assert_eq!(Value::Array(firings.iter().map(shown).collect()), case["firings"], "{}: {text}", case["id"]);
        }
    }

    #[test]
    fn forecast_times_match_the_cron_vectors_and_every_clock_change_has_a_remark() {
        let (mut changed, mut kinds) = (0, [0, 0]);
        for case in vectors()["vectors"].as_array().expect("a list") {
            let cron = cron(case["header"].as_str().expect("an expression"));
            let firings = cron.forecast(at(case["start"].as_str().expect("a time")), 5);
            let locals: Vec<&str> = firings.iter().map(|firing| firing.local.as_str()).collect();
            assert_eq!(json!(locals), case["next5_local"], "{}", case["id"]);
            assert_eq!(cron.zone(), case["tz"].as_str().expect("a zone"), "{}", case["id"]);
            for firing in firings {
                let Plan::Fields { zone, .. } = &cron.plan else { continue };
                // A clock change makes the day longer or shorter than 24 hours.
                let zoned = instant(firing.at).expect("a time").to_zoned(zone.clone());
                let day = zoned.start_of_day().expect("a day begins").timestamp();
                let next = zoned.tomorrow().and_then(|next| next.start_of_day()).expect("the next day").timestamp();
                let hours = next.duration_since(day);
                let expected = match hours.cmp(&SignedDuration::from_hours(24)) {
                    std::cmp::Ordering::Less => Some(ClockChange::Skipped),
                    std::cmp::Ordering::Greater => Some(ClockChange::Repeated),
                    std::cmp::Ordering::Equal => continue,
                };
                changed += 1;
                kinds[usize::from(expected == Some(ClockChange::Repeated))] += 1;
                assert_eq!(firing.remark.map(|remark| remark.change), expected, "{}: {}", case["id"], firing.local);
            }
        }
        assert!(changed > 40 && kinds.iter().all(|count| *count > 10), "{changed} {kinds:?}");
    }

    #[test]
    fn the_rarest_expression_is_forecast_to_the_end_of_the_calendar() {
        let rare = cron("CRON_TZ=Europe/Berlin * 2 29 2 */7");
        let firings = rare.forecast(at("2026-01-01T00:00:00Z"), 100);
        assert_eq!((firings.len(), firings[60].local.as_str()), (100, "2060-02-29T02:00:00+01:00"));
        assert_eq!(rare.forecast(at("9999-12-30T00:00:00Z"), 100), []);
    }
}
