//! What the store keeps of runs: exactly what their owner decides with, so that whoever takes over decides the same.

use super::Judge;
use crate::node::{CommitRequest, Remembered};
use crate::store::Store;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::RunState;
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_wire::encoding::from_base64;
use posthaste_wire::id::Seq;
use serde_json::Value;
use std::collections::BTreeSet;

impl Judge {
    /// The batch is written: who reads its runs now finds what their owner remembers, and nothing else.
    pub(super) fn check_kept(&mut self, commit: &CommitRequest, now_ms: u64, store: &Store) {
        for remembered in &commit.notes.runs {
            let Remembered { workflow, bodies } = remembered;
            let about = workflow.entries.first().map(|entry| entry.id);
            match store.workflow(workflow.run.tenant, workflow.run.no) {
                Ok(Some(read)) if read == *workflow => {}
                read => self.blame("a run that is read is the run that was decided with", about, now_ms, || {
                    format!("{read:?} instead of {workflow:?}")
                }),
            }
            let (found, needed) = (kept(workflow, store), needed(workflow));
            if found != needed {
                self.blame("the store keeps of a run what it needs", about, now_ms, || {
                    format!("{found:?} instead of {needed:?}")
                });
            }
            for entry in &workflow.entries {
                let body = store.body(workflow.run.no, entry.index);
                let remembered = bodies.as_ref().map(|bodies| bodies.get(entry.index as usize));
                let is_same = remembered.is_none_or(|remembered| remembered.is_some_and(|bytes| bytes == body));
                if !is_same || *entry != gist_of(entry, body) {
                    self.blame("the bytes of an entry are those that were accepted", Some(entry.id), now_ms, || {
                        format!("entry {}: {}", entry.index, String::from_utf8_lossy(body))
                    });
                }
            }
        }
    }

    /// It was answered that a run keeps an event; it may have taken it since.
    pub(super) fn event_kept(&mut self, run: Seq, key: NoteKey, now_ms: u64, store: &Store) {
        if !store.notes.contains_key(&(run, key)) {
            return;
        }
        if !store.is_note_on_disk(run, key) {
            self.blame("what was answered is on disk", None, now_ms, || format!("{key:?} of run {} is not", run.0));
        }
        self.kept_events.insert((run, key));
    }

    /// A run needs an event no more.
    pub(super) fn event_taken(&mut self, run: Seq, key: NoteKey) {
        self.kept_events.remove(&(run, key));
    }

    /// Are events that were acknowledged still there?
    pub(super) fn check_events(&mut self, now_ms: u64, store: &Store) {
        let lost = self.kept_events.iter().find(|kept| !store.notes.contains_key(kept)).copied();
        if let Some((run, key)) = lost {
            self.blame("nothing that was answered is lost", None, now_ms, || format!("{key:?} of run {} is", run.0));
        }
    }

    /// A message of a run leaves: it weighs what it was counted as, and what tells of a failure tells of it truly.
    pub(crate) fn sent(&mut self, step: StepRef, live: &Live, message: &Message, now_ms: u64, store: &Store) {
        match step.part {
            Part::Entry(_) if live.body_bytes as usize != message.body.len() => {
                self.blame("a delivery weighs what it was counted as", Some(live.id), now_ms, || {
                    format!("{} instead of {}", message.body.len(), live.body_bytes)
                });
            }
            Part::FailureCall if !tells_truly(step, &message.body, store) => {
                self.blame("a failure report is correct", Some(live.id), now_ms, || {
                    String::from_utf8_lossy(&message.body).into_owned()
                });
            }
            Part::Entry(_) | Part::FailureCall | Part::Deadline => {}
        }
    }
}

/// The notes of a run that there are.
fn kept(workflow: &Workflow, store: &Store) -> BTreeSet<NoteKey> {
    store.notes_of(workflow.run.no).map(|note| note.key).collect()
}

/// The notes of a run that there should be.
fn needed(workflow: &Workflow) -> BTreeSet<NoteKey> {
    let Workflow { run, invokers, waits, invokes, early, told, .. } = workflow;
    let key = |kind: NoteKind, n: u64| NoteKey { kind, n };
    let invokers = (0..invokers.len()).map(|n| key(NoteKind::Invoker, n as u64));
    let waits = waits.iter().map(|wait| key(NoteKind::Wait, wait.timer.seq.0));
    let outs = invokes.iter().filter(|invoke| invoke.has_out);
    let outs = outs.map(|invoke| key(NoteKind::InvokeOut, invoke.number().into()));
    let invokes = invokes.iter().map(|invoke| key(NoteKind::Invoke, invoke.number().into()));
    let early = early.iter().map(|early| key(NoteKind::Early, early.n));
    let told = told.iter().map(|_| key(NoteKind::Told, 0));
    let end = match run.state {
        RunState::Success => Some(key(NoteKind::Result, 0)),
        RunState::Failed => Some(key(NoteKind::Answer, 0)),
        RunState::Started | RunState::Canceled => None,
    };
    invokers.chain(waits).chain(outs).chain(invokes).chain(early).chain(told).chain(end).collect()
}

/// The entry that has these bytes, and is otherwise this one.
fn gist_of(entry: &Entry, body: &[u8]) -> Entry {
    Entry::new(entry.index, entry.id, body, entry.terms.clone(), entry.delivery.clone())
}

/// Whether the body of a call about a failure says which run failed, with what answer, and what it was triggered with.
fn tells_truly(step: StepRef, body: &[u8], store: &Store) -> bool {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(run) = store.runs.get(&step.run) else { return false };
    let Some(failure) = &run.failure else { return false };
    let answer = store.note(step.run, NoteKind::Answer).map(|note| note.body.as_ref());
    let source = told["sourceBody"].as_str().and_then(from_base64);
    let told_answer = told["body"].as_str().and_then(from_base64);
    // What the server says because nobody has answered, it says as a program would.
    let is_ours = answer.is_some_and(|answer| failure.error.as_ref().is_some_and(|text| text.as_bytes() == answer));
    let tells_answer = match (&told_answer, is_ours) {
        (Some(text), true) => {
            let error: Value = serde_json::from_slice(text).unwrap_or_default();
            error["message"].as_str() == failure.error.as_deref() && error["error"].is_string()
        }
        (told, _) => told.as_deref() == answer,
    };
    told["workflowRunId"] == *run.id
        && told["dlqId"] == *failure.dlq_id.to_string()
        && told["status"] == failure.status
        && tells_answer
        && source.as_deref() == Some(store.body(step.run, 0))
}
