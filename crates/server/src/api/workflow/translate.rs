//! What a publish means for a run: headers and body in, a run to start or an entry to append out.
//!
//! Pure: [`Bounds`] has the time and what the server allows. Start at [`wanted`]; `golden` has what clients send.
//!
//! One rule for all generations of clients: what a step says about its delivery holds for it, and for what it leaves
//! out the run's trigger is asked (in the engine). New clients say nothing there and old ones everything, so both get what
//! they mean.

use super::headers::{self, Headers, Receiver};
use super::protocol::{Protocol, refused};
use super::{checked_name, checked_step};
use crate::api::publish::{Line, flow_spec};
use crate::core::{DEPTH_QUOTA, InvokedBy, RunKey, StartRun};
use bytes::Bytes;
use posthaste_engine::dedup;
use posthaste_engine::workflow::NewEntry;
use posthaste_engine::workflow::entry::Call;
use posthaste_engine::workflow::run::{FailureCall, RunConfig, StepText, Trigger};
use posthaste_wire::echo::echo;
use posthaste_wire::encoding::JsonError;
use posthaste_wire::header;
use posthaste_wire::publish::{self as options, CallbackOptions, Dedup, PublishLimits, PublishOptions};
use posthaste_wire::rejection::Rejection;
use posthaste_wire::retry_delay::RetryDelayChecks;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{self, CallType, Features};
use serde::Deserialize;
use serde_json::Value;

/// A publish, or an item of a batch.
#[derive(Clone)]
pub(super) struct Item<'a> {
    /// Where it goes, if it does not go to the run.
    pub(super) url: &'a str,
    pub(super) lines: &'a [Line<'a>],
    pub(super) body: Bytes,
}

/// What the server allows, and when and by whom it is asked.
pub(super) struct Bounds<'a> {
    pub(super) limits: PublishLimits,
    pub(super) retries_default: u32,
    pub(super) depth_max: u32,
    pub(super) now: Timestamp,
    pub(super) caller_ip: &'a str,
    /// Knows the retry-delay expressions of the request.
    pub(super) checks: &'a RetryDelayChecks,
    /// Names a run that has no name.
    pub(super) fresh_id: &'a dyn Fn() -> String,
}

/// What a publish asks for.
#[derive(Clone, Debug)]
pub(in crate::api) enum Wanted {
    Start(Box<StartRun>),
    Append(RunKey, Box<NewEntry>),
}

/// What is delivered unless something else is said.
const JSON: &str = "application/json";
/// The version of the protocol.
const VERSION: &str = "1";
/// The methods that a call may have.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// What a publish asks for, whose headers say `protocol`.
pub(super) fn wanted(protocol: &Protocol, item: Item<'_>, bounds: &Bounds<'_>) -> Result<Wanted, Rejection> {
    if protocol.is_start && protocol.is_invoke {
        return invoke(protocol, item, bounds).map(|run| Wanted::Start(Box::new(run)));
    }
    if protocol.is_start {
        return start(protocol, item, bounds).map(|run| Wanted::Start(Box::new(run)));
    }
    let entry = match protocol.call_type {
        CallType::ToCallback => call(protocol, item, bounds),
        CallType::FromCallback => Err(refused(header::WORKFLOW_CALL_TYPE, "only the server creates these entries")),
        CallType::Step | CallType::Other(_) => step(protocol, item, bounds),
    };
    Ok(Wanted::Append(protocol.run()?, Box::new(entry?)))
}

/// A run that is triggered without a client: what a client would say, the server says.
pub(super) fn triggered(item: Item<'_>, bounds: &Bounds<'_>) -> Result<StartRun, Rejection> {
    let protocol = Protocol { is_by_client: false, ..Protocol::read(item.lines)? };
    let url = item.url;
    let mut lines = item.lines.to_vec();
    if !lines.iter().any(|(name, _)| name.eq_ignore_ascii_case(header::FAILURE_CALLBACK)) {
        // Its other settings hold for the one that is meant without saying so.
        lines.push((header::FAILURE_CALLBACK, url.as_bytes()));
    }
    let mut run = start(&protocol, Item { lines: &lines, ..item }, bounds)?;
    run.config.features = Features::OF_TRIGGER;
    run.config.trigger = Trigger::Rest;
    if protocol.is_client_unknown {
        run.config.trigger = Trigger::UnknownClient;
        headers::set(&mut run.first.headers, header::WORKFLOW_UNKNOWN_SDK, "true");
    }
    let failure =
        run.config.failure.get_or_insert_with(|| FailureCall { url: url.to_owned(), ..FailureCall::default() });
    for name in [header::WORKFLOW_IS_FAILURE, header::WORKFLOW_FAILURE_CALLBACK] {
        headers::set(&mut failure.headers, name, "true");
    }
    Ok(run)
}

/// A publish read as if it were of a message.
struct Sent {
    options: PublishOptions,
    headers: Headers,
    content_type: String,
}

