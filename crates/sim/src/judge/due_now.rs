//! Messages that somebody wants to be delivered now.

use super::Judge;
use crate::store::Store;
use posthaste_engine::event::State;
use posthaste_engine::message::Live;
use posthaste_node::DeliverNowRefused;
use posthaste_wire::id::MessageId;

impl Judge {
    /// It was answered that a message is due now, or why it is not.
    pub(super) fn due_now(
        &mut self,
        id: MessageId,
        outcome: Result<(), DeliverNowRefused>,
        now_ms: u64,
        store: &Store,
    ) {
        let Some(row) = store.live_row(id) else { return };
        match outcome {
            Err(DeliverNowRefused::Queued) if row.place.is_none() => {
                self.blame("only a message of a queue waits for its turn", Some(id), now_ms, || format!("{row:?}"));
            }
            Ok(()) if row.place.is_some() => {
                self.blame("a message of a queue waits for its turn", Some(id), now_ms, || format!("{row:?}"));
            }
            Ok(()) if waits_for_first(&row, store) => {
                // Of a message that was due already nothing was written, and it may be a callback that a power cut undoes.
                let (latest, is_on_disk) = (self.latest, store.is_row_on_disk(id) || !store.is_on_disk(id));
                if !row.is_due(latest) || !is_on_disk {
                    self.blame("a message that is delivered now is due, on disk", Some(id), now_ms, || {
                        format!("it is due at {}, the clock shows {latest}, on disk: {is_on_disk}", row.due)
                    });
                }
                self.counts.due_now += 1;
                self.promised_due.insert(id, row.due);
            }
            _ => {}
        }
    }

    /// Does a message that was to be delivered now wait again?
    pub(super) fn check_due_now(&mut self, now_ms: u64, store: &Store) {
        let promised = std::mem::take(&mut self.promised_due);
        let waits = |id: &MessageId| store.live_row(*id).filter(|row| waits_for_first(row, store));
        self.promised_due = promised.into_iter().filter(|(id, _)| waits(id).is_some()).collect();
        let late = self.promised_due.iter().find(|(id, due)| waits(id).is_some_and(|row| row.due > **due));
        if let Some((id, due)) = late.map(|(id, due)| (*id, *due)) {
            self.blame("nothing that was answered is lost", Some(id), now_ms, || format!("it was due at {due}"));
        }
    }
}

/// Whether nothing was attempted yet. The time of a retry may be newer than the answer.
fn waits_for_first(row: &Live, store: &Store) -> bool {
    row.retried == 0 && !row.cancel_requested && (row.is_step || store.states.get(&row.id) == Some(&State::Created))
}
