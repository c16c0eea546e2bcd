//! The JSON objects of the contract's Appendix A: messages, dead letters, schedules, log lines.
//!
//! What a message asks to hide is hidden here, and only here: what is stored and sent is the original.

use super::viewer::Viewer;
use crate::config::Mode;
use bytes::Bytes;
use posthaste_delivery::address;
use posthaste_engine::event::{Event, EventDetail, Phases, Response, State};
use posthaste_engine::message::{FlowSpec, Message, MessageSpec};
use posthaste_engine::schedule::{Schedule, ScheduleTarget};
use posthaste_store::DeadLetterRecord;
use posthaste_wire::encoding::base64;
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::net::SocketAddr;

/// A JSON object.
pub(super) type Object = Map<String, Value>;

/// A shorter body is a value like any other; a longer one is kept as it is and written when it is sent.
const LARGE_BYTES: usize = 4 * 1024;

/// A JSON object whose large members are not JSON yet.
#[derive(Debug, Default)]
pub(super) struct Shaped {
    pub(super) object: Object,
    pub(super) large: Vec<Large>,
}

/// A large member of an object.
#[derive(Debug)]
pub(super) struct Large {
    pub(super) name: &'static str,
    pub(super) bytes: Bytes,
    pub(super) form: Form,
}

/// How bytes stand in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the text that they are.
    Text,
    Base64,
}

impl Shaped {
    /// All of it as a value.
    pub(super) fn into_value(self) -> Value {
        let Shaped { mut object, large } = self;
        for Large { name, bytes, form } in large {
            put(&mut object, name, inline(&bytes, form));
        }
        object.into()
    }

    fn put_bytes(&mut self, name: &'static str, bytes: Bytes, form: Form) {
        match bytes.len() > LARGE_BYTES {
            true => self.large.push(Large { name, bytes, form }),
            false => put(&mut self.object, name, inline(&bytes, form)),
        }
    }

    /// Text as it is, anything else as base64 under another name, nothing when empty.
    pub(super) fn put_text_or_base64(&mut self, text_name: &'static str, base64_name: &'static str, bytes: Bytes) {
        match std::str::from_utf8(&bytes) {
            _ if bytes.is_empty() => {}
            Ok(_) => self.put_bytes(text_name, bytes, Form::Text),
            Err(_) => self.put_bytes(base64_name, bytes, Form::Base64),
        }
    }
}

impl From<Object> for Shaped {
    fn from(object: Object) -> Self {
        Shaped { object, large: Vec::new() }
    }
}

fn inline(bytes: &[u8], form: Form) -> String {
    match form {
        Form::Text => String::from_utf8_lossy(bytes).into_owned(),
        Form::Base64 => base64(bytes),
    }
}

/// A.1: a message.
pub(super) fn message(message: &Message, trim_body: Option<usize>, viewer: &Viewer) -> Shaped {
    let spec = &message.spec;
    let mut object = Object::new();
    put(&mut object, "messageId", message.id.to_string());
    put(&mut object, "url", url_of(spec));
    put(&mut object, "method", spec.method.as_str());
    put(&mut object, "maxRetries", spec.retries);
    put(&mut object, "notBefore", message.not_before.as_millis());
    put(&mut object, "createdAt", message.created_at.as_millis());
    put(&mut object, "callerIP", spec.caller_ip.as_str());
    put_headers(&mut object, spec, viewer);
    put_labels(&mut object, spec);
    put_sources(&mut object, message);
    put_flow(&mut object, spec.flow.as_ref());
    put_callbacks(&mut object, spec, ["callbackHeader", "failureCallbackHeader"], viewer);
    if let Some(expression) = &spec.retry_delay {
        put(&mut object, "retryDelayExpression", expression.as_str());
    }
    if let Some(millis) = spec.timeout_ms {
        put(&mut object, "timeout", millis.div_ceil(1_000));
    }
    let mut shaped = Shaped::from(object);
    let body = shown_body(&message.body, trim_body, viewer, || viewer.hides_body(message));
    shaped.put_text_or_base64("body", "bodyBase64", body);
    shaped
}

