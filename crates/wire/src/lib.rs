//! Types for everything that crosses the network. Parse once here, then pass the types around.
//!
//! No I/O, no clock, no randomness: times and random bytes are arguments. The modules are in reading order.
//!
//! Modules:
//!
//! - `time`, `id`, `encoding`: points in time, ids, text encodings
//! - `header`, `boolean`, `duration`, `redact`, `flow_control`, `setting`, `forward`: values of headers
//! - `retry_delay`, `retry_after`: when to retry
//! - `cron`: when a schedule fires
//! - `destination`: rules for paths and queries
//! - `publish`: all headers of a publish at once
//! - `workflow`: what clients of workflows send
//! - `rejection`, `echo`: why a value is rejected, and the value as errors repeat it
//! - `signature`: signing keys and signed claims

pub mod time;

pub mod id;

pub mod encoding;

pub mod echo;

pub mod header;

pub mod boolean;

pub mod duration;

#[cfg(feature = "server")]
pub mod cron;

pub mod retry_delay;

pub mod retry_after;

pub mod redact;

pub mod signature;

pub mod destination;

pub mod rejection;

pub mod flow_control;

#[cfg(feature = "server")]
mod forward;

#[cfg(feature = "server")]
mod setting;

#[cfg(feature = "server")]
pub mod publish;

pub mod workflow;
