//! The vectors, and tables for the cases that they leave open.

use super::*;
use serde_json::Value;

pub(super) fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../vectors/cron.json")).unwrap()
}

pub(super) fn at(time: &str) -> Timestamp {
    let time: jiff::Timestamp = time.parse().unwrap();
    Timestamp(u64::try_from(time.as_millisecond()).unwrap())
}

fn cron(text: &str) -> Cron {
    Cron::parse(text).unwrap_or_else(|invalid| panic!("{text}: {invalid}"))
}

/// The first `count` fire times after `start`.
pub(super) fn fires(cron: &Cron, start: Timestamp, count: usize) -> Vec<Timestamp> {
    std::iter::successors(cron.next_after(start), |fire| cron.next_after(*fire)).take(count).collect()
}

pub(super) fn times(list: &Value) -> Vec<Timestamp> {
    list.as_array().unwrap().iter().map(|time| at(time.as_str().unwrap())).collect()
}

/// All spellings of a vector's expression: the header, `TZ=`, and those in its note.
fn spellings(vector: &Value) -> Vec<String> {
    let (expression, zone) = (vector["expr"].as_str().unwrap(), vector["tz"].as_str().unwrap());
    let mut texts = vec![
        vector["header"].as_str().unwrap().to_owned(),
        format!("CRON_TZ={zone} {expression}"),
        format!("TZ={zone}\t{expression}  "),
    ];
    let other = vector["note"].as_str().and_then(|note| note.strip_prefix("also written "));
    texts.extend(other.map(|note| note.split(':').next().unwrap().to_owned()));
    texts
}

#[test]
fn fire_times_follow_the_vectors() {
    let vectors = vectors();
    let cases = vectors["vectors"].as_array().unwrap();
    assert_eq!(cases.len(), 62);
    let mut spelt = 0;
    for case in cases {
        let start = at(case["start"].as_str().unwrap());
        for text in spellings(case) {
            assert_eq!(fires(&cron(&text), start, 5), times(&case["next5_utc"]), "{}: {text}", case["id"]);
            spelt += 1;
        }
    }
    assert_eq!(spelt, 3 * 62 + 8);
}

#[test]
fn the_wall_clock_variant_follows_the_vectors_too() {
    let vectors = vectors();
    let mut different = 0;
    for case in vectors["vectors"].as_array().unwrap() {
        let other = &case["alt_wallclock_walk_utc"];
        let expected = if other.is_null() { &case["next5_utc"] } else { other };
        different += usize::from(!other.is_null());
        let cron = cron(case["header"].as_str().unwrap()).by_wall_clock();
        let start = at(case["start"].as_str().unwrap());
        assert_eq!(fires(&cron, start, 5), times(expected), "{}", case["id"]);
    }
    assert_eq!(different, 23);
}

#[test]
fn invalid_expressions_of_the_vectors_are_refused() {
    let vectors = vectors();
    let cases = vectors["errors"].as_array().unwrap();
    assert_eq!(cases.len(), 23);
    for case in cases {
        let text = case["expr"].as_str().unwrap();
        let message = Cron::parse(text).expect_err(text).to_string();
        assert!(message.starts_with("invalid cron expression: "), "{text}: {message}");
    }
}

