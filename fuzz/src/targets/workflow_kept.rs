//! A run with its stored data, for the targets that make decisions on runs. Reading the stored data must give the run
//! that made the decisions.

use super::NOW;
use bytes::Bytes;
use posthaste_engine::message::Message;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey};
use posthaste_engine::workflow::run::{Invoker, Run, RunConfig};
use posthaste_engine::workflow::{Change, NewEntry, NewRun, Outbox, Record, Workflow};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const TENANT: TenantId = TenantId(1);

/// A run and its stored data; see the module's documentation.
pub(super) struct Kept {
    /// The state that decisions use.
    pub workflow: Workflow,
    run: Run,
    entries: BTreeMap<u32, (Entry, Bytes)>,
    notes: BTreeMap<NoteKey, Note>,
    last: Seq,
}

/// The result of a decision.
pub(super) struct Outcome {
    pub messages: Vec<Arc<Message>>,
    pub withdrawn: Vec<MessageId>,
}

impl Kept {
    /// A run that has just started.
    pub(super) fn start(id: String, config: RunConfig, first: NewEntry, invoker: Option<Invoker>) -> (Kept, Outcome) {
        let (tenant, created_at, url) = (TENANT, NOW, "https://app.example/flow".to_owned());
        let new = NewRun { tenant, id, created_at, url, config, invoker, first };
        Kept::begin(Seq::next(Seq::MIN, NOW), |out| Workflow::start(new, out))
    }

    /// A new run that restarts this one.
    pub(super) fn again(&self, begin: impl FnOnce(&Record, &mut Outbox<'_>) -> Workflow) -> (Kept, Outcome) {
        let record = self.read();
        Kept::begin(self.last, |out| begin(&record, out))
    }

    fn begin(mut last: Seq, begin: impl FnOnce(&mut Outbox<'_>) -> Workflow) -> (Kept, Outcome) {
        let (workflow, changes, outcome) = caused(&mut last, begin);
        let (run, entries, notes) = (workflow.run.clone(), BTreeMap::new(), BTreeMap::new());
        let mut kept = Kept { workflow, run, entries, notes, last };
        kept.write(changes);
        (kept, outcome)
    }

    /// Lets the run make a decision.
    pub(super) fn decide<T>(&mut self, decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>) -> T) -> (T, Outcome) {
        let workflow = &mut self.workflow;
        let (decided, changes, outcome) = caused(&mut self.last, |out| decide(workflow, out));
        self.write(changes);
        (decided, outcome)
    }

    /// The bytes of a note.
    pub(super) fn note_body(&self, key: NoteKey) -> Bytes {
        self.notes[&key].body.clone()
    }

    /// The run with all bytes, as it is read from the store. It must be the run that made the decisions.
    pub(super) fn read(&self) -> Record {
        let read_entry = |(entry, body): &(Entry, Bytes)| {
            let (gist, terms) = (Arc::new(reread(&*entry.gist)), Arc::new(reread(&*entry.terms)));
            (Entry { gist, terms, delivery: reread(&entry.delivery), ..entry.clone() }, body.clone())
        };
        let entries = self.entries.values().map(read_entry).collect();
        let notes = self.notes.values().cloned().collect();
        let record = Record::restored(reread(&self.run), entries, notes).expect("what is stored can be read");
        assert_eq!(record.workflow, self.workflow, "what is read is what decided");
        record
    }

    fn write(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Run(run) => self.run = Run::clone(&run),
                Change::Entry { entry, body, .. } => drop(self.entries.insert(entry.index, (entry, body))),
                Change::Delivery { index, delivery, .. } => {
                    self.entries.get_mut(&index).expect("the entry is there").0.delivery = delivery;
                }
                Change::Note { note, .. } => drop(self.notes.insert(note.key, note)),
                Change::NoNote { key, .. } => assert!(self.notes.remove(&key).is_some(), "{key:?} is not there"),
                Change::Waiter(_) | Change::NoWaiter(_) => {}
            }
        }
    }
}

fn caused<T>(last: &mut Seq, act: impl FnOnce(&mut Outbox<'_>) -> T) -> (T, Vec<Change>, Outcome) {
    let mut next_id = || {
        *last = Seq(last.0 + 1);
        MessageId { seq: *last, tag: last.0 }
    };
    let mut out = Outbox::new(NOW, &mut next_id);
    let decided = act(&mut out);
    let Outbox { changes, messages, withdrawn, .. } = out;
    (decided, changes, Outcome { messages, withdrawn })
}

fn reread<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it can be written");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
