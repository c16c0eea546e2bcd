//! The JSON objects of the contract's Appendix A: messages, dead letters, schedules, log lines.
//!
//! What a message asks to hide is hidden here, and only here: what is stored and sent is the original.

use super::viewer::Viewer;
use crate::config::Mode;
use bytes::Bytes;
use posthaste_api_types::HeaderLists;
use posthaste_api_types::log::{Connection, LogLine, LogState};
use posthaste_api_types::message::{self as types, DeduplicatedBy, Source, SourceKind, Terms};
use posthaste_api_types::schedule::ScheduleMessageState;
use posthaste_delivery::address;
use posthaste_engine::event::{Event, Phases, Response, State};
use posthaste_engine::message::{CallbackSpec, CauseKind, DedupBy, FlowSpec, Message, MessageSpec};
use posthaste_engine::schedule::{Schedule, ScheduleTarget};
use posthaste_store::DeadLetterRecord;
use posthaste_wire::encoding::base64;
use posthaste_wire::id::MessageId;
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::net::SocketAddr;

/// A JSON object.
pub(super) type Object = Map<String, Value>;

/// A shorter body is a value like any other; a longer one is kept as it is and written when it is sent.
const LARGE_BYTES: usize = 4 * 1024;

/// An object whose large members are not JSON yet.
#[derive(Debug, Default)]
pub(super) struct Shaped<T = Object> {
    pub(super) object: T,
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

    /// Text as it is, anything else as base64 under another name, nothing when empty.
    pub(super) fn put_text_or_base64(&mut self, text_name: &'static str, base64_name: &'static str, bytes: Bytes) {
        let (name, form) = if is_text(&bytes) { (text_name, Form::Text) } else { (base64_name, Form::Base64) };
        let member = Member::of(name, bytes, form);
        if let Some(text) = member.inline {
            put(&mut self.object, name, text);
        }
        self.large.extend(member.large);
    }
}

impl<T> From<T> for Shaped<T> {
    fn from(object: T) -> Self {
        Shaped { object, large: Vec::new() }
    }
}

/// Bytes as a member of an object: within it when they are short, and after its other members when they are large.
struct Member {
    inline: Option<String>,
    large: Option<Large>,
}

impl Member {
    fn of(name: &'static str, bytes: Bytes, form: Form) -> Member {
        match bytes.len() {
            0 => Member { inline: None, large: None },
            1..=LARGE_BYTES => Member { inline: Some(inline(&bytes, form)), large: None },
            _ => Member { inline: None, large: Some(Large { name, bytes, form }) },
        }
    }
}

/// A body as messages and schedules have it: as text, or as base64 under another name.
struct Body {
    text: Option<String>,
    base64: Option<String>,
    large: Vec<Large>,
}

impl Body {
    fn of(bytes: Bytes) -> Body {
        let (name, form) = if is_text(&bytes) { ("body", Form::Text) } else { ("bodyBase64", Form::Base64) };
        let Member { inline, large } = Member::of(name, bytes, form);
        let (text, base64) = if form == Form::Text { (inline, None) } else { (None, inline) };
        Body { text, base64, large: large.into_iter().collect() }
    }
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
}

fn inline(bytes: &[u8], form: Form) -> String {
    match form {
        Form::Text => String::from_utf8_lossy(bytes).into_owned(),
        Form::Base64 => base64(bytes),
    }
}

/// Text as it is, or anything else as base64; neither when empty.
pub(super) fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => (None, None),
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64(bytes))),
    }
}

/// A.1: a message.
pub(super) fn message(message: &Message, trim_body: Option<usize>, viewer: &Viewer) -> Shaped<types::Message> {
    let spec = &message.spec;
    let shown = shown_body(&message.body, trim_body, viewer, || viewer.hides_body(message));
    let Body { text, base64, large } = Body::of(shown);
    let object = types::Message {
        message_id: message.id.to_string(),
        created_at: message.created_at,
        not_before: message.not_before,
        source: source(message),
        terms: terms(spec, spec.timeout_ms.map(|millis| millis.div_ceil(1_000)), viewer),
        callback_header: callback_headers(spec, spec.callback.as_deref(), viewer),
        failure_callback_header: callback_headers(spec, spec.failure_callback.as_deref(), viewer),
        body: text,
        body_base64: base64,
    };
    Shaped { object, large }
}