/// A.2: a dead letter.
pub(super) fn dead_letter(record: &DeadLetterRecord, trim_body: Option<usize>, viewer: &Viewer) -> Shaped {
    let mut shaped = message(&record.message, trim_body, viewer);
    let object = &mut shaped.object;
    let letter = &record.letter;
    put(object, "dlqId", letter.dlq_id.to_string());
    put(object, "responseStatus", letter.response.as_ref().map_or(0, |response| response.status));
    if let Some(error) = &letter.error {
        put(object, "error", error.as_str());
    }
    if let Some(response) = &letter.response {
        if !response.headers.is_empty() {
            put(object, "responseHeader", viewer.received_headers(&response.headers));
        }
        put_text_or_base64(object, "responseBody", "responseBodyBase64", kept_body(response));
    }
    shaped
}

/// Where a message goes, in the words of its publisher; earlier releases have stored where a built-in API led.
pub(super) fn url_of(spec: &MessageSpec) -> Cow<'_, str> {
    match &spec.api {
        Some(api) => format!("api/{api}").into(),
        None => spec.url.as_str().into(),
    }
}

/// A.3: a schedule. `last_states` says what became of the messages of its last firing.
pub(super) fn schedule(
    schedule: &Schedule,
    last_states: &[(MessageId, &str)],
    trim_body: Option<usize>,
    now: Timestamp,
    viewer: &Viewer,
) -> Shaped {
    let Schedule { id, plan, state, body, .. } = schedule;
    let spec = &plan.spec;
    let destination = match (&plan.destination, &spec.api) {
        (ScheduleTarget::Url(_), Some(api)) => format!("api/{api}"),
        (ScheduleTarget::Url(destination) | ScheduleTarget::Group(destination), _) => destination.clone(),
    };
    let mut object = Object::new();
    put(&mut object, "scheduleId", id.as_str());
    put(&mut object, "cron", schedule.cron_text());
    put(&mut object, "destination", destination);
    put(&mut object, "method", spec.method.as_str());
    put(&mut object, "createdAt", plan.created_at.as_millis());
    put(&mut object, "retries", spec.retries);
    put(&mut object, "isPaused", state.paused);
    put(&mut object, "callerIP", spec.caller_ip.as_str());
    put_headers(&mut object, spec, viewer);
    put_labels(&mut object, spec);
    put_flow(&mut object, spec.flow.as_ref());
    put_callbacks(&mut object, spec, ["callbackHeader", "failureCallbackHeader"], viewer);
    put_redaction(&mut object, spec);
    let texts = [("queueName", &spec.queue), ("retryDelayExpression", &spec.retry_delay), ("error", &state.error)];
    for (name, text) in texts {
        if let Some(text) = text {
            put(&mut object, name, text.as_str());
        }
    }
    for (name, millis) in [("delay", plan.delay_ms.filter(|millis| *millis > 0)), ("timeout", spec.timeout_ms)] {
        if let Some(millis) = millis {
            put(&mut object, name, millis.div_ceil(1_000));
        }
    }
    for (name, time) in [("lastScheduleTime", state.last), ("nextScheduleTime", schedule.next_shown(now))] {
        if let Some(time) = time {
            put(&mut object, name, time.as_millis());
        }
    }
    if !last_states.is_empty() {
        let states: Object = last_states.iter().map(|(id, state)| (id.to_string(), (*state).into())).collect();
        put(&mut object, "lastScheduleStates", states);
    }
    let mut shaped = Shaped::from(object);
    shaped.put_text_or_base64("body", "bodyBase64", shown_body(body, trim_body, viewer, || spec.redact.body));
    shaped
}

