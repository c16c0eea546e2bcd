//! Settings of a publish: reads its headers, that is everything but destination and body.
//!
//! Unknown `Upstash-*` names are ignored, because SDKs send some. Known names that are not valid here are rejected,
//! never dropped. Start at [`parse`]. `setting` reads single values, and `forward` collects the headers to forward.

use crate::cron::Cron;
use crate::duration::Units;
use crate::echo::echo;
use crate::flow_control::FlowControl;
use crate::forward::{Forwarded, HeaderPair};
use crate::header;
use crate::redact::RedactFields;
use crate::rejection::{Rejection, RejectionKind};
use crate::retry_delay::RetryDelayChecks;
use crate::setting;
use crate::time::Timestamp;

/// Settings of a publish that a callback does not have: the server creates a callback as a single message with its own
/// body.
const IGNORED_FOR_CALLBACKS: [&str; 6] =
    ["cron", "schedule-id", "queue-name", "deduplication-id", "content-based-deduplication", "header-forward"];

/// The settings of a publish. `None` means that the publisher did not set it, so that a replay overrides only settings
/// that are present.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublishOptions {
    /// Upper-case method of the delivery.
    pub method: Option<&'static str>,
    /// Delay of the first attempt.
    pub delay_ms: Option<u64>,
    /// Earliest time of the first attempt; takes precedence over the delay.
    pub not_before: Option<Timestamp>,
    /// Longest duration of one attempt.
    pub timeout_ms: Option<u64>,
    /// Number of retries after the first attempt.
    pub retries: Option<u32>,
    /// Retry-delay expression as given. Its syntax is valid; [`PublishOptions::check_retry_delay`] checks its values.
    pub retry_delay: Option<String>,
    /// Headers to forward, with names in canonical form, one entry per received line.
    pub headers: Vec<(String, String)>,
    /// How many of the headers, counted from the first, were named with `Upstash-Forward-`.
    pub headers_explicit: usize,
    /// How to recognize a duplicate of this publish.
    pub dedup: Option<Dedup>,
    /// Labels for filtering, in the order given.
    pub labels: Option<Vec<String>>,
    /// Fields that API responses must hide.
    pub redact: Option<RedactFields>,
    /// The flow-control key, never empty.
    pub flow_control_key: Option<String>,
    /// The limits of that key; present only with a key.
    pub flow_control: Option<FlowControl>,
    /// The callback after every attempt.
    pub callback: Option<CallbackOptions>,
    /// The callback after the final failure.
    pub failure_callback: Option<CallbackOptions>,
    /// When to publish repeatedly: turns the publish into a schedule.
    pub cron: Option<Cron>,
    /// The id of that schedule.
    pub schedule_id: Option<String>,
    /// The queue of the message.
    pub queue: Option<String>,
    /// How many deliveries led to this publish; see [`hops`].
    pub hops: u32,
}

/// A callback: its URL, and the settings from `Upstash-Callback-*` or `Upstash-Failure-Callback-*`.
#[derive(Clone, Debug, PartialEq)]
pub struct CallbackOptions {
    /// Its destination: a complete URL without fragment.
    pub url: String,
    /// All other settings. A callback has no callbacks, schedule, queue, deduplication id or hops of its own. Its
    /// headers are only those named for it, so the code that creates the callback adds `Content-Type: application/json`
    /// if it is missing.
    pub options: Box<PublishOptions>,
}

/// How a duplicate is recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// The publisher's id.
    Id(String),
    /// Destination, headers and body.
    Content,
}

/// The limits of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishLimits {
    /// Longest delay, and how far ahead `Upstash-Not-Before` may be.
    pub delay_ms_max: u64,
    /// The units of delays and timeouts.
    pub delay_units: Units,
    /// Shortest timeout.
    pub timeout_ms_min: u64,
    /// Longest timeout.
    pub timeout_ms_max: u64,
    /// Most retries.
    pub retries_max: u32,
    /// Most headers to forward.
    pub forward_headers_max: usize,
    /// Most bytes of their names and values.
    pub forward_header_bytes_max: usize,
    /// Most labels.
    pub labels_max: usize,
    /// Longest label.
    pub label_bytes_max: usize,
    /// Longest deduplication id.
    pub dedup_id_bytes_max: usize,
    /// Longest callback URL.
    pub url_bytes_max: usize,
    /// Longest queue name, schedule id or flow-control key.
    pub key_bytes_max: usize,
}

