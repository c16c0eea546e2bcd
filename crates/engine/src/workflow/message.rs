//! The messages of a run: deliveries of its entries, the failure callback, and deadlines.

use super::entry::Entry;
use super::run::{FailureCall, Run, Wait};
use crate::message::{Message, MessageSpec};
use bytes::Bytes;
use posthaste_wire::header::canonical;
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::CallType;
use serde::{Deserialize, Serialize};

/// The part of a run that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepRef {
    /// The run.
    pub run: Seq,
    /// The part.
    pub part: Part,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// The delivery of an entry. The body of a step is built when it is sent: all entries up to this one.
    Entry(u32),
    /// The failure callback of the run. Its body is also built when it is sent.
    FailureCall,
    /// The deadline of a wait, or of the run: nothing is sent.
    Deadline,
}

/// Headers. A new one replaces an earlier one of its name.
struct Headers(Vec<(String, String)>);

impl Headers {
    fn put(&mut self, headers: &[(String, String)]) {
        self.0.retain(|(name, _)| !headers.iter().any(|(newer, _)| newer.eq_ignore_ascii_case(name)));
        self.0.extend_from_slice(headers);
    }

    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.put(&[(name.to_owned(), value.into())]);
    }

    /// Adds the headers about the run that every message to an endpoint has.
    fn set_run(&mut self, run: &Run) {
        self.put(&run.config.headers);
        self.set("Upstash-Workflow-Runid", run.id.as_str());
        self.set("Upstash-Workflow-Createdat", run.created_at.as_millis().to_string());
        self.set("Upstash-Workflow-Url", run.url.as_str());
        if !run.config.labels.is_empty() {
            self.set("Upstash-Label", run.config.labels.join(","));
        }
    }
}

/// The message that delivers an entry.
pub(super) fn delivery(run: &Run, entry: &Entry, body: &Bytes) -> Message {
    let terms = &entry.terms;
    let mut headers = Headers(Vec::new());
    headers.put(&terms.headers);
    let (url, method) = match &terms.call {
        // Another service only gets what the user sends.
        Some(call) => (call.url.clone(), call.method.clone()),
        None => {
            headers.set_run(run);
            if terms.call_type == CallType::Step {
                // Without it, a list would be taken for the payload of a trigger.
                headers.set("Upstash-Workflow-Sdk-Version", "1");
            }
            headers.set("Upstash-Workflow-Init", if entry.index == 0 { "true" } else { "false" });
            (run.url.clone(), POST.to_owned())
        }
    };
    headers.set("Content-Type", terms.content_type.as_str());
    let spec = MessageSpec {
        url,
        method,
        headers: headers.0,
        retries: terms.retries,
        retry_delay: terms.retry_delay.clone(),
        timeout_ms: terms.timeout_ms,
        flow: terms.flow.clone(),
        redact: run.config.redact.union(&terms.redact),
        ..common(run, Part::Entry(entry.index))
    };
    // The bytes of a step are in the array of the run.
    let body = if terms.call_type == CallType::Step { Bytes::new() } else { body.clone() };
    Message {
        id: entry.id,
        tenant: run.tenant,
        created_at: terms.accepted_at,
        not_before: entry.delivery.due,
        spec,
        body,
    }
}

/// The message of the failure callback. Its body is built when it is sent.
pub(super) fn failure_call(run: &Run, call: &FailureCall, id: MessageId, now: Timestamp) -> Message {
    let mut headers = Headers(Vec::new());
    headers.set_run(run);
    headers.put(&call.headers);
    headers.set("Content-Type", "application/json");
    let spec = MessageSpec {
        url: call.url.clone(),
        method: POST.to_owned(),
        headers: headers.0,
        retries: call.retries.unwrap_or(run.config.retries),
        retry_delay: call.retry_delay.clone().or_else(|| run.config.retry_delay.clone()),
        flow: call.flow.clone().or_else(|| run.config.flow.clone()),
        redact: run.config.redact.union(&call.redact),
        ..common(run, Part::FailureCall)
    };
    Message { id, tenant: run.tenant, created_at: now, not_before: now, spec, body: Bytes::new() }
}

/// The message for the deadline of a wait.
pub(super) fn deadline(run: &Run, wait: &Wait, now: Timestamp) -> Message {
    let spec = MessageSpec { url: run.url.clone(), method: POST.to_owned(), ..common(run, Part::Deadline) };
    Message { id: wait.timer, tenant: run.tenant, created_at: now, not_before: wait.deadline, spec, body: Bytes::new() }
}

/// The message for the end of the maximum duration of a run without progress.
pub(super) fn last_call(run: &Run, id: MessageId, due: Timestamp, now: Timestamp) -> Message {
    let spec = MessageSpec { url: run.url.clone(), method: POST.to_owned(), ..common(run, Part::Deadline) };
    Message { id, tenant: run.tenant, created_at: now, not_before: due, spec, body: Bytes::new() }
}

const POST: &str = "POST";

fn common(run: &Run, part: Part) -> MessageSpec {
    MessageSpec {
        labels: run.config.labels.clone(),
        redact: run.config.redact.clone(),
        caller_ip: run.config.caller_ip.clone(),
        workflow: Some(StepRef { run: run.no, part }),
        ..MessageSpec::default()
    }
}

/// The headers of a request that are forwarded with its consequences.
pub(super) fn forwarded(headers: &[(String, Vec<String>)]) -> Vec<(String, String)> {
    const PREFIX: &str = "upstash-forward-";
    let named = headers.iter().filter_map(|(name, values)| Some((name.to_ascii_lowercase(), values.first()?)));
    named.filter_map(|(name, value)| Some((canonical(name.strip_prefix(PREFIX)?), value.clone()))).collect()
}
