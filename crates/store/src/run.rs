//! Rules about workflow runs that all backends share: the parts of a run, its positions in the lists, and when it may
//! be dropped.

use super::{BoxError, FailedRun, PageRequest, Part, Retention};
use bytes::Bytes;
use posthaste_engine::event::Response;
use posthaste_engine::limits::RUN_SHOWN_BYTES_MAX;
use posthaste_engine::workflow::entry::{Entry, StepError};
use posthaste_engine::workflow::note::{Note, NoteKey, NoteKind};
use posthaste_engine::workflow::run::Run;
use posthaste_engine::workflow::{Record, Workflow};
use posthaste_wire::id::{DlqId, Position};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// Whether to read bytes that only endpoints and logs need: [`Bytes`] reads them, `()` does not.
pub(super) trait Body: Sized {
    /// Their column in a table.
    const COLUMN: &str;

    /// Converts bytes that are in memory.
    fn of(bytes: &Bytes) -> Self;

    /// Converts the value of [`Body::COLUMN`].
    fn read(bytes: Option<Vec<u8>>) -> Self;
}

impl Body for () {
    const COLUMN: &str = "NULL";

    fn of(_: &Bytes) {}

    fn read(_: Option<Vec<u8>>) {}
}

impl Body for Bytes {
    const COLUMN: &str = "body";

    fn of(bytes: &Bytes) -> Bytes {
        bytes.clone()
    }

    fn read(bytes: Option<Vec<u8>>) -> Bytes {
        Bytes::from(bytes.unwrap_or_default())
    }
}

/// The stored parts of one run.
#[derive(Debug)]
pub(super) struct Parts<B> {
    pub(super) run: Option<Run>,
    /// In the order of their index.
    pub(super) entries: Vec<(Entry, B)>,
    /// In the order of their keys.
    pub(super) notes: Vec<StoredNote<B>>,
}

/// A note, with or without its body.
#[derive(Clone, Debug)]
pub(super) struct StoredNote<B> {
    pub(super) key: NoteKey,
    pub(super) data: String,
    /// The length of its body.
    pub(super) size: u64,
    pub(super) body: B,
}

impl<B: Body> StoredNote<B> {
    pub(super) fn of(note: &Note) -> StoredNote<B> {
        let size = note.body.len() as u64;
        StoredNote { key: note.key, data: note.data.clone(), size, body: B::of(&note.body) }
    }
}

impl StoredNote<()> {
    /// The note without the body of its response, if it contains one.
    pub(super) fn answer(&self) -> Option<Note> {
        let is_answer = matches!(self.key.kind, NoteKind::Answer | NoteKind::Told);
        is_answer.then(|| Note { key: self.key, data: self.data.clone(), body: Bytes::new() })
    }
}

impl Parts<()> {
    /// Bytes of the run's result and its response.
    pub(super) fn result_bytes(&self) -> u64 {
        let is_one = |kind| matches!(kind, NoteKind::Result | NoteKind::Answer | NoteKind::Told);
        self.notes.iter().filter(|note| is_one(note.key.kind)).map(|note| note.size).sum()
    }
}

impl<B> Default for Parts<B> {
    fn default() -> Self {
        Parts { run: None, entries: Vec::new(), notes: Vec::new() }
    }
}

impl<B> Parts<B> {
    /// The run, if it and its first entry exist. Otherwise it is being dropped, or a write came after it was dropped.
    /// Returns an error if an entry is missing in between.
    fn run(&mut self) -> Result<Option<Run>, BoxError> {
        let Some(run) = self.run.take() else { return Ok(None) };
        if self.entries.first().is_none_or(|(first, _)| first.index > 0) {
            return Ok(None);
        }
        match self.entries.iter().enumerate().find(|(place, (entry, _))| entry.index as usize != *place) {
            Some((index, _)) => Err(format!("entry {index} of run {} is missing", run.no.0).into()),
            None => Ok(Some(run)),
        }
    }
}

