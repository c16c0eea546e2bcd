//! Durable workflows: a run is a list of entries that only grows. Delivering an entry to the run's endpoint executes
//! the next step.
//!
//! [`Workflow`] decides the effect of an append, an event, a timeout, a response of the endpoint, or an end. It changes
//! the run, and appends to [`Outbox`] what the store must write and what follows. **All of an outbox is one
//! transaction.** A delivery is a message like any other, so the shard handles its retries, limits and order.
//!
//! Modules in reading order.

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
