//! All decisions of the server: when a message may start, what happens after an attempt, what is stored, and what is
//! kept in RAM.
//!
//! Pure: no clock, no network, no disk, no async, no randomness. Time, ids and random numbers are arguments, so the
//! server and the tests run exactly the same code. Modules are in reading order.

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
