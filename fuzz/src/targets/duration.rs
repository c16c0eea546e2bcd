//! Durations, compared with a parser that computes with the whole text.

use posthaste_wire::duration::parse_duration;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = parse_duration(text).ok();
    assert_eq!(read, second_opinion(text), "{text:?}");
    if let Some(ms) = read {
        let written = format!("{}.{:03}s", ms / 1_000, ms % 1_000);
        let fits = (ms / 1_000) < 1_000_000_000_000_000;
        assert_eq!(parse_duration(&written).ok(), fits.then_some(ms), "{written}");
    }
}

/// Milliseconds, in whole thousandths of every unit, so that nothing is rounded.
fn second_opinion(text: &str) -> Option<u64> {
    if text.len() > 32 || !text.is_ascii() {
        return None;
    }
    if let Some(seconds) = digits(text) {
        return u64::try_from(seconds * 1_000).ok();
    }
    let mut sum: u128 = 0;
    let mut rest = text;
    let mut smallest = u128::MAX;
    while !rest.is_empty() {
        let at = rest.find(['d', 'h', 'm', 's'])?;
        let unit: u128 = match rest.as_bytes()[at] {
            b'd' => 86_400_000,
            b'h' => 3_600_000,
            b'm' => 60_000,
            _ => 1_000,
        };
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        let number = &rest[..at];
        rest = &rest[at + 1..];
        let thousandths = match number.split_once('.') {
            None => digits(number)? * 1_000,
            Some((whole, decimals)) if rest.is_empty() && (1..=3).contains(&decimals.len()) => {
                digits(whole)? * 1_000 + digits(&format!("{decimals:0<3}"))?
            }
            Some(_) => return None,
        };
        sum += thousandths * unit / 1_000;
    }
    if smallest == u128::MAX { None } else { u64::try_from(sum).ok() }
}

fn digits(text: &str) -> Option<u128> {
    let fits = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}
