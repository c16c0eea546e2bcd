//! Durations as publishers write them: `50s`, `1d10h30m`, `1.5h`, or a bare number of seconds.
//!
//! Workflows also have weeks, months and years, and results of divisions; see [`Units`]. [`parse_duration`] knows only
//! the grammar. The limits depend on the setting, and [`DurationRange`] checks them.

use std::borrow::Cow;
use std::fmt;

/// Longest accepted text.
const TEXT_BYTES_MAX: usize = 32;
/// Most digits of one number, leading zeros included.
const DIGITS_MAX: usize = 15;
/// Most decimals of the last number, so that every result is a whole number of milliseconds.
const DECIMALS_MAX: usize = 3;
/// One day in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// The units with their milliseconds, in the order in which they may follow each other.
const UNITS: [(&str, u64); 7] = [
    ("y", 365 * DAY_MS),
    ("mo", 30 * DAY_MS),
    ("w", 7 * DAY_MS),
    ("d", DAY_MS),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
];

/// The units that a duration may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// `d`, `h`, `m` and `s`.
    #[default]
    Short,
    /// Also `y` (365 days), `mo` (30 days) and `w`, and any number of decimals, also without a unit. Programs compute
    /// such durations, and `10 / 3` is `3.3333333333333335`. Decimals beyond a thousandth of the unit are cut off.
    Long,
}

impl Units {
    fn known(self) -> &'static [(&'static str, u64)] {
        match self {
            Units::Short => &UNITS[3..],
            Units::Long => &UNITS,
        }
    }
}

/// Units that people write but durations do not have, except where [`Units`] adds them.
const NO_UNITS: [&str; 14] =
    ["ms", "us", "µs", "ns", "sec", "min", "hour", "day", "w", "week", "mo", "month", "y", "year"];

/// Why a text is not a duration. The error texts follow the value: `"500ms" is not a duration: …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidDuration {
    /// The text is not a sequence of numbers with units.
    Grammar,
    /// A unit that is not supported here.
    Unit(&'static str),
    /// A unit is repeated or follows a smaller one.
    UnitOrder,
    /// The text is longer than any valid duration.
    TooLong,
    /// The number is too large.
    TooBig,
}

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ACCEPTED: &str = "accepted are d, h, m and s, such as 1d10h30m, 5m or 0.5s, and a number of seconds";
        match self {
            InvalidDuration::Grammar => write!(f, "not a duration; {ACCEPTED}"),
            InvalidDuration::Unit(unit) => write!(f, "not a duration: {unit} is not supported here; {ACCEPTED}"),
            InvalidDuration::UnitOrder => {
                f.write_str("not a duration: units must descend, such as d, h, m, s, each at most once")
            }
            InvalidDuration::TooLong => write!(f, "not a duration: at most {TEXT_BYTES_MAX} characters are accepted"),
            InvalidDuration::TooBig => f.write_str("not a duration: the number is too big"),
        }
    }
}

impl std::error::Error for InvalidDuration {}

/// Reads a duration and returns it in milliseconds.
///
/// Accepts one or more `<digits><unit>`, with the units `d h m s` in descending order, each at most once. The last
/// number may have up to three decimals. A bare integer means seconds.
pub fn parse_duration(text: &str) -> Result<u64, InvalidDuration> {
    parse_duration_in(Units::Short, text)
}

/// Like [`parse_duration`], with these units.
pub fn parse_duration_in(known: Units, text: &str) -> Result<u64, InvalidDuration> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(InvalidDuration::TooLong);
    }
    let (first, rest) = split_digits(text.as_bytes());
    if rest.is_empty() {
        return number(first)?.checked_mul(1_000).ok_or(InvalidDuration::TooBig);
    }
    let in_seconds = rest.strip_prefix(b".").is_some_and(|decimals| split_digits(decimals).1.is_empty());
    let text: Cow<'_, str> =
        if known == Units::Long && in_seconds { format!("{text}s").into() } else { Cow::Borrowed(text) };

    let mut rest = text.as_bytes();
    let mut total: u64 = 0;
    let mut units = known.known();
    while !rest.is_empty() {
        let part = Part::read(known, rest)?;
        rest = part.rest;
        if part.thousandths.is_some() && !rest.is_empty() {
            return Err(InvalidDuration::Grammar);
        }
        let position = units.iter().position(|(unit, _)| *unit == part.unit).ok_or(InvalidDuration::UnitOrder)?;
        let (_, unit_ms) = units[position];
        units = &units[position + 1..];
        let whole = part.whole.checked_mul(unit_ms).ok_or(InvalidDuration::TooBig)?;
        let fraction = part.thousandths.unwrap_or(0) * (unit_ms / 1_000);
        total = whole.checked_add(fraction).and_then(|ms| total.checked_add(ms)).ok_or(InvalidDuration::TooBig)?;
    }
    Ok(total)
}