/// A.2: a dead letter.
pub(super) fn dead_letter(
    record: &DeadLetterRecord,
    trim_body: Option<usize>,
    viewer: &Viewer,
) -> Shaped<types::DeadLetter> {
    let Shaped { object, large } = message(&record.message, trim_body, viewer);
    let letter = &record.letter;
    let response = letter.response.as_ref();
    let (response_body, response_body_base64) = response.map_or((None, None), |it| text_or_base64(kept_body(it)));
    let object = types::DeadLetter {
        dlq_id: letter.dlq_id.to_string(),
        message: object,
        error: letter.error.clone(),
        response_status: response.map_or(0, |response| response.status),
        response_header: response.map(|response| viewer.received_headers(&response.headers)).unwrap_or_default(),
        response_body,
        response_body_base64,
    };
    Shaped { object, large }
}

/// Where a message goes, in the words of its publisher; earlier releases have stored where a built-in API led.
pub(super) fn url_of(spec: &MessageSpec) -> Cow<'_, str> {
    match &spec.api {
        Some(api) => format!("api/{api}").into(),
        None => spec.url.as_str().into(),
    }
}

/// A.3: a schedule. `last_states` has the states of the messages of its last firing.
pub(super) fn schedule(
    schedule: &Schedule,
    last_states: &[(MessageId, ScheduleMessageState)],
    trim_body: Option<usize>,
    now: Timestamp,
    viewer: &Viewer,
) -> Shaped<posthaste_api_types::schedule::Schedule> {
    let Schedule { id, plan, state, body, .. } = schedule;
    let spec = &plan.spec;
    let destination = match (&plan.destination, &spec.api) {
        (ScheduleTarget::Url(_), Some(api)) => format!("api/{api}"),
        (ScheduleTarget::Url(destination) | ScheduleTarget::Group(destination), _) => destination.clone(),
    };
    let Body { text, base64, large } = Body::of(shown_body(body, trim_body, viewer, || spec.redact.body));
    let redacted = |redact: &RedactFields| (!redact.is_none()).then(|| redact.to_string());
    let of_callback = |callback: Option<&CallbackSpec>| redacted(&callback?.redact);
    let object = posthaste_api_types::schedule::Schedule {
        schedule_id: id.clone(),
        cron: schedule.cron_text().to_owned(),
        destination,
        created_at: plan.created_at,
        retries: spec.retries,
        is_paused: state.paused,
        terms: terms(spec, spec.timeout_ms.map(|millis| millis.div_ceil(1_000)), viewer),
        callback_header: callback_headers(spec, spec.callback.as_deref(), viewer),
        failure_callback_header: callback_headers(spec, spec.failure_callback.as_deref(), viewer),
        redact_fields: redacted(&spec.redact),
        callback_redact_fields: of_callback(spec.callback.as_deref()),
        failure_callback_redact_fields: of_callback(spec.failure_callback.as_deref()),
        delay: plan.delay_ms.filter(|millis| *millis > 0).map(|millis| millis.div_ceil(1_000)),
        last_schedule_time: state.last,
        next_schedule_time: schedule.next_shown(now),
        last_schedule_states: last_states.iter().map(|(id, state)| (id.to_string(), *state)).collect(),
        error: state.error.clone(),
        body: text,
        body_base64: base64,
        body_omitted: false,
        body_bytes: None,
    };
    Shaped { object, large }
}

/// A.6: a log line. Both spellings of names on which the documentation and the SDKs disagree are sent.
pub(super) fn event(
    event: &Event,
    message: &Message,
    trim_body: Option<usize>,
    mode: Mode,
    viewer: &Viewer,
) -> Shaped<LogLine> {
    let (spec, detail) = (&message.spec, &event.detail);
    let is_attempt =
        matches!(event.state, State::Active | State::Error | State::Retry | State::Delivered | State::Failed);
    let shown = shown_body(&message.body, trim_body, viewer, || viewer.hides_body(message));
    let Member { inline: body, large } = Member::of("body", shown, Form::Base64);
    let terms = terms(spec, spec.timeout_ms, viewer);
    let response = detail.response.as_ref();
    let headers = response.map(|response| viewer.received_headers(&response.headers)).unwrap_or_default();
    let object = LogLine {
        time: event.at,
        state: log_state(event.state),
        message_id: event.id.to_string(),
        source: source(message),
        callback_headers: callback_headers(spec, spec.callback.as_deref(), viewer),
        failure_callback_headers: callback_headers(spec, spec.failure_callback.as_deref(), viewer),
        retry_delay_expr: terms.retry_delay_expression.clone(),
        terms,
        body,
        attempt: is_attempt.then(|| u64::from(detail.retried) + 1),
        next_delivery_time: detail.next_due,
        error: detail.error.clone(),
        dlq_id: detail.dlq_id.clone(),
        duration: detail.duration_ms,
        connection: detail.phases().map(|phases| {
            let address = phases.address.filter(|address| spec.api.is_none() && may_be_told(*address, mode));
            connection(&phases, address)
        }),
        response_status: response.map(|response| response.status),
        response_header: headers.clone(),
        response_headers: headers,
        response_body: response.and_then(|response| {
            let (text, base64) = text_or_base64(kept_body(response));
            text.or(base64)
        }),
    };
    Shaped { object, large: large.into_iter().collect() }
}

