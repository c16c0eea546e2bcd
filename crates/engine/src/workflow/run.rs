//! A run: what was asked for when it was triggered, and how it stands. Its entries are kept apart, and so is what it
//! waits for (`note`).

use super::entry::{OwnTerms, Source};
use super::note::{NoteKey, NoteKind};
use crate::message::FlowSpec;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::Features;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Headers as clients write them into bodies: each name with its values.
pub type HeaderLists = Vec<(String, Vec<String>)>;

/// A step as JSON, whose result the server writes itself.
pub type StepText = Map<String, Value>;

/// One run of a workflow, without its entries and notes: small, whatever happens in it. Stored as JSON; new fields need
/// `#[serde(default)]`.
///
/// An id may be used again once its run has ended: `no` tells the instances apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Which instance: the position of its first entry.
    pub no: Seq,
    /// Whose.
    pub tenant: TenantId,
    /// The name that its publisher or its client gave it.
    pub id: String,
    /// When it was accepted; differs between instances of one id.
    pub created_at: Timestamp,
    /// Where its steps are executed.
    pub url: String,
    /// What was chosen for it.
    pub config: Arc<RunConfig>,
    /// Whether it goes on, and if not, how it ended.
    pub state: RunState,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
    /// The message that stands for the end of its time. Only a run that nothing moves on has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<MessageId>,
}

/// What was chosen for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// What its client can do.
    pub features: Features,
    /// Labels, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The user's headers: delivered with every entry, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many attempts may follow the first of each delivery.
    pub retries: u32,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// The flow-control key that its entries are delivered under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// Who hears of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureCall>,
    /// What API answers must hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Address of whoever triggered it.
    pub caller_ip: String,
    /// What the first answer of the endpoint must show, besides what the client's features say.
    #[serde(default)]
    pub trigger: Trigger,
    /// How many runs led to this one, one invoking the next.
    #[serde(default)]
    pub depth: u32,
}

/// How a run was triggered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Trigger {
    /// By a client that speaks the protocol.
    #[default]
    Client,
    /// By the REST API: the endpoint must show that its client is new enough.
    Rest,
    /// By somebody who does not know the endpoint's client; the endpoint will trigger it once more, its own way.
    UnknownClient,
}

/// Who hears of the failure of a run, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCall {
    /// Where it goes.
    pub url: String,
    /// Headers of its delivery, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many attempts may follow the first; `None` means as many as the run has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Its retry-delay expression; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// Its flow-control key; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// What API answers must hide of it, besides what those about the run hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

/// Whether a run goes on, and if not, how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RunState {
    /// It goes on.
    #[serde(rename = "RUN_STARTED")]
    Started,
    /// Its function has returned.
    #[serde(rename = "RUN_SUCCESS")]
    Success,
    /// A delivery failed for good, or a bound was reached.
    #[serde(rename = "RUN_FAILED")]
    Failed,
    /// Somebody cancelled it.
    #[serde(rename = "RUN_CANCELED")]
    Canceled,
}

/// A run that waits for the end of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoker {
    /// The waiting run.
    pub run_id: String,
    /// Which instance of it; old clients do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Where its steps are executed.
    pub url: String,
    /// The step that waits, as it was sent.
    pub step: StepText,
    /// Headers to deliver the result with, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// What else is said about that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
}

/// A run that this one has invoked, without what it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    /// What the log names it by until there is a result; it is no message. Older ones have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// The step that waits for it.
    pub step: StepText,
    /// The invoked run.
    pub run_id: String,
    /// Which instance of it.
    pub created_at: Timestamp,
    /// Where its steps are executed.
    pub url: String,
    /// The user's headers that it was given, names in canonical form. Only the log shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_headers: Vec<(String, String)>,
    /// What API answers must hide of the invoked run.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Headers to deliver the result with, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// What else is said about that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
    /// How many bytes it was given.
    #[serde(skip)]
    pub size: u64,
    /// Something came of it after the end of this run.
    #[serde(skip)]
    pub has_out: bool,
}

impl Invoke {
    /// The number of the step that waits for it: no other invoke of the run has it.
    pub fn number(&self) -> u32 {
        number_of(&self.step)
    }

    /// Which note it is.
    pub(super) fn key(&self) -> NoteKey {
        NoteKey { kind: NoteKind::Invoke, n: self.number().into() }
    }
}

/// The number of a step that the server keeps as JSON.
pub fn number_of(step: &StepText) -> u32 {
    step.get("stepId").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// An event that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Its name.
    pub event: String,
    /// The step that waits, as it was sent.
    pub step: StepText,
    /// The message that stands for its deadline.
    pub timer: MessageId,
    /// When the wait is over.
    pub deadline: Timestamp,
    /// How long it was to last, as it was sent.
    pub timeout: String,
    /// Headers to deliver the result with, as they were sent.
    pub headers: HeaderLists,
    /// What else is said about that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
}

impl Wait {
    /// Which note it is.
    pub(super) fn key(&self) -> NoteKey {
        NoteKey { kind: NoteKind::Wait, n: self.timer.seq.0 }
    }

    /// When it was asked for.
    pub fn since(&self) -> Timestamp {
        self.timer.seq.time()
    }

    /// What its result remembers of it.
    pub fn source(&self) -> Source {
        Source::Wait { since: self.since(), timeout: self.timeout.clone(), deadline: self.deadline }
    }
}

/// An event that came before it was waited for, without what came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyEvent {
    /// Its place among them.
    pub n: u64,
    /// Its name.
    pub event: String,
    /// How many bytes came with it.
    pub size: u64,
}

impl EarlyEvent {
    /// Which note it is.
    pub(super) fn key(&self) -> NoteKey {
        NoteKey { kind: NoteKind::Early, n: self.n }
    }
}

/// Why a run failed, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The entry whose delivery failed.
    pub entry: u32,
    /// Retries that were made of it.
    pub retried: u32,
    /// In words, if it was not simply the status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The status of what was answered last, or of what stands for an answer.
    pub status: u16,
    /// How many bytes of that answer are kept.
    pub answer_bytes: u64,
    /// Its place in the DLQ.
    pub dlq_id: DlqId,
    /// It is in the DLQ still.
    pub is_in_dlq: bool,
    /// How telling about it stands, if somebody is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<FailureProgress>,
    /// The run that goes on where this one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_as: Option<Seq>,
}

/// How telling about a failure stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureProgress {
    /// The message that tells it.
    pub id: MessageId,
    /// Whether it goes on.
    pub state: FailureCallState,
    /// When its next attempt is due.
    pub due: Timestamp,
}

/// Whether telling about a failure goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FailureCallState {
    /// It is to be attempted, or attempted again.
    #[serde(rename = "CALLBACK_INPROGRESS")]
    InProgress,
    /// It was answered with a 2xx.
    #[serde(rename = "CALLBACK_SUCCESS")]
    Success,
    /// Its last attempt failed.
    #[serde(rename = "CALLBACK_FAIL")]
    Failed,
    /// Somebody stopped it.
    #[serde(rename = "CALLBACK_CANCELED")]
    Canceled,
}
