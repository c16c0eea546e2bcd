//! What the store has of workflow runs.

use super::{Store, Undo, put};
use bytes::Bytes;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Run, RunState};
use posthaste_engine::workflow::{Change, Record, Waiter, Workflow};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

impl Store {
    pub(super) fn apply_to_run(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Run(run) => self.put_run(run.no, run.clone()),
            Change::Entry { run, entry, body } => {
                let there = self.entries_of(*run).count() as u32;
                if entry.index != there && !self.entries.contains_key(&(*run, entry.index)) {
                    return Err(format!("entry {} of a run that has {there}", entry.index));
                }
                self.put_entry((*run, entry.index), entry.clone());
                let before = self.bodies.insert((*run, entry.index), body.clone());
                self.undo.push(Undo::Body((*run, entry.index), before));
            }
            Change::Delivery { run, index, delivery } => {
                let entry = self.entries.get(&(*run, *index)).ok_or_else(|| format!("there is no entry {index}"))?;
                let entry = Entry { delivery: delivery.clone(), ..entry.clone() };
                self.put_entry((*run, *index), entry);
            }
            Change::Note { run, .. } if !self.runs.contains_key(run) => {
                return Err(format!("a note of run {}, which is missing", run.0));
            }
            Change::Note { run, note } => self.put_note((*run, note.key), Some(note.clone())),
            Change::NoNote { run, key } => {
                if !self.notes.contains_key(&(*run, *key)) {
                    return Err(format!("run {} has no note {key:?}", run.0));
                }
                self.put_note((*run, *key), None);
            }
            Change::Waiter(waiter) => self.put_waiter(waiter, Some(waiter.run)),
            Change::NoWaiter(waiter) => {
                if !self.waiters.contains_key(&key(waiter)) {
                    return Err(format!("no run waits for {} with {}", waiter.event, waiter.timer));
                }
                self.put_waiter(waiter, None);
            }
        }
        Ok(())
    }

    pub(crate) fn entries_of(&self, run: Seq) -> impl Iterator<Item = &Entry> {
        self.entries.range((run, 0)..=(run, u32::MAX)).map(|(_, entry)| entry)
    }

    /// The notes of a run, in the order of their keys.
    pub(crate) fn notes_of(&self, run: Seq) -> impl Iterator<Item = &Note> {
        let first = NoteKey { kind: NoteKind::Invoker, n: 0 };
        self.notes.range((run, first)..).take_while(move |((of, _), _)| *of == run).map(|(_, note)| note)
    }

    /// The only note of this kind.
    pub(crate) fn note(&self, run: Seq, kind: NoteKind) -> Option<&Note> {
        self.notes.get(&(run, NoteKey { kind, n: 0 }))
    }

    /// What a run returned.
    pub(crate) fn result_of(&self, run: Seq) -> Option<&[u8]> {
        self.note(run, NoteKind::Result).map(|note| &note.body[..])
    }

    /// The bytes of an entry.
    pub(crate) fn body(&self, run: Seq, index: u32) -> &[u8] {
        self.bodies.get(&(run, index)).map_or(&[], |body| body)
    }

    /// A run as decisions need it, read anew; or why that fails.
    pub(crate) fn workflow(&self, tenant: TenantId, no: Seq) -> Result<Option<Workflow>, String> {
        let Some(run) = self.runs.get(&no).filter(|run| run.tenant == tenant) else { return Ok(None) };
        let entries = self.entries_of(no).map(read_entry).collect::<Result<_, _>>()?;
        let notes = self.notes_of(no).map(|note| (note.key, note.data.as_str(), note.body.len() as u64));
        Workflow::restored(reread(&**run)?, entries, notes).map(Some).map_err(|error| error.to_string())
    }

    /// A run with all bytes, read anew; or why that fails.
    pub(crate) fn record(&self, tenant: TenantId, no: Seq) -> Result<Option<Record>, String> {
        let Some(run) = self.runs.get(&no).filter(|run| run.tenant == tenant) else { return Ok(None) };
        let notes = self.notes_of(no).cloned().collect();
        Record::restored(reread(&**run)?, self.list(no)?, notes).map(Some).map_err(|error| error.to_string())
    }

    /// The entries of a run with their bytes.
    pub(crate) fn list(&self, no: Seq) -> Result<Vec<(Entry, Bytes)>, String> {
        let with_body = |entry: &Entry| {
            let body = self.bodies.get(&(no, entry.index)).ok_or("an entry has no bytes")?;
            Ok((read_entry(entry)?, body.clone()))
        };
        self.entries_of(no).map(with_body).collect()
    }

    /// This instance of a run, or the newest of this name.
    pub(crate) fn find_run(&self, tenant: TenantId, id: &str, created_at: Option<Timestamp>) -> Option<Seq> {
        let is_meant =
            |run: &&Arc<Run>| run.tenant == tenant && run.id == id && created_at.is_none_or(|at| run.created_at == at);
        self.runs.values().rev().find(is_meant).map(|run| run.no)
    }

    /// The failed run with this place in the DLQ.
    pub(crate) fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Option<Seq> {
        let has_place =
            |run: &&Arc<Run>| run.failure.as_ref().is_some_and(|failure| failure.is_in_dlq && failure.dlq_id == dlq_id);
        self.runs.values().filter(|run| run.tenant == tenant).find(has_place).map(|run| run.no)
    }

    /// Who waits for this event, in the order of asking.
    pub(crate) fn waiters_of(&self, tenant: TenantId, event: &str) -> Vec<(MessageId, Seq)> {
        let is_meant = |(other, name, _): &&(TenantId, String, MessageId)| (*other, name.as_str()) == (tenant, event);
        self.waiters.iter().filter(|(key, _)| is_meant(key)).map(|((.., timer), run)| (*timer, *run)).collect()
    }

    /// Whether a power cut would leave this entry.
    pub(crate) fn is_entry_on_disk(&self, run: Seq, id: MessageId) -> bool {
        let Some(index) = self.entries_of(run).find(|entry| entry.id == id).map(|entry| entry.index) else {
            return false;
        };
        let is_new = |undo: &Undo| matches!(undo, Undo::Entry(key, None) if *key == (run, index));
        !self.undo.iter().any(is_new)
    }

    /// Whether a power cut would leave this note.
    pub(crate) fn is_note_on_disk(&self, run: Seq, key: NoteKey) -> bool {
        let is_new = |undo: &Undo| matches!(undo, Undo::Note(other, None) if *other == (run, key));
        !self.undo.iter().any(is_new)
    }

    /// How a run would stand after a power cut.
    pub(crate) fn run_state_on_disk(&self, no: Seq) -> Option<RunState> {
        let first = self.undo.iter().find_map(|undo| match undo {
            Undo::Run(other, before) if *other == no => Some(before.as_ref()),
            _ => None,
        });
        first.unwrap_or(self.runs.get(&no)).map(|run| run.state)
    }

    fn put_run(&mut self, no: Seq, run: Arc<Run>) {
        let before = self.runs.insert(no, run);
        self.undo.push(Undo::Run(no, before));
    }

    fn put_entry(&mut self, key: (Seq, u32), entry: Entry) {
        let before = self.entries.insert(key, entry);
        self.undo.push(Undo::Entry(key, before.map(Box::new)));
    }

    fn put_note(&mut self, key: (Seq, NoteKey), note: Option<Note>) {
        let before = put(&mut self.notes, key, note);
        self.undo.push(Undo::Note(key, before));
    }

    fn put_waiter(&mut self, waiter: &Waiter, run: Option<Seq>) {
        let before = put(&mut self.waiters, key(waiter), run);
        self.undo.push(Undo::Waiter(key(waiter), before));
    }
}

fn key(waiter: &Waiter) -> (TenantId, String, MessageId) {
    (waiter.tenant, waiter.event.clone(), waiter.timer)
}

/// An entry as it is read: of what is stored of it, three parts are JSON.
fn read_entry(entry: &Entry) -> Result<Entry, String> {
    let Entry { index, id, gist, terms, delivery } = entry;
    let (gist, terms) = (Arc::new(reread(&**gist)?), Arc::new(reread(&**terms)?));
    Ok(Entry { index: *index, id: *id, gist, terms, delivery: reread(delivery)? })
}

/// What is left of a value that was written as JSON.
fn reread<T: Serialize + DeserializeOwned>(value: &T) -> Result<T, String> {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}
