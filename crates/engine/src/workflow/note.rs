//! What a run keeps besides its entries: each is stored by itself, so that a change of the run writes what has changed
//! and nothing else.

use super::entry::StepError;
use super::run::{EarlyEvent, Invoke, Invoker, Wait};
use crate::event::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a note is about. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoteKind {
    /// Who waits for the end of the run. `n` counts them.
    Invoker = 0,
    /// An event that the run waits for. `n` is the position of the message that stands for its deadline.
    Wait = 1,
    /// A run that it has invoked; the body is what that one was given. `n` is the number of the step.
    Invoke = 2,
    /// What came of an invoked run after the end of this one; `n` as above.
    InvokeOut = 3,
    /// An event that came before it was waited for; the body is what came with it. `n` counts them.
    Early = 4,
    /// What the run returned; `n` is 0, as in all below.
    Result = 5,
    /// What was answered when it failed.
    Answer = 6,
    /// What came of telling about its failure.
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

    /// The kind that has this number.
    pub fn of_number(number: u8) -> Option<NoteKind> {
        NoteKind::ALL.get(usize::from(number)).copied()
    }
}

/// Which note of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoteKey {
    /// What it is about.
    pub kind: NoteKind,
    /// Tells those of one kind apart, and is their order.
    pub n: u64,
}

/// Something that a run keeps. It never changes, but may be replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which one.
    pub key: NoteKey,
    /// JSON: what decisions need.
    pub data: String,
    /// What only others need: endpoints, logs.
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

/// What came of telling about a failure, but for the bytes of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// What went wrong: the first ones and the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<StepError>,
    /// What was answered last.
    pub(super) response: Response,
}

/// An answer, and its bytes apart from it.
fn split(mut response: Response) -> (Response, Bytes) {
    let body = std::mem::take(&mut response.body);
    (response, Bytes::from(body))
}

fn json<T: Serialize>(value: &T) -> String {
    // Plain structs, texts and JSON values always have a JSON form.
    serde_json::to_string(value).expect("a note is JSON")
}
