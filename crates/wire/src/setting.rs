//! Single settings of a publish: turns the text of a header into its value, within the limits.
//!
//! Rejections here do not name the header, because `publish` knows which header carried the value.

use crate::boolean;
use crate::cron::Cron;
use crate::destination::{check_url, is_name, without_fragment};
use crate::duration::{DurationRange, OutOfRange, Units, in_units, parse_duration_in};
use crate::echo::echo;
use crate::flow_control::FlowControl;
use crate::publish::PublishLimits;
use crate::redact::RedactFields;
use crate::rejection::Rejection;
use crate::retry_delay::RetryDelay;
use crate::time::Timestamp;
use std::fmt::Display;

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// A rejection of a value of the wrong kind. `problem` continues `"500ms" is`.
fn not(text: &str, problem: impl Display) -> Rejection {
    Rejection::invalid(format!("{} is {problem}", echo(text)))
}

/// A method in any case.
pub(crate) fn method(text: &str) -> Result<&'static str, Rejection> {
    let known = METHODS.into_iter().find(|method| method.eq_ignore_ascii_case(text));
    known.ok_or_else(|| not(text, "not a method; accepted are GET, POST, PUT, PATCH and DELETE"))
}

/// A delay of the first attempt, in milliseconds.
pub(crate) fn delay(text: &str, limits: &PublishLimits) -> Result<u64, Rejection> {
    duration(text, limits.delay_units, DurationRange { min_ms: 0, max_ms: limits.delay_ms_max }, "maxDelay")
}

/// A timeout of one attempt, in milliseconds.
pub(crate) fn timeout(text: &str, limits: &PublishLimits) -> Result<u64, Rejection> {
    let range = DurationRange { min_ms: limits.timeout_ms_min, max_ms: limits.timeout_ms_max };
    duration(text, limits.delay_units, range, "timeout")
}

fn duration(text: &str, units: Units, range: DurationRange, quota: &str) -> Result<u64, Rejection> {
    let ms = parse_duration_in(units, text).map_err(|error| not(text, error))?;
    range.check(ms).map_err(|out_of_range| match out_of_range {
        OutOfRange::UnderMinimum => not(text, format_args!("too short, the minimum is {}", in_units(range.min_ms))),
        OutOfRange::OverMaximum => Rejection::quota(quota, range.max_ms / 1_000),
    })
}

/// A time in Unix seconds: in the past, or at most the longest delay ahead.
pub(crate) fn not_before(text: &str, limits: &PublishLimits, now: Timestamp) -> Result<Timestamp, Rejection> {
    let refused = || not(text, "not a time; accepted are Unix seconds, such as 1767225600 or 1767225600.5");
    let time = unix_seconds(text).ok_or_else(refused)?;
    if time > now.plus_millis(limits.delay_ms_max) {
        let Rejection { status, message } = Rejection::quota("maxDelay", limits.delay_ms_max / 1_000);
        return Err(Rejection { status, message: format!("{message}; the time is in Unix seconds") });
    }
    Ok(time)
}

/// Seconds, with an optional fraction. Anything finer than a millisecond is rounded up, so that nothing is early.
fn unix_seconds(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let (millis, finer) = fraction.split_at(fraction.len().min(3));
    let rounding = u64::from(finer.bytes().any(|digit| digit != b'0'));
    let millis = format!("{millis:0<3}").parse::<u64>().ok()? + rounding;
    whole.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(millis).map(Timestamp)
}

/// A number of retries.
pub(crate) fn retries(text: &str, limits: &PublishLimits) -> Result<u32, Rejection> {
    if !is_digits(text) {
        let accepted =
            format_args!("not a number of retries; accepted are whole numbers from 0 to {}", limits.retries_max);
        return Err(not(text, accepted));
    }
    match text.parse() {
        Ok(retries) if retries <= limits.retries_max => Ok(retries),
        _ => Err(Rejection::quota("maxRetries", limits.retries_max.into())),
    }
}