/// A.6: a log line. Both spellings of names on which the documentation and the SDKs disagree are sent.
pub(super) fn event(event: &Event, message: &Message, trim_body: Option<usize>, mode: Mode, viewer: &Viewer) -> Shaped {
    let spec = &message.spec;
    let mut object = Object::new();
    put(&mut object, "time", event.at.as_millis());
    put(&mut object, "state", event.state.name());
    put(&mut object, "messageId", event.id.to_string());
    put(&mut object, "url", url_of(spec));
    put(&mut object, "method", spec.method.as_str());
    put(&mut object, "maxRetries", spec.retries);
    put(&mut object, "callerIP", spec.caller_ip.as_str());
    put_headers(&mut object, spec, viewer);
    put_labels(&mut object, spec);
    put_sources(&mut object, message);
    put_flow(&mut object, spec.flow.as_ref());
    put_callbacks(&mut object, spec, ["callbackHeaders", "failureCallbackHeaders"], viewer);
    if let Some(expression) = &spec.retry_delay {
        put(&mut object, "retryDelayExpr", expression.as_str());
        put(&mut object, "retryDelayExpression", expression.as_str());
    }
    if let Some(millis) = spec.timeout_ms {
        put(&mut object, "timeout", millis);
    }
    if matches!(event.state, State::Active | State::Error | State::Retry | State::Delivered | State::Failed) {
        put(&mut object, "attempt", u64::from(event.detail.retried) + 1);
    }
    put_detail(&mut object, &event.detail, viewer);
    if let Some(phases) = event.detail.phases() {
        let address = phases.address.filter(|address| spec.api.is_none() && may_be_told(*address, mode));
        put(&mut object, "connection", connection(&phases, address));
    }
    let mut shaped = Shaped::from(object);
    let body = shown_body(&message.body, trim_body, viewer, || viewer.hides_body(message));
    if !body.is_empty() {
        shaped.put_bytes("body", body, Form::Base64);
    }
    shaped
}

/// Where tenants and operators are not the same people, the addresses of a network are its operator's own.
fn may_be_told(address: SocketAddr, mode: Mode) -> bool {
    mode == Mode::Dev || address::kind(address.ip()).is_none()
}

fn put_detail(object: &mut Object, detail: &EventDetail, viewer: &Viewer) {
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
        put_response(object, response, viewer);
    }
}

/// How an attempt reached its receiver, and what that took.
fn connection(phases: &Phases, address: Option<SocketAddr>) -> Value {
    let mut object = Object::new();
    put(&mut object, "reused", phases.reused);
    if let Some(address) = address {
        put(&mut object, "address", address.to_string());
    }
    let spent = [
        ("dnsMicros", phases.dns_us),
        ("connectMicros", phases.connect_us),
        ("tlsMicros", phases.tls_us),
        ("firstByteMicros", phases.first_byte_us),
    ];
    for (name, micros) in spent {
        if let Some(micros) = micros {
            put(&mut object, name, micros);
        }
    }
    object.into()
}

