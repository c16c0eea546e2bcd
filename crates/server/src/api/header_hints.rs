//! A typo in an `Upstash-*` header is silent in the protocol: unknown ones are ignored. `dev` says so, in a log line and a
//! response header, with the nearest name that exists.

use crate::nearest;
use axum::http::{HeaderMap, HeaderValue};
use posthaste_wire::header::{self, canonical};

/// Carries the warning in a response.
pub(super) const WARNING: &str = "posthaste-warning";
/// Longest name that is repeated in a warning.
const NAME_BYTES_MAX: usize = 64;
/// Headers after the prefix of the protocol that a request may have.
const KNOWN: [&str; 19] = [
    "method",
    "delay",
    "not-before",
    "timeout",
    "retries",
    "retry-delay",
    "header-forward",
    "callback",
    "failure-callback",
    "deduplication-id",
    "content-based-deduplication",
    "label",
    "flow-control-key",
    "flow-control-value",
    "redact-fields",
    "cron",
    "queue-name",
    "schedule-id",
    "feature-set",
];
/// Names that begin with one of these are for others to read.
const OPEN: [&str; 4] = ["forward-", "telemetry-", "workflow-", "caller-"];
/// What deliveries carry: a proxy may repeat it.
const OF_DELIVERIES: [&str; 6] = [
    header::SIGNATURE,
    header::MESSAGE_ID,
    header::RETRIED,
    header::TOPIC_NAME,
    header::REGION,
    header::NON_RETRYABLE_ERROR,
];

/// The warning about the first header of the protocol that does not exist.
pub(super) fn warning(headers: &HeaderMap) -> Option<String> {
    let unknown = headers.keys().map(|name| name.as_str()).find(|name| is_unknown(name))?;
    if unknown.len() > NAME_BYTES_MAX {
        return Some(format!("header {}… does not exist and is ignored", canonical(&unknown[..NAME_BYTES_MAX])));
    }
    let nearest = nearest(unknown).map(|name| format!("; did you mean {}?", canonical(&name))).unwrap_or_default();
    Some(format!("header {} does not exist and is ignored{nearest}", canonical(unknown)))
}

/// The header that carries a warning. Names of headers are ASCII, so that it always has a form.
pub(super) fn value(warning: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&warning.replace('…', "...")).ok()
}

fn is_unknown(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(header::PREFIX) else { return false };
    let (_, setting) = split(rest);
    !OF_DELIVERIES.contains(&name) && !KNOWN.contains(&setting) && !OPEN.iter().any(|start| setting.starts_with(start))
}

/// What a setting is about, as it is written, and the setting itself.
fn split(rest: &str) -> (&str, &str) {
    let subjects = ["failure-callback-", "callback-"];
    let subject = subjects.into_iter().find(|subject| rest.starts_with(subject)).unwrap_or_default();
    (subject, &rest[subject.len()..])
}

fn nearest(name: &str) -> Option<String> {
    let (subject, setting) = split(name.strip_prefix(header::PREFIX)?);
    Some(format!("{}{subject}{}", header::PREFIX, nearest::nearest(setting, KNOWN)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn warning_of(name: &str) -> Option<String> {
        let name: HeaderName = name.parse().unwrap();
        warning(&HeaderMap::from_iter([(name, HeaderValue::from_static("5"))]))
    }

    #[test]
    fn a_typo_is_named_with_the_nearest_header() {
        for (name, expected) in [
            ("Upstash-Retry", "header Upstash-Retry does not exist and is ignored; did you mean Upstash-Retries?"),
            ("Upstash-Dealy", "header Upstash-Dealy does not exist and is ignored; did you mean Upstash-Delay?"),
            (
                "Upstash-Callback-Retry",
                "header Upstash-Callback-Retry does not exist and is ignored; did you mean Upstash-Callback-Retries?",
            ),
            ("Upstash-Xyzzy", "header Upstash-Xyzzy does not exist and is ignored"),
        ] {
            assert_eq!(warning_of(name).as_deref(), Some(expected));
        }
    }

    #[test]
    fn names_that_exist_are_not_named() {
        for name in [
            "Upstash-Retries",
            "Upstash-Forward-Retry",
            "Upstash-Callback",
            "Upstash-Callback-Forward-X",
            "Upstash-Failure-Callback-Timeout",
            "Upstash-Telemetry-Sdk",
            "Upstash-Workflow-RunId",
            "Upstash-Message-Id",
            "Upstash-Caller-Ip",
            "X-Upstash-Retry",
            "Retry-After",
        ] {
            assert_eq!(warning_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_long_name_is_cut() {
        let warning = warning_of(&format!("upstash-{}", "x".repeat(1_000))).unwrap();
        assert!(warning.len() < 150, "{warning}");
        assert!(value(&warning).is_some());
    }
}