/// A retry-delay expression, as given. Its values are checked when the number of retries is known.
pub(crate) fn retry_delay(text: &str) -> Result<String, Rejection> {
    match RetryDelay::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Rejection::invalid(error.to_string())),
    }
}

/// A boolean.
pub(crate) fn flag(text: &str) -> Result<bool, Rejection> {
    boolean::parse_bool(text).ok_or_else(|| not(text, "not a boolean; accepted are true and false"))
}

/// A deduplication id. Errors do not repeat it, because programs may derive ids from secrets.
pub(crate) fn dedup_id(text: &str, limits: &PublishLimits) -> Result<String, Rejection> {
    if text.is_empty() || text.len() > limits.dedup_id_bytes_max {
        let (max, bytes) = (limits.dedup_id_bytes_max, text.len());
        return Err(Rejection::invalid(format!("must have 1 to {max} bytes, and has {bytes}")));
    }
    Ok(text.to_owned())
}

/// Labels, separated by commas, appended to those of earlier headers. Empty labels are dropped.
pub(crate) fn labels(before: Vec<String>, text: &str, limits: &PublishLimits) -> Result<Vec<String>, Rejection> {
    let mut labels = before;
    for label in text.split(',').map(str::trim).filter(|label| !label.is_empty()) {
        if label.len() > limits.label_bytes_max {
            let (max, bytes) = (limits.label_bytes_max, label.len());
            let label = echo(label);
            return Err(Rejection::invalid(format!("the label {label} has {bytes} bytes; at most {max} are accepted")));
        }
        if labels.len() == limits.labels_max {
            return Err(Rejection::invalid(format!("at most {} labels are accepted", limits.labels_max)));
        }
        labels.push(label.to_owned());
    }
    Ok(labels)
}

/// The fields that API responses must hide.
pub(crate) fn redact_fields(text: &str) -> Result<RedactFields, Rejection> {
    RedactFields::parse(text).map_err(|error| Rejection::invalid(error.to_string()))
}

/// The URL of a callback, without its fragment, as for any destination.
pub(crate) fn callback_url(text: &str, limits: &PublishLimits) -> Result<String, Rejection> {
    check_url(text, limits.url_bytes_max).map_err(|error| Rejection::invalid(error.to_string()))?;
    Ok(without_fragment(text).to_owned())
}

/// A flow-control key: any printable text.
pub(crate) fn flow_control_key(text: &str, limits: &PublishLimits) -> Result<String, Rejection> {
    if text.is_empty() || text.len() > limits.key_bytes_max || text.contains(char::is_control) {
        let max = limits.key_bytes_max;
        return Err(not(text, format_args!("not a key; accepted are 1 to {max} bytes without control characters")));
    }
    Ok(text.to_owned())
}

/// The limits of a flow-control key.
pub(crate) fn flow_control(text: &str) -> Result<FlowControl, Rejection> {
    FlowControl::parse(text).map_err(|error| Rejection::invalid(format!("{}: {error}", echo(text))))
}

/// The cron expression of a schedule.
pub(crate) fn cron(text: &str) -> Result<Cron, Rejection> {
    Cron::parse(text).map_err(|error| Rejection::invalid(error.to_string()))
}

/// The name of a queue, or the id of a schedule.
pub(crate) fn name(text: &str, limits: &PublishLimits) -> Result<String, Rejection> {
    if text.len() > limits.key_bytes_max || !is_name(text) {
        return Err(Rejection::invalid(format!(
            "{} must have 1 to {} letters, digits, '.', '_' and '-', and be neither '.' nor '..'",
            echo(text),
            limits.key_bytes_max
        )));
    }
    Ok(text.to_owned())
}

/// A number of hops; `None` if it is not a number. A number that does not fit becomes the largest one, so that the
/// count never starts again.
pub(crate) fn hops(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value.trim_ascii()).ok().filter(|text| is_digits(text))?;
    Some(text.parse().unwrap_or(u32::MAX))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