fn put_response(object: &mut Object, response: &Response, viewer: &Viewer) {
    put(object, "responseStatus", response.status);
    if !response.headers.is_empty() {
        let headers = viewer.received_headers(&response.headers);
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

/// As much of a body as is shown, or what stands in its place. Nothing is done for a body that nobody wants to see.
fn shown_body(body: &Bytes, trim: Option<usize>, viewer: &Viewer, is_hidden: impl FnOnce() -> bool) -> Bytes {
    if body.is_empty() || trim == Some(0) {
        return Bytes::new();
    }
    let body = if is_hidden() { Bytes::from(viewer.mark(body)) } else { body.clone() };
    body.slice(..trimmed(&body, trim).len())
}

/// What was kept of an answer, without the half of a character at which it may have been cut.
pub(super) fn kept_body(response: &Response) -> &[u8] {
    match std::str::from_utf8(&response.body) {
        Err(error) if response.truncated && error.error_len().is_none() => &response.body[..error.valid_up_to()],
        _ => &response.body,
    }
}

pub(super) fn put(object: &mut Object, name: &str, value: impl Into<Value>) {
    object.insert(name.to_owned(), value.into());
}

/// Text as it is, anything else as base64 under another name, nothing when empty.
pub(super) fn put_text_or_base64(object: &mut Object, text_name: &str, base64_name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => {}
        Ok(text) => put(object, text_name, text),
        Err(_) => put(object, base64_name, base64(bytes)),
    }
}

fn put_headers(object: &mut Object, spec: &MessageSpec, viewer: &Viewer) {
    if !spec.headers.is_empty() {
        put(object, "header", viewer.sent_headers(&spec.headers, &spec.redact));
    }
}

/// What it was published to, put into or made by, besides its URL.
fn put_sources(object: &mut Object, message: &Message) {
    let spec = &message.spec;
    let sources = [
        ("topicName", &spec.topic),
        ("endpointName", &spec.endpoint),
        ("queueName", &spec.queue),
        ("scheduleId", &spec.schedule_id),
        ("api", &spec.api),
    ];
    for (name, source) in sources {
        if let Some(text) = source {
            put(object, name, text.as_str());
        }
    }
    if let Some(cause) = spec.cause {
        put(object, "sourceMessageId", cause.id.to_string());
        put(object, "sourceKind", cause.kind.name());
    }
    if let Some(dedup) = spec.dedup {
        put(object, "deduplication", dedup.name());
    }
    if spec.by_hand {
        put(object, "scheduleRunByHand", true);
    }
}

/// The flow-control key; its period is told even if nothing but the parallelism is limited.
pub(super) fn put_flow(object: &mut Object, flow: Option<&FlowSpec>) {
    let Some(flow) = flow else { return };
    put(object, "flowControlKey", flow.key.as_str());
    put(object, "period", flow.period_ms.div_ceil(1_000));
    for (name, limit) in [("parallelism", flow.parallelism), ("rate", flow.rate)] {
        if let Some(limit) = limit {
            put(object, name, limit);
        }
    }
}

/// The callbacks, and the headers they will have under these names.
fn put_callbacks(object: &mut Object, spec: &MessageSpec, header_names: [&str; 2], viewer: &Viewer) {
    let callbacks = [("callback", &spec.callback), ("failureCallback", &spec.failure_callback)];
    for ((name, callback), header_name) in callbacks.into_iter().zip(header_names) {
        let Some(callback) = callback else { continue };
        put(object, name, callback.url.as_str());
        if !callback.headers.is_empty() {
            let redact = spec.redact.union(&callback.redact);
            put(object, header_name, viewer.sent_headers(&callback.headers, &redact));
        }
    }
}

/// What a schedule and its callbacks hide, as their headers say it: whoever makes it again must not show more.
fn put_redaction(object: &mut Object, spec: &MessageSpec) {
    let fields = [
        ("redactFields", Some(&spec.redact)),
        ("callbackRedactFields", spec.callback.as_ref().map(|callback| &callback.redact)),
        ("failureCallbackRedactFields", spec.failure_callback.as_ref().map(|callback| &callback.redact)),
    ];
    for (name, redact) in fields {
        if let Some(redact) = redact.filter(|redact| !redact.is_none()) {
            put(object, name, redact.to_string());
        }
    }
}

fn put_labels(object: &mut Object, spec: &MessageSpec) {
    if let Some(first) = spec.labels.first() {
        put(object, "label", first.as_str());
        put(object, "labels", json!(spec.labels));
    }
}

/// One list of values per name, one element per line, each as `shown` has it.
pub(super) fn header_map(headers: &[(String, String)], shown: impl Fn(&str, &str) -> String) -> Value {
    let mut map = Object::new();
    for (name, value) in headers {
        let shown = shown(name, value);
        match map.get_mut(name) {
            Some(Value::Array(values)) => values.push(shown.into()),
            _ => put(&mut map, name, json!([shown])),
        }
    }
    map.into()
}

/// The first bytes of a body, cut between characters where it is text.
pub(super) fn trimmed(body: &[u8], trim: Option<usize>) -> &[u8] {
    let Some(max) = trim.filter(|max| *max < body.len()) else { return body };
    match std::str::from_utf8(body) {
        Ok(text) => &body[..(0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)],
        Err(_) => &body[..max],
    }
}