#[test]
fn errors_name_the_reason() {
    for (text, reason) in [
        ("* * * *", "4 fields, accepted are five: minute, hour, day of month, month, day of week"),
        ("", "0 fields, accepted are five: minute, hour, day of month, month, day of week"),
        ("60 * * * *", "minute does not accept \"60\", write *, 0-59, or lists, ranges and steps"),
        ("1,,2 * * * *", "minute does not accept \"\", write *, 0-59, or lists, ranges and steps"),
        ("0 +5 * * *", "hour does not accept \"+5\", write *, 0-23, or lists, ranges and steps"),
        ("0 0 L * *", "day of month does not accept \"L\", write *, 1-31, or lists, ranges and steps"),
        ("0 0 * JUNE *", "month does not accept \"JUNE\", write *, 1-12 or JAN-DEC, or lists, ranges and steps"),
        (
            "0 0 * * FRI-SUN",
            "day of week range \"FRI-SUN\" ends before it begins, write it upwards within 0-7 (Sunday is 0 or 7) or \
             SUN-SAT",
        ),
        ("5/0 * * * *", "minute step in \"5/0\" is not a number from 1 to 9999"),
        ("*/2/2 * * * *", "minute step in \"*/2/2\" is not a number from 1 to 9999"),
        ("0 0 30 2 *", "it never fires, none of its months has such a day"),
        ("0 0 30 2 */2", "it never fires, none of its months has such a day"),
        ("0 0 * *\n*", "only printable ASCII, spaces and tabs are accepted"),
        ("0 0 * * \u{a0}*", "only printable ASCII, spaces and tabs are accepted"),
        (
            "CRON_TZ=Mars/Base * * * * *",
            "unknown time zone \"Mars/Base\", write an IANA name such as Europe/Berlin or UTC",
        ),
        ("TZ=Etc/Unknown @daily", "unknown time zone \"Etc/Unknown\", write an IANA name such as Europe/Berlin or UTC"),
        ("TZ=UTC CRON_TZ=UTC @daily", "more than one time zone, at most one CRON_TZ= or TZ= is accepted"),
        (
            "@Daily",
            "unknown descriptor \"@Daily\", accepted are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, \
             @annually and @every <duration>",
        ),
        ("@every 90s", "@every does not accept \"90s\", write whole minutes from 1m to 365d, such as 5m or 1h30m"),
    ] {
        assert_eq!(Cron::parse(text).unwrap_err().to_string(), format!("invalid cron expression: {reason}"), "{text}");
    }
    let long = "0,".repeat(TEXT_BYTES_MAX) + "0 * * * *";
    assert_eq!(Cron::parse(&long), Err(InvalidCron::TooLong));
}

#[test]
fn no_zone_is_looked_up_as_a_file() {
    for name in ["", ".", "/", "/etc/localtime", "../UTC", "Europe/../UTC", "Europe", "Local", ":UTC", "UTC0", "+01:00"]
    {
        let text = format!("CRON_TZ={name} * * * * *");
        assert_eq!(Cron::parse(&text), Err(InvalidCron::UnknownZone(name.to_owned())), "{text}");
    }
}

#[test]
fn the_text_is_kept_without_white_space_around_it() {
    for (given, kept) in [
        ("*/10 * * * * ", "*/10 * * * *"),
        (" \t@daily\r\n", "@daily"),
        ("CRON_TZ=Europe/Berlin  0 9  * * MON", "CRON_TZ=Europe/Berlin  0 9  * * MON"),
    ] {
        assert_eq!(cron(given).text(), kept);
    }
}

#[test]
fn spellings_of_the_same_fields_are_equal() {
    for (one, other) in [
        ("5/20 * * * *", "5-59/20 * * * *"),
        ("?/30 ? ? ? ?", "*/30 * * * *"),
        ("*/90 * * * *", "*/60 * * * *"),
        ("0 0 * jan,Dec sun-Tue", "0 0 * 1,12 0-2"),
        ("00 007 1 1 *", "0 7 1 1 *"),
        ("0 0 1 * 0-7", "0 0 1 * 0-6"),
        ("0 0 1 * 7/3", "0 0 1 * 0"),
        ("0 0 1 * 1/2", "0 0 1 * 1,3,5"),
        ("TZ=europe/berlin @weekly", "CRON_TZ=Europe/Berlin 0 0 * * SUN"),
        ("@every 1h30m", "@every 1.5h"),
    ] {
        assert_eq!(cron(one).plan, cron(other).plan, "{one} and {other}");
    }
}

