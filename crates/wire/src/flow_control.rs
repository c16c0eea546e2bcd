//! `Upstash-Flow-Control-Value`: how many deliveries a key allows at once and per period.

use crate::duration::{DurationRange, parse_duration};
use std::fmt;

/// Accepted periods: one second to seven days.
const PERIOD: DurationRange = DurationRange { min_ms: 1_000, max_ms: 7 * 86_400_000 };
/// Largest rate or parallelism, far beyond the capacity of a server.
const COUNT_MAX: u32 = 1_000_000_000;

/// The limits of a flow-control key; at least one of `parallelism` and `rate` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// Most deliveries in flight at once.
    pub parallelism: Option<u32>,
    /// Most deliveries started within a period.
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
}

/// Why a text is not a flow-control value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidFlowControl {
    /// Not a list of `name=value` parts, or an unknown name.
    Grammar,
    /// A name came twice.
    Repeated,
    /// A count that is not a number from 1 on.
    Count,
    /// A period that is not a duration from one second to seven days.
    Period,
    /// Neither parallelism nor rate is set.
    NothingLimited,
}

impl fmt::Display for InvalidFlowControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidFlowControl::Grammar => {
                "accepted are parallelism=N, rate=N and period=DURATION, separated by commas"
            }
            InvalidFlowControl::Repeated => "parallelism, rate and period can each appear only once",
            InvalidFlowControl::Count => "parallelism and rate must be whole numbers from 1 to 1000000000",
            InvalidFlowControl::Period => "period must be a duration from 1s to 7d",
            InvalidFlowControl::NothingLimited => "parallelism or rate is required",
        })
    }
}

impl std::error::Error for InvalidFlowControl {}

impl FlowControl {
    /// Reads a value such as `parallelism=5, rate=10, period=1m`.
    pub fn parse(text: &str) -> Result<FlowControl, InvalidFlowControl> {
        let (mut parallelism, mut rate, mut period) = (None, None, None);
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or(InvalidFlowControl::Grammar)?;
            let value = value.trim_matches([' ', '\t']);
            match name.trim_matches([' ', '\t']) {
                "parallelism" => set_once(&mut parallelism, count(value)?)?,
                "rate" => set_once(&mut rate, count(value)?)?,
                "period" => set_once(&mut period, period_ms(value)?)?,
                _ => return Err(InvalidFlowControl::Grammar),
            }
        }
        if parallelism.is_none() && rate.is_none() {
            return Err(InvalidFlowControl::NothingLimited);
        }
        Ok(FlowControl { parallelism, rate, period_ms: period.unwrap_or(PERIOD.min_ms) })
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T) -> Result<(), InvalidFlowControl> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(InvalidFlowControl::Repeated),
    }
}

fn count(text: &str) -> Result<u32, InvalidFlowControl> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidFlowControl::Count);
    }
    match text.parse() {
        Ok(count @ 1..=COUNT_MAX) => Ok(count),
        _ => Err(InvalidFlowControl::Count),
    }
}

fn period_ms(text: &str) -> Result<u64, InvalidFlowControl> {
    let ms = parse_duration(text).map_err(|_| InvalidFlowControl::Period)?;
    PERIOD.check(ms).map_err(|_| InvalidFlowControl::Period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_in_any_order() {
        for (text, parallelism, rate, period_ms) in [
            ("parallelism=5", Some(5), None, 1_000),
            (" parallelism=5 , rate=10 , period=1m ", Some(5), Some(10), 60_000),
            ("period=60s,rate=1", None, Some(1), 60_000),
            ("rate=1,period=7d", None, Some(1), 604_800_000),
        ] {
            assert_eq!(FlowControl::parse(text), Ok(FlowControl { parallelism, rate, period_ms }), "{text}");
        }
    }

    #[test]
    fn wrong_limits_are_refused() {
        for (text, reason) in [
            ("", InvalidFlowControl::Grammar),
            ("rate", InvalidFlowControl::Grammar),
            ("rate=1,", InvalidFlowControl::Grammar),
            ("speed=1", InvalidFlowControl::Grammar),
            ("parallelism=0", InvalidFlowControl::Count),
            ("rate=-1", InvalidFlowControl::Count),
            ("rate=+1", InvalidFlowControl::Count),
            ("rate=", InvalidFlowControl::Count),
            ("rate=99999999999999999999", InvalidFlowControl::Count),
            ("rate=1,rate=1000", InvalidFlowControl::Repeated),
            ("period=1m", InvalidFlowControl::NothingLimited),
            ("rate=1,period=0s", InvalidFlowControl::Period),
            ("rate=1,period=8d", InvalidFlowControl::Period),
            ("rate=1,period=soon", InvalidFlowControl::Period),
        ] {
            assert_eq!(FlowControl::parse(text), Err(reason), "{text}");
        }
    }
}