impl PublishOptions {
    /// The headers that belong to the content: those named explicitly, and the content type. Headers that
    /// `Upstash-Header-Forward` adds differ from request to request.
    pub fn content_headers(&self) -> Vec<(String, String)> {
        let is_content = |(index, (name, _)): &(usize, &(String, String))| {
            *index < self.headers_explicit || name.eq_ignore_ascii_case(header::CONTENT_TYPE)
        };
        self.headers.iter().enumerate().filter(is_content).map(|(_, header)| header.clone()).collect()
    }

    /// Rejects a retry-delay expression that does not yield a number for some retry of the message or of a callback.
    /// `retries` is the final number for the message, after defaults. Callbacks have the same number unless they set
    /// their own.
    pub fn check_retry_delay(&self, retries: u32) -> Result<(), Rejection> {
        self.check_retry_delay_by(&RetryDelayChecks::new(u64::MAX), retries)
    }

    /// Like [`PublishOptions::check_retry_delay`], as one of several checks of a request.
    pub fn check_retry_delay_by(&self, checks: &RetryDelayChecks, retries: u32) -> Result<(), Rejection> {
        self.check_own_retry_delay(checks, Subject::Message, retries)?;
        self.callbacks().try_for_each(|(subject, callback)| {
            callback.options.check_own_retry_delay(checks, subject, callback.options.retries.unwrap_or(retries))
        })
    }

    /// Rejects settings that a message in a queue cannot have. [`parse`] calls it if a header names the queue. Callers
    /// that take the queue from elsewhere must call it.
    pub fn check_queued(&self) -> Result<(), Rejection> {
        let delayed = self.callbacks().find(|(_, callback)| callback.options.delay_ms.is_some_and(|ms| ms > 0));
        delayed.map_or(Ok(()), |(subject, _)| {
            Err(Rejection::invalid(format!(
                "{}: callbacks of a message in a queue cannot be delayed, because the queue waits for them; leave out \
                 the delay or the queue",
                subject.header("delay")
            )))
        })
    }

    fn check_own_retry_delay(
        &self,
        checks: &RetryDelayChecks,
        subject: Subject,
        retries: u32,
    ) -> Result<(), Rejection> {
        let Some(text) = &self.retry_delay else {
            return Ok(());
        };
        checks
            .check(text, retries)
            .map_err(|error| Rejection::invalid(format!("{}: {error}", subject.header("retry-delay"))))
    }

    fn callbacks(&self) -> impl Iterator<Item = (Subject, &CallbackOptions)> {
        let callback = self.callback.iter().map(|callback| (Subject::Callback, callback));
        callback.chain(self.failure_callback.iter().map(|callback| (Subject::FailureCallback, callback)))
    }
}

/// The publish or the callback that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Message,
    Callback,
    FailureCallback,
}

impl Subject {
    /// The prefix of its settings, in lower case. Only the first prefix is the start of the others, and it has no
    /// setting that begins with `callback-` or `failure-callback-`.
    fn prefix(self) -> &'static str {
        match self {
            Subject::Message => header::PREFIX,
            Subject::Callback => header::CALLBACK_PREFIX,
            Subject::FailureCallback => header::FAILURE_CALLBACK_PREFIX,
        }
    }

    /// The header that carries this setting.
    fn header(self, setting: &str) -> String {
        header::canonical(&format!("{}{setting}", self.prefix()))
    }
}

