//! An entry of a run: the trigger's payload, a step, or a call, and the state of its delivery.

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

/// One entry of a run, without its bytes, which only endpoints and logs need. Only its delivery ever changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its index in the list: the order in which entries were accepted.
    pub index: u32,
    /// The message that delivers it.
    pub id: MessageId,
    /// Metadata of its bytes.
    pub gist: Arc<Gist>,
    /// Its other settings.
    pub terms: Arc<Terms>,
    /// The state of its delivery.
    pub delivery: Delivery,
}

impl Entry {
    /// Creates an entry and reads the metadata from its bytes. The first entry comes from the trigger, and calls go to
    /// other services, so those have no metadata.
    pub fn new(index: u32, id: MessageId, body: &[u8], terms: Arc<Terms>, delivery: Delivery) -> Entry {
        let is_step = terms.call_type == CallType::Step && index > 0;
        let info = if is_step { StepInfo::parse(body) } else { StepInfo::default() };
        let gist = Arc::new(Gist { size: body.len() as u64, digest: Digest::of(body), info });
        Entry { index, id, gist, terms, delivery }
    }

    /// The entry with its bytes as the endpoint gets it: one element of a JSON array.
    pub fn encoded(&self, body: &[u8]) -> Vec<u8> {
        let [before, after] = self.encoded_around();
        [before, base64(body), after].concat().into_bytes()
    }

    /// The text before its bytes in base64, and the text after them.
    pub fn encoded_around(&self) -> [String; 2] {
        let (id, call_type, at) =
            (self.id, Value::from(self.terms.call_type.name()), self.terms.accepted_at.as_millis());
        [format!(r#"{{"messageId":"{id}","body":""#), format!(r#"","callType":{call_type},"createdAt":{at}}}"#)]
    }

    /// The length of that.
    pub fn encoded_len(&self) -> usize {
        self.encoded(&[]).len() + base64_len(self.gist.size) as usize
    }

    /// The step that it announces, requests or holds the result of; 0 if there is none.
    pub(super) fn number(&self) -> u32 {
        match &self.terms.call {
            Some(call) => call.step,
            None => self.gist.info.target.unwrap_or(self.gist.info.id),
        }
    }

    /// Whether it holds the result of a step.
    pub fn is_result(&self) -> bool {
        self.terms.call_type == CallType::Step && self.index > 0 && !self.gist.info.is_plan()
    }
}

/// Metadata of an entry's bytes that decisions need. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gist {
    /// Their number.
    pub size: u64,
    /// Identifies them.
    pub digest: Digest,
    /// The metadata of a step.
    pub info: StepInfo,
}

/// The first half of a SHA-256. A client that creates two texts with the same digest only harms itself: they count as
/// the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(u128);

impl Digest {
    /// The digest of these bytes.
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

/// Like [`array()`], but drops each entry after writing it, because a run may have 100 MB.
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

/// The settings of an entry. Stored as JSON; new fields need `#[serde(default)]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The kind of the entry.
    pub call_type: CallType,
    /// The type of its bytes.
    pub content_type: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Headers to deliver with it, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Number of retries after the first attempt.
    pub retries: u32,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// Timeout of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The flow-control key of its delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// The call, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// How a wait ended that led to this result. Only the log shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Fields of this step that API responses must hide, in addition to those of the run.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

/// The settings that a client chose for one delivery. The run's settings apply to the others. Stored as JSON; new
/// fields need `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnTerms {
    /// Number of retries after the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Retry-delay expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<String>,
    /// The flow-control key of its delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowSpec>,
    /// Fields of it that API responses must hide, in addition to those of the run.
    #[serde(default, skip_serializing_if = "RedactFields::is_none")]
    pub redact: RedactFields,
}

impl OwnTerms {
    /// Whether nothing is set.
    pub fn is_none(&self) -> bool {
        *self == OwnTerms::default()
    }
}

/// The source of a result that the server wrote itself. The data of an invoked run is in a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// An event, or a timeout.
    Wait {
        /// When the wait began.
        since: Timestamp,
        /// The duration of the wait, as it was sent.
        timeout: String,
        /// When the wait would have ended.
        deadline: Timestamp,
    },
}

/// A call to another service, and the settings for the delivery of its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its destination.
    pub url: String,
    /// Upper-case HTTP method.
    pub method: String,
    /// The step that waits for it.
    pub step: u32,
    /// Whether its failure is a result like any other, and does not end the run.
    pub is_forgiven: bool,
    /// Headers of the delivery that brings the result, names in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub result_headers: Vec<(String, String)>,
    /// Number of retries of that delivery; `None` means that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_retries: Option<u32>,
}

/// The state of an entry's delivery. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The state.
    pub state: DeliveryState,
    /// When its next attempt is due, or its last one was.
    pub due: Timestamp,
    /// Attempts that have ended.
    #[serde(default)]
    pub attempts: u32,
    /// The errors: the first ones and the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StepError>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The duration of its last attempt.
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

/// Adds an error, within [`ERRORS_KEPT`].
pub(super) fn push_error(errors: &mut Vec<StepError>, error: StepError) {
    if errors.len() == ERRORS_KEPT {
        errors.pop();
    }
    errors.push(error);
}

/// Errors of one delivery that are kept: the first ones and the last one.
pub const ERRORS_KEPT: usize = 16;

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// An attempt is still to come.
    Pending,
    /// It got a 2xx.
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
    /// The error in words, if it was not simply the status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The response, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Arc<Response>>,
}
