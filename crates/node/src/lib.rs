//! What one node does with commands: it decides by the engine, and gathers what follows until the next commit.
//!
//! The server's core thread and the simulator drive the same code. A driver gives commands to a [`Round`], reads what the round
//! asks for, and commits the [`Batch`]; the commit releases the replies and the effects. See [`Round::next`].
//!
//! This crate has no clock, no network, no disk, no threads and no randomness, and it cannot call a store: a command says what
//! must be read ([`Wanted`]), and gets it as [`Facts`]. A reply cannot be sent before the commit: see [`Reply`].
//!
//! Start at `round.rs`. Each family of commands has a file: `messages.rs`, `deliver_now.rs`, `dead_letters.rs`, `queues.rs`, `flow_keys.rs`,
//! `schedules.rs`; `bulk.rs`. `firing.rs` fires schedules, `pieces.rs` stores large publishes in turns. Workflow runs are still in the
//! server and use [`Node::shard`] and [`Node::batch`].
//!
//! Modules:
//!
//! - `node`, `host`, `bounds`: the state, what surrounds it, and how much it does at once
//! - `round`, `facts`: commands that are decided together, and what is read for them
//! - `batch`, `reply`: what waits for the commit
//! - `messages`, `deliver_now`, `dead_letters`, `queues`, `flow_keys`, `schedules`, `bulk`: families of commands
//! - `firing`, `pieces`, `turns`: schedules whose time has come, and large publishes in turns
//! - `new_message`, `weight`, `quota`: a message before it has an id, the bytes it stores, and quotas

mod batch;
mod bounds;
mod bulk;
mod dead_letters;
mod deliver_now;
mod facts;
mod firing;
mod flow_keys;
mod host;
mod messages;
mod new_message;
mod node;
mod pieces;
mod queues;
mod quota;
mod reply;
mod round;
mod schedules;
mod turns;
mod weight;

pub use batch::{Batch, Committed, Done, Uncommitted};
pub use bounds::{BATCH_BYTES_MAX, Bounds};
pub use bulk::{BulkDone, BulkPiece, PutBulkAction};
pub use dead_letters::{DeadLetterCommand, Replay};
pub use deliver_now::{DeliverNow, DeliverNowRefused, DeliverStep};
pub use facts::{DueSchedules, Facts, Wanted};
pub use firing::{Firing, messages_of};
pub use flow_keys::FlowCommand;
pub use host::{Host, Moment, NoRoom, TakenRoom};
pub use messages::{Ended, MessageCommand};
pub use new_message::{FirstDue, NewMessage};
pub use node::{Command, Node, next_id};
pub use pieces::Turn;
pub use queues::{QueueCommand, QueueSettings};
pub use quota::{QuotaExceeded, Quotas};
pub use reply::{ReadReply, Reply};
pub use round::{Next, Progress, Round};
pub use schedules::ScheduleCommand;
pub use turns::Turns;
pub use weight::{entry_bytes, failure_bytes, header_bytes, spec_bytes, stored_bytes, wait_bytes};
