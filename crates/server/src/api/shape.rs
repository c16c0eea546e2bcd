//! The JSON objects of the contract's Appendix A: messages, dead letters, log lines.
//!
//! What a message asks to hide is hidden here, and only here: what is stored and sent is the original.

use crate::store::{DeadLetterRecord, EventRecord};
use posthaste_engine::event::Response;
use posthaste_engine::message::Message;
use posthaste_wire::encoding::base64;
use posthaste_wire::redact;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// A.1: a message.
pub(super) fn message(message: &Message, trim_body: Option<usize>) -> Object {
    let spec = &message.spec;
    let mut object = Object::new();
    put(&mut object, "messageId", message.id.to_string());
    put(&mut object, "url", spec.url.as_str());
    put(&mut object, "method", spec.method.as_str());
    put(&mut object, "maxRetries", spec.retries);
    put(&mut object, "notBefore", message.not_before.as_millis());
    put(&mut object, "createdAt", message.created_at.as_millis());
    put(&mut object, "callerIP", spec.caller_ip.as_str());
    put_headers(&mut object, message);
    put_labels(&mut object, message);
    put_group(&mut object, message);
    if let Some(expression) = &spec.retry_delay {
        put(&mut object, "retryDelayExpression", expression.as_str());
    }
    if let Some(millis) = spec.timeout_ms {
        put(&mut object, "timeout", millis.div_ceil(1_000));
    }
    let hidden = hidden_body(message);
    let body = hidden.as_ref().map_or(&message.body[..], String::as_bytes);
    put_text_or_base64(&mut object, "body", "bodyBase64", trimmed(body, trim_body));
    object
}

/// A.2: a dead letter.
pub(super) fn dead_letter(record: &DeadLetterRecord, trim_body: Option<usize>) -> Value {
    let mut object = message(&record.message, trim_body);
    let letter = &record.letter;
    put(&mut object, "dlqId", letter.dlq_id.to_string());
    put(&mut object, "responseStatus", letter.response.as_ref().map_or(0, |response| response.status));
    if let Some(error) = &letter.error {
        put(&mut object, "error", error.as_str());
    }
    if let Some(response) = &letter.response {
        if !response.headers.is_empty() {
            put(&mut object, "responseHeader", header_map(&response.headers, |_| false));
        }
        put_text_or_base64(&mut object, "responseBody", "responseBodyBase64", kept_body(response));
    }
    object.into()
}

/// A.6: a log line. Both spellings of names on which the documentation and the SDKs disagree are sent.
pub(super) fn event(record: &EventRecord, trim_body: Option<usize>) -> Value {
    let EventRecord { event, message, .. } = record;
    let spec = &message.spec;
    let mut object = Object::new();
    put(&mut object, "time", event.at.as_millis());
    put(&mut object, "state", event.state.name());
    put(&mut object, "messageId", event.id.to_string());
    put(&mut object, "url", spec.url.as_str());
    put(&mut object, "method", spec.method.as_str());
    put(&mut object, "maxRetries", spec.retries);
    put(&mut object, "callerIP", spec.caller_ip.as_str());
    put_headers(&mut object, message);
    put_labels(&mut object, message);
    put_group(&mut object, message);
    if let Some(expression) = &spec.retry_delay {
        put(&mut object, "retryDelayExpr", expression.as_str());
        put(&mut object, "retryDelayExpression", expression.as_str());
    }
    if let Some(millis) = spec.timeout_ms {
        put(&mut object, "timeout", millis);
    }
    let hidden = hidden_body(message);
    let body = trimmed(hidden.as_ref().map_or(&message.body[..], String::as_bytes), trim_body);
    if !body.is_empty() {
        put(&mut object, "body", base64(body));
    }
    put_detail(&mut object, record);
    object.into()
}

fn put_detail(object: &mut Object, record: &EventRecord) {
    let detail = &record.event.detail;
    if let Some(due) = detail.next_due {
        put(object, "nextDeliveryTime", due.as_millis());
    }
    if let Some(error) = &detail.error {
        put(object, "error", error.as_str());
    }
    if let Some(dlq_id) = &detail.dlq_id {
        put(object, "dlqId", dlq_id.as_str());
    }
    if let Some(millis) = detail.duration_ms {
        put(object, "duration", millis);
    }
    if let Some(response) = &detail.response {
        put_response(object, response);
    }
}

fn put_response(object: &mut Object, response: &Response) {
    put(object, "responseStatus", response.status);
    if !response.headers.is_empty() {
        let headers = header_map(&response.headers, |_| false);
        put(object, "responseHeaders", headers.clone());
        put(object, "responseHeader", headers);
    }
    let body = kept_body(response);
    match std::str::from_utf8(body) {
        _ if body.is_empty() => {}
        Ok(text) => put(object, "responseBody", text),
        Err(_) => put(object, "responseBody", base64(body)),
    }
}

/// What stands in the place of a body that is to be hidden.
fn hidden_body(message: &Message) -> Option<String> {
    (message.spec.redact.body && !message.body.is_empty()).then(|| redact::mark(&message.body))
}

/// What was kept of an answer, without the half of a character at which it may have been cut.
fn kept_body(response: &Response) -> &[u8] {
    match std::str::from_utf8(&response.body) {
        Err(error) if response.truncated && error.error_len().is_none() => &response.body[..error.valid_up_to()],
        _ => &response.body,
    }
}

fn put(object: &mut Object, name: &str, value: impl Into<Value>) {
    object.insert(name.to_owned(), value.into());
}

/// Text as it is, anything else as base64 under another name, nothing when empty.
fn put_text_or_base64(object: &mut Object, text_name: &str, base64_name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => {}
        Ok(text) => put(object, text_name, text),
        Err(_) => put(object, base64_name, base64(bytes)),
    }
}

fn put_headers(object: &mut Object, message: &Message) {
    let spec = &message.spec;
    if !spec.headers.is_empty() {
        put(object, "header", header_map(&spec.headers, |name| spec.redact.hides_header(name)));
    }
}

fn put_group(object: &mut Object, message: &Message) {
    if let Some(topic) = &message.spec.topic {
        put(object, "topicName", topic.as_str());
    }
    if let Some(endpoint) = &message.spec.endpoint {
        put(object, "endpointName", endpoint.as_str());
    }
}

fn put_labels(object: &mut Object, message: &Message) {
    if let Some(first) = message.spec.labels.first() {
        put(object, "label", first.as_str());
        put(object, "labels", json!(message.spec.labels));
    }
}

/// One list of values per name, one element per line.
fn header_map(headers: &[(String, String)], hides: impl Fn(&str) -> bool) -> Value {
    let mut map = Object::new();
    for (name, value) in headers {
        let shown = if hides(name) { redact::mark(value.as_bytes()) } else { value.clone() };
        match map.get_mut(name) {
            Some(Value::Array(values)) => values.push(shown.into()),
            _ => put(&mut map, name, json!([shown])),
        }
    }
    map.into()
}

/// The first bytes of a body, cut between characters where it is text.
fn trimmed(body: &[u8], trim: Option<usize>) -> &[u8] {
    let Some(max) = trim.filter(|max| *max < body.len()) else { return body };
    match std::str::from_utf8(body) {
        Ok(text) => &body[..(0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)],
        Err(_) => &body[..max],
    }
}
