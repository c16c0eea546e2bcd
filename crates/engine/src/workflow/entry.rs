//! An entry of a run: the trigger's payload, a step, or a call; and how its delivery stands.

use crate::event::Response;
use crate::message::FlowSpec;
use bytes::Bytes;
use posthaste_wire::encoding::base64;
use posthaste_wire::id::MessageId;
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, StepInfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::borrow::Borrow;
use std::sync::Arc;

/// One entry of a run, without its bytes, which only endpoints and logs need. Everything but its delivery is as it was
/// accepted, for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the list: the order in which entries were accepted.
    pub index: u32,
    /// The message that delivers it.
    pub id: MessageId,
    /// What its bytes are.
    pub gist: Arc<Gist>,
    /// What else was said with them.
    pub terms: Arc<Terms>,
    /// How its delivery stands.
    pub delivery: Delivery,
}

impl Entry {
    /// An entry of these parts; what it says of itself is read from its bytes. The first one is what the trigger sent,
    /// and calls are what others get: those say nothing.
    pub fn new(index: u32, id: MessageId, body: &[u8], terms: Arc<Terms>, delivery: Delivery) -> Entry {
        let is_step = terms.call_type == CallType::Step && index > 0;
        let info = if is_step { StepInfo::parse(body) } else { StepInfo::default() };
        let gist = Arc::new(Gist { size: body.len() as u64, digest: Digest::of(body), info });
        Entry { index, id, gist, terms, delivery }
    }

    /// How the endpoint gets it with its bytes: one element of a JSON array.
    pub fn encoded(&self, body: &[u8]) -> Vec<u8> {
        let [before, after] = self.encoded_around();
        [before, base64(body), after].concat().into_bytes()
    }

    /// What stands in it before its bytes as base64, and after them.
    pub fn encoded_around(&self) -> [String; 2] {
        let (id, call_type, at) =
            (self.id, Value::from(self.terms.call_type.name()), self.terms.accepted_at.as_millis());
        [format!(r#"{{"messageId":"{id}","body":""#), format!(r#"","callType":{call_type},"createdAt":{at}}}"#)]
    }

    /// How long that is.
    pub fn encoded_len(&self) -> usize {
        self.encoded(&[]).len() + base64_len(self.gist.size) as usize
    }

    /// The step that it is about: that it announces, asks for or holds the result of; 0 if that is none.
    pub(super) fn number(&self) -> u32 {
        match &self.terms.call {
            Some(call) => call.step,
            None => self.gist.info.target.unwrap_or(self.gist.info.id),
        }
    }

    /// It holds what a step has brought.
    pub fn is_result(&self) -> bool {
        self.terms.call_type == CallType::Step && self.index > 0 && !self.gist.info.is_plan()
    }
}

/// What decisions need to know of the bytes of an entry. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gist {
    /// How many.
    pub size: u64,
    /// Tells them from all others.
    pub digest: Digest,
    /// What they say, if they are a step.
    pub info: StepInfo,
}

/// The first half of a SHA-256: who makes two texts of one digest has given himself twice the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(u128);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        let hash: [u8; 32] = Sha256::digest(bytes).into();
        let (half, _) = hash.split_first_chunk().expect("32 bytes have 16");
        Digest(u128::from_be_bytes(*half))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        format!("{:032x}", digest.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Digest, Self::Error> {
        u128::from_str_radix(&text, 16).map(Digest)
    }
}

/// The length of this many bytes as base64.
pub fn base64_len(bytes: u64) -> u64 {
    bytes.div_ceil(3) * 4
}

/// Entries with their bytes as an endpoint gets them, in JSON.
pub fn array<'a>(entries: impl IntoIterator<Item = (&'a Entry, &'a [u8])>) -> Vec<u8> {
    written(Vec::new(), entries)
}

/// The same of entries that are not needed any longer: each is dropped once it is written, because a run may have 100 MB.
pub fn array_of(entries: Vec<(Entry, Bytes)>) -> Vec<u8> {
    let length: usize = entries.iter().map(|(entry, _)| entry.encoded_len() + ",".len()).sum();
    written(Vec::with_capacity("[]".len() + length), entries)
}

fn written<E: Borrow<Entry>, B: AsRef<[u8]>>(mut text: Vec<u8>, entries: impl IntoIterator<Item = (E, B)>) -> Vec<u8> {
    text.push(b'[');
    for (place, (entry, body)) in entries.into_iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        let [before, after] = entry.borrow().encoded_around();
        text.extend_from_slice(before.as_bytes());
        text.extend_from_slice(base64(body.as_ref()).as_bytes());
        text.extend_from_slice(after.as_bytes());
    }
    text.push(b']');
    text
}

/// What was said with an entry. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// What kind of entry it is.
    pub call_type: CallType,
    /// The type of its bytes.
    pub content_type: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Headers to deliver with it, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many attempts may follow the first.
    pub retries: u32,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// How long one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The flow-control key that it is delivered under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// Whom to call, if it is a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// What brought it, if an event did, or that none came. Only the log shows this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What API responses must hide of this step, besides what those about the run hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

/// What a client says itself about one delivery; for what it leaves out, the run is asked. Stored as JSON; new fields need
/// `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnTerms {
    /// How many attempts may follow the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// The flow-control key that it is delivered under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// What API responses must hide of it, besides what those about the run hide.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

impl OwnTerms {
    /// It says nothing.
    pub fn is_none(&self) -> bool {
        *self == OwnTerms::default()
    }
}

/// What brought a result that the server wrote itself; what is known of an invoked run is a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// An event, or that it did not come in time.
    Wait {
        /// When it was asked for.
        since: Timestamp,
        /// How long the wait was to last, as it was sent.
        timeout: String,
        /// When it would have been over.
        deadline: Timestamp,
    },
}

/// A call of somebody else, and what its result is delivered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Where it goes.
    pub url: String,
    /// Upper-case HTTP method.
    pub method: String,
    /// The step that waits for it.
    pub step: u32,
    /// Its failure is a result like any other, and does not end the run.
    pub is_forgiven: bool,
    /// Headers of the delivery that brings the result, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub result_headers: Vec<(String, String)>,
    /// How many attempts may follow the first of that delivery; `None` means as many as the run has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_retries: Option<u32>,
}

/// How the delivery of an entry stands. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Whether it goes on.
    pub state: DeliveryState,
    /// When its next attempt is due, or its last one was.
    pub due: Timestamp,
    /// Attempts that have ended.
    #[serde(default)]
    pub attempts: u32,
    /// What went wrong: the first ones and the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StepError>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// How long its last attempt took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl Delivery {
    /// Not attempted yet.
    pub fn due_at(due: Timestamp) -> Delivery {
        let state = DeliveryState::Pending;
        Delivery { state, due, attempts: 0, errors: Vec::new(), ended_at: None, duration_ms: None }
    }
}

/// Keeps an error, within [`ERRORS_KEPT`].
pub(super) fn push_error(errors: &mut Vec<StepError>, error: StepError) {
    if errors.len() == ERRORS_KEPT {
        errors.pop();
    }
    errors.push(error);
}

/// Errors of one delivery that are kept; of more, the first ones and the last.
pub const ERRORS_KEPT: usize = 16;

/// Whether a delivery goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// It is to be attempted, or attempted again.
    Pending,
    /// It was answered with a 2xx.
    Done,
    /// Its last attempt failed.
    Failed,
    /// The run ended before it did.
    Canceled,
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// When it ended.
    pub at: Timestamp,
    /// In words, if it was not simply the status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was answered, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Arc<Response>>,
}
