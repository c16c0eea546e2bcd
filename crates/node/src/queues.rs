//! Queues: they are made, changed, paused and deleted.

use crate::host::Moment;
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::reply::Reply;
use posthaste_wire::id::TenantId;

/// A command about a queue.
pub enum QueueCommand {
    /// Makes a queue or changes it.
    Put {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its name.
        name: String,
        /// Its settings from now on.
        settings: QueueSettings,
        /// Sent when it is stored.
        reply: Reply<Result<(), QuotaExceeded>>,
    },
    /// Pauses or resumes a queue.
    Pause {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its name.
        name: String,
        /// Whether to pause it.
        paused: bool,
        /// Whether there is a queue of this name.
        reply: Reply<bool>,
    },
    /// Deletes a queue. Attempts that are in flight end in a fresh one. Its messages must be cancelled before.
    Delete {
        /// The tenant that has it.
        tenant: TenantId,
        /// Its name.
        name: String,
        /// Sent when it is stored.
        reply: Reply<()>,
    },
}

/// The settings of a queue, as a caller asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How many of its messages may be in flight at once.
    pub parallelism: u32,
    /// While this is set, nothing starts.
    pub paused: bool,
}

impl Node {
    pub(crate) fn queue_command(&mut self, command: QueueCommand, moment: &mut Moment<'_>) {
        let now = moment.now;
        match command {
            QueueCommand::Put { tenant, name, settings, reply } => {
                let is_new = self.shard.queue(tenant, &name).is_none();
                if is_new && self.shard.queue_count(tenant) >= self.quotas.queues {
                    return reply.refuse(self.queues_exceeded());
                }
                let QueueSettings { parallelism, paused } = settings;
                self.shard.put_queue(tenant, &name, parallelism, paused, now, &mut self.batch.out);
                self.batch.reply(reply, Ok(()));
            }
            QueueCommand::Pause { tenant, name, paused, reply } => {
                let queue = self.shard.queue(tenant, &name);
                let exists = queue.is_some();
                if let Some(queue) = queue.filter(|queue| queue.paused != paused) {
                    let parallelism = queue.parallelism;
                    self.shard.put_queue(tenant, &name, parallelism, paused, now, &mut self.batch.out);
                    moment.host.queue_changed();
                }
                self.batch.reply(reply, exists);
            }
            QueueCommand::Delete { tenant, name, reply } => {
                self.shard.delete_queue(tenant, &name, now, &mut self.batch.out);
                self.batch.reply(reply, ());
            }
        }
    }
}
