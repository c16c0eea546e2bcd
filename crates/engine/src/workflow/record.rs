//! A run with all its data, for code that needs more than decisions do: endpoints, logs, and restarted runs.

use super::callback;
use super::entry::{Entry, array};
use super::machine::Workflow;
use super::note::{Note, NoteKey, NoteKind, Told};
use super::run::{EarlyEvent, Invoke, Run};
use crate::event::Response;
use bytes::Bytes;
use posthaste_wire::encoding::JsonError;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run with all bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The data for decisions.
    pub workflow: Workflow,
    /// The bytes of its entries, in their order.
    pub bodies: Vec<Bytes>,
    /// Its result.
    pub result: Option<String>,
    /// The response with which it failed, or its substitute.
    pub answer: Option<Arc<Response>>,
    /// The last response of its failure callback.
    pub told: Option<Arc<Response>>,
    /// The bytes of its other notes.
    notes: BTreeMap<NoteKey, Bytes>,
}

/// A note that cannot be decoded.
#[derive(Debug)]
pub struct Undecodable {
    kind: NoteKind,
    source: JsonError,
}

impl std::fmt::Display for Undecodable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a note of kind {:?} does not decode", self.kind)
    }
}

impl std::error::Error for Undecodable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Note {
    /// The response in the note, if it contains one.
    pub fn response(&self) -> Result<Option<Response>, Undecodable> {
        let kind = self.key.kind;
        let response = match kind {
            NoteKind::Answer => read(kind, &self.data)?,
            NoteKind::Told => read::<Told>(kind, &self.data)?.response,
            _ => return Ok(None),
        };
        Ok(Some(Response { body: self.body.to_vec(), ..response }))
    }
}

impl Workflow {
    /// Restores a run from the store. Entries are in their order. Each note has its key, its JSON, and the length of
    /// its body, in the order of the keys.
    pub fn restored<'a>(
        run: Run,
        entries: Vec<Entry>,
        notes: impl IntoIterator<Item = (NoteKey, &'a str, u64)>,
    ) -> Result<Workflow, Undecodable> {
        let mut workflow = Workflow::of(run, entries);
        for (key, data, size) in notes {
            let kind = key.kind;
            workflow.sums.add_note(kind, data.len(), size);
            match kind {
                NoteKind::Invoker => workflow.invokers.push(read(kind, data)?),
                NoteKind::Wait => workflow.waits.push(read(kind, data)?),
                NoteKind::Invoke => workflow.invokes.push(Invoke { size, ..read(kind, data)? }),
                NoteKind::InvokeOut => {
                    let of_step = workflow.invokes.iter_mut().filter(|invoke| u64::from(invoke.number()) == key.n);
                    of_step.for_each(|invoke| invoke.has_out = true);
                }
                NoteKind::Early => workflow.early.push(EarlyEvent { n: key.n, event: read(kind, data)?, size }),
                NoteKind::Told => workflow.told = Some(read::<Told>(kind, data)?.errors),
                NoteKind::Result | NoteKind::Answer => {}
            }
        }
        Ok(workflow)
    }
}

impl Record {
    /// Restores a run from the store, with entries and their bytes in order, and notes in the order of their keys.
    pub fn restored(run: Run, entries: Vec<(Entry, Bytes)>, notes: Vec<Note>) -> Result<Record, Undecodable> {
        let (entries, bodies) = entries.into_iter().unzip();
        let heads = notes.iter().map(|note| (note.key, note.data.as_str(), note.body.len() as u64));
        let workflow = Workflow::restored(run, entries, heads)?;
        let mut record = Record { workflow, bodies, result: None, answer: None, told: None, notes: BTreeMap::new() };
        for note in notes {
            match note.key.kind {
                NoteKind::Result => record.result = Some(text(&note.body)),
                NoteKind::Answer => record.answer = note.response()?.map(Arc::new),
                NoteKind::Told => record.told = note.response()?.map(Arc::new),
                _ => drop(record.notes.insert(note.key, note.body)),
            }
        }
        Ok(record)
    }

    /// A run without bodies, with the notes that contain responses, if it has such.
    pub fn of_heads(workflow: Workflow, answers: &[Note]) -> Result<Record, Undecodable> {
        let mut record =
            Record { workflow, bodies: Vec::new(), result: None, answer: None, told: None, notes: BTreeMap::new() };
        for note in answers {
            match note.key.kind {
                NoteKind::Answer => record.answer = note.response()?.map(Arc::new),
                NoteKind::Told => record.told = note.response()?.map(Arc::new),
                _ => {}
            }
        }
        Ok(record)
    }

    /// The same run without its bodies.
    pub fn without_bodies(self) -> Record {
        let head = |answer: Arc<Response>| Arc::new(Response { body: Vec::new(), ..Response::clone(&answer) });
        let (answer, told) = (self.answer.map(head), self.told.map(head));
        Record { workflow: self.workflow, bodies: Vec::new(), result: None, answer, told, notes: BTreeMap::new() }
    }

    /// Whether its bodies were not read. A run has at least one entry.
    pub fn is_without_bodies(&self) -> bool {
        self.bodies.is_empty()
    }

    /// The bytes of an entry.
    pub fn body(&self, entry: &Entry) -> &[u8] {
        self.bodies.get(entry.index as usize).map_or(&[], |body| body)
    }

    /// The payload of an invoked run.
    pub fn given(&self, invoke: &Invoke) -> Bytes {
        self.notes.get(&invoke.key()).cloned().unwrap_or_default()
    }

    /// The result of an invoked run that ended after this one.
    pub fn out(&self, invoke: &Invoke) -> Option<String> {
        self.notes.get(&NoteKey { kind: NoteKind::InvokeOut, ..invoke.key() }).map(text)
    }

    /// The list as its endpoint gets it with this entry: all entries up to it, in JSON.
    pub fn array_up_to(&self, index: u32) -> Vec<u8> {
        let shown = self.workflow.entries.iter().zip(&self.bodies).take(index as usize + 1);
        array(shown.map(|(entry, body)| (entry, &body[..])))
    }

    /// The body of its failure callback; `None` if it has not failed.
    pub fn failure_call(&self) -> Option<Bytes> {
        callback::of_failure(self)
    }

    /// Bytes of everything that was read.
    pub fn read_bytes(&self) -> u64 {
        match self.is_without_bodies() {
            true => self.workflow.entries.iter().map(Entry::held_bytes).sum::<u64>() + self.workflow.noted_bytes(),
            false => self.bytes(),
        }
    }

    /// Bytes of all its data.
    pub fn bytes(&self) -> u64 {
        let answers = self.answer.iter().chain(&self.told).map(|answer| answer.body.len() as u64).sum::<u64>();
        self.workflow.bytes() + answers + self.result.as_ref().map_or(0, |result| result.len() as u64)
    }
}

fn read<T: DeserializeOwned>(kind: NoteKind, data: &str) -> Result<T, Undecodable> {
    serde_json::from_str(data).map_err(|error| Undecodable { kind, source: error.into() })
}

fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}
