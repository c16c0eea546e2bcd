//! All decisions of the server: when a message may start, what happens after an attempt, what is stored, and what is
//! kept in RAM.
//!
//! Pure: no clock, no network, no disk, no async, no randomness. Time, ids and random numbers are arguments, so the
//! server and the tests run exactly the same code. Modules are in reading order.
//!
//! Modules:
//!
//! - `message`: a message and its live row
//! - `event`: states, log lines, and the ops that the store writes
//! - `shard`: the state machine of timing, order and limits; it holds all of the following
//! - `lanes`: fair turns and caps per destination
//! - `queues`, `flows`: which messages may start by their queue and their flow-control key
//! - `queue`, `flow`: what is stored of a queue and of a flow-control key
//! - `fair_share`: the part of its tenant's room that a destination may take
//! - `load_queue`: what is loaded from the store next
//! - `why`: what a message waits for, in a sentence
//! - `outcome`, `attempt_error`: the result of an attempt, and its errors in words for people
//! - `retry`: the decision after an attempt: done, retry, dead letter
//! - `callback`, `ending`: messages that report an attempt, and what is stored at its end
//! - `dedup`: keys of duplicates
//! - `url_group`: URL groups and their changes
//! - `schedule`: when a schedule fires
//! - `workflow`: runs, their entries and waits
//! - `bulk_action`, `cause`: changes of many messages, and what dead letters have in common
//! - `lease`: the owner of a shard, for several nodes
//! - `limits`: every bound
//! - `planted`: bugs for the simulation's own test
//!
//! # The conditions of a start
//!
//! A stored message starts when all of these allow it, in this order. `shard` decides; the store only loads the next rows.
//!
//! 1. **Its time.** A message that is due within a minute has a timer in RAM. The rest stays in the store and is loaded later.
//! 2. **Its turn**, in a queue (`queues`). A queue has as many slots as its parallelism. A message takes a slot when it is first,
//!    and keeps it through all retries. Its callbacks share its turn, so the slot is free after the last of them has ended.
//! 3. **Its flow-control key** (`flows`), which counts messages in flight and recent starts.
//! 4. **Its destination** (`lanes`), which has a cap. A message whose key allows it while its destination is busy waits in the
//!    lane of the destination, so that it does not hold up its key.
//! 5. **Room**: caps on attempts and bytes, per tenant and in all. Tenants take turns, and so do the lanes of a tenant. A
//!    destination may take less of its tenant's room the less is left (`fair_share`), so slow destinations leave some.
//!
//! A lane keeps a bounded number of messages in RAM. Further ones are *spilled*: they stay in the store until the lane has room.

pub mod message;

pub mod event;

pub mod outcome;

pub mod cause;

pub mod retry;

pub mod dedup;

pub mod url_group;

pub mod queue;

pub mod flow;

pub mod schedule;

pub mod bulk_action;

pub mod callback;

pub mod workflow;

pub mod lease;

pub mod shard;

pub mod attempt_error;

pub mod why;

mod ending;

mod lanes;

mod fair_share;

mod queues;

mod flows;

mod load_queue;

pub mod limits;

pub mod planted;