/// A state of the engine, as log lines name it.
pub(super) fn log_state(state: State) -> LogState {
    match state {
        State::Created => LogState::Created,
        State::Active => LogState::Active,
        State::Error => LogState::Error,
        State::Retry => LogState::Retry,
        State::Delivered => LogState::Delivered,
        State::Failed => LogState::Failed,
        State::CancelRequested => LogState::CancelRequested,
        State::Canceled => LogState::Canceled,
    }
}

/// Where tenants and operators are not the same people, the addresses of a network are its operator's own.
fn may_be_told(address: SocketAddr, mode: Mode) -> bool {
    mode == Mode::Dev || address::kind(address.ip()).is_none()
}

/// How an attempt reached its receiver, and what that took.
fn connection(phases: &Phases, address: Option<SocketAddr>) -> Connection {
    Connection {
        reused: phases.reused,
        address: address.map(|address| address.to_string()),
        dns_micros: phases.dns_us,
        connect_micros: phases.connect_us,
        tls_micros: phases.tls_us,
        first_byte_micros: phases.first_byte_us,
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

/// How a message or the messages of a schedule are delivered. The unit of the timeout is not the same everywhere.
fn terms(spec: &MessageSpec, timeout: Option<u64>, viewer: &Viewer) -> Terms {
    let flow = spec.flow.as_ref();
    Terms {
        callback: spec.callback.as_ref().map(|callback| callback.url.clone()),
        caller_ip: spec.caller_ip.clone(),
        failure_callback: spec.failure_callback.as_ref().map(|callback| callback.url.clone()),
        flow_control_key: flow.map(|flow| flow.key.clone()),
        header: viewer.sent_headers(&spec.headers, &spec.redact),
        label: spec.labels.first().cloned(),
        labels: spec.labels.clone(),
        method: spec.method.as_str().to_owned(),
        parallelism: flow.and_then(|flow| flow.parallelism),
        // Present even if only the parallelism is limited.
        period: flow.map(|flow| flow.period_ms.div_ceil(1_000)),
        queue_name: spec.queue.clone(),
        rate: flow.and_then(|flow| flow.rate),
        retry_delay_expression: spec.retry_delay.clone(),
        timeout,
    }
}

/// Where a message goes, and what it was published to or made by.
fn source(message: &Message) -> Source {
    let spec = &message.spec;
    Source {
        api: spec.api.clone(),
        deduplication: spec.dedup.map(|by| match by {
            DedupBy::Id => DeduplicatedBy::Id,
            DedupBy::Content => DeduplicatedBy::Content,
        }),
        endpoint_name: spec.endpoint.clone(),
        max_retries: spec.retries,
        schedule_id: spec.schedule_id.clone(),
        schedule_run_by_hand: spec.by_hand,
        source_kind: spec.cause.map(|cause| match cause.kind {
            CauseKind::Callback => SourceKind::Callback,
            CauseKind::FailureCallback => SourceKind::FailureCallback,
            CauseKind::DlqRetry => SourceKind::DlqRetry,
        }),
        source_message_id: spec.cause.map(|cause| cause.id.to_string()),
        topic_name: spec.topic.clone(),
        url: url_of(spec).into_owned(),
    }
}

/// The headers that a callback will have.
fn callback_headers(spec: &MessageSpec, callback: Option<&CallbackSpec>, viewer: &Viewer) -> HeaderLists {
    let shown = |callback: &CallbackSpec| {
        let redact = spec.redact.union(&callback.redact);
        viewer.sent_headers(&callback.headers, &redact)
    };
    callback.filter(|callback| !callback.headers.is_empty()).map(shown).unwrap_or_default()
}

/// The flow-control key. Its period is present even if only the parallelism is limited.
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

/// One list of values per name, one element per line, each as `shown` has it.
pub(super) fn header_lists(headers: &[(String, String)], shown: impl Fn(&str, &str) -> String) -> HeaderLists {
    let mut lists = HeaderLists::new();
    for (name, value) in headers {
        let shown = shown(name, value);
        match lists.get_mut(name) {
            Some(values) => values.push(shown),
            None => drop(lists.insert(name.clone(), vec![shown])),
        }
    }
    lists
}

/// The first bytes of a body, cut between characters where it is text.
pub(super) fn trimmed(body: &[u8], trim: Option<usize>) -> &[u8] {
    let Some(max) = trim.filter(|max| *max < body.len()) else { return body };
    match std::str::from_utf8(body) {
        Ok(text) => &body[..(0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)],
        Err(_) => &body[..max],
    }
}
