//! Requests to a run, and their results.

use super::entry::{Call, OwnTerms};
use super::run::{FailureCall, HeaderLists, Invoker, RunConfig, StepText, Wait};
use crate::message::FlowSpec;
use crate::outcome::Outcome;
use crate::retry::Next;
use bytes::Bytes;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::CallType;

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries; one more ends the run.
    pub entries: u32,
    /// Bytes of its entries, waits, invokes and kept events; more ends the run, or rejects the event.
    pub bytes: u64,
    /// How long it may last. A later append ends it. If nothing more is to come, it ends when the time is over.
    pub duration_ms: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { entries: u32::MAX, bytes: u64::MAX, duration_ms: u64::MAX };
}

/// A run that is about to start.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The tenant.
    pub tenant: TenantId,
    /// Its name.
    pub id: String,
    /// When it was accepted: later than any other run of this name.
    pub created_at: Timestamp,
    /// The URL of its endpoint.
    pub url: String,
    /// Its settings.
    pub config: RunConfig,
    /// The run that waits for its end.
    pub invoker: Option<Invoker>,
    /// Its first entry.
    pub first: NewEntry,
}

/// An entry that is about to be accepted.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The kind of the entry.
    pub call_type: CallType,
    /// The type of its bytes.
    pub content_type: String,
    /// The exact bytes.
    pub body: Bytes,
    /// Headers to deliver with it, names in canonical form.
    pub headers: Vec<(String, String)>,
    /// When it is due.
    pub due: Timestamp,
    /// Number of retries, if the entry sets it.
    pub retries: Option<u32>,
    /// Its own retry-delay expression.
    pub retry_delay: Option<String>,
    /// Timeout of one attempt.
    pub timeout_ms: Option<u64>,
    /// Its own flow-control key.
    pub flow: Option<FlowSpec>,
    /// The call, if it is one.
    pub call: Option<Call>,
    /// The new failure callback of the run, if its client sends it each time.
    pub failure: Option<FailureCall>,
    /// Fields of it that API responses must hide, in addition to those of the run.
    pub redact: RedactFields,
}

impl NewEntry {
    /// A step without settings for its delivery.
    pub fn step(body: Bytes, headers: Vec<(String, String)>, due: Timestamp) -> NewEntry {
        NewEntry {
            call_type: CallType::Step,
            content_type: JSON.to_owned(),
            body,
            headers,
            due,
            retries: None,
            retry_delay: None,
            timeout_ms: None,
            flow: None,
            call: None,
            failure: None,
            redact: RedactFields::default(),
        }
    }

    /// The same entry with these settings for its delivery.
    pub(super) fn with(self, terms: OwnTerms) -> NewEntry {
        let OwnTerms { retries, retry_delay, flow, redact } = terms;
        NewEntry { retries, retry_delay, flow, redact, ..self }
    }
}

const JSON: &str = "application/json";

/// A wait for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitFor {
    /// The event.
    pub event: String,
    /// The step that waits.
    pub step: StepText,
    /// The duration, as it was sent.
    pub timeout: String,
    /// The duration in milliseconds.
    pub timeout_ms: u64,
    /// Headers to deliver the result with, as they were sent.
    pub headers: HeaderLists,
    /// Further settings of that delivery.
    pub terms: OwnTerms,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run has ended.
    Ended,
    /// A limit of the run is exceeded, so it has failed.
    Exceeded {
        /// The name of the limit.
        quota: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// The end of an attempt of one of the run's messages.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The outcome.
    pub outcome: &'a Outcome,
    /// Retries before it.
    pub retried: u32,
    /// The next step of the message.
    pub next: Next,
    /// The bytes of the message, if it is a call. Those of steps are built when they are sent.
    pub sent: &'a [u8],
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The run waits.
    Waiting,
    /// The event had already come, now or at an earlier request.
    Resolved,
}

/// A wait that an event has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The wait.
    pub wait: Wait,
    /// The message that delivers the data of the event.
    pub id: MessageId,
}
