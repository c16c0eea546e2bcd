//! A message to publish, and its settings.

use super::dedup::{Dedup, DedupId};
use super::policy::PublishPolicy;
use crate::call::CallError;
use crate::propagation::{DEDUPLICATION_ID_HEADER, MAX_RETRIES_HEADER, PROPAGATED};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use posthaste_wire::destination::{self, is_name};
use posthaste_wire::header::{self, is_hop_by_hop_or_framing, is_set_by_server};
use posthaste_wire::retry_delay::RetryDelay;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum size of a destination, in bytes.
pub const URL_BYTES_MAX: usize = 8 * 1024;
/// Maximum size of a body, in bytes. Servers may allow less; the free plan of QStash allows 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Maximum number of forwarded headers of a message, and of its settings.
pub const LINES_MAX: usize = 90;
/// Maximum number of labels of a message.
pub const LABELS_MAX: usize = 32;
/// Maximum size of all headers of a publish, in bytes, including their names.
pub const HEADER_BYTES_MAX: usize = 32 * 1024;

/// A message: its destination, its body and its delivery settings. The publisher's [`PublishPolicy`] provides the
/// settings that it leaves out.
///
/// ```
/// use posthaste_kit::publish::Message;
/// use serde_json::json;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let job = json!({ "user": "u_7" });
/// let message = Message::json("https://app.example.com/jobs/welcome", "mail:u_7:welcome:send:v1", &job)?
///     .delay(Duration::from_secs(60))
///     .label("mail");
/// assert_eq!(message.destination(), "https://app.example.com/jobs/welcome");
/// # Ok(()) }
/// ```
///
/// Setters accept any value. Publishing reports invalid values before anything is sent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Message {
    destination: String,
    queue: Option<String>,
    method: Option<String>,
    content_type: Option<String>,
    #[serde(with = "base64_bytes")]
    body: Bytes,
    dedup: Dedup,
    delay_seconds: Option<u64>,
    not_before: Option<u64>,
    timeout_seconds: Option<u64>,
    retries: Option<u32>,
    retry_delay: Option<String>,
    callback: Option<String>,
    failure_callback: Option<String>,
    labels: Vec<String>,
    flow_control: Option<FlowControl>,
    /// Headers of the delivery: lower-case names.
    forwarded: Vec<(String, String)>,
    /// Settings without a setter: names without `Upstash-`.
    settings: Vec<(String, String)>,
}

/// Limits on the deliveries of all messages with one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowControl {
    /// The key that shares the limits.
    pub key: String,
    /// Maximum number of deliveries in flight.
    pub parallelism: Option<u32>,
    /// Maximum number of deliveries that start within a period.
    pub rate: Option<u32>,
    /// The period, in whole seconds. Default: 1 second.
    pub period: Option<Duration>,
}

