//! The runs that the core remembers, so that a step costs no read: the ones that were asked for last.
//!
//! What decisions need is small. The list that endpoints get is not, so it is kept only while it is short: of a long one the
//! lengths are known, and whoever sends it reads it from the store.

use bytes::Bytes;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::{Change, Workflow};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::workflow::CallType;
use std::collections::{BTreeMap, HashMap};

/// Bytes of remembered runs, more or less; of more, those are forgotten that nobody asked for the longest. The store
/// has them all.
const CACHE_BYTES_MAX: usize = 24 * 1024 * 1024;
/// At so many a batch is committed, so that some can be forgotten: what is not committed is nowhere else.
const OVERFULL_BYTES: usize = 2 * CACHE_BYTES_MAX;
/// A run that takes more is not worth forgetting many others for.
const LARGE_BYTES: usize = CACHE_BYTES_MAX / 4;
/// A list that is longer is not remembered.
const ARRAY_BYTES_MAX: usize = 1024 * 1024;
/// What a run takes besides its entries, its notes and the texts in all of them, and one of those, more or less.
const RUN_BYTES: usize = 6 * 1024;
const ENTRY_BYTES: usize = 1_536;
const NOTE_BYTES: usize = 1_024;

/// A remembered run.
pub(super) struct Cached {
    /// The run with its entries.
    pub(super) workflow: Workflow,
    /// The list as endpoints get it, without its last bracket; `None` if only the store has it.
    array: Option<Vec<u8>>,
    /// Where each entry ends in it.
    ends: Vec<usize>,
    /// The message of the first entry, which may be replaced.
    first: Option<MessageId>,
    /// What the texts of each entry take, and all together: of a long run only what has changed is weighed again.
    weights: Vec<usize>,
    entry_bytes: usize,
    /// What the texts of the run itself take.
    chosen_bytes: usize,
    bytes: usize,
    used: u64,
}

impl Cached {
    /// A run as the store has it.
    pub(super) fn stored(workflow: Workflow) -> Cached {
        let mut cached = Cached::of(workflow, None);
        cached.absorb(&[]);
        cached
    }

    /// A run that has just begun, and what it has decided.
    pub(super) fn begun(workflow: Workflow, changes: &[Change]) -> Cached {
        let mut cached = Cached::of(workflow, Some(Vec::new()));
        cached.first = cached.workflow.entries.first().map(|entry| entry.id);
        cached.absorb(changes);
        cached
    }

    fn of(workflow: Workflow, array: Option<Vec<u8>>) -> Cached {
        let chosen_bytes = workflow.chosen_bytes() as usize;
        let (ends, first, weights) = Default::default();
        Cached { workflow, array, ends, first, weights, entry_bytes: 0, chosen_bytes, bytes: 0, used: 0 }
    }

    /// The run has decided something.
    pub(super) fn absorb(&mut self, changes: &[Change]) {
        let first = self.workflow.entries.first().map(|entry| entry.id);
        if self.first != first {
            // All that is known of it may be in these changes.
            self.array = (self.first.is_some() && self.workflow.entries.len() == 1).then(Vec::new);
            self.first = first;
            self.ends.clear();
        }
        // Changes are in the order of the entries.
        let mut bodies = changes.iter().filter_map(|change| match change {
            Change::Entry { entry, body, .. } => Some((entry.id, body)),
            _ => None,
        });
        for entry in &self.workflow.entries[self.ends.len()..] {
            let start = self.ends.last().map_or(0, |end| *end);
            let body = bodies.find(|(id, _)| *id == entry.id).map(|(_, body)| body);
            let end = match (&mut self.array, body) {
                (Some(array), Some(body)) if start + body.len() <= ARRAY_BYTES_MAX => {
                    push(array, entry, body);
                    array.len()
                }
                _ => {
                    self.array = None;
                    start + 1 + entry.encoded_len()
                }
            };
            self.ends.push(end);
        }
        if !self.is_short() {
            self.array = None;
        }
        for change in changes {
            match change {
                Change::Entry { entry: Entry { index, .. }, .. } | Change::Delivery { index, .. } => {
                    self.reweigh(*index)
                }
                Change::Run(_) => self.chosen_bytes = self.workflow.chosen_bytes() as usize,
                _ => {}
            }
        }
        for entry in &self.workflow.entries[self.weights.len()..] {
            self.weights.push(entry.held_bytes() as usize);
            self.entry_bytes += entry.held_bytes() as usize;
        }
        self.weigh();
    }

