//! Callbacks: messages that report how an attempt, or a whole message, ended.
//!
//! A callback is a message like any other. It is stored in the transaction that stores the outcome, and has its own
//! attempts, log and dead letter. It has no callbacks of its own.

use crate::limits::SOURCE_BODY_BYTES_MAX;
use crate::message::{CallbackSpec, Cause, CauseKind, Message, MessageSpec};
use crate::outcome::Outcome;
use bytes::Bytes;
use posthaste_wire::encoding::{base64, header_shown};
use posthaste_wire::header::CONTENT_TYPE;
use posthaste_wire::id::{DlqId, MessageId};
use posthaste_wire::time::Timestamp;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The content of a callback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallbackReport<'a> {
    /// The message that had an attempt.
    pub source: &'a Message,
    /// Retries before that attempt.
    pub retried: u32,
    /// The outcome of the attempt.
    pub outcome: &'a Outcome,
    /// The dead letter, if the message has failed for good.
    pub dlq_id: Option<DlqId>,
    /// Whether there is no room for the body of the source.
    pub is_full: bool,
}

/// The body of a callback, in the order of the contract.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    status: u16,
    header: Lists<'a>,
    body: String,
    /// Why there was no response. Not part of QStash's payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    retried: u32,
    max_retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dlq_id: Option<String>,
    source_message_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_name: Option<&'a str>,
    url: &'a str,
    method: &'a str,
    source_header: Lists<'a>,
    source_body: String,
    /// Its size, if the body is left out because it is too large or there is no room for it. Not part of QStash's
    /// payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_body_omitted_bytes: Option<usize>,
    not_before: u64,
    created_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule_id: Option<&'a str>,
    #[serde(rename = "callerIP")]
    caller_ip: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow_control_key: Option<&'a str>,
}

/// The message of a callback.
pub(crate) fn message(callback: &CallbackSpec, report: CallbackReport<'_>, id: MessageId, now: Timestamp) -> Message {
    let source = report.source;
    let mut headers = callback.headers.clone();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE)) {
        headers.insert(0, ("Content-Type".to_owned(), "application/json".to_owned()));
    }
    // The payload contains fields that the source hides.
    let mut redact = callback.redact.union(&source.spec.redact);
    redact.body |= !source.spec.redact.is_none();
    let kind = if report.dlq_id.is_some() { CauseKind::FailureCallback } else { CauseKind::Callback };
    let spec = MessageSpec {
        url: callback.url.clone(),
        method: callback.method.clone(),
        headers,
        retries: callback.retries.unwrap_or(source.spec.retries),
        retry_delay: callback.retry_delay.clone(),
        timeout_ms: callback.timeout_ms,
        labels: callback.labels.clone(),
        redact,
        caller_ip: source.spec.caller_ip.clone(),
        flow: callback.flow.clone(),
        hops: source.spec.hops + 1,
        cause: Some(Cause { id: source.id, kind }),
        ..MessageSpec::default()
    };
    let not_before = now.plus_millis(callback.delay_ms);
    Message { id, tenant: source.tenant, created_at: now, not_before, spec, body: body(report) }
}

fn body(report: CallbackReport<'_>) -> Bytes {
    let (source, spec) = (report.source, &report.source.spec);
    let response = report.outcome.result.as_ref().ok();
    let is_omitted = report.is_full || source.body.len() > SOURCE_BODY_BYTES_MAX;
    let payload = Payload {
        status: response.map_or(0, |response| response.status),
        header: response.map(|response| lists(&response.headers, |value| Cow::Borrowed(value))).unwrap_or_default(),
        body: response.map(|response| base64(&response.body)).unwrap_or_default(),
        error: report.outcome.result.as_ref().err().map(|error| error.message.as_str()),
        retried: report.retried,
        max_retries: spec.retries,
        dlq_id: report.dlq_id.map(|dlq_id| dlq_id.to_string()),
        source_message_id: source.id.to_string(),
        topic_name: spec.topic.as_deref(),
        endpoint_name: spec.endpoint.as_deref(),
        url: &spec.url,
        method: &spec.method,
        source_header: lists(&spec.headers, header_shown),
        source_body: if is_omitted { String::new() } else { base64(&source.body) },
        source_body_omitted_bytes: is_omitted.then_some(source.body.len()),
        not_before: source.not_before.as_millis(),
        created_at: source.created_at.as_millis(),
        schedule_id: spec.schedule_id.as_deref(),
        caller_ip: &spec.caller_ip,
        queue_name: spec.queue.as_deref(),
        label: spec.labels.first().map(String::as_str),
        flow_control_key: spec.flow.as_ref().map(|flow| flow.key.as_str()),
    };
    // Plain maps and texts always have a JSON form.
    Bytes::from(serde_json::to_vec(&payload).expect("a payload is JSON"))
}

/// Headers: one list of values per name, one element per line.
pub(crate) type Lists<'a> = BTreeMap<&'a str, Vec<Cow<'a, str>>>;