/// Reads the headers of a publish, an enqueue, a batch item or a replay. Names may be in any case.
///
/// Settings from the query are treated like headers: see [`merge_query`].
pub fn parse<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    limits: &PublishLimits,
    now: Timestamp,
) -> Result<PublishOptions, Rejection> {
    let lines = headers.clone().map(|(name, value)| HeaderPair { name, value });
    let mut draft = Draft::new(Subject::Message, limits, now);
    draft.read(lines.clone())?;
    // `Upstash-Callback-X` configures the callback exactly as `Upstash-X` configures a publish.
    let url = draft.callback_url.take();
    draft.options.callback = draft.read_callback(Subject::Callback, url, lines.clone())?;
    let url = draft.failure_callback_url.take();
    draft.options.failure_callback = draft.read_callback(Subject::FailureCallback, url, lines.clone())?;
    draft.forwarded.push_plain(lines, draft.header_forward == Some(true), limits)?;
    draft.options.hops = hops(headers);
    if draft.options.queue.is_some() {
        draft.options.check_queued()?;
    }
    Ok(draft.finish())
}

/// How many deliveries led to a request, according to its [`header::HOPS`]. If the header is repeated, the largest
/// value counts. A value that is not a number counts as zero.
pub fn hops<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> u32 {
    let values = headers.filter(|(name, _)| name.eq_ignore_ascii_case(header::HOPS)).map(|(_, value)| value);
    values.filter_map(setting::hops).max().unwrap_or(0)
}

