//! A run: its settings from the trigger, and its state. Its entries are stored separately, and so are its waits and
//! other notes (`note`).

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

/// A step as JSON whose result the server writes.
pub type StepText = Map<String, Value>;

/// One run of a workflow, without its entries and notes, so that it is always small. Stored as JSON; new fields need
/// `#[serde(default)]`.
///
/// An id may be reused once its run has ended. `no` distinguishes the instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The instance: the position of its first entry.
    pub no: Seq,
    /// The tenant.
    pub tenant: TenantId,
    /// The name from its publisher or its client.
    pub id: String,
    /// When it was accepted; differs between instances of one id.
    pub created_at: Timestamp,
    /// The URL of its endpoint.
    pub url: String,
    /// Its settings.
    pub config: Arc<RunConfig>,
    /// Its state.
    pub state: RunState,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
    /// The message for the end of its maximum duration. Only a run without progress has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<MessageId>,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The features of its client.
    pub features: Features,
    /// Labels, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The user's headers, delivered with every entry, with names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Number of retries of each delivery.
    pub retries: u32,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// The flow-control key of its entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// Its failure callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureCall>,
    /// Fields that API responses must hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Address of the caller that triggered it.
    pub caller_ip: String,
    /// The requirements on the first response of the endpoint, in addition to the client's features.
    #[serde(default)]
    pub trigger: Trigger,
    /// The depth of invocations that led to this run.
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
    /// By a caller that does not know the endpoint's client. The endpoint will trigger it again with its own client.
    UnknownClient,
}

/// The failure callback of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCall {
    /// Its destination.
    pub url: String,
    /// Headers of its delivery, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Number of retries; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Its retry-delay expression; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// Its flow-control key; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// Fields of it that API responses must hide, in addition to those of the run.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RunState {
    /// It is live.
    #[serde(rename = "RUN_STARTED")]
    Started,
    /// Its function has returned.
    #[serde(rename = "RUN_SUCCESS")]
    Success,
    /// A delivery failed for good, or a limit was exceeded.
    #[serde(rename = "RUN_FAILED")]
    Failed,
    /// It was cancelled.
    #[serde(rename = "RUN_CANCELED")]
    Canceled,
}

/// A run that waits for the end of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoker {
    /// The waiting run.
    pub run_id: String,
    /// Its instance; old clients do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// The URL of its endpoint.
    pub url: String,
    /// The step that waits, as it was sent.
    pub step: StepText,
    /// Headers to deliver the result with, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Further settings of that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
}

/// A run that this one has invoked, without its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    /// Its id in the log until there is a result. It is not a message. Older ones have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// The step that waits for it.
    pub step: StepText,
    /// The invoked run.
    pub run_id: String,
    /// Its instance.
    pub created_at: Timestamp,
    /// The URL of its endpoint.
    pub url: String,
    /// The user's headers of the invoked run, with names in canonical form. Only the log shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_headers: Vec<(String, String)>,
    /// Fields of the invoked run that API responses must hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
    /// Headers to deliver the result with, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Further settings of that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
    /// The size of its payload.
    #[serde(skip)]
    pub size: u64,
    /// Whether its result came after the end of this run.
    #[serde(skip)]
    pub has_out: bool,
}

impl Invoke {
    /// The number of the step that waits for it; unique among the invokes of the run.
    pub fn number(&self) -> u32 {
        number_of(&self.step)
    }

    /// The key of its note.
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
    /// The message for its deadline.
    pub timer: MessageId,
    /// When the wait is over.
    pub deadline: Timestamp,
    /// The duration, as it was sent.
    pub timeout: String,
    /// Headers to deliver the result with, as they were sent.
    pub headers: HeaderLists,
    /// Further settings of that delivery.
    #[serde(default, skip_serializing_if = "OwnTerms::is_none")]
    pub terms: OwnTerms,
}

impl Wait {
    /// The key of its note.
    pub(super) fn key(&self) -> NoteKey {
        NoteKey { kind: NoteKind::Wait, n: self.timer.seq.0 }
    }

    /// When it began.
    pub fn since(&self) -> Timestamp {
        self.timer.seq.time()
    }

    /// The source that its result records.
    pub fn source(&self) -> Source {
        Source::Wait { since: self.since(), timeout: self.timeout.clone(), deadline: self.deadline }
    }
}

/// An event that came before a step waited for it, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyEvent {
    /// Its number among them.
    pub n: u64,
    /// Its name.
    pub event: String,
    /// The size of its data.
    pub size: u64,
}

impl EarlyEvent {
    /// The key of its note.
    pub(super) fn key(&self) -> NoteKey {
        NoteKey { kind: NoteKind::Early, n: self.n }
    }
}

/// Why a run failed, and the state of its failure callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The entry whose delivery failed.
    pub entry: u32,
    /// Its number of retries.
    pub retried: u32,
    /// The error in words, if it was not simply the status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The status of the last response, or of its substitute.
    pub status: u16,
    /// How many bytes of that response are kept.
    pub answer_bytes: u64,
    /// Its place in the DLQ.
    pub dlq_id: DlqId,
    /// Whether it is still in the DLQ.
    pub is_in_dlq: bool,
    /// The state of the failure callback, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<FailureProgress>,
    /// The run that continues where this one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_as: Option<Seq>,
}

/// The state of a failure callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureProgress {
    /// Its message.
    pub id: MessageId,
    /// Its state.
    pub state: FailureCallState,
    /// When its next attempt is due.
    pub due: Timestamp,
}

/// The state of a failure callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FailureCallState {
    /// An attempt is still to come.
    #[serde(rename = "CALLBACK_INPROGRESS")]
    InProgress,
    /// It got a 2xx.
    #[serde(rename = "CALLBACK_SUCCESS")]
    Success,
    /// Its last attempt failed.
    #[serde(rename = "CALLBACK_FAIL")]
    Failed,
    /// It was stopped.
    #[serde(rename = "CALLBACK_CANCELED")]
    Canceled,
}
