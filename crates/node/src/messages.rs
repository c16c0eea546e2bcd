//! Messages: they are published and cancelled, and their attempts end.

use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::new_message::NewMessage;
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::reply::Reply;
use crate::weight::stored_bytes;
use posthaste_engine::message::{DedupKey, Message};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::shard::{Accepted, AttemptEnd, Chance, Publish, Storage};
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::collections::HashSet;
use std::sync::Arc;

/// A command about messages.
pub enum MessageCommand {
    /// Stores messages, all or none.
    Publish {
        /// In the order of the answer.
        messages: Vec<NewMessage>,
        /// What became of each.
        reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
    },
    /// Stores messages in pieces, in their order: too many for one batch. [`crate::Round::push`] decides which publishes are.
    PublishInPieces {
        /// In the order of the answer.
        messages: Vec<NewMessage>,
        /// What became of each.
        reply: Reply<Result<Vec<Accepted>, QuotaExceeded>>,
    },
    /// Cancels messages.
    Cancel {
        /// Only its messages are cancelled.
        tenant: TenantId,
        /// Which.
        ids: Vec<MessageId>,
        /// Those that were live, and not cancelled before.
        reply: Reply<Vec<MessageId>>,
    },
}

impl MessageCommand {
    pub(crate) fn needs_truth(&self) -> bool {
        match self {
            MessageCommand::Cancel { .. } => true,
            MessageCommand::Publish { .. } | MessageCommand::PublishInPieces { .. } => false,
        }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        match self {
            MessageCommand::Publish { messages, .. } => Wanted::of_publish(messages),
            MessageCommand::PublishInPieces { .. } => Wanted::default(),
            MessageCommand::Cancel { tenant, ids, .. } => {
                let live = ids.iter().map(|id| (*tenant, *id)).collect();
                Wanted { live, ..Wanted::default() }
            }
        }
    }
}

impl Wanted {
    /// What must be known to publish messages.
    pub fn of_publish<'a>(messages: impl IntoIterator<Item = &'a NewMessage>) -> Wanted {
        Wanted { duplicates: keys(messages), ..Wanted::default() }
    }
}

/// The keys of messages that may be duplicates.
pub(crate) fn keys<'a>(messages: impl IntoIterator<Item = &'a NewMessage>) -> Vec<(TenantId, DedupKey)> {
    messages.into_iter().filter_map(|message| Some((message.tenant, message.dedup?))).collect()
}

/// The end of an attempt, and the ids that its callbacks have or would have had.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What becomes of the message.
    pub end: AttemptEnd,
    /// The id for its callback.
    pub callback: MessageId,
    /// The id for its failure callback.
    pub failure_callback: MessageId,
}

impl Node {
    pub(crate) fn message_command(&mut self, command: MessageCommand, facts: &Facts, moment: &mut Moment<'_>) {
        match command {
            MessageCommand::Publish { messages, reply } => {
                if let Err(exceeded) = self.check_quotas(messages.iter()) {
                    return reply.refuse(exceeded);
                }
                let accepted = self.publish(messages, reply.tag(), facts, moment);
                self.batch.reply(reply, Ok(accepted));
            }
            MessageCommand::PublishInPieces { messages, reply } => self.publish_in_pieces(messages, reply),
            MessageCommand::Cancel { tenant, ids, reply } => {
                let cancelled = self.cancel(tenant, &ids, facts, moment);
                self.batch.reply(reply, cancelled);
            }
        }
    }

    /// Gives messages their ids and hands them to the engine, unless they are duplicates.
    pub fn publish(
        &mut self,
        messages: Vec<NewMessage>,
        tag: u64,
        facts: &Facts,
        moment: &mut Moment<'_>,
    ) -> Vec<Accepted> {
        self.batch.body_bytes += stored_bytes(&messages);
        let accept = |message: NewMessage| {
            let stored = message.dedup.and_then(|key| facts.duplicates.get(&(message.tenant, key)).copied());
            self.accept(message, stored, None, moment)
        };
        let accepted: Vec<Accepted> = messages.into_iter().map(accept).collect();
        moment.host.published(tag, &accepted);
        accepted
    }

    /// Gives a message its id and hands it to the engine. The caller counts the bytes of its body.
    pub fn accept(
        &mut self,
        new: NewMessage,
        stored: Option<MessageId>,
        replaces: Option<DlqId>,
        moment: &mut Moment<'_>,
    ) -> Accepted {
        let (id, now) = (self.next_id(moment), moment.now);
        let NewMessage { tenant, spec, body, first_due, origin, dedup } = new;
        let message = Arc::new(Message { id, tenant, created_at: now, not_before: first_due.time(now), spec, body });
        let dedup = dedup.map(|key| (key, stored));
        let publish = Publish { message, origin, dedup, replaces };
        self.shard.publish(publish, now, &mut self.batch.out)
    }

    /// Cancels messages, and returns those that were live and not cancelled before. The facts must be the truth.
    pub fn cancel(
        &mut self,
        tenant: TenantId,
        ids: &[MessageId],
        facts: &Facts,
        moment: &mut Moment<'_>,
    ) -> Vec<MessageId> {
        let mut seen = HashSet::with_capacity(ids.len());
        let ids = ids.iter().filter(|id| seen.insert(**id));
        let rows: Vec<_> = ids.filter_map(|id| facts.live.get(&(tenant, *id)).copied()).collect();
        let cancelled = self.shard.cancel(&rows, moment.now, &mut self.batch.out);
        moment.host.cancelled(&cancelled);
        cancelled
    }

    /// An attempt of a plain message has ended.
    pub fn attempt_ended(
        &mut self,
        message: &Message,
        outcome: Outcome,
        storage: Storage,
        moment: &mut Moment<'_>,
    ) -> Ended {
        let random = moment.host.random();
        let (callback, failure_callback) = (self.next_id(moment), self.next_id(moment));
        let chance = Chance { random, callback, failure_callback, storage };
        let end = self.shard.ended(message, outcome, chance, moment.now, &mut self.batch.out);
        Ended { end, callback, failure_callback }
    }
}