    /// What is known of this entry may have changed, if it was weighed before.
    fn reweigh(&mut self, index: u32) {
        let entry = self.workflow.entries.get(index as usize);
        if let (Some(weight), Some(entry)) = (self.weights.get_mut(index as usize), entry) {
            self.entry_bytes -= *weight;
            *weight = entry.held_bytes() as usize;
            self.entry_bytes += *weight;
        }
    }

    /// The list has been read: all entries with their bytes.
    pub(super) fn set_array(&mut self, entries: &[(Entry, Bytes)]) {
        let mut array = Vec::with_capacity(self.array_bytes(u32::MAX));
        for (entry, body) in entries.iter().take(self.ends.len()) {
            push(&mut array, entry, body);
        }
        self.array = Some(array);
        self.weigh();
    }

    fn weigh(&mut self) {
        let Workflow { invokers, waits, invokes, early, .. } = &self.workflow;
        let notes = invokers.len() + waits.len() + invokes.len() + early.len();
        let array = self.array.as_ref().map_or(0, Vec::capacity);
        let texts = self.chosen_bytes + self.entry_bytes + self.workflow.noted_bytes() as usize;
        self.bytes = RUN_BYTES + array + self.ends.len() * ENTRY_BYTES + notes * NOTE_BYTES + texts;
    }

    /// The list up to this entry; `None` if it must be read.
    pub(super) fn array_up_to(&self, index: u32) -> Option<Bytes> {
        let part = &self.array.as_ref()?[..self.end_of(index)];
        let mut array = Vec::with_capacity(part.len() + 1);
        array.extend_from_slice(part);
        array.push(b']');
        Some(Bytes::from(array))
    }

    /// Whether the list is short enough to be remembered.
    pub(super) fn is_short(&self) -> bool {
        self.array_bytes(u32::MAX) <= ARRAY_BYTES_MAX
    }

    /// How long the list up to this entry is.
    pub(super) fn array_bytes(&self, index: u32) -> usize {
        self.end_of(index) + 1
    }

    /// Whether this entry is sent with all that was before it.
    pub(super) fn is_step(&self, index: u32) -> bool {
        let entry = self.workflow.entries.get(index as usize);
        entry.is_some_and(|entry| entry.terms.call_type == CallType::Step)
    }

    /// Whether its client fetches the list instead, because it is longer than this.
    pub(super) fn is_fetched(&self, index: u32, lazy_bytes: usize) -> bool {
        let features = self.workflow.run.config.features;
        // Clients that do not know `trigger_on_config` say that they can fetch, and cannot.
        let may_fetch = features.lazy_fetch && features.trigger_on_config;
        may_fetch && self.is_step(index) && self.array_bytes(index) > lazy_bytes
    }

    fn end_of(&self, index: u32) -> usize {
        self.ends.get(index as usize).or(self.ends.last()).copied().unwrap_or(0)
    }
}

fn push(array: &mut Vec<u8>, entry: &Entry, body: &[u8]) {
    array.push(if array.is_empty() { b'[' } else { b',' });
    array.extend_from_slice(&entry.encoded(body));
}

/// See the module's text.
#[derive(Default)]
pub(super) struct RunCache {
    runs: HashMap<Seq, Cached>,
    /// The newest run of each name, if it is remembered.
    names: HashMap<TenantId, HashMap<String, Seq>>,
    /// When each was used last.
    uses: BTreeMap<u64, Seq>,
    last_use: u64,
    bytes: usize,
}

impl RunCache {
    /// The newest run of this name, if it is remembered.
    pub(super) fn find(&self, tenant: TenantId, id: &str) -> Option<&Workflow> {
        let no = self.names.get(&tenant)?.get(id)?;
        self.runs.get(no).map(|cached| &cached.workflow)
    }

    pub(super) fn get(&self, no: Seq) -> Option<&Cached> {
        self.runs.get(&no)
    }

    /// To be put back: what is taken is not remembered.
    pub(super) fn take(&mut self, no: Seq) -> Option<Cached> {
        let cached = self.runs.remove(&no)?;
        self.uses.remove(&cached.used);
        self.bytes -= cached.bytes;
        Some(cached)
    }

    pub(super) fn put(&mut self, mut cached: Cached) {
        self.last_use += 1;
        cached.used = self.last_use;
        let run = &cached.workflow.run;
        let names = self.names.entry(run.tenant).or_default();
        if names.get(&run.id).is_none_or(|known| *known <= run.no) {
            names.insert(run.id.clone(), run.no);
        }
        self.uses.insert(cached.used, run.no);
        self.bytes += cached.bytes;
        self.runs.insert(run.no, cached);
    }

