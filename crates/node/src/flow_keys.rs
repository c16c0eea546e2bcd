//! Flow-control keys: they are changed, listed, and forgotten when nobody uses them any more.

use crate::host::Moment;
use crate::node::Node;
use crate::quota::QuotaExceeded;
use crate::reply::{ReadReply, Reply};
use posthaste_engine::flow::{FlowEdit, FlowInfo, FlowPage};
use posthaste_wire::id::TenantId;

/// A command about flow-control keys.
pub enum FlowCommand {
    /// Changes a key.
    Edit {
        /// The tenant that has it.
        tenant: TenantId,
        /// The key.
        key: String,
        /// The change.
        edit: FlowEdit,
        /// False if the key is unknown and the change does not make it.
        reply: Reply<Result<bool, QuotaExceeded>>,
    },
    /// Reads one key.
    Get {
        /// The tenant that has it.
        tenant: TenantId,
        /// The key.
        key: String,
        /// The key, if it is known.
        reply: ReadReply<Option<FlowInfo>>,
    },
    /// Reads a page of keys.
    List {
        /// The tenant that has them.
        tenant: TenantId,
        /// Which.
        page: FlowPage,
        /// In the order of the keys.
        reply: ReadReply<Vec<FlowInfo>>,
    },
}

impl Node {
    pub(crate) fn flow_command(&mut self, command: FlowCommand, moment: &mut Moment<'_>) {
        let now = moment.now;
        match command {
            FlowCommand::Edit { tenant, key, edit, reply } => {
                let is_new = !self.shard.has_flow(tenant, &key);
                if is_new && self.shard.flow_count(tenant) >= self.quotas.flow_keys {
                    return reply.refuse(self.flows_exceeded());
                }
                let is_known = self.shard.edit_flow(tenant, &key, edit, now, &mut self.batch.out);
                self.batch.reply(reply, Ok(is_known));
            }
            FlowCommand::Get { tenant, key, reply } => {
                let flow = self.shard.flow(tenant, &key, now);
                self.batch.reply_read(reply, flow);
            }
            FlowCommand::List { tenant, page, reply } => {
                let flows = self.shard.flows(tenant, &page, now);
                self.batch.reply_read(reply, flows);
            }
        }
    }
}
