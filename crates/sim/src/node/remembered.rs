//! A run as an owner remembers it: what `core/run_cache.rs` of the server has of it.

use bytes::Bytes;
use posthaste_engine::workflow::entry::{Entry, array};
use posthaste_engine::workflow::{Change, Workflow};

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub workflow: Workflow,
    /// The bytes of its entries; `None` if only the store has them.
    pub bodies: Option<Vec<Bytes>>,
}

impl Remembered {
    /// A run as the store has it.
    pub(super) fn stored(workflow: Workflow) -> Remembered {
        Remembered { workflow, bodies: None }
    }

    /// A run that has just begun.
    pub(super) fn begun(workflow: Workflow) -> Remembered {
        Remembered { workflow, bodies: Some(Vec::new()) }
    }

    /// The run has decided something.
    pub(super) fn absorb(&mut self, changes: &[Change]) {
        let Some(bodies) = &mut self.bodies else { return };
        bodies.extend(changes.iter().filter_map(|change| match change {
            Change::Entry { body, .. } => Some(body.clone()),
            _ => None,
        }));
    }

    /// Its bytes have been read.
    pub(super) fn set_bodies(&mut self, list: Vec<(Entry, Bytes)>) {
        self.bodies = Some(list.into_iter().map(|(_, body)| body).collect());
    }

    /// The list up to this entry; `None` if it must be read.
    pub(super) fn array_up_to(&self, index: u32) -> Option<Bytes> {
        let shown = self.workflow.entries.iter().zip(self.bodies.as_ref()?).take(index as usize + 1);
        Some(Bytes::from(array(shown.map(|(entry, body)| (entry, &body[..])))))
    }

    /// How long the list up to this entry is.
    pub(super) fn array_bytes(&self, index: u32) -> usize {
        let shown = self.workflow.entries.iter().take(index as usize + 1);
        shown.map(|entry| 1 + entry.encoded_len()).sum::<usize>() + 1
    }
}