impl Sent {
    fn read(lines: &[Line<'_>], receiver: Receiver, bounds: &Bounds<'_>) -> Result<Sent, Rejection> {
        let lines = headers::cleaned(lines, receiver);
        let mut options = options::parse(lines.iter().copied(), &bounds.limits, bounds.now)?;
        options.check_retry_delay_by(bounds.checks, options.retries.unwrap_or(bounds.retries_default))?;
        if options.cron.is_some() {
            return Err(refused(header::CRON, NO_SCHEDULE));
        }
        let mut headers = std::mem::take(&mut options.headers);
        let content_type = headers::take(&mut headers, header::CONTENT_TYPE).unwrap_or_else(|| JSON.to_owned());
        Ok(Sent { options, headers, content_type })
    }

    /// Not-Before wins over Delay.
    fn due(&self, now: Timestamp) -> Timestamp {
        self.options.not_before.unwrap_or_else(|| now.plus_millis(self.options.delay_ms.unwrap_or(0)))
    }
}

/// Why a schedule cannot hold a part of a run. A queue that is named does no harm: a run begins at once, and its limits are
/// those of its flow-control key.
const NO_SCHEDULE: &str = "a schedule cannot start a run directly; schedule a plain message to the workflow's URL, which \
                           starts a run";

fn start(protocol: &Protocol, item: Item<'_>, bounds: &Bounds<'_>) -> Result<StartRun, Rejection> {
    let mut sent = Sent::read(item.lines, Receiver::Endpoint, bounds)?;
    let due = sent.due(bounds.now);
    let options = sent.options;
    let dedup = options.dedup.as_ref().map(|dedup| match dedup {
        Dedup::Id(id) => dedup::key_of_id(id),
        Dedup::Content => dedup::key_of_content(item.url, &sent.headers, &item.body),
    });
    let forwarded_label = headers::take(&mut sent.headers, header::LABEL);
    let labels = options.labels.clone().or_else(|| forwarded_label.map(listed)).unwrap_or_default();
    for label in &labels {
        check_plain(header::LABEL, label)?;
    }
    let failure = options.failure_callback.as_ref();
    for key in
        [&options.flow_control_key, &failure.and_then(|it| it.options.flow_control_key.clone())].into_iter().flatten()
    {
        check_plain(header::FLOW_CONTROL_KEY, key)?;
    }
    let (user_headers, mut protocol_headers) = headers::parted(sent.headers);
    headers::set(&mut protocol_headers, header::WORKFLOW_SDK_VERSION, VERSION);
    if protocol.is_by_client {
        headers::take(&mut protocol_headers, header::WORKFLOW_UNKNOWN_SDK);
    }
    let is_client_unknown = protocol.is_client_unknown && !protocol.is_by_client;
    let config = RunConfig {
        features: protocol.features,
        labels,
        headers: user_headers,
        retries: options.retries.unwrap_or(bounds.retries_default),
        retry_delay: options.retry_delay.clone(),
        flow: flow_spec(&options),
        failure: failure.map(failure_call),
        redact: options.redact.clone().unwrap_or_default(),
        caller_ip: bounds.caller_ip.to_owned(),
        trigger: if is_client_unknown { Trigger::UnknownClient } else { Trigger::Client },
        depth: protocol.depth,
    };
    Ok(StartRun {
        id: protocol.run_id.clone().unwrap_or_else(bounds.fresh_id),
        url: item.url.to_owned(),
        config,
        first: NewEntry {
            content_type: sent.content_type,
            timeout_ms: options.timeout_ms,
            ..NewEntry::step(item.body, protocol_headers, due)
        },
        dedup,
        is_by_client: protocol.is_by_client,
        invoked_by: None,
    })
}

/// Labels as they are sent on.
fn listed(text: String) -> Vec<String> {
    text.split(',').map(str::trim).filter(|label| !label.is_empty()).map(str::to_owned).collect()
}

/// Labels and keys are written into headers and filters, so their letters are plain.
fn check_plain(name: &str, text: &str) -> Result<(), Rejection> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    match text.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(refused(name, &format!("{text:?} has other characters than letters, digits, '_', '.' and '-'"))),
    }
}

fn failure_call(callback: &CallbackOptions) -> FailureCall {
    let options = &callback.options;
    FailureCall {
        url: callback.url.clone(),
        headers: told(options),
        retries: options.retries,
        retry_delay: options.retry_delay.clone(),
        flow: flow_spec(options),
        redact: options.redact.clone().unwrap_or_default(),
    }
}

/// The headers of a delivery whose body is an object and not a list of entries.
fn told(options: &PublishOptions) -> Headers {
    let mut headers = options.headers.clone();
    headers::take(&mut headers, header::WORKFLOW_SDK_VERSION);
    headers
}

/// What the body of an invoke holds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    /// What the invoked run is given; nothing is as good as an empty text.
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    headers: HeaderLists,
    workflow_run_id: String,
    #[serde(default)]
    workflow_run_created_at: Value,
    workflow_url: String,
    step: StepText,
}

/// Headers in JSON: each name with its values, or with one.
pub(super) type HeaderLists = std::collections::BTreeMap<String, Values>;

/// The values of a header.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a header value must be a string or a list of strings")]
pub(super) enum Values {
    One(String),
    Many(Vec<String>),
}

