//! Large publishes, which are stored in pieces.

use super::Judge;
use crate::command::RequestId;
use crate::store::Store;
use posthaste_wire::id::MessageId;

/// An owner that goes on has published the rest of a large publish by then.
const PATIENCE_MS: u64 = 10_000;

/// The pieces of a publish, in their order.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    decided: Vec<Vec<MessageId>>,
    epoch: u64,
    at_ms: u64,
}

impl Judge {
    /// A piece of a publish was decided; nothing of it is committed yet.
    pub(crate) fn piece_decided(&mut self, request: RequestId, ids: Vec<MessageId>, epoch: u64, now_ms: u64) {
        self.counts.pieces += 1;
        let pieces = self.pieces.entry(request).or_default();
        pieces.decided.push(ids);
        (pieces.epoch, pieces.at_ms) = (epoch, now_ms);
    }

    /// Each piece is stored whole or not at all, and none without those before it. An owner that goes on stores all of them.
    pub(super) fn check_pieces(&mut self, now_ms: u64, store: &Store) {
        let mut broken = None;
        for (request, Pieces { decided, epoch, at_ms }) in &self.pieces {
            let is_stored = |id: &&MessageId| store.message(**id).is_some();
            let mut is_missing = false;
            for ids in decided {
                let stored = ids.iter().filter(is_stored).count();
                if stored != 0 && (stored != ids.len() || is_missing) {
                    broken = broken.or(Some((ids.first().copied(), format!("{stored} of {} are there", ids.len()))));
                }
                is_missing |= stored != ids.len();
            }
            let is_late = *epoch == self.epoch && at_ms + PATIENCE_MS < now_ms;
            if is_late && !self.answered.contains(request) {
                broken = broken.or(Some((None, format!("request {} has never ended", request.0))));
            }
        }
        if let Some((about, text)) = broken {
            self.blame("a large publish is stored piece by piece, to its end", about, now_ms, || text);
        }
    }
}
