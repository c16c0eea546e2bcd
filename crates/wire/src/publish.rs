//! What a publisher says about a message besides its destination and body: reads the headers of a publish.
//!
//! Unknown `Upstash-*` names are ignored, because SDKs send some; what the protocol knows but this version cannot
//! do is refused, never dropped. Start at [`parse`]. Single values are read in `setting`, headers to send on
//! are collected in `forward`.

use crate::destination::check_url;
use crate::flow_control::FlowControl;
use crate::forward::{Forwarded, Line};
use crate::header;
use crate::redact::RedactFields;
use crate::rejection::{Rejection, RejectionKind};
use crate::retry_delay::RetryDelay;
use crate::setting;
use crate::time::Timestamp;

/// What the publisher said; `None` means nothing was said, so that a replay overrides only what is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishOptions {
    /// Upper-case method of the delivery.
    pub method: Option<&'static str>,
    /// Delay of the first attempt.
    pub delay_ms: Option<u64>,
    /// Earliest time of the first attempt; wins over the delay.
    pub not_before: Option<Timestamp>,
    /// How long one attempt may take.
    pub timeout_ms: Option<u64>,
    /// How many attempts may follow the first.
    pub retries: Option<u32>,
    /// Retry-delay expression as given. Its syntax is right; [`PublishOptions::check_retry_delay`] does the rest.
    pub retry_delay: Option<String>,
    /// Headers to send on, names in canonical form, one entry per received line.
    pub headers: Vec<(String, String)>,
    /// How many of them, from the first on, were named with `Upstash-Forward-`.
    pub headers_explicit: usize,
    /// What makes another publish a duplicate of this one.
    pub dedup: Option<Dedup>,
    /// Labels for filtering, in the order given.
    pub labels: Option<Vec<String>>,
    /// What API answers must hide.
    pub redact: Option<RedactFields>,
}

/// What makes two publishes the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// The publisher's id.
    Id(String),
    /// Destination, headers and body.
    Content,
}

/// The bounds a publish must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishLimits {
    /// Longest delay; also how far ahead `Upstash-Not-Before` may lie.
    pub delay_ms_max: u64,
    /// Shortest timeout.
    pub timeout_ms_min: u64,
    /// Longest timeout.
    pub timeout_ms_max: u64,
    /// Most retries.
    pub retries_max: u32,
    /// Most headers to send on.
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
}

impl PublishOptions {
    /// The headers that belong to the content: those named explicitly, and its type. What
    /// `Upstash-Header-Forward` adds differs from request to request.
    pub fn content_headers(&self) -> Vec<(String, String)> {
        let is_content = |(index, (name, _)): &(usize, &(String, String))| {
            *index < self.headers_explicit || name.eq_ignore_ascii_case(header::CONTENT_TYPE)
        };
        self.headers.iter().enumerate().filter(is_content).map(|(_, header)| header.clone()).collect()
    }

    /// Refuses a retry-delay expression that is not a number for some retry. `retries` is what applies in the
    /// end, default included.
    pub fn check_retry_delay(&self, retries: u32) -> Result<(), Rejection> {
        let Some(text) = &self.retry_delay else {
            return Ok(());
        };
        let checked = RetryDelay::parse(text).and_then(|expression| expression.check(retries));
        checked.map_err(|error| Rejection::invalid(format!("{}: {error}", header::canonical(header::RETRY_DELAY))))
    }
}

/// Reads the headers of a publish, an enqueue, a batch item or a replay. Names may come in any case.
///
/// Settings from the query are headers like others: see [`merge_query`].
pub fn parse<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    limits: &PublishLimits,
    now: Timestamp,
) -> Result<PublishOptions, Rejection> {
    let lines = headers.map(|(name, value)| Line { name, value });
    let mut draft = Draft::new(limits, now);
    draft.read(lines.clone(), header::PREFIX)?;
    for (url, prefix) in
        [(draft.callback, header::CALLBACK_PREFIX), (draft.failure_callback, header::FAILURE_CALLBACK_PREFIX)]
    {
        // `Upstash-Callback-X` configures the callback exactly as `Upstash-X` configures a publish.
        if url.is_some() {
            Draft::new(limits, now).read(lines.clone(), prefix)?;
        }
    }
    draft.forwarded.push_plain(lines, draft.header_forward == Some(true), limits)?;
    draft.finish()
}