impl Message {
    /// A message with a JSON body to a URL, or to a URL group by its name. It is deduplicated by the business key (the
    /// operation, the user and the object): see [`DedupId`].
    pub fn json(
        destination: impl Into<String>,
        key: impl fmt::Display,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Message, serde_json::Error> {
        let body = serde_json::to_vec(body)?;
        Ok(Message::bytes(destination, key, body).content_type("application/json"))
    }

    /// A message with any body.
    pub fn bytes(destination: impl Into<String>, key: impl fmt::Display, body: impl Into<Bytes>) -> Message {
        Message {
            destination: destination.into(),
            queue: None,
            method: None,
            content_type: None,
            body: body.into(),
            dedup: Dedup::Id(DedupId::of_key(key)),
            delay_seconds: None,
            not_before: None,
            timeout_seconds: None,
            retries: None,
            retry_delay: None,
            callback: None,
            failure_callback: None,
            labels: Vec::new(),
            flow_control: None,
            forwarded: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Publishes to a FIFO queue: the message is delivered after all messages that are already in it.
    pub fn in_queue(mut self, name: impl Into<String>) -> Message {
        self.queue = Some(name.into());
        self
    }

    /// Sets the method of the delivery. Default: POST.
    pub fn method(mut self, method: Method) -> Message {
        self.method = Some(method.as_str().to_owned());
        self
    }

    /// Sets the content type of the body.
    pub fn content_type(mut self, kind: impl Into<String>) -> Message {
        self.content_type = Some(kind.into());
        self
    }

    /// Sets how duplicates are detected. Default: by the business key.
    pub fn dedup(mut self, dedup: Dedup) -> Message {
        self.dedup = dedup;
        self
    }

    /// Sets the delay before the first attempt, rounded up to whole seconds.
    pub fn delay(mut self, delay: Duration) -> Message {
        self.delay_seconds = Some(seconds_up(delay));
        self
    }

    /// Sets the earliest time of the first attempt, rounded up to whole seconds. Takes precedence over
    /// [`delay`](Self::delay).
    pub fn not_before(mut self, time: SystemTime) -> Message {
        self.not_before = Some(seconds_up(time.duration_since(UNIX_EPOCH).unwrap_or_default()));
        self
    }

    /// Sets the time limit of an attempt, rounded up to whole seconds.
    pub fn timeout(mut self, timeout: Duration) -> Message {
        self.timeout_seconds = Some(seconds_up(timeout));
        self
    }

    /// Sets the number of retries, instead of the policy's.
    pub fn retries(mut self, retries: u32) -> Message {
        self.retries = Some(retries);
        self
    }

    /// Sets the delay before each retry in milliseconds, an expression of `retried`, instead of the policy's.
    pub fn retry_delay(mut self, expression: impl Into<String>) -> Message {
        self.retry_delay = Some(expression.into());
        self
    }

    /// Sets a URL that is called after every attempt.
    pub fn callback(mut self, url: impl Into<String>) -> Message {
        self.callback = Some(url.into());
        self
    }

    /// Sets a URL that is called if the message fails permanently.
    pub fn failure_callback(mut self, url: impl Into<String>) -> Message {
        self.failure_callback = Some(url.into());
        self
    }

    /// Adds a label to filter by.
    pub fn label(mut self, label: impl Into<String>) -> Message {
        self.labels.push(label.into());
        self
    }

    /// Sets a flow-control key, which shares a rate and a parallelism with other messages.
    pub fn flow_control(mut self, flow: FlowControl) -> Message {
        self.flow_control = Some(flow);
        self
    }

    /// Adds a header to the delivery.
    pub fn header(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Message {
        self.forwarded.push((name.as_ref().to_ascii_lowercase(), value.into()));
        self
    }

    /// Sets any other setting of the protocol: `setting("Redact-Fields", "body")` sends `Upstash-Redact-Fields: body`.
    pub fn setting(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Message {
        self.settings.push((name.as_ref().to_ascii_lowercase(), value.into()));
        self
    }

    /// Sets the id of the request that led to the message. The delivery carries it as `x-request-id`.
    pub fn request_id(self, id: impl Into<String>) -> Message {
        self.only_header(crate::propagation::REQUEST_ID_HEADER, id)
    }

    /// Sets the id of the event that the message is about, such as a webhook event. The delivery carries it as
    /// `x-event-id`.
    pub fn event_id(self, id: impl Into<String>) -> Message {
        self.only_header(crate::propagation::EVENT_ID_HEADER, id)
    }

    /// Sets the trace context (W3C). The delivery carries it as `traceparent` and `tracestate`.
    pub fn trace(self, traceparent: impl Into<String>, tracestate: Option<String>) -> Message {
        let traced = self.only_header(crate::propagation::TRACEPARENT_HEADER, traceparent);
        match tracestate {
            Some(state) => traced.only_header(crate::propagation::TRACESTATE_HEADER, state),
            None => traced,
        }
    }

    fn only_header(mut self, name: &str, value: impl Into<String>) -> Message {
        self.forwarded.retain(|(known, _)| known != name);
        self.header(name, value)
    }

    /// Fills in the trace context and the request id if they are missing.
    pub(crate) fn propagate(&mut self, headers: &HeaderMap) {
        for name in PROPAGATED {
            let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
            if !self.forwarded.iter().any(|(known, _)| known == name) {
                self.forwarded.push((name.to_owned(), value.to_owned()));
            }
        }
    }

    /// Turns a delay into a fixed time, counted from now, whenever the message is published.
    pub(crate) fn fix_delay(&mut self, now: SystemTime) {
        if let (Some(delay), None) = (self.delay_seconds.take(), self.not_before) {
            let now = seconds_up(now.duration_since(UNIX_EPOCH).unwrap_or_default());
            self.not_before = Some(now.saturating_add(delay));
        }
    }

    /// The destination: a URL, or the name of a URL group.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// The FIFO queue that the message is published to.
    pub fn queue(&self) -> Option<&str> {
        self.queue.as_deref()
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Parses the body as JSON.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The deduplication id, if there is one.
    pub fn dedup_id(&self) -> Option<&str> {
        match &self.dedup {
            Dedup::Id(id) => Some(id.as_str()),
            Dedup::Content | Dedup::Off => None,
        }
    }

    /// Whether publishing the message twice creates one message.
    pub fn is_deduplicated(&self) -> bool {
        self.dedup != Dedup::Off
    }

    /// Whether another service may get the message after this failure without creating a second message if the first
    /// service has accepted it after all.
    pub(super) fn is_repeatable_after(&self, error: &CallError) -> bool {
        error.is_untouched() || self.is_deduplicated()
    }

    /// Whether the message is delayed.
    pub fn is_delayed(&self) -> bool {
        self.delay_seconds.is_some_and(|seconds| seconds > 0) || self.not_before.is_some()
    }

    /// A header of the delivery.
    pub fn forwarded_header(&self, name: &str) -> Option<&str> {
        let line = self.forwarded.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        line.map(|(_, value)| value.as_str())
    }

    /// Checks whether the message is valid for any server.
    pub(crate) fn check(&self, policy: &PublishPolicy) -> Result<(), CallError> {
        self.headers(policy).map(drop)
    }

    /// The headers of the publish: the message's settings, the policy where the message has none, and the forwarded
    /// headers.
    pub(crate) fn headers(&self, policy: &PublishPolicy) -> Result<HeaderMap, CallError> {
        self.check_parts()?;
        let mut lines = Lines::default();
        lines.add(header::METHOD, self.method.as_deref())?;
        lines.add(CONTENT_TYPE.as_str(), self.content_type.as_deref())?;
        lines
            .add(header::DELAY, self.delay_seconds.filter(|_| self.not_before.is_none()).map(in_seconds).as_deref())?;
        lines.add(header::NOT_BEFORE, self.not_before.map(|time| time.to_string()).as_deref())?;
        let policy_timeout = policy.timeout.map(seconds_up);
        lines.add(header::TIMEOUT, self.timeout_seconds.or(policy_timeout).map(in_seconds).as_deref())?;
        lines.add(header::RETRY_DELAY, Some(self.checked_retry_delay(policy)?))?;
        let retries = self.retries.unwrap_or(policy.retries).to_string();
        lines.add(header::RETRIES, Some(&retries))?;
        for (name, url) in [(header::CALLBACK, &self.callback), (header::FAILURE_CALLBACK, &self.failure_callback)] {
            if let Some(url) = url {
                destination::check_url(url, URL_BYTES_MAX).map_err(CallError::invalid)?;
                lines.add(name, Some(url))?;
            }
        }
        match &self.dedup {
            Dedup::Id(id) => lines.add(header::DEDUPLICATION_ID, Some(id.as_str()))?,
            Dedup::Content => lines.add(header::CONTENT_BASED_DEDUPLICATION, Some("true"))?,
            Dedup::Off => {}
        }
        lines
            .add(header::LABEL, Some(&self.labels.join(",")).filter(|labels| !labels.is_empty()).map(String::as_str))?;
        if let Some(flow) = &self.flow_control {
            lines.add(header::FLOW_CONTROL_KEY, Some(&flow.key))?;
            lines.add(header::FLOW_CONTROL_VALUE, Some(&flow.value()?))?;
        }
        for (name, value) in &self.settings {
            lines.add(&format!("{}{name}", header::PREFIX), Some(value))?;
        }
        for (name, value) in &self.forwarded {
            lines.add(&format!("{}{name}", header::FORWARD_PREFIX), Some(value))?;
        }
        // A delivery does not contain these values, but its handler needs them.
        for (name, value) in [(MAX_RETRIES_HEADER, Some(&*retries)), (DEDUPLICATION_ID_HEADER, self.dedup_id())] {
            if self.forwarded_header(name).is_none() {
                lines.add(&format!("{}{name}", header::FORWARD_PREFIX), value)?;
            }
        }
        match lines.0.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() {
            0..=HEADER_BYTES_MAX => Ok(lines.0),
            bytes => Err(CallError::invalid(format!("the headers have {bytes} bytes, more than {HEADER_BYTES_MAX}"))),
        }
    }

    fn checked_retry_delay<'a>(&'a self, policy: &'a PublishPolicy) -> Result<&'a str, CallError> {
        let expression = self.retry_delay.as_deref().unwrap_or(&policy.retry_delay);
        let parsed = RetryDelay::parse(expression).map_err(CallError::invalid)?;
        parsed.check(self.retries.unwrap_or(policy.retries)).map_err(CallError::invalid)?;
        Ok(expression)
    }

    fn check_parts(&self) -> Result<(), CallError> {
        let refuse = |what: String| Err(CallError::invalid(what));
        destination::Destination::parse_whole(&self.destination, URL_BYTES_MAX).map_err(CallError::invalid)?;
        if let Some(queue) = self.queue.as_deref().filter(|queue| !is_name(queue)) {
            return refuse(format!(
                "the name of the queue {queue:?} can contain only letters, digits, '.', '_' and '-'"
            ));
        }
        if self.body.len() > MESSAGE_BYTES_MAX {
            return refuse(format!("the body has {} bytes, more than {MESSAGE_BYTES_MAX}", self.body.len()));
        }
        if self.forwarded.len().max(self.settings.len()) > LINES_MAX || self.labels.len() > LABELS_MAX {
            return refuse(format!("more than {LINES_MAX} forwarded headers or settings, or {LABELS_MAX} labels"));
        }
        if let Some(label) = self.labels.iter().find(|label| label.contains(',') || label.trim().is_empty()) {
            return refuse(format!("the label {label:?} is empty or contains a comma, which separates labels"));
        }
        for (name, _) in &self.forwarded {
            if is_hop_by_hop_or_framing(name) || is_set_by_server(name) {
                return refuse(format!(
                    "the header {name} is a connection header or set by the server, so it cannot be forwarded"
                ));
            }
        }
        Ok(())
    }
}

/// Shows the destination and the deduplication, but neither the body nor the headers, which may be secret.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Message");
        let (place, _) = self.destination.split_once('?').unwrap_or((&self.destination, ""));
        shown.field("destination", &place).field("queue", &self.queue).field("dedup", &self.dedup);
        shown.field("body_bytes", &self.body.len()).finish_non_exhaustive()
    }
}

impl FlowControl {
    fn value(&self) -> Result<String, CallError> {
        let count = |name: &str, count: Option<u32>| count.map(|count| format!("{name}={count}"));
        let period = self.period.map(|period| format!("period={}", in_seconds(seconds_up(period))));
        let parts = [count("parallelism", self.parallelism), count("rate", self.rate), period];
        let value = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        posthaste_wire::flow_control::FlowControl::parse(&value).map_err(CallError::invalid)?;
        Ok(value)
    }
}

/// Headers, each checked when it is added.
#[derive(Default)]
struct Lines(HeaderMap);

impl Lines {
    fn add(&mut self, name: &str, value: Option<&str>) -> Result<(), CallError> {
        let Some(value) = value else { return Ok(()) };
        let shown: String = name.chars().take(100).collect();
        let name = HeaderName::try_from(name)
            .map_err(|_| CallError::invalid(format!("{shown:?} is not a valid header name")))?;
        // The error leaves out the value, because it may be secret.
        let value = HeaderValue::try_from(value)
            .map_err(|_| CallError::invalid(format!("the value of {shown} is not a valid header value")))?;
        self.0.append(name, value);
        Ok(())
    }
}

fn in_seconds(seconds: u64) -> String {
    format!("{seconds}s")
}

fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Bytes as base64 inside JSON.
mod base64_bytes {
    use bytes::Bytes;
    use posthaste_wire::encoding::{base64, from_base64};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        from_base64(&text).map(Bytes::from).ok_or_else(|| serde::de::Error::custom("the body is not base64"))
    }
}

#[cfg(test)]
mod tests;
