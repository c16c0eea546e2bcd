//! Dead letters: they are deleted, or published again.

use crate::facts::{Facts, Wanted};
use crate::host::Moment;
use crate::messages::keys;
use crate::new_message::NewMessage;
use crate::node::Node;
use crate::reply::Reply;
use posthaste_engine::shard::Accepted;
use posthaste_wire::id::{DlqId, TenantId};
use std::collections::HashSet;

/// A command about dead letters.
pub enum DeadLetterCommand {
    /// Deletes dead letters.
    Delete {
        /// Only its dead letters are deleted.
        tenant: TenantId,
        /// Which.
        ids: Vec<DlqId>,
        /// Those that existed.
        reply: Reply<Vec<DlqId>>,
    },
    /// Publishes dead letters again.
    Replay {
        /// Only its dead letters are published.
        tenant: TenantId,
        /// In the order of the answer.
        replays: Vec<Replay>,
        /// What became of each; `None` for one that does not exist.
        reply: Reply<Vec<Option<Accepted>>>,
    },
}

/// A dead letter to publish again.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The dead letter; it is deleted when the new message is stored.
    pub dlq_id: DlqId,
    /// The new message.
    pub message: NewMessage,
}

impl DeadLetterCommand {
    pub(crate) fn wanted(&self) -> Wanted {
        match self {
            DeadLetterCommand::Delete { tenant, ids, .. } => wanted(*tenant, ids.iter().copied()),
            DeadLetterCommand::Replay { tenant, replays, .. } => Wanted::of_replays(*tenant, replays),
        }
    }
}

fn wanted(tenant: TenantId, ids: impl Iterator<Item = DlqId>) -> Wanted {
    Wanted { dead_letters: ids.map(|id| (tenant, id)).collect(), ..Wanted::default() }
}

impl Wanted {
    /// What must be known to publish dead letters again.
    pub fn of_replays(tenant: TenantId, replays: &[Replay]) -> Wanted {
        let duplicates = keys(replays.iter().map(|replay| &replay.message));
        Wanted { duplicates, ..wanted(tenant, replays.iter().map(|replay| replay.dlq_id)) }
    }
}

impl Node {
    pub(crate) fn dead_letter_command(&mut self, command: DeadLetterCommand, facts: &Facts, moment: &mut Moment<'_>) {
        match command {
            DeadLetterCommand::Delete { tenant, ids, reply } => {
                let deleted = self.delete_dead_letters(tenant, ids, facts);
                self.batch.reply(reply, deleted);
            }
            DeadLetterCommand::Replay { tenant, replays, reply } => {
                let tag = reply.tag();
                let accepted = self.replay(tenant, replays, tag, facts, moment);
                self.batch.reply(reply, accepted);
            }
        }
    }

    /// Deletes dead letters, and returns those that existed. The facts must be the truth.
    pub fn delete_dead_letters(&mut self, tenant: TenantId, mut ids: Vec<DlqId>, facts: &Facts) -> Vec<DlqId> {
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| facts.dead_letters.contains(&(tenant, *id)));
        self.shard.delete_dead_letters(tenant, &ids, &mut self.batch.out);
        ids
    }

    /// Publishes dead letters again, each at most once. The facts must be the truth.
    pub fn replay(
        &mut self,
        tenant: TenantId,
        replays: Vec<Replay>,
        tag: u64,
        facts: &Facts,
        moment: &mut Moment<'_>,
    ) -> Vec<Option<Accepted>> {
        let mut replayed = HashSet::new();
        let mut publish = |Replay { dlq_id, message }: Replay| {
            let exists = facts.dead_letters.contains(&(tenant, dlq_id)) && replayed.insert(dlq_id);
            exists.then(|| {
                self.batch.body_bytes += message.body.len();
                let stored = message.dedup.and_then(|key| facts.duplicates.get(&(message.tenant, key)).copied());
                let accepted = self.accept(message, stored, Some(dlq_id), moment);
                moment.host.replayed(tag, (tenant, dlq_id), accepted);
                accepted
            })
        };
        replays.into_iter().map(&mut publish).collect()
    }
}