/// Appends settings from the query to the headers; a header of the same name wins.
pub fn merge_query<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    config: &'a [(String, String)],
) -> impl Iterator<Item = (&'a str, &'a [u8])> + Clone {
    let known = headers.clone();
    let added =
        config.iter().filter(move |(name, _)| !known.clone().any(|(known, _)| known.eq_ignore_ascii_case(name)));
    headers.chain(added.map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// What was read so far.
struct Draft<'l> {
    limits: &'l PublishLimits,
    now: Timestamp,
    options: PublishOptions,
    forwarded: Forwarded,
    header_forward: Option<bool>,
    dedup_id: Option<String>,
    content_dedup: Option<bool>,
    /// Of what this version cannot do, it is enough to know that it was asked for and well-formed.
    callback: Option<()>,
    failure_callback: Option<()>,
    flow_control_key: Option<()>,
    flow_control: Option<FlowControl>,
    /// The first thing asked for that does not exist yet. Kept back, because a mistake elsewhere comes first.
    unsupported: Option<Rejection>,
}

impl<'l> Draft<'l> {
    fn new(limits: &'l PublishLimits, now: Timestamp) -> Self {
        Draft {
            limits,
            now,
            options: PublishOptions::default(),
            forwarded: Forwarded::default(),
            header_forward: None,
            dedup_id: None,
            content_dedup: None,
            callback: None,
            failure_callback: None,
            flow_control_key: None,
            flow_control: None,
            unsupported: None,
        }
    }

    /// Reads every line whose name starts with `prefix`, which is in lower case.
    fn read<'a>(&mut self, lines: impl Iterator<Item = Line<'a>>, prefix: &str) -> Result<(), Rejection> {
        for line in lines {
            let start = line.name.get(..prefix.len());
            if start.is_some_and(|start| start.eq_ignore_ascii_case(prefix)) {
                self.set(&line.name[prefix.len()..], line)?;
            }
        }
        if self.flow_control.is_some() && self.flow_control_key.is_none() {
            return Err(Rejection::invalid("Upstash-Flow-Control-Value: Upstash-Flow-Control-Key is missing"));
        }
        Ok(())
    }

    /// Reads one setting, `name` being what follows the prefix.
    fn set(&mut self, name: &str, line: Line<'_>) -> Result<(), Rejection> {
        let (limits, now, options) = (self.limits, self.now, &mut self.options);
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "method" => put(&mut options.method, line, setting::method),
            "delay" => put(&mut options.delay_ms, line, |text| setting::delay(text, limits)),
            "not-before" => put(&mut options.not_before, line, |text| setting::not_before(text, limits, now)),
            "timeout" => put(&mut options.timeout_ms, line, |text| setting::timeout(text, limits)),
            "retries" => put(&mut options.retries, line, |text| setting::retries(text, limits)),
            "retry-delay" => put(&mut options.retry_delay, line, setting::retry_delay),
            "label" => {
                // A list, which a proxy may have split into several lines.
                let before = options.labels.take().unwrap_or_default();
                put(&mut options.labels, line, |text| setting::labels(before, text, limits))
            }
            "redact-fields" => put(&mut options.redact, line, |text| {
                RedactFields::parse(text).map_err(|error| Rejection::invalid(error.to_string()))
            }),
            "header-forward" => put(&mut self.header_forward, line, setting::flag),
            "deduplication-id" => put(&mut self.dedup_id, line, |text| setting::dedup_id(text, limits)),
            "content-based-deduplication" => put(&mut self.content_dedup, line, setting::flag),
            _ => match name.strip_prefix("forward-") {
                Some(forwarded) => self.forwarded.push_explicit(forwarded, line, limits),
                None => self.set_unsupported(&name, line),
            },
        }
    }

    /// Reads what this version cannot do. The value is checked all the same: a mistake is told before that.
    fn set_unsupported(&mut self, name: &str, line: Line<'_>) -> Result<(), Rejection> {
        let limits = self.limits;
        let feature = match name {
            "callback" => {
                put(&mut self.callback, line, |text| callback_url(text, limits))?;
                "callbacks"
            }
            "failure-callback" => {
                put(&mut self.failure_callback, line, |text| callback_url(text, limits))?;
                "callbacks"
            }
            "flow-control-key" => {
                put(&mut self.flow_control_key, line, flow_control_key)?;
                "flow-control keys"
            }
            "flow-control-value" => {
                put(&mut self.flow_control, line, |text| {
                    FlowControl::parse(text).map_err(|error| Rejection::invalid(error.to_string()))
                })?;
                "flow-control keys"
            }
            "cron" => "schedules",
            "queue-name" => "queues",
            "workflow-init" | "workflow-runid" => "workflows",
            "callback-callback"
            | "callback-failure-callback"
            | "failure-callback-callback"
            | "failure-callback-failure-callback" => return Err(line.refused("a callback cannot have callbacks")),
            _ => return Ok(()),
        };
        self.unsupported.get_or_insert_with(|| Rejection::unsupported(&line.display_name(), feature));
        Ok(())
    }

    fn finish(self) -> Result<PublishOptions, Rejection> {
        if let Some(unsupported) = self.unsupported {
            return Err(unsupported);
        }
        let mut options = self.options;
        options.headers_explicit = self.forwarded.explicit();
        options.headers = self.forwarded.into_headers();
        options.dedup = match (self.dedup_id, self.content_dedup) {
            (Some(id), _) => Some(Dedup::Id(id)),
            (None, Some(true)) => Some(Dedup::Content),
            (None, _) => None,
        };
        Ok(options)
    }
}

/// Fills a slot once. The header is named in what `read` finds wrong; quotas begin with the words of the hosted
/// service.
fn put<T>(
    slot: &mut Option<T>,
    line: Line<'_>,
    read: impl FnOnce(&str) -> Result<T, Rejection>,
) -> Result<(), Rejection> {
    if slot.is_some() {
        return Err(line.refused("may be given only once"));
    }
    *slot = Some(read(line.text()?).map_err(|rejection| match rejection.status {
        RejectionKind::Invalid => line.refused(rejection.message),
        _ => Rejection { message: format!("{} ({})", rejection.message, line.display_name()), ..rejection },
    })?);
    Ok(())
}

fn callback_url(text: &str, limits: &PublishLimits) -> Result<(), Rejection> {
    check_url(text, limits.url_bytes_max).map_err(|error| Rejection::invalid(error.to_string()))
}

fn flow_control_key(text: &str) -> Result<(), Rejection> {
    if text.is_empty() { Err(Rejection::invalid("must not be empty")) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
