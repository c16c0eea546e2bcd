//! Telemetry of a run: its span, the ids that link it to other services, and its trace.
//!
//! The kit uses only `tracing`. [`field`] has the names of all fields of its spans and logs, so that you can record
//! into them or search for them. [`TraceContext`] reads and writes the W3C headers, and [`Relation`] describes how a
//! run relates to the publisher's trace. `examples/opentelemetry.rs` exports all of it.

mod trace;

pub use trace::{Relation, TRACE_STATE_BYTES_MAX, TraceContext};

use crate::propagation::REQUEST_ID_HEADER;
use http::HeaderMap;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Maximum size of an id from a header, in bytes. A longer one is ignored.
pub const ID_BYTES_MAX: usize = 256;

/// Names of span and log fields.
pub mod field {
    /// Id of the message.
    pub const MESSAGE_ID: &str = "qstash.message_id";
    /// Number of the attempt, starting at 1.
    pub const ATTEMPT: &str = "qstash.attempt";
    /// Number of retries that the publisher requested.
    pub const MAX_RETRIES: &str = "qstash.max_retries";
    /// Whether this is the last attempt.
    pub const FINAL_ATTEMPT: &str = "qstash.final_attempt";
    /// Deduplication id of the message.
    pub const DEDUP_ID: &str = "qstash.dedup_id";
    /// Whether the message goes to the DLQ.
    pub const DLQ: &str = "qstash.dlq";
    /// Subject of the message, such as the id of an event.
    pub const EVENT_KEY: &str = "event.key";
    /// The table that changed.
    pub const TABLE: &str = "table";
    /// The kind of change.
    pub const OP: &str = "op";
    /// Name of the job.
    pub const JOB_TYPE: &str = "job_type";
    /// Key of the work in the idempotency store.
    pub const IDEMPOTENCY_KEY: &str = "idempotency_key";
    /// Name of the operation.
    pub const OPERATION: &str = "operation";
    /// Duration in milliseconds.
    pub const LATENCY_MS: &str = "latency_ms";
    /// Status of the response.
    pub const HTTP_STATUS: &str = "http_status";
    /// Whether a retry may succeed.
    pub const RETRYABLE: &str = "retryable";
    /// Id of the request that led to this one.
    pub const REQUEST_ID: &str = "request_id";
    /// Outcome, as one word.
    pub const OUTCOME: &str = "outcome";
    /// Read by `tracing-opentelemetry`: whether the span failed.
    pub const OTEL_STATUS: &str = "otel.status_code";
}

/// The span of one delivery of a job. Its fields are recorded as they become known.
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

/// The span of one webhook. `source` is its sender, such as `stripe`. Its fields are recorded as they become known.
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

/// The id in a header, if it appears exactly once, is visible ASCII and not longer than [`ID_BYTES_MAX`].
pub fn id_from<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    is_id(value).then_some(value)
}

/// Whether a text is a valid id: visible ASCII, and at most [`ID_BYTES_MAX`] long.
pub(crate) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= ID_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The id of the request, or a new one.
pub fn request_id(headers: &HeaderMap) -> String {
    id_from(headers, REQUEST_ID_HEADER).map_or_else(fresh_request_id, str::to_owned)
}

/// A unique id: `req_` and 128 random bits.
pub fn fresh_request_id() -> String {
    fresh_id("req_")
}

/// The prefix and 128 random bits.
pub(crate) fn fresh_id(prefix: &str) -> String {
    let mut random = [0; 16];
    // Without randomness the id is useless, but the request is still processed.
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
    fn only_valid_ids_are_taken_over() {
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
