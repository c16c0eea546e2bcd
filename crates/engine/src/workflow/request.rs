//! What a run may be asked, and what it answers.

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

/// What a run may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries; one more ends the run.
    pub entries: u32,
    /// Bytes of its entries and of what it waits for, has invoked and keeps; more ends the run, or refuses the event.
    pub bytes: u64,
    /// How long it may last; what is appended later ends it, and if nothing is to come, the time itself does.
    pub duration_ms: u64,
}

impl Limits {
    /// As much as there is.
    pub const NONE: Limits = Limits { entries: u32::MAX, bytes: u64::MAX, duration_ms: u64::MAX };
}

/// A run that is about to start.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Whose.
    pub tenant: TenantId,
    /// Its name.
    pub id: String,
    /// When it was accepted: later than any other of this name.
    pub created_at: Timestamp,
    /// Where its steps are executed.
    pub url: String,
    /// What was chosen for it.
    pub config: RunConfig,
    /// Who waits for its end.
    pub invoker: Option<Invoker>,
    /// Its first entry.
    pub first: NewEntry,
}

/// An entry that is about to be accepted.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// What kind of entry it is.
    pub call_type: CallType,
    /// The type of its bytes.
    pub content_type: String,
    /// The exact bytes.
    pub body: Bytes,
    /// Headers to deliver with it, names in canonical form.
    pub headers: Vec<(String, String)>,
    /// When it is due.
    pub due: Timestamp,
    /// How many attempts may follow the first, if it says so itself.
    pub retries: Option<u32>,
    /// Its own retry-delay expression.
    pub retry_delay: Option<String>,
    /// How long one attempt may take.
    pub timeout_ms: Option<u64>,
    /// Its own flow-control key.
    pub flow: Option<FlowSpec>,
    /// Whom to call, if it is a call.
    pub call: Option<Call>,
    /// Who hears of the run's failure from now on, in a run whose client says that anew each time.
    pub failure: Option<FailureCall>,
    /// What API responses must hide of it, besides what those about the run hide.
    pub redact: RedactFields,
}

impl NewEntry {
    /// A step that says nothing about its delivery.
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

    /// The same entry, about whose delivery this is said.
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
    /// How long, as it was sent.
    pub timeout: String,
    /// The same.
    pub timeout_ms: u64,
    /// Headers to deliver the result with, as they were sent.
    pub headers: HeaderLists,
    /// What else is said about that delivery.
    pub terms: OwnTerms,
}

/// Why something was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run has ended.
    Ended,
    /// A bound of the run is reached; it has failed thereby.
    Exceeded {
        /// What there is too much of.
        quota: &'static str,
        /// How much there may be.
        limit: u64,
    },
}

/// An attempt of one of the run's messages has ended.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// What it brought.
    pub outcome: &'a Outcome,
    /// Retries before it.
    pub retried: u32,
    /// What becomes of the message.
    pub next: Next,
    /// The bytes of the message, if it is a call; those of steps are put together when they are sent.
    pub sent: &'a [u8],
}

/// What asking for an event came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The run waits.
    Waiting,
    /// It had come already, now or at an earlier asking.
    Resolved,
}

/// A wait that an event has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The wait.
    pub wait: Wait,
    /// The message that delivers what the event brought.
    pub id: MessageId,
}