pub(crate) fn lists(headers: &[(String, String)], shown: impl Fn(&str) -> Cow<'_, str>) -> Lists<'_> {
    let mut map = Lists::new();
    for (name, value) in headers {
        map.entry(name).or_default().push(shown(value));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Response;
    use crate::outcome::{AttemptError, ErrorClass};
    use posthaste_wire::encoding::header_text;
    use posthaste_wire::id::{Seq, TenantId};

    const T: Timestamp = Timestamp(1_780_315_200_000);

    fn source() -> Message {
        let spec = MessageSpec {
            url: "https://example.com/a?b=c".into(),
            method: "PUT".into(),
            headers: vec![("X-A".into(), "1, 2".into()), ("X-A".into(), header_text(b"caf\xe9").into())],
            retries: 5,
            caller_ip: "127.0.0.1".into(),
            ..MessageSpec::default()
        };
        let id = MessageId { seq: Seq(T.0 << 20), tag: 9 };
        Message { id, tenant: TenantId(1), created_at: T, not_before: T, spec, body: Bytes::from_static(b"in") }
    }

    fn callback() -> CallbackSpec {
        CallbackSpec {
            url: "https://example.com/done".into(),
            method: "POST".into(),
            headers: vec![("X-B".into(), "4".into())],
            retries: None,
            retry_delay: None,
            timeout_ms: Some(7_000),
            delay_ms: 2_000,
            labels: vec!["l".into()],
            redact: Default::default(),
            flow: None,
        }
    }

    fn report<'a>(source: &'a Message, outcome: &'a Outcome, dlq_id: Option<DlqId>) -> CallbackReport<'a> {
        CallbackReport { source, retried: 2, outcome, dlq_id, is_full: false }
    }

    #[test]
    fn a_large_source_body_is_left_out_and_its_size_is_named() {
        let outcome = Outcome { result: Ok(Response::default()), duration_ms: 1, phases: None };
        let payload = |bytes: usize| {
            let source = Message { body: Bytes::from(vec![b'x'; bytes]), ..source() };
            let id = MessageId { seq: Seq(T.0 << 20 | 1), tag: 1 };
            let made = message(&callback(), report(&source, &outcome, None), id, T);
            serde_json::from_slice::<serde_json::Value>(&made.body).unwrap()
        };
        let whole = payload(SOURCE_BODY_BYTES_MAX);
        assert_eq!(whole["sourceBody"], base64(&vec![b'x'; SOURCE_BODY_BYTES_MAX]));
        assert!(whole.get("sourceBodyOmittedBytes").is_none());
        let left_out = payload(SOURCE_BODY_BYTES_MAX + 1);
        assert_eq!(left_out["sourceBody"], "");
        assert_eq!(left_out["sourceBodyOmittedBytes"], SOURCE_BODY_BYTES_MAX + 1);
    }

    #[test]
    fn a_callback_tells_the_answer_and_the_source() {
        let response = Response {
            status: 201,
            headers: vec![("Set-Cookie".into(), "a".into()), ("Set-Cookie".into(), "b".into())],
            body: b"out".to_vec(),
            truncated: false,
        };
        let (source, outcome) = (source(), Outcome { result: Ok(response), duration_ms: 1, phases: None });
        let id = MessageId { seq: Seq(T.0 << 20 | 1), tag: 1 };
        let made = message(&callback(), report(&source, &outcome, None), id, T);
        assert_eq!(
            (made.id, made.tenant, made.created_at, made.not_before),
            (id, TenantId(1), T, T.plus_millis(2_000))
        );
        assert_eq!(made.spec.headers[0], ("Content-Type".into(), "application/json".into()));
        assert_eq!((made.spec.retries, made.spec.timeout_ms, made.spec.hops), (5, Some(7_000), 1));
        assert_eq!(made.spec.cause, Some(Cause { id: source.id, kind: CauseKind::Callback }));
        let expected = serde_json::json!({
            "status": 201, "header": {"Set-Cookie": ["a", "b"]}, "body": "b3V0", "retried": 2, "maxRetries": 5,
            "sourceMessageId": source.id.to_string(), "url": "https://example.com/a?b=c", "method": "PUT",
            "sourceHeader": {"X-A": ["1, 2", "café"]}, "sourceBody": "aW4=", "notBefore": T.0, "createdAt": T.0,
            "callerIP": "127.0.0.1",
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&made.body).unwrap(), expected);
    }

    #[test]
    fn a_failure_without_an_answer_says_why_and_names_the_dead_letter() {
        let error = AttemptError { class: ErrorClass::Timeout, message: "context deadline exceeded".into() };
        let (source, outcome) = (source(), Outcome { result: Err(error), duration_ms: 1, phases: None });
        let dlq_id = DlqId { at: T, n: 4 };
        let id = MessageId { seq: Seq(T.0 << 20 | 1), tag: 1 };
        let made = message(&callback(), report(&source, &outcome, Some(dlq_id)), id, T);
        let body: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
        assert_eq!(body["status"], 0);
        assert_eq!(body["dlqId"], dlq_id.to_string());
        assert_eq!(made.spec.cause, Some(Cause { id: source.id, kind: CauseKind::FailureCallback }));
        assert_eq!((&body["body"], &body["error"]), (&"".into(), &"context deadline exceeded".into()));
    }
}
