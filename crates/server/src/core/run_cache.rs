//! The runs that the core remembers, so that a step costs no read: the ones that were asked for last.

use bytes::Bytes;
use posthaste_engine::workflow::Workflow;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::workflow::CallType;
use std::collections::{BTreeMap, HashMap};

/// Bytes of remembered runs, more or less; of more, those are forgotten that nobody asked for the longest. The store
/// has them all.
const CACHE_BYTES_MAX: usize = 24 * 1024 * 1024;
/// A run that takes more is not worth forgetting many others for.
const LARGE_BYTES: usize = CACHE_BYTES_MAX / 4;
/// What a run takes besides its entries, and an entry besides its bytes, more or less.
const RUN_BYTES: usize = 6 * 1024;
const ENTRY_BYTES: usize = 1_536;

/// A remembered run.
pub(super) struct Cached {
    /// The run with its entries.
    pub(super) workflow: Workflow,
    /// The list as endpoints get it, without its last bracket.
    array: Vec<u8>,
    /// Where each entry ends in it.
    ends: Vec<usize>,
    /// The message of the first entry, which may be replaced.
    first: Option<MessageId>,
    bytes: usize,
    used: u64,
}

impl Cached {
    pub(super) fn new(workflow: Workflow) -> Cached {
        let (array, ends) = (Vec::new(), Vec::new());
        let mut cached = Cached { workflow, array, ends, first: None, bytes: 0, used: 0 };
        cached.refresh();
        cached
    }

    /// The run has decided something.
    pub(super) fn refresh(&mut self) {
        let first = self.workflow.entries.first().map(|entry| entry.id);
        if self.first != first {
            self.first = first;
            self.array.clear();
            self.ends.clear();
        }
        for entry in &self.workflow.entries[self.ends.len()..] {
            self.array.push(if self.ends.is_empty() { b'[' } else { b',' });
            self.array.extend_from_slice(&entry.encoded());
            self.ends.push(self.array.len());
        }
        let run = &self.workflow.run;
        let failure = run.failure.as_ref().and_then(|failure| failure.response.as_ref());
        let ends = run.result.as_ref().map_or(0, String::len) + failure.map_or(0, |response| response.body.len());
        self.bytes =
            ends + RUN_BYTES + self.array.capacity() + self.workflow.bytes() as usize + self.ends.len() * ENTRY_BYTES;
    }

    /// The list up to this entry.
    pub(super) fn array_up_to(&self, index: u32) -> Bytes {
        let part = &self.array[..self.end_of(index)];
        let mut array = Vec::with_capacity(part.len() + 1);
        array.extend_from_slice(part);
        array.push(b']');
        Bytes::from(array)
    }

    /// How long that is.
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
        self.ends.get(index as usize).copied().unwrap_or(self.array.len())
    }
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
        cached.refresh();
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