/// Appends settings from the query to the headers. A header of the same name takes precedence.
pub fn merge_query<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    config: &'a [(String, String)],
) -> impl Iterator<Item = (&'a str, &'a [u8])> + Clone {
    let known = headers.clone();
    let added =
        config.iter().filter(move |(name, _)| !known.clone().any(|(known, _)| known.eq_ignore_ascii_case(name)));
    headers.chain(added.map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// The settings read so far.
struct Draft<'l> {
    subject: Subject,
    limits: &'l PublishLimits,
    now: Timestamp,
    options: PublishOptions,
    forwarded: Forwarded,
    header_forward: Option<bool>,
    dedup_id: Option<String>,
    content_dedup: Option<bool>,
    callback_url: Option<String>,
    failure_callback_url: Option<String>,
    /// Whether the limits of a flow-control key were named, even by an empty value.
    flow_control_named: bool,
}

impl<'l> Draft<'l> {
    fn new(subject: Subject, limits: &'l PublishLimits, now: Timestamp) -> Self {
        Draft {
            subject,
            limits,
            now,
            options: PublishOptions::default(),
            forwarded: Forwarded::default(),
            header_forward: None,
            dedup_id: None,
            content_dedup: None,
            callback_url: None,
            failure_callback_url: None,
            flow_control_named: false,
        }
    }

    /// Reads all headers of the subject.
    fn read<'a>(&mut self, lines: impl Iterator<Item = HeaderPair<'a>>) -> Result<(), Rejection> {
        let prefix = self.subject.prefix();
        for line in lines {
            let start = line.name.get(..prefix.len());
            if start.is_some_and(|start| start.eq_ignore_ascii_case(prefix)) {
                self.set(&line.name[prefix.len()..].to_ascii_lowercase(), line)?;
            }
        }
        if self.flow_control_named && self.options.flow_control_key.is_none() {
            let [value, key] = ["flow-control-value", "flow-control-key"].map(|name| self.subject.header(name));
            return Err(Rejection::invalid(format!("{value}: {key} is missing")));
        }
        Ok(())
    }

    /// Reads the settings of a callback. Without a URL they do not create one.
    fn read_callback<'a>(
        &mut self,
        subject: Subject,
        url: Option<String>,
        lines: impl Iterator<Item = HeaderPair<'a>>,
    ) -> Result<Option<CallbackOptions>, Rejection> {
        let Some(url) = url else {
            return Ok(None);
        };
        let mut draft = Draft::new(subject, self.limits, self.now);
        draft.read(lines)?;
        Ok(Some(CallbackOptions { url, options: Box::new(draft.finish()) }))
    }

    /// Reads one setting. `name` is the part after the prefix, in lower case.
    fn set(&mut self, name: &str, line: HeaderPair<'_>) -> Result<(), Rejection> {
        if self.subject != Subject::Message && IGNORED_FOR_CALLBACKS.contains(&name) {
            return Ok(());
        }
        let (limits, now, options) = (self.limits, self.now, &mut self.options);
        match name {
            "method" => put(&mut options.method, line, setting::method),
            "delay" => put(&mut options.delay_ms, line, |text| setting::delay(text, limits)),
            "not-before" if self.subject != Subject::Message => {
                let delay = self.subject.header("delay");
                Err(line.refused(format!("a callback does not support Not-Before; use {delay}")))
            }
            "not-before" => put(&mut options.not_before, line, |text| setting::not_before(text, limits, now)),
            "timeout" => put(&mut options.timeout_ms, line, |text| setting::timeout(text, limits)),
            "retries" => put(&mut options.retries, line, |text| setting::retries(text, limits)),
            "retry-delay" => put(&mut options.retry_delay, line, setting::retry_delay),
            "label" => {
                // A list, which a proxy may have split into several lines.
                let before = options.labels.take().unwrap_or_default();
                put(&mut options.labels, line, |text| setting::labels(before, text, limits))
            }
            "redact-fields" => put(&mut options.redact, line, setting::redact_fields),
            "flow-control-key" => {
                put(&mut options.flow_control_key, line, |text| setting::flow_control_key(text, limits))
            }
            "flow-control-value" => {
                self.flow_control_named = true;
                // Some clients send the value with every key.
                let is_empty = line.trimmed().is_empty();
                if is_empty { Ok(()) } else { put(&mut options.flow_control, line, setting::flow_control) }
            }
            "cron" => put(&mut options.cron, line, setting::cron),
            "schedule-id" => put(&mut options.schedule_id, line, |text| setting::name(text, limits)),
            "queue-name" => put(&mut options.queue, line, |text| setting::name(text, limits)),
            "callback" => put(&mut self.callback_url, line, |text| setting::callback_url(text, limits)),
            "failure-callback" => put(&mut self.failure_callback_url, line, |text| setting::callback_url(text, limits)),
            "header-forward" => put(&mut self.header_forward, line, setting::flag),
            "deduplication-id" => put(&mut self.dedup_id, line, |text| setting::dedup_id(text, limits)),
            "content-based-deduplication" => put(&mut self.content_dedup, line, setting::flag),
            _ => match name.strip_prefix("forward-") {
                Some(forwarded) => self.forwarded.push_explicit(forwarded, line, limits),
                None => self.refuse(name, line),
            },
        }
    }

    /// Rejects names that are known but not valid here. Unknown names are ignored.
    fn refuse(&self, name: &str, line: HeaderPair<'_>) -> Result<(), Rejection> {
        match name {
            "callback-callback"
            | "callback-failure-callback"
            | "failure-callback-callback"
            | "failure-callback-failure-callback" => Err(line.refused("a callback cannot have callbacks")),
            "workflow-init" | "workflow-runid" => Err(line.refused(
                "only a publish or an item of a batch to a URL can start or continue a workflow run; send a plain message \
                 to the workflow's URL, which starts a run",
            )),
            _ => Ok(()),
        }
    }

    fn finish(self) -> PublishOptions {
        let mut options = self.options;
        options.headers_explicit = self.forwarded.explicit();
        options.headers = self.forwarded.into_headers();
        options.dedup = match (self.dedup_id, self.content_dedup) {
            (Some(id), _) => Some(Dedup::Id(id)),
            (None, Some(true)) => Some(Dedup::Content),
            (None, _) => None,
        };
        options
    }
}

/// Fills a slot once. Errors of `read` name the header. Errors about quotas start with the words of the hosted service.
fn put<T>(
    slot: &mut Option<T>,
    line: HeaderPair<'_>,
    read: impl FnOnce(&str) -> Result<T, Rejection>,
) -> Result<(), Rejection> {
    if slot.is_some() {
        return Err(line.refused("may be given only once"));
    }
    let text = line.text()?;
    *slot = Some(read(&text).map_err(|rejection| match rejection.status {
        RejectionKind::Invalid => line.refused(rejection.message),
        RejectionKind::Quota => {
            let (name, value) = (line.display_name(), echo(&text));
            Rejection { message: format!("{}; {name} is {value}", rejection.message), ..rejection }
        }
    })?);
    Ok(())
}

#[cfg(test)]
mod callback_tests;
#[cfg(test)]
mod error_tests;
#[cfg(test)]
mod tests;
