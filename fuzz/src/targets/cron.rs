//! Cron expressions: fire times increase and are full minutes. Where `croner` reads the same dialect, both agree.

use chrono::DateTime;
use posthaste_wire::cron::Cron;
use posthaste_wire::time::Timestamp;

/// Number of compared fire times.
const COMPARED: usize = 4;
const MINUTE_MS: u64 = 60_000;
/// Starts lie within two centuries after 1970.
const START_MINUTES: u32 = 200 * 366 * 24 * 60;

pub(crate) fn run(data: &[u8]) {
    let Some((start, rest)) = data.split_first_chunk::<4>() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let start = Timestamp(u64::from(u32::from_le_bytes(*start) % START_MINUTES) * MINUTE_MS + 1);
    let cron = match Cron::parse(text) {
        Ok(cron) => cron,
        Err(refusal) => return super::check_refusal(&refusal.to_string()),
    };
    assert_eq!(Cron::parse(cron.text()).as_ref(), Ok(&cron), "{text:?}");
    let fires = fires(&cron, start);
    check_order(&cron, start, &fires);
    check_order(&cron, start, &self::fires(&cron.clone().by_wall_clock(), start));
    if is_read_alike(cron.text()) {
        assert_eq!(Some(&fires), croner_fires(cron.text(), start).as_ref(), "{text:?} after {start}");
    }
}

fn fires(cron: &Cron, start: Timestamp) -> Vec<Timestamp> {
    std::iter::successors(cron.next_after(start), |time| cron.next_after(*time)).take(COMPARED).collect()
}

fn check_order(cron: &Cron, start: Timestamp, fires: &[Timestamp]) {
    let mut before = start;
    for fire in fires {
        assert!(*fire > before && fire.0.is_multiple_of(1_000), "{cron:?}: {fire} after {before}");
        before = *fire;
    }
    if let Some(last) = fires.last() {
        let caught_up = cron.latest_between(start, *last);
        assert!(caught_up.is_some_and(|fire| fire <= *last && fire > start), "{cron:?} until {last}");
    }
}

/// The fire times by `croner`; `None` if it rejects the expression.
fn croner_fires(text: &str, start: Timestamp) -> Option<Vec<Timestamp>> {
    let cron: croner::Cron = text.parse().ok()?;
    let mut time = DateTime::from_timestamp(i64::try_from(start.as_seconds()).ok()?, 0)?;
    let mut fires = Vec::new();
    while fires.len() < COMPARED {
        let Ok(next) = cron.find_next_occurrence(&time, false) else { break };
        fires.push(Timestamp(u64::try_from(next.timestamp_millis()).ok()?));
        time = next;
    }
    Some(fires)
}

/// Whether both read the expression alike: five fields of numbers, without the forms that the tests of `wire` list as
/// different (steps in the day fields, open steps), and without days so rare that `croner` gives up.
fn is_read_alike(text: &str) -> bool {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else { return false };
    let is_plain = |field: &str| field.bytes().all(|byte| byte.is_ascii_digit() || b"*,-/".contains(&byte));
    let is_open_step = |entry: &str| entry.contains('/') && !entry.contains(['-', '*']);
    let has_open_step = |field: &str| field.split(',').any(is_open_step);
    let is_stepped_list = |field: &str| field.contains(',') && field.contains('*');
    let has_large_number = |field: &str| field.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() > 2);
    let is_common_day =
        day == "*" || weekday == "*" && day.split(['-', ',', '/']).all(|n| n.parse().is_ok_and(|n: u8| n <= 28));
    fields.iter().all(|field| is_plain(field) && !has_large_number(field) && !is_stepped_list(field))
        && [minute, hour, month].iter().all(|field| !has_open_step(field))
        && !day.contains('/')
        && !weekday.contains('/')
        && is_common_day
}
