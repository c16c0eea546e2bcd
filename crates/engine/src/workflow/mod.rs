//! Durable workflows: a run is a list of entries that only grows. Delivering an entry to the run's endpoint executes
//! the next step.
//!
//! [`Workflow`] decides the effect of an append, an event, a timeout, a response of the endpoint, or an end. It changes
//! the run, and appends to [`Outbox`] what the store must write and what follows. **All of an outbox is one
//! transaction.** A delivery is a message like any other, so the shard handles its retries, limits and order.
//!
//! Modules in reading order.
//!
//! The delivery of an entry is a message of the shard, with its time, key, destination and retries. Its outcome returns to the run
//! instead of the logs and the DLQ, and its body, all entries up to its own, is put together when it is sent. The deadline of a
//! wait is a message that goes nowhere. A failed run is its own dead letter.
//!
//! [`Workflow`] has no bodies: those of entries, and the notes of a run (early events, payloads of invoked runs, its result), are
//! rows that are written once and read by those who show or send them ([`Record`]).

pub mod entry;

pub mod run;

pub mod note;

mod outbox;

mod request;

mod room;

mod machine;

mod waits;

mod ending;

mod resume;

mod callback;

mod message;

mod record;

pub use machine::Workflow;
pub use message::{Part, StepRef};
pub use outbox::{Change, Consequences, Notice, Outbox, Rebound, Waiter};
pub use record::{Record, Undecodable};
pub use request::{Attempt, Limits, NewEntry, NewRun, Refusal, Resolved, WaitFor, Waited};
pub use resume::Overrides;
pub use room::ERROR_STEP_NAME;
