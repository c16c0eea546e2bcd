//! Compares our cron with the crate `croner`. Where both speak the same dialect they must agree. The known differences
//! are listed, so that a change on either side fails a test.

use super::properties::{Model, YEAR_2026, expression, text};
use super::tests::{at, fires, times, vectors};
use super::*;
use chrono::{DateTime, FixedOffset, MappedLocalTime, NaiveDate, NaiveDateTime, NaiveTime};
use jiff::civil;
use jiff::tz::{AmbiguousOffset, Offset};
use proptest::prelude::*;

/// Fire times that each case compares.
const COMPARED: usize = 5;

/// Our zones in the form that `croner` takes, so that both know the same clock changes.
#[derive(Clone, Debug)]
struct ChronoZone(TimeZone);

#[derive(Clone, Debug)]
struct ChronoOffset {
    zone: ChronoZone,
    offset: FixedOffset,
}

impl ChronoZone {
    fn with(&self, offset: Offset) -> ChronoOffset {
        ChronoOffset { zone: self.clone(), offset: FixedOffset::east_opt(offset.seconds()).unwrap() }
    }
}

impl chrono::Offset for ChronoOffset {
    fn fix(&self) -> FixedOffset {
        self.offset
    }
}

impl chrono::TimeZone for ChronoZone {
    type Offset = ChronoOffset;

    fn from_offset(offset: &ChronoOffset) -> Self {
        offset.zone.clone()
    }

    fn offset_from_local_date(&self, local: &NaiveDate) -> MappedLocalTime<ChronoOffset> {
        self.offset_from_local_datetime(&local.and_time(NaiveTime::MIN))
    }

    fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> MappedLocalTime<ChronoOffset> {
        let local: civil::DateTime = local.format("%Y-%m-%dT%H:%M:%S").to_string().parse().unwrap();
        match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => MappedLocalTime::Single(self.with(offset)),
            AmbiguousOffset::Fold { before, after } => MappedLocalTime::Ambiguous(self.with(before), self.with(after)),
            AmbiguousOffset::Gap { .. } => MappedLocalTime::None,
        }
    }

    fn offset_from_utc_date(&self, utc: &NaiveDate) -> ChronoOffset {
        self.offset_from_utc_datetime(&utc.and_time(NaiveTime::MIN))
    }

    fn offset_from_utc_datetime(&self, utc: &NaiveDateTime) -> ChronoOffset {
        self.with(self.0.to_offset(jiff::Timestamp::from_second(utc.and_utc().timestamp()).unwrap()))
    }
}

/// The fire times by `croner`, as far as it finds them; `None` if it rejects the expression.
fn croner_fires(text: &str, zone: &TimeZone, start: Timestamp) -> Option<Vec<Timestamp>> {
    let cron: croner::Cron = text.parse().ok()?;
    // Its fire times keep the milliseconds of the start.
    let start = DateTime::from_timestamp(i64::try_from(start.as_seconds()).unwrap(), 0).unwrap();
    let mut time = start.with_timezone(&ChronoZone(zone.clone()));
    let mut fires = Vec::new();
    while fires.len() < COMPARED {
        let Ok(next) = cron.find_next_occurrence(&time, false) else { break };
        fires.push(Timestamp(u64::try_from(next.timestamp_millis()).unwrap()));
        time = next;
    }
    Some(fires)
}

/// Whether the two crates are known to read a part of this expression differently; see the first table below.
fn is_read_differently([_, _, day, _, weekday]: &[Model; 5]) -> bool {
    let stepped_day = day.text.starts_with("*/") && weekday.text != "*";
    let stepped_weekday = weekday.text.starts_with("*/") && day.text != "*";
    let is_open_step = |entry: &str| entry.contains('/') && !entry.contains(['-', '*']);
    stepped_day || stepped_weekday || weekday.text.split(',').any(is_open_step)
}

proptest! {
    #[test]
    fn in_utc_croner_agrees(
        fields in expression().prop_filter("both read it alike", |fields| !is_read_differently(fields)),
        start in YEAR_2026..YEAR_2026 + 3 * 365 * 86_400_000,
    ) {
        let text = text(&fields);
        let Ok(cron) = Cron::parse(&text) else { return Ok(()) };
        let start = Timestamp(start);
        let ours = fires(&cron, start, COMPARED);
        prop_assert_eq!(ours.len(), COMPARED);
        prop_assert_eq!(croner_fires(&text, &TimeZone::UTC, start), Some(ours), "{} after {}", text, start);
    }
}

#[test]
fn known_differences_from_croner_are_listed() {
    let start = Timestamp(YEAR_2026);
    for (text, difference) in [
        ("0 0 */10 * MON", "a stepped wildcard restricts the day there, so that either day is enough"),
        ("0 0 1 * */2", "the same for the weekday"),
        ("0 0 * * 2/5", "open steps of the weekday reach 7, which is Sunday, there"),
        ("1,,2 * * * *", "empty entries are accepted there"),
        ("0 0 * * FRI-SUN", "a range may end on Sunday by name there"),
        ("0 0 L * *", "last days are accepted there"),
        ("0 0 15W * *", "nearest weekdays are accepted there"),
        ("0 0 * * 5#2", "weekdays by number are accepted there"),
        ("0 ? * * *", "question marks are for days only there"),
        ("@midnight", "not known there"),
        ("@every 5m", "not known there"),
        ("TZ=UTC 0 0 * * *", "not known there"),
    ] {
        let ours = Cron::parse(text).ok().map(|cron| fires(&cron, start, COMPARED));
        assert_ne!(ours, croner_fires(text, &TimeZone::UTC, start), "{text}: {difference}");
    }
}

#[test]
fn vectors_that_croner_fails_are_listed() {
    let known = [
        ("dom-step-star", "a stepped wildcard restricts the day there"),
        ("dow-step-star", "the same for the weekday"),
        ("ny-gap-0130", "fires at the end of a gap too that follows its own hour"),
        ("apia-skipped-day", "gives up in a gap of a day"),
        ("ny-overlap-hourly", "the second pass of a repeated hour is lost when it is asked from fire to fire"),
        ("ny-overlap-half-hourly", "the same"),
        ("ny-overlap-minute-wild", "the same"),
        ("resume-inside-overlap-between", "in the second pass it answers with the first, which is over"),
    ];
    let vectors = vectors();
    let cases = vectors["vectors"].as_array().unwrap().iter();
    let failed = cases.filter(|case| {
        let zone = zone::find(case["tz"].as_str().unwrap()).unwrap();
        let theirs = croner_fires(case["expr"].as_str().unwrap(), &zone, at(case["start"].as_str().unwrap()));
        theirs != Some(times(&case["next5_utc"]))
    });
    let failed: Vec<&str> = failed.map(|case| case["id"].as_str().unwrap()).collect();
    assert_eq!(failed, known.map(|(id, _)| id));
}

#[test]
fn invalid_vectors_that_croner_accepts_are_listed() {
    let known = [
        ("* * * * * *", "a sixth field is seconds there"),
        ("0 0 30 2 *", "that it never fires is found only when it is asked"),
        ("0 0 31 2,4,6,9,11 *", "the same"),
    ];
    let vectors = vectors();
    let texts = vectors["errors"].as_array().unwrap().iter().map(|case| case["expr"].as_str().unwrap());
    let accepted: Vec<&str> = texts.filter(|text| text.parse::<croner::Cron>().is_ok()).collect();
    assert_eq!(accepted, known.map(|(text, _)| text));
}