impl Parts<()> {
    /// The parts that the engine needs to decide.
    pub(super) fn workflow(mut self) -> Result<Option<Workflow>, BoxError> {
        let Some(run) = self.run()? else { return Ok(None) };
        let entries = self.entries.into_iter().map(|(entry, ())| entry).collect();
        let notes = self.notes.iter().map(|note| (note.key, note.data.as_str(), note.size));
        Ok(Some(Workflow::restored(run, entries, notes)?))
    }
}

impl Parts<Bytes> {
    /// All parts.
    pub(super) fn record(mut self) -> Result<Option<Record>, BoxError> {
        let Some(run) = self.run()? else { return Ok(None) };
        let notes = self.notes.into_iter().map(|StoredNote { key, data, body, .. }| Note { key, data, body });
        Ok(Some(Record::restored(run, self.entries, notes.collect())?))
    }

    /// The entries that are steps of this kind; empty without the run.
    pub(super) fn steps(self, kind: &str) -> Vec<(Entry, Bytes)> {
        let is_there = self.run.is_some();
        self.entries.into_iter().filter(|(entry, _)| is_there && entry.gist.info.kind == kind).collect()
    }

    /// The entries of a run that exists.
    pub(super) fn list(mut self) -> Result<Option<Vec<(Entry, Bytes)>>, BoxError> {
        Ok(self.run()?.map(|_| self.entries))
    }
}

impl FailedRun {
    /// A run as the DLQ shows it; `None` if it has not failed. Reads only the responses among the notes.
    pub(super) fn restored(
        run: Run,
        (first, payload): (Entry, Bytes),
        failed: Entry,
        notes: &[Note],
    ) -> Result<FailedRun, BoxError> {
        let answer = |kind: NoteKind| -> Result<Option<Arc<Response>>, BoxError> {
            let Some(note) = notes.iter().find(|note| note.key.kind == kind) else { return Ok(None) };
            Ok(note.response()?.map(Arc::new))
        };
        let (answer, told) = (answer(NoteKind::Answer)?, answer(NoteKind::Told)?);
        Ok(FailedRun { run, first, payload, failed, answer, told })
    }

    /// Bytes of the bodies that it adds to a page.
    pub fn bytes(&self) -> usize {
        let answers = self.answer.iter().chain(&self.told).map(of_answer).sum::<usize>();
        self.payload.len() + answers
    }
}

/// Whether these are states of the same run. The name of a run and its time of creation never change.
pub(super) fn is_same_run(one: &Run, other: &Run) -> bool {
    (one.no, one.tenant, &one.id, one.created_at) == (other.no, other.tenant, &other.id, other.created_at)
}

/// The position in the list of all runs.
pub(super) fn place_of(run: &Run) -> Position {
    Position { at: run.created_at, n: run.no.0 }
}

/// The position in the DLQ, if the run is there.
pub(super) fn dlq_place_of(run: &Run) -> Option<DlqId> {
    run.failure.as_ref().filter(|failure| failure.is_in_dlq).map(|failure| failure.dlq_id)
}

/// Whether a run has been kept long enough. A live run never has.
pub(super) fn is_expired(run: &Run, policy: &Retention, now: Timestamp) -> bool {
    run.ended_at.is_some_and(|ended_at| match dlq_place_of(run) {
        Some(place) => place.at < now.minus_millis(policy.dlq_ms),
        None => ended_at < now.minus_millis(policy.history_ms),
    })
}

/// Whether a page includes the bodies of a run.
pub(super) fn shows_bodies(page: &PageRequest, record: &Record) -> bool {
    page.part == Part::Whole && record.bytes() <= RUN_SHOWN_BYTES_MAX as u64
}

/// Bytes of the bodies that a run adds to a page: those of its entries, notes and responses.
pub(super) fn page_bytes(record: &Record) -> usize {
    let of_errors =
        |errors: &[StepError]| -> usize { errors.iter().filter_map(|e| e.response.as_ref()).map(of_answer).sum() };
    let Workflow { entries, told, .. } = &record.workflow;
    let errors: usize = entries.iter().map(|entry| of_errors(&entry.delivery.errors)).sum();
    record.read_bytes() as usize + errors + told.as_deref().map_or(0, of_errors)
}

fn of_answer(answer: &Arc<Response>) -> usize {
    answer.body.len()
}
