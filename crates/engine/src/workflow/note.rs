//! Notes: the data of a run besides its entries. Each note is stored separately, so that a change of the run writes
//! only what has changed.

use super::entry::StepError;
use super::run::{EarlyEvent, Invoke, Invoker, Wait};
use crate::event::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The kind of a note. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoteKind {
    /// A run that waits for the end of this run. `n` counts them.
    Invoker = 0,
    /// An event that the run waits for. `n` is the position of the message for its deadline.
    Wait = 1,
    /// A run that it has invoked; the body is its payload. `n` is the number of the step.
    Invoke = 2,
    /// The result of an invoked run that ended after this run; `n` as above.
    InvokeOut = 3,
    /// An event that came before a step waited for it; the body is its data. `n` counts them.
    Early = 4,
    /// The result of the run; `n` is 0, as in all below.
    Result = 5,
    /// The response with which it failed.
    Answer = 6,
    /// The outcome of its failure callback.
    Told = 7,
}

impl NoteKind {
    const ALL: [NoteKind; 8] = [
        NoteKind::Invoker,
        NoteKind::Wait,
        NoteKind::Invoke,
        NoteKind::InvokeOut,
        NoteKind::Early,
        NoteKind::Result,
        NoteKind::Answer,
        NoteKind::Told,
    ];

    /// The kind with this number.
    pub fn of_number(number: u8) -> Option<NoteKind> {
        NoteKind::ALL.get(usize::from(number)).copied()
    }
}

/// The key of a note of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoteKey {
    /// The kind.
    pub kind: NoteKind,
    /// Distinguishes and orders notes of the same kind.
    pub n: u64,
}

/// A note of a run. It never changes, but may be replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its key.
    pub key: NoteKey,
    /// JSON that decisions need.
    pub data: String,
    /// Data that only endpoints and logs need.
    pub body: Bytes,
}

impl Note {
    pub(super) fn invoker(n: usize, invoker: &Invoker) -> Note {
        Note { key: NoteKey { kind: NoteKind::Invoker, n: n as u64 }, data: json(invoker), body: Bytes::new() }
    }

    pub(super) fn wait(wait: &Wait) -> Note {
        Note { key: wait.key(), data: json(wait), body: Bytes::new() }
    }

    pub(super) fn invoke(invoke: &Invoke, body: Bytes) -> Note {
        Note { key: invoke.key(), data: json(invoke), body }
    }

    pub(super) fn invoke_out(invoke: &Invoke, out: Bytes) -> Note {
        Note { key: NoteKey { kind: NoteKind::InvokeOut, ..invoke.key() }, data: String::new(), body: out }
    }

    pub(super) fn early(early: &EarlyEvent, data: Bytes) -> Note {
        Note { key: early.key(), data: json(&early.event), body: data }
    }

    pub(super) fn result(result: String) -> Note {
        Note { key: NoteKind::Result.only(), data: String::new(), body: Bytes::from(result) }
    }

    pub(super) fn answer(response: Response) -> Note {
        let (data, body) = split(response);
        Note { key: NoteKind::Answer.only(), data: json(&data), body }
    }

    pub(super) fn told(errors: &[StepError], response: Response) -> Note {
        let (response, body) = split(response);
        let told = Told { errors: errors.to_vec(), response };
        Note { key: NoteKind::Told.only(), data: json(&told), body }
    }
}

impl NoteKind {
    /// The key of the only note of this kind.
    pub(super) fn only(self) -> NoteKey {
        NoteKey { kind: self, n: 0 }
    }
}

/// The outcome of a failure callback, without the bytes of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// The errors: the first ones and the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<StepError>,
    /// The last response.
    pub(super) response: Response,
}

/// A response, and its bytes apart from it.
fn split(mut response: Response) -> (Response, Bytes) {
    let body = std::mem::take(&mut response.body);
    (response, Bytes::from(body))
}

fn json<T: Serialize>(value: &T) -> String {
    // Plain structs, texts and JSON values always have a JSON form.
    serde_json::to_string(value).expect("a note is JSON")
}