#[test]
fn intervals_are_counted_from_the_epoch() {
    let cron = cron("CRON_TZ=Asia/Kathmandu @every 1h30m");
    let expected = ["2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z", "2026-01-01T04:30:00Z"].map(at);
    assert_eq!(fires(&cron, at("2026-01-01T00:00:00Z"), 3), expected);
    assert_eq!(fires(&cron, at("2026-01-01T01:29:59.999Z"), 3), expected);
    for refused in ["", "0m", "30s", "90s", "60", "1", "366d", "-5m", "5", "5m 5m", "99999999999999d", "x"] {
        let text = format!("@every {refused}");
        assert_eq!(Cron::parse(&text), Err(InvalidCron::Interval(refused.to_owned())), "{text}");
    }
    assert!(Cron::parse("@every5m").is_err());
    assert!(Cron::parse("@every 365d").is_ok());
}

#[test]
fn several_times_in_one_gap_fire_once() {
    for text in ["0,15,30 2 * * *", "0 2,3 * * *", "59 2-3 * * *"] {
        let cron = cron(&format!("CRON_TZ=America/New_York {text}"));
        let gap_end = at("2026-03-08T07:00:00Z");
        assert_eq!(cron.next_after(at("2026-03-08T06:59:59.999Z")), Some(gap_end), "{text}");
        assert_eq!(cron.next_after(gap_end.minus_millis(86_400)), Some(gap_end), "{text}");
        assert!(cron.next_after(gap_end).unwrap() > gap_end, "{text}");
    }
}

#[test]
fn the_end_of_a_gap_may_be_on_the_next_day() {
    // On 2026-03-28 at 23:00 the clock of Nuuk moves to midnight, so the day has no minute left.
    let cron = cron("CRON_TZ=America/Nuuk 30 23 * * *");
    let expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"].map(at);
    assert_eq!(fires(&cron, at("2026-03-27T12:00:00Z"), 3), expected);
}

#[test]
fn rare_days_are_found_and_the_search_ends() {
    let rare = cron("0 0 29 2 */7");
    let sundays = ["2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"].map(at);
    assert_eq!(fires(&rare, at("2060-03-01T00:00:00Z"), 2), sundays);
    // New York skips this hour on the second Sunday in March, from 2007 on.
    let gone = cron("CRON_TZ=America/New_York * 2 8-14 3 */7");
    assert!(gone.next_after(at("2000-01-01T00:00:00Z")).is_some());
    assert_eq!(gone.next_after(at("2026-01-01T00:00:00Z")), None);
    for text in ["0 0 1 1 *", "* * * * *", "CRON_TZ=Europe/Berlin 0 0 * * *", "@every 1m"] {
        let cron = cron(text);
        assert!(cron.next_after(Timestamp(0)).is_some(), "{text}");
        assert_eq!(cron.next_after(Timestamp::MAX), None, "{text}");
        assert_eq!(cron.next_after(Timestamp(u64::MAX)), None, "{text}");
    }
    let end = at("9999-12-30T21:59:00Z");
    assert_eq!(cron("* * * * *").next_after(end), Some(end.plus_millis(60_000)));
    assert_eq!(cron("0 0 * * *").next_after(end.plus_millis(3 * 3_600_000)), None);
}

#[test]
fn the_latest_missed_run_is_found() {
    let (stopped, started) = (at("2026-01-01T00:02:00Z"), at("2026-01-01T03:02:00Z"));
    let often = cron("*/5 * * * *");
    let missed: Vec<Timestamp> = fires(&often, stopped, 100).into_iter().filter(|fire| *fire <= started).collect();
    assert_eq!(missed.len(), 36);
    assert_eq!(often.latest_between(stopped, started), missed.last().copied());
    let latest = at("2026-01-01T03:00:00Z");
    assert_eq!(often.latest_between(latest.minus_millis(1), latest), Some(latest));
    assert_eq!(often.latest_between(stopped, latest), Some(latest));
    assert_eq!(often.latest_between(latest, started), None);
    assert_eq!(often.latest_between(started, stopped), None);
    assert_eq!(often.latest_between(Timestamp(0), started), Some(latest));
}