/// One `<digits>[.<decimals>]<unit>` and the rest of the text.
struct Part<'a> {
    whole: u64,
    thousandths: Option<u64>,
    unit: &'static str,
    rest: &'a [u8],
}

impl<'a> Part<'a> {
    fn read(known: Units, text: &'a [u8]) -> Result<Part<'a>, InvalidDuration> {
        let (digits, mut rest) = split_digits(text);
        let whole = number(digits)?;
        let mut thousandths = None;
        if let Some(after_point) = rest.strip_prefix(b".") {
            let (mut decimals, after) = split_digits(after_point);
            if decimals.len() > DECIMALS_MAX {
                match known {
                    Units::Short => return Err(InvalidDuration::Grammar),
                    Units::Long => decimals = &decimals[..DECIMALS_MAX],
                }
            }
            let scale = [0, 100, 10, 1][decimals.len()];
            thousandths = Some(number(decimals)? * scale);
            rest = after;
        }
        let word = &rest[..rest.iter().position(u8::is_ascii_digit).unwrap_or(rest.len())];
        let unit = known.known().iter().map(|(unit, _)| *unit).find(|unit| word == unit.as_bytes());
        let unit = unit.ok_or_else(|| unknown_unit(word))?;
        Ok(Part { whole, thousandths, unit, rest: &rest[unit.len()..] })
    }
}

/// Why a word between numbers is not a unit.
fn unknown_unit(word: &[u8]) -> InvalidDuration {
    let singular = word.strip_suffix(b"s").unwrap_or(word);
    let unit = NO_UNITS.into_iter().find(|unit| [word, singular].contains(&unit.as_bytes()));
    unit.map_or(InvalidDuration::Grammar, InvalidDuration::Unit)
}

/// Formats a duration in the units of [`parse_duration`], which reads it back: `365d`, `1h30m`, `1.5s`.
pub fn in_units(ms: u64) -> String {
    let (mut rest, mut text) = (ms, String::new());
    for (unit, unit_ms) in &UNITS[3..] {
        let count = rest / unit_ms;
        rest %= unit_ms;
        let is_seconds = *unit == "s";
        if is_seconds && rest > 0 {
            let decimals = format!("{rest:03}");
            return format!("{text}{count}.{}{unit}", decimals.trim_end_matches('0'));
        }
        if count > 0 {
            text += &format!("{count}{unit}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn number(digits: &[u8]) -> Result<u64, InvalidDuration> {
    match digits.len() {
        0 => Err(InvalidDuration::Grammar),
        1..=DIGITS_MAX => Ok(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))),
        _ => Err(InvalidDuration::TooBig),
    }
}

/// The shortest and longest duration that one setting accepts, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationRange {
    /// Shortest accepted, in milliseconds.
    pub min_ms: u64,
    /// Longest accepted, in milliseconds.
    pub max_ms: u64,
}

/// Whether a duration is below or above a [`DurationRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// Invalid: the API responds with 400.
    UnderMinimum,
    /// Over a quota: the API responds with 412.
    OverMaximum,
}