/// The same as plain lists.
pub(super) fn lists(headers: HeaderLists) -> Vec<(String, Vec<String>)> {
    let list = |values| match values {
        Values::One(value) => vec![value],
        Values::Many(values) => values,
    };
    headers.into_iter().map(|(name, values)| (name, list(values))).collect()
}

fn invoke(protocol: &Protocol, item: Item<'_>, bounds: &Bounds<'_>) -> Result<StartRun, Rejection> {
    if protocol.depth >= bounds.depth_max {
        return Err(Rejection::quota(DEPTH_QUOTA, bounds.depth_max.into()));
    }
    let envelope: Envelope = serde_json::from_slice(&item.body).map_err(|error| {
        Rejection::invalid(format!("the body does not name the invoking step: {}", JsonError::from(error)))
    })?;
    let headers = headers::deliverable(lists(envelope.headers))?;
    let created_at = envelope.workflow_run_created_at.as_u64().filter(|millis| *millis > 0).map(Timestamp);
    let max = bounds.limits.url_bytes_max;
    if envelope.workflow_url.len() > max {
        return Err(Rejection::invalid(format!("workflowUrl must not be longer than {max} bytes")));
    }
    let body = envelope.body.unwrap_or_default();
    let invoked_by = InvokedBy {
        run: RunKey { id: checked_name("workflowRunId", &envelope.workflow_run_id)?, created_at },
        url: envelope.workflow_url,
        step: checked_step(envelope.step)?,
        headers: headers::forwarded(&headers),
        terms: headers::own_terms(&headers, bounds)?,
        body: body.clone(),
    };
    let run = start(protocol, Item { body: Bytes::from(body), ..item }, bounds)?;
    Ok(StartRun { invoked_by: Some(invoked_by), ..run })
}

fn step(protocol: &Protocol, item: Item<'_>, bounds: &Bounds<'_>) -> Result<NewEntry, Rejection> {
    let mut sent = Sent::read(item.lines, Receiver::Endpoint, bounds)?;
    if protocol.call_type == CallType::Step {
        headers::set(&mut sent.headers, header::WORKFLOW_SDK_VERSION, VERSION);
    }
    let due = woken_at(sent.due(bounds.now), &item.body, bounds);
    Ok(NewEntry { due, ..entry(protocol, sent, item.body, bounds) })
}

/// When a step is due: at the time of its headers or, if it is later, at the exact time that a sleep carries. A time further
/// ahead than a delay may be does not count.
fn woken_at(due: Timestamp, body: &[u8], bounds: &Bounds<'_>) -> Timestamp {
    let latest = bounds.now.plus_millis(bounds.limits.delay_ms_max);
    workflow::sleep_until(body).filter(|until| *until <= latest).map_or(due, |until| until.max(due))
}

fn entry(protocol: &Protocol, sent: Sent, body: Bytes, bounds: &Bounds<'_>) -> NewEntry {
    let due = sent.due(bounds.now);
    NewEntry {
        call_type: protocol.call_type.clone(),
        content_type: sent.content_type,
        retries: sent.options.retries,
        flow: flow_spec(&sent.options),
        retry_delay: sent.options.retry_delay,
        timeout_ms: sent.options.timeout_ms,
        failure: sent.options.failure_callback.as_ref().map(failure_call),
        redact: sent.options.redact.unwrap_or_default(),
        ..NewEntry::step(body, sent.headers, due)
    }
}

fn call(protocol: &Protocol, item: Item<'_>, bounds: &Bounds<'_>) -> Result<NewEntry, Rejection> {
    let failure = headers::failure_of_callback(item.lines);
    let mut lines = item.lines.to_vec();
    lines.extend(failure.iter().map(|(name, value)| (name.as_str(), value.as_slice())));
    let sent = Sent::read(&lines, Receiver::ThirdParty, bounds)?;
    let method = protocol.method.as_deref().unwrap_or("POST").to_ascii_uppercase();
    if !METHODS.contains(&method.as_str()) {
        let (method, accepted) = (echo(&method), METHODS.join(", "));
        return Err(refused(header::METHOD, &format!("{method} is not a method; accepted are {accepted}")));
    }
    let callback = sent.options.callback.as_ref();
    let callback = callback.ok_or_else(|| refused(header::CALLBACK, "is missing: it carries the result of a call"))?;
    let result_headers = told(&callback.options);
    let number = result_headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(header::WORKFLOW_STEP_ID));
    let step = number.and_then(|(_, text)| text.trim().parse().ok()).filter(|step| *step > 0);
    let missing =
        || refused("upstash-callback-forward-upstash-workflow-stepid", "must name the step that waits for the call");
    let step = step.ok_or_else(missing)?;
    let call = Call {
        url: item.url.to_owned(),
        step,
        is_forgiven: protocol.features.no_delete,
        result_headers,
        result_retries: callback.options.retries,
        method,
    };
    // Python sends a text that stands for nothing.
    let body = if ["GET", "HEAD"].contains(&call.method.as_str()) { Bytes::new() } else { item.body };
    Ok(NewEntry { call: Some(call), ..entry(protocol, sent, body, bounds) })
}
