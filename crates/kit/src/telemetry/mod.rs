//! What a run looks like from outside: its span, the ids that tie it to other services, the trace that it belongs to.
//!
//! The kit speaks `tracing` and nothing else. The names of all fields of its spans and logs are in [`field`], to record
//! more into them or to look for them. [`TraceContext`] reads and writes the W3C headers, and [`Relation`] says how a
//! run belongs to its publisher's trace. `examples/opentelemetry.rs` exports all of it.

mod trace;

pub use trace::{Relation, TRACE_STATE_BYTES_MAX, TraceContext};

use crate::propagation::REQUEST_ID_HEADER;
use http::HeaderMap;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// The longest id that is taken over from a header. A longer one counts as absent.
pub const ID_BYTES_MAX: usize = 256;

/// The names of span and log fields.
pub mod field {
    /// The id of the message.
    pub const MESSAGE_ID: &str = "qstash.message_id";
    /// Which attempt this is; the first is 1.
    pub const ATTEMPT: &str = "qstash.attempt";
    /// How many retries the publisher asked for.
    pub const MAX_RETRIES: &str = "qstash.max_retries";
    /// Whether no attempt follows this one.
    pub const FINAL_ATTEMPT: &str = "qstash.final_attempt";
    /// The id by which the message was deduplicated.
    pub const DEDUP_ID: &str = "qstash.dedup_id";
    /// Whether the message goes to the dead letters.
    pub const DLQ: &str = "qstash.dlq";
    /// What the message is about, such as the id of an event.
    pub const EVENT_KEY: &str = "event.key";
    /// The table that changed.
    pub const TABLE: &str = "table";
    /// How it changed.
    pub const OP: &str = "op";
    /// Which job this is.
    pub const JOB_TYPE: &str = "job_type";
    /// The key under which the store remembers this.
    pub const IDEMPOTENCY_KEY: &str = "idempotency_key";
    /// What is tried.
    pub const OPERATION: &str = "operation";
    /// How long it took.
    pub const LATENCY_MS: &str = "latency_ms";
    /// What was answered.
    pub const HTTP_STATUS: &str = "http_status";
    /// Whether another attempt may help.
    pub const RETRYABLE: &str = "retryable";
    /// The request that all this began with.
    pub const REQUEST_ID: &str = "request_id";
    /// What became of it, in a word.
    pub const OUTCOME: &str = "outcome";
    /// Read by `tracing-opentelemetry`: whether the span failed.
    pub const OTEL_STATUS: &str = "otel.status_code";
}

/// The span of one delivery of a job. Its fields are filled in as they become known.
pub fn job_span(job_type: &str) -> Span {
    info_span!(
        "qstash.job",
        otel.kind = "consumer",
        otel.status_code = Empty,
        job_type,
        request_id = Empty,
        qstash.message_id = Empty,
        qstash.attempt = Empty,
        qstash.max_retries = Empty,
        qstash.final_attempt = Empty,
        qstash.dedup_id = Empty,
        qstash.dlq = Empty,
        event.key = Empty,
        idempotency_key = Empty,
        outcome = Empty,
        latency_ms = Empty,
        http_status = Empty,
        retryable = Empty,
    )
}

/// The span of one webhook; `source` is who sends it, such as `stripe`. Its fields are filled in as they become known.
pub fn webhook_span(source: &str) -> Span {
    info_span!(
        "qstash.webhook",
        otel.kind = "server",
        otel.status_code = Empty,
        job_type = source,
        request_id = Empty,
        event.key = Empty,
        table = Empty,
        op = Empty,
        idempotency_key = Empty,
        outcome = Empty,
        latency_ms = Empty,
        http_status = Empty,
        retryable = Empty,
    )
}

/// The id in a header, if it is there once, is visible ASCII and not longer than [`ID_BYTES_MAX`].
pub fn id_from<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    is_id(value).then_some(value)
}

/// Whether a text can be an id: visible ASCII, and not longer than [`ID_BYTES_MAX`].
pub(crate) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= ID_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The id of the request, or a fresh one.
pub fn request_id(headers: &HeaderMap) -> String {
    id_from(headers, REQUEST_ID_HEADER).map_or_else(fresh_request_id, str::to_owned)
}

/// An id that nobody else has: `req_` and 128 random bits.
pub fn fresh_request_id() -> String {
    fresh_id("req_")
}

/// The prefix and 128 random bits.
pub(crate) fn fresh_id(prefix: &str) -> String {
    let mut random = [0; 16];
    // Without randomness from the system the id is of no use, but the request is not worse for it.
    let number = getrandom::fill(&mut random).map_or(0, |()| u128::from_be_bytes(random));
    format!("{prefix}{number:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (REQUEST_ID_HEADER.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn an_id_is_taken_over_only_if_it_can_be_one() {
        let longest = "x".repeat(ID_BYTES_MAX);
        assert_eq!(id_from(&headers(&["req-1"]), REQUEST_ID_HEADER), Some("req-1"));
        assert_eq!(id_from(&headers(&[&longest]), REQUEST_ID_HEADER), Some(longest.as_str()));
        let too_long = format!("{longest}x");
        for values in [&[][..], &[""], &["a b"], &["a\tb"], &["a", "a"], &[&too_long]] {
            assert_eq!(id_from(&headers(values), REQUEST_ID_HEADER), None, "{values:?}");
        }
    }

    #[test]
    fn a_request_without_an_id_gets_a_fresh_one() {
        assert_eq!(request_id(&headers(&["req-1"])), "req-1");
        let (one, other) = (request_id(&headers(&[])), request_id(&headers(&["a b"])));
        assert_ne!(one, other);
        assert_eq!((one.len(), &one[..4]), (36, "req_"));
    }
}
