//! A run with everything that it keeps, for those who need more than decisions do: endpoints, logs, and runs that begin
//! again.

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
    /// What decisions are made with.
    pub workflow: Workflow,
    /// The bytes of its entries, in their order.
    pub bodies: Vec<Bytes>,
    /// What it returned.
    pub result: Option<String>,
    /// What was answered when it failed, or what stands for an answer.
    pub answer: Option<Arc<Response>>,
    /// What the call about its failure was answered with last.
    pub told: Option<Arc<Response>>,
    /// The bytes of its other notes.
    notes: BTreeMap<NoteKey, Bytes>,
}

/// A note that makes no sense.
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
    /// The answer that it holds, if it is a note of one.
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
    /// A run as it was stored. Entries are in their order; of each note its key, its JSON, and how long its body is, in
    /// the order of the keys.
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
    /// A run as it was stored; each entry with its bytes, in their order, and the notes in the order of their keys.
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

    /// A run of which no bodies were read, with the notes that hold answers, if it has such.
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

    /// Its bodies were not read: a run has at least one entry.
    pub fn is_without_bodies(&self) -> bool {
        self.bodies.is_empty()
    }

    /// The bytes of an entry.
    pub fn body(&self, entry: &Entry) -> &[u8] {
        self.bodies.get(entry.index as usize).map_or(&[], |body| body)
    }

    /// What an invoked run was given.
    pub fn given(&self, invoke: &Invoke) -> Bytes {
        self.notes.get(&invoke.key()).cloned().unwrap_or_default()
    }

    /// What came of an invoked run after the end of this one.
    pub fn out(&self, invoke: &Invoke) -> Option<String> {
        self.notes.get(&NoteKey { kind: NoteKind::InvokeOut, ..invoke.key() }).map(text)
    }

    /// The list as its endpoint gets it with this entry: all up to it, in JSON.
    pub fn array_up_to(&self, index: u32) -> Vec<u8> {
        let shown = self.workflow.entries.iter().zip(&self.bodies).take(index as usize + 1);
        array(shown.map(|(entry, body)| (entry, &body[..])))
    }

    /// What is told of its failure; `None` if it has not failed.
    pub fn failure_call(&self) -> Option<Bytes> {
        callback::of_failure(self)
    }

    /// Bytes of all that was read of it.
    pub fn read_bytes(&self) -> u64 {
        match self.is_without_bodies() {
            true => self.workflow.entries.iter().map(Entry::held_bytes).sum::<u64>() + self.workflow.noted_bytes(),
            false => self.bytes(),
        }
    }

    /// Bytes of all that it holds.
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
