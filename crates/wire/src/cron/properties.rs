//! Properties that compare the results with a walk through every minute. `second_opinion` also uses the strategies.

use super::*;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MINUTE_MS: u64 = 60_000;
/// 2026-01-01 in milliseconds.
pub(super) const YEAR_2026: u64 = 1_767_225_600_000;
/// Zones whose clock does not change, with their offset in minutes east of Greenwich.
const EVEN_ZONES: [(&str, i32); 5] =
    [("UTC", 0), ("Asia/Tokyo", 540), ("Asia/Kathmandu", 345), ("America/Phoenix", -420), ("Etc/GMT+12", -720)];
/// Clock changes in 2026: by an hour, half an hour and two hours, at midnight, and backwards in winter.
const CHANGES: [(&str, &str); 9] = [
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
    ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00:00Z"),
    ("America/Santiago", "2026-04-05T03:00:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
];

/// Zones that skip the last hour of a day in spring: the end of that gap is on the next day.
const GAPS_BEFORE_MIDNIGHT: [&str; 3] = ["America/Nuuk", "America/Godthab", "America/Scoresbysund"];

fn zone_names() -> Vec<String> {
    jiff::tz::TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

/// A field as text, and the values it stands for. The values come from its construction, not from our parser.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) text: String,
    values: BTreeSet<u8>,
}

impl Model {
    fn is_wild(&self) -> bool {
        self.text.starts_with('*')
    }
}

fn entry(min: u8, max: u8) -> impl Strategy<Value = Model> {
    let of = |text: String, values: Vec<u8>| Model { text, values: values.into_iter().collect() };
    prop_oneof![
        (min..=max).prop_map(move |value| of(value.to_string(), vec![value])),
        (min..=max, min..=max).prop_map(move |(a, b)| {
            let (first, last) = (a.min(b), a.max(b));
            of(format!("{first}-{last}"), (first..=last).collect())
        }),
        (min..=max, min..=max, 1..=max).prop_map(move |(a, b, step)| {
            let (first, last) = (a.min(b), a.max(b));
            of(format!("{first}-{last}/{step}"), (first..=last).step_by(step.into()).collect())
        }),
        (min..=max, 1..=max).prop_map(move |(first, step)| {
            of(format!("{first}/{step}"), (first..=max).step_by(step.into()).collect())
        }),
    ]
}

fn field(min: u8, max: u8) -> impl Strategy<Value = Model> {
    let star = Just(Model { text: "*".to_owned(), values: (min..=max).collect() });
    let stepped = (1..=max)
        .prop_map(move |step| Model { text: format!("*/{step}"), values: (min..=max).step_by(step.into()).collect() });
    let list = prop::collection::vec(entry(min, max), 1..4).prop_map(|entries| Model {
        text: entries.iter().map(|entry| entry.text.as_str()).collect::<Vec<_>>().join(","),
        values: entries.iter().flat_map(|entry| &entry.values).copied().collect(),
    });
    prop_oneof![2 => star, 1 => stepped, 3 => list]
}

/// Five fields. Most months match, so that most expressions fire soon.
pub(super) fn expression() -> impl Strategy<Value = [Model; 5]> {
    let months = prop_oneof![4 => Just(Model { text: "*".to_owned(), values: (1..=12).collect() }), 1 => field(1, 12)];
    (field(0, 59), field(0, 23), field(1, 31), months, field(0, 6)).prop_map(|(a, b, c, d, e)| [a, b, c, d, e])
}

pub(super) fn text(fields: &[Model; 5]) -> String {
    fields.each_ref().map(|field| field.text.as_str()).join(" ")
}

fn matches(fields: &[Model; 5], local: DateTime) -> bool {
    let [minutes, hours, days, months, weekdays] = fields;
    let has = |field: &Model, value: i8| field.values.contains(&u8::try_from(value).unwrap());
    let day = has(days, local.day());
    let weekday = has(weekdays, local.weekday().to_sunday_zero_offset());
    let both = days.is_wild() || weekdays.is_wild();
    let date = has(months, local.month()) && if both { day && weekday } else { day || weekday };
    date && has(hours, local.hour()) && has(minutes, local.minute())
}

fn jiff_time(time: u64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(i64::try_from(time).unwrap()).unwrap()
}

/// The minutes of a span of time, including both ends.
fn minutes(from: u64, to: u64) -> impl Iterator<Item = u64> {
    (from.div_ceil(MINUTE_MS)..=to / MINUTE_MS).map(|minute| minute * MINUTE_MS)
}

/// All fire times after `start` until `end`.
fn fires(cron: &Cron, start: u64, end: u64) -> Vec<u64> {
    let fires = std::iter::successors(cron.next_after(Timestamp(start)), |fire| cron.next_after(*fire));
    fires.map(|fire| fire.0).take_while(|fire| *fire <= end).collect()
}

/// Fires in each minute that shows a matching time.
fn walk_by_wall_clock(fields: &[Model; 5], zone: &TimeZone, start: u64, end: u64) -> Vec<u64> {
    minutes(start + 1, end).filter(|time| matches(fields, zone.to_datetime(jiff_time(*time)))).collect()
}

/// Fires when the clock reaches or passes a matching time for the first time.
fn walk_once(fields: &[Model; 5], zone: &TimeZone, start: u64, end: u64) -> Vec<u64> {
    let minutes_of = |local: DateTime| Offset::UTC.to_timestamp(local).unwrap().as_second().div_euclid(60);
    let local_minute = |minute: i64| Offset::UTC.to_datetime(jiff::Timestamp::from_second(minute * 60).unwrap());
    let mut reached = i64::MAX;
    let mut fires = Vec::new();
    // Starts early, so that the walk knows the first pass of an overlap.
    for time in minutes(start - 6 * 60 * MINUTE_MS, end) {
        let now = minutes_of(zone.to_datetime(jiff_time(time)));
        if (reached.saturating_add(1)..=now).any(|minute| matches(fields, local_minute(minute))) && time > start {
            fires.push(time);
        }
        reached = if reached == i64::MAX { now } else { reached.max(now) };
    }
    fires
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        text in "(CRON_TZ=|TZ=|[A-Za-z/]{0,9}|@[a-z]{0,8}|[-0-9*,/?@ \t]){0,20}\
            |([-0-9*/,?]{1,6} ){4}[-0-7A-Z*]{1,5}|.{0,60}",
        time: u64,
    ) {
        if let Ok(cron) = Cron::parse(&text) {
            prop_assert!(cron.next_after(Timestamp(time)).is_none_or(|fire| fire.0 > time));
            prop_assert!(cron.next_after(Timestamp(time >> 22)).is_none_or(|fire| fire.0 > time >> 22));
            prop_assert_eq!(Cron::parse(cron.text()), Ok(cron.clone()));
        }
    }

    #[test]
    fn without_clock_changes_every_matching_minute_fires(
        fields in expression(),
        (zone, east) in prop::sample::select(&EVEN_ZONES[..]),
        start in YEAR_2026..YEAR_2026 + 3 * 365 * 86_400_000,
    ) {
        let Ok(cron) = Cron::parse(&format!("CRON_TZ={zone} {}", text(&fields))) else {
            prop_assert_eq!(Cron::parse(&text(&fields)), Err(InvalidCron::NeverFires));
            return Ok(());
        };
        let offset = Offset::from_seconds(east * 60).unwrap();
        let end = start + 3 * 86_400_000;
        let walked: Vec<u64> =
            minutes(start + 1, end).filter(|time| matches(&fields, offset.to_datetime(jiff_time(*time)))).collect();
        prop_assert_eq!(&fires(&cron, start, end), &walked);
        let latest = cron.latest_between(Timestamp(start), Timestamp(end));
        prop_assert_eq!(latest.map(|fire| fire.0), walked.last().copied());
        if let Some(fire) = cron.next_after(Timestamp(end)) {
            prop_assert!(matches(&fields, offset.to_datetime(jiff_time(fire.0))), "{} fires at {fire}", cron.text());
        }
    }

    #[test]
    fn around_a_clock_change_fires_match_a_walk_through_every_minute(
        fields in expression(),
        (zone, change) in prop::sample::select(&CHANGES[..]),
        before in 0..2 * 86_400_000_u64,
    ) {
        let Ok(cron) = Cron::parse(&format!("CRON_TZ={zone} {}", text(&fields))) else { return Ok(()) };
        let change: jiff::Timestamp = change.parse().unwrap();
        let start = u64::try_from(change.as_millisecond()).unwrap() + 43_200_000 - before;
        let end = start + 2 * 86_400_000;
        let zone = zone::find(zone).unwrap();
        let by_wall_clock = walk_by_wall_clock(&fields, &zone, start, end);
        let expected = if fields[0].is_wild() || fields[1].is_wild() {
            by_wall_clock.clone()
        } else {
            walk_once(&fields, &zone, start, end)
        };
        prop_assert_eq!(fires(&cron, start, end), expected, "{}", cron.text());
        prop_assert_eq!(fires(&cron.clone().by_wall_clock(), start, end), by_wall_clock, "{}", cron.text());
    }

    #[test]
    fn next_fires_are_monotonic_and_skip_no_fire(
        fields in expression(),
        (zone, _) in prop::sample::select(&CHANGES[..]),
        time in 0..4_000_000_000_000_u64,
        within in 0.0..1.0,
    ) {
        let Ok(cron) = Cron::parse(&format!("CRON_TZ={zone} {}", text(&fields))) else { return Ok(()) };
        let Some(Timestamp(fire)) = cron.next_after(Timestamp(time)) else { return Ok(()) };
        prop_assert!(fire > time);
        let between = time + ((fire - 1 - time) as f64 * within) as u64;
        prop_assert_eq!(cron.next_after(Timestamp(between)), Some(Timestamp(fire)));
        prop_assert!(cron.next_after(Timestamp(fire)).is_none_or(|next| next.0 > fire));
    }

    #[test]
    fn a_daily_job_fires_once_on_every_local_day(
        zone in prop::sample::select(zone_names()),
        hour in 0..24,
        minute in 0..60,
    ) {
        let cron = Cron::parse(&format!("CRON_TZ={zone} {minute} {hour} * * *")).unwrap();
        prop_assume!(hour != 23 || !GAPS_BEFORE_MIDNIGHT.contains(&zone.as_str()));
        let zone = zone::find(&zone).unwrap();
        let days: Vec<_> = fires(&cron, YEAR_2026, YEAR_2026 + 365 * 86_400_000)
            .into_iter()
            .map(|fire| zone.to_datetime(jiff_time(fire)).date())
            .collect();
        prop_assert!(days.len() >= 364);
        prop_assert!(days.windows(2).all(|pair| pair[0].tomorrow().unwrap() == pair[1]));
    }
}