impl DurationRange {
    /// Returns the duration if it lies within the range.
    pub fn check(self, ms: u64) -> Result<u64, OutOfRange> {
        if ms < self.min_ms {
            Err(OutOfRange::UnderMinimum)
        } else if ms > self.max_ms {
            Err(OutOfRange::OverMaximum)
        } else {
            Ok(ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn durations_follow_the_vectors() {
        let vectors: Value = serde_json::from_str(include_str!("../../../vectors/durations.json")).unwrap();
        let cases = vectors["durations"].as_array().unwrap();
        assert_eq!(cases.len(), 72);
        for case in cases {
            let limits = &vectors["limits_ms"][case["context"].as_str().unwrap()];
            let range = DurationRange {
                min_ms: limits["minms"].as_u64().unwrap_or(0),
                max_ms: limits["maxms"].as_u64().unwrap(),
            };
            let input = case["input"].as_str().unwrap();
            let result = match parse_duration(input) {
                Err(invalid) => Err(invalid.to_string()),
                Ok(ms) => range.check(ms).map_err(|out| format!("{out:?}")),
            };
            match (case["ms"].as_u64(), case["error"].as_str()) {
                (Some(ms), None) => assert_eq!(result, Ok(ms), "{input}"),
                (None, Some("over the maximum")) => assert_eq!(result, Err("OverMaximum".into()), "{input}"),
                (None, Some("under the minimum")) => assert_eq!(result, Err("UnderMinimum".into()), "{input}"),
                (None, Some(_)) => assert!(result.unwrap_err().starts_with("not a duration"), "{input}"),
                other => panic!("{input}: {other:?}"),
            }
        }
    }

    #[test]
    fn errors_name_the_reason() {
        for (text, reason) in [
            ("500ms", InvalidDuration::Unit("ms")),
            ("1h500ms", InvalidDuration::Unit("ms")),
            ("1.5ms", InvalidDuration::Unit("ms")),
            ("2hours", InvalidDuration::Unit("hour")),
            ("5M", InvalidDuration::Grammar),
            ("ms", InvalidDuration::Grammar),
            ("5 s", InvalidDuration::Grammar),
            ("1m1h", InvalidDuration::UnitOrder),
            ("999999999999999d", InvalidDuration::TooBig),
            ("18446744073709551615s", InvalidDuration::TooBig),
            ("1.5", InvalidDuration::Grammar),
            ("١s", InvalidDuration::Grammar),
            ("000000000000000000000000000000001", InvalidDuration::TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(reason), "{text}");
        }
        let accepted = "accepted are d, h, m and s, such as 1d10h30m, 5m or 0.5s, and a number of seconds";
        for (reason, expected) in [
            (InvalidDuration::Grammar, format!("not a duration; {accepted}")),
            (InvalidDuration::Unit("ms"), format!("not a duration: ms is not supported here; {accepted}")),
            (
                InvalidDuration::UnitOrder,
                "not a duration: units must descend, such as d, h, m, s, each at most once".to_owned(),
            ),
            (InvalidDuration::TooLong, "not a duration: at most 32 characters are accepted".to_owned()),
            (InvalidDuration::TooBig, "not a duration: the number is too big".to_owned()),
        ] {
            assert_eq!(reason.to_string(), expected);
        }
    }

    #[test]
    fn workflows_also_have_weeks_months_and_years() {
        for (text, days) in [("1w", 7), ("2w3d", 17), ("1mo", 30), ("1y", 365), ("1y1mo1w1d", 403), ("0.5y", 182)] {
            let half = if text == "0.5y" { DAY_MS / 2 } else { 0 };
            assert_eq!(parse_duration_in(Units::Long, text), Ok(days * DAY_MS + half), "{text}");
            assert!(matches!(parse_duration(text), Err(InvalidDuration::Unit("w" | "mo" | "y"))), "{text}");
        }
        for (text, ms) in [("1mo1m", 30 * DAY_MS + 60_000), ("1m", 60_000), ("90", 90_000)] {
            assert_eq!(parse_duration_in(Units::Long, text), Ok(ms), "{text}");
        }
        for (text, ms) in
            [("0.3333333333333333s", 333), ("3.3333333333333335", 3_333), ("1.5", 1_500), ("0.66666666666m", 39_960)]
        {
            assert_eq!(parse_duration_in(Units::Long, text), Ok(ms), "{text}");
            assert_eq!(parse_duration(text), Err(InvalidDuration::Grammar), "{text}");
        }
        for (text, reason) in [
            ("1.", InvalidDuration::Grammar),
            (".5", InvalidDuration::Grammar),
            ("1.5.5", InvalidDuration::Grammar),
            ("1m1mo", InvalidDuration::UnitOrder),
            ("1w1y", InvalidDuration::UnitOrder),
            ("1ms", InvalidDuration::Unit("ms")),
            ("1M", InvalidDuration::Grammar),
            ("999999999999999y", InvalidDuration::TooBig),
        ] {
            assert_eq!(parse_duration_in(Units::Long, text), Err(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9ymowdhs.]{0,34}|.{0,34}") {
            let long = parse_duration_in(Units::Long, &text);
            if let Ok(ms) = parse_duration(&text) {
                prop_assert_eq!(long, Ok(ms));
            }
        }

        #[test]
        fn a_duration_in_units_is_read_again(ms in 0..(999_999_999_999_999 * 1_000u64)) {
            prop_assert_eq!(parse_duration(&in_units(ms)), Ok(ms));
        }
    }
}