    /// Whether so much is remembered that it is time to commit, and to forget.
    pub(super) fn is_overfull(&self) -> bool {
        self.bytes > OVERFULL_BYTES
    }

    /// What a remembered run takes, more or less.
    pub(super) fn bytes_of(&self, no: Seq) -> usize {
        self.runs.get(&no).map_or(0, |cached| cached.bytes)
    }

    /// Everything is committed: what is too much may be forgotten.
    pub(super) fn trim(&mut self) {
        // One that is very large goes by itself, and not after all others.
        let newest = self.uses.last_key_value().map(|(_, no)| *no);
        let is_large = |no: &Seq| self.runs.get(no).is_some_and(|cached| cached.bytes > LARGE_BYTES);
        if let Some(no) = newest.filter(|no| self.bytes > CACHE_BYTES_MAX && is_large(no)) {
            self.forget(no);
        }
        while self.bytes > CACHE_BYTES_MAX
            && let Some((_, no)) = self.uses.first_key_value()
        {
            self.forget(*no);
        }
    }

    fn forget(&mut self, no: Seq) {
        let Some(cached) = self.take(no) else { return };
        let run = &cached.workflow.run;
        if let Some(names) = self.names.get_mut(&run.tenant)
            && names.get(&run.id) == Some(&run.no)
        {
            names.remove(&run.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_engine::event::Response;
    use posthaste_engine::outcome::Outcome;
    use posthaste_engine::retry::Next;
    use posthaste_engine::workflow::entry::{OwnTerms, array};
    use posthaste_engine::workflow::run::{RunConfig, Trigger};
    use posthaste_engine::workflow::{Attempt, Limits, NewEntry, NewRun, Outbox, WaitFor, Waited};
    use posthaste_wire::time::Timestamp;
    use posthaste_wire::workflow::Features;

    const LIMITS: Limits = Limits { entries: u32::MAX, bytes: u64::MAX, duration_ms: u64::MAX };

    /// A remembered run, and what the store has of it.
    struct Story {
        cached: Cached,
        stored: Vec<(Entry, Bytes)>,
        last: Seq,
    }

    impl Story {
        fn new() -> Story {
            let mut last = Seq::MIN;
            let config = RunConfig { trigger: Trigger::UnknownClient, ..RunConfig::default() };
            let new = NewRun {
                tenant: TenantId(1),
                id: "wfr_1".into(),
                created_at: Timestamp(5),
                url: "http://app/".into(),
                config,
                invoker: None,
                first: NewEntry::step(Bytes::from_static(b"payload"), Vec::new(), Timestamp(5)),
            };
            let mut next_id = || next(&mut last);
            let mut out = Outbox::new(Timestamp(5), &mut next_id);
            let workflow = Workflow::start(new, &mut out);
            let changes = out.changes;
            let mut story = Story { cached: Cached::begun(workflow, &changes), stored: Vec::new(), last };
            story.write(changes);
            story
        }

        fn decide(&mut self, decide: impl FnOnce(&mut Workflow, &mut Outbox<'_>)) {
            let last = &mut self.last;
            let mut next_id = || next(last);
            let mut out = Outbox::new(Timestamp(6), &mut next_id);
            decide(&mut self.cached.workflow, &mut out);
            let changes = out.changes;
            self.cached.absorb(&changes);
            self.write(changes);
        }

        fn append(&mut self, bytes: usize) {
            let body = Bytes::from(vec![b'x'; bytes + self.stored.len()]);
            let entry = NewEntry::step(body, Vec::new(), Timestamp(6));
            self.decide(|workflow, out| drop(workflow.append(vec![entry], &LIMITS, out).expect("accepted")));
        }

        fn write(&mut self, changes: Vec<Change>) {
            for change in changes {
                if let Change::Entry { entry, body, .. } = change {
                    self.stored.truncate(entry.index as usize);
                    self.stored.push((entry, body));
                }
            }
        }

        /// Every list is what the store would make of it, or unknown, as it must be.
        fn check(&self, is_known: bool) {
            for index in 0..self.stored.len() {
                let shown = self.stored[..=index].iter().map(|(entry, body)| (entry, &body[..]));
                let (expected, index) = (array(shown), index as u32);
                assert_eq!(self.cached.array_bytes(index), expected.len());
                assert_eq!(self.cached.array_up_to(index), is_known.then(|| Bytes::from(expected)));
            }
        }
    }

    fn next(last: &mut Seq) -> MessageId {
        *last = Seq::next(*last, Timestamp(5));
        MessageId { seq: *last, tag: last.0 }
    }

    #[test]
    fn a_short_list_is_remembered_and_a_long_one_only_by_its_lengths() {
        let mut story = Story::new();
        for bytes in [0, 1, 2, 3_000] {
            story.append(bytes);
            story.check(true);
        }
        assert!(story.cached.is_short());
        let small = story.cached.bytes;
        story.append(ARRAY_BYTES_MAX);
        story.append(1);
        story.check(false);
        assert!(!story.cached.is_short());
        assert!(story.cached.bytes < small + 3 * ENTRY_BYTES, "its bytes are not remembered");
    }

    #[test]
    fn a_run_weighs_what_is_known_of_it_whatever_was_decided_before() {
        const LONG: usize = 50_000;
        let mut story = Story::new();
        let mut weight = story.cached.bytes;
        let mut grows = |story: &Story, what: &str| {
            let anew = Cached::stored(story.cached.workflow.clone());
            let array = story.cached.array.as_ref().map_or(0, Vec::capacity);
            assert_eq!(story.cached.bytes - array, anew.bytes, "{what}");
            let grown = story.cached.bytes as i64 - weight as i64;
            weight = story.cached.bytes;
            grown
        };
        let long = || "x".repeat(LONG);
        let text = serde_json::json!({ "stepId": 1, "stepName": long() }).as_object().cloned().expect("an object");
        let wait = WaitFor {
            event: "e".to_owned(),
            step: text,
            timeout: "1d".to_owned(),
            timeout_ms: 1,
            headers: vec![("A".to_owned(), vec![long()])],
            terms: OwnTerms::default(),
        };
        story.decide(|workflow, out| {
            let waited = workflow.wait(wait, |_| Err(()), &LIMITS, out);
            assert_eq!(waited, Ok(Ok(Waited::Waiting)));
        });
        assert!(grows(&story, "waits") > 2 * LONG as i64);
        let headers = vec![("A".to_owned(), long())];
        let entry = NewEntry::step(Bytes::from_static(b"{}"), headers, Timestamp(6));
        story.decide(|workflow, out| drop(workflow.append(vec![entry], &LIMITS, out).expect("accepted")));
        assert!(grows(&story, "has headers") > LONG as i64);
        let failed = Response { status: 500, headers: vec![("A".to_owned(), long())], ..Response::default() };
        let outcome = Outcome { result: Ok(failed), duration_ms: 1, phases: None };
        let attempt = |next| Attempt { outcome: &outcome, retried: 0, next, sent: b"" };
        story.decide(|workflow, out| workflow.attempted(1, attempt(Next::RetryAt(Timestamp(7))), out));
        assert!(grows(&story, "has failed once") > LONG as i64);
        story.decide(|workflow, out| drop(workflow.notify("e", b"", out).expect("it waits")));
        assert!(grows(&story, "has heard") < 0, "what it waited for is gone");
        story.decide(|workflow, out| workflow.attempted(1, attempt(Next::DeadLetter), out));
        grows(&story, "has failed for good");
    }

    #[test]
    fn what_is_remembered_is_known_to_be_too_much_and_can_be_forgotten() {
        let mut cache = RunCache::default();
        let mut count = 0;
        while !cache.is_overfull() {
            let mut story = Story::new();
            story.append(ARRAY_BYTES_MAX / 2);
            count += 1;
            story.cached.workflow.run.no = Seq(count);
            cache.put(story.cached);
        }
        assert!(count < 200, "{count} lists of half a megabyte");
        cache.trim();
        assert!(cache.bytes <= CACHE_BYTES_MAX && !cache.is_overfull());
    }

    #[test]
    fn a_list_that_was_forgotten_is_remembered_once_it_was_read() {
        let mut story = Story::new();
        story.append(10);
        story.cached = Cached::stored(story.cached.workflow.clone());
        story.check(false);
        story.append(20);
        story.check(false);
        assert!(story.cached.is_short());
        story.cached.set_array(&story.stored);
        story.check(true);
        story.append(30);
        story.check(true);
    }

    #[test]
    fn a_first_entry_that_is_replaced_begins_the_list_anew() {
        for is_known in [true, false] {
            let mut story = Story::new();
            if !is_known {
                story.append(10);
            }
            story.decide(|workflow, out| {
                let (body, kind) = (Bytes::from_static(b"decoded"), "text/plain".to_owned());
                assert!(workflow.restart_by_client(body, kind, Vec::new(), Features::default(), out));
            });
            story.check(is_known);
            if is_known {
                story.append(5);
                story.check(true);
            }
        }
    }
}
