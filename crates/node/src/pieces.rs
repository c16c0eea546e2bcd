//! Large publishes are stored in pieces, which take turns: a bounded amount of work, then the commands of others, then the next
//! pieces. The reply leaves when the last piece is committed.
//!
//! Pieces are committed in their order: a crash in between leaves the first of them stored, as a crash before the reply always
//! may. What all pieces of a turn want to know is read at once.

use crate::bounds::Bounds;
use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::new_message::NewMessage;
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::reply::Reply;
use crate::round::Progress;
use crate::turns::Turns;
use crate::weight::stored_bytes;
use posthaste_engine::message::is_same_body;
use posthaste_engine::planted::{self, Bug};
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::TenantId;
use std::collections::{HashMap, VecDeque};

/// Small messages that one turn has room for.
const TURN_MESSAGES: usize = 512;
/// Small pieces that one turn has room for.
const TURN_PIECES: usize = 128;

/// Publishes that are not stored yet.
#[derive(Default)]
pub(crate) struct Publishes {
    turns: Turns<u64>,
    by_number: HashMap<u64, Publish>,
    /// Numbers given so far.
    count: u64,
}

struct Publish {
    /// Those that are in no piece yet.
    messages: VecDeque<NewMessage>,
    accepted: Vec<Accepted>,
    reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
}

/// Pieces that are decided together.
pub struct Turn {
    pieces: VecDeque<Piece>,
    facts: Option<Facts>,
}

struct Piece {
    publish: u64,
    messages: Vec<NewMessage>,
    is_last: bool,
}

impl Node {
    /// Whether a publish is stored in pieces.
    pub(crate) fn is_large(&self, messages: &[NewMessage]) -> bool {
        messages.len() > self.bounds.batch_messages || stored_bytes(messages) > self.bounds.batch_bytes
    }

    pub(crate) fn publish_in_pieces(
        &mut self,
        messages: Vec<NewMessage>,
        reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
    ) {
        if let Err(exceeded) = self.check_quotas(messages.iter()) {
            return reply.refuse(exceeded);
        }
        let Some(tenant) = messages.first().map(|message| message.tenant) else { return };
        let accepted = Vec::with_capacity(messages.len());
        let number = self.publishes.count;
        self.publishes.count += 1;
        self.publishes.by_number.insert(number, Publish { messages: messages.into(), accepted, reply });
        self.publishes.turns.push(tenant, number);
    }

    /// Whether pieces wait for their turn.
    pub fn has_turns(&self) -> bool {
        !self.publishes.turns.is_empty()
    }

    /// The pieces of the next turn; `None` if there are none. Nothing may be uncommitted, and nothing else may be decided before
    /// the turn is done and committed.
    pub fn next_turn(&mut self) -> Option<Turn> {
        let (mut pieces, mut cost) = (VecDeque::new(), 0);
        while cost < self.bounds.turn_bytes
            && let Some((tenant, piece)) = self.publishes.next_piece(&self.bounds)
        {
            let bytes =
                stored_bytes(&piece.messages).max(piece.messages.len() * self.bounds.turn_bytes / TURN_MESSAGES);
            cost += bytes + self.bounds.turn_bytes / TURN_PIECES;
            if !piece.is_last {
                self.publishes.turns.push(tenant, piece.publish);
            }
            pieces.push_back(piece);
        }
        (!pieces.is_empty()).then_some(Turn { pieces, facts: None })
    }

    fn publish_piece(&mut self, piece: Piece, facts: &Facts, moment: &mut Moment<'_>) {
        let accepted = self.publish(piece.messages, 0, facts, moment);
        let Some(publish) = self.publishes.by_number.get_mut(&piece.publish) else { return };
        moment.host.piece_published(publish.reply.tag(), &accepted);
        publish.accepted.extend(accepted);
        if piece.is_last || planted::has(Bug::AnsweredAfterFirstPiece) {
            let Some(Publish { accepted, reply, .. }) = self.publishes.by_number.remove(&piece.publish) else { return };
            self.batch.reply(reply, Ok(accepted));
        }
    }
}

impl Publishes {
    /// Takes the next piece of the publish whose turn it is.
    fn next_piece(&mut self, bounds: &Bounds) -> Option<(TenantId, Piece)> {
        let (tenant, number) = self.turns.pop()?;
        let messages = &mut self.by_number.get_mut(&number)?.messages;
        let piece = messages.drain(..piece_length(messages, bounds)).collect();
        let is_last = messages.is_empty() || planted::has(Bug::PiecesForgotten);
        Some((tenant, Piece { publish: number, messages: piece, is_last }))
    }
}

impl Turn {
    /// Decides the next piece, or says what must happen before.
    pub fn next(&mut self, node: &mut Node, moment: &mut Moment<'_>) -> Progress {
        let Some(facts) = &self.facts else {
            let messages = self.pieces.iter().flat_map(|piece| &piece.messages);
            let wanted = Wanted::of_publish(messages);
            if !wanted.is_empty() {
                return Progress::Read(wanted);
            }
            self.facts = Some(Facts::default());
            return Progress::Decided;
        };
        let Some(piece) = self.pieces.pop_front() else { return Progress::Done };
        node.publish_piece(piece, facts, moment);
        Progress::Decided
    }

    /// What was read for [`Progress::Read`].
    pub fn found(&mut self, facts: Facts) {
        self.facts = Some(facts);
    }
}

/// How many of these messages are the next piece. Messages that share a body stay together, so that it is stored once.
fn piece_length(messages: &VecDeque<NewMessage>, bounds: &Bounds) -> usize {
    let mut bytes = 0;
    let mut before: Option<&NewMessage> = None;
    for (count, message) in messages.iter().enumerate() {
        let is_same = before.is_some_and(|before| is_same_body(&before.body, &message.body));
        if !is_same && (count >= bounds.piece_messages || bytes >= bounds.piece_bytes) {
            return count;
        }
        bytes += stored_bytes([message]) - if is_same { message.body.len() } else { 0 };
        before = Some(message);
    }
    messages.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::new_message::FirstDue;
    use bytes::Bytes;
    use posthaste_engine::message::{MessageSpec, Origin};

    fn message(body: Bytes) -> NewMessage {
        let (tenant, spec) = (TenantId(1), MessageSpec::default());
        NewMessage { tenant, origin: Origin(1), spec, body, first_due: FirstDue::Now, dedup: None }
    }

    #[test]
    fn a_piece_is_bounded_in_messages_and_bytes_and_keeps_shared_bodies_together() {
        let bounds = Bounds::default();
        let (max, bytes_max) = (bounds.piece_messages, bounds.piece_bytes);
        let small: VecDeque<_> = (0..2 * max + 1).map(|_| message(Bytes::new())).collect();
        assert_eq!(piece_length(&small, &bounds), max);
        let large: VecDeque<_> = (0..3).map(|_| message(Bytes::from(vec![0; bytes_max]))).collect();
        assert_eq!(piece_length(&large, &bounds), 1);
        let body = Bytes::from(vec![0; bytes_max]);
        let mut shared: VecDeque<_> = (0..100).map(|_| message(body.clone())).collect();
        shared.push_back(message(Bytes::new()));
        assert_eq!(piece_length(&shared, &bounds), 100, "a body that 100 messages share counts once");
        assert!(stored_bytes(&shared) < bytes_max + 101 * 1024);
        assert_eq!(piece_length(&VecDeque::new(), &bounds), 0);
    }
}
