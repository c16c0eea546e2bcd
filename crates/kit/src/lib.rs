//! Building blocks for handlers and publishers of a queue that delivers at least once.
//!
#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

// Modules:
// - `receiver`, `replay`, `body`: is a delivery signed, is it new, and its bytes within a bound
// - `job`, `webhook`: the two kinds of handlers
// - `idempotency`: what was done before: model, memory, Redis, PostgreSQL
// - `publish`: messages, the queues that take them, the spool
// - `retry`, `call`: attempts, and what their errors mean
// - `service`, `exchange`: calls of other services, and the one place that speaks HTTP
// - `problem`, `failure`: errors for callers and for queues
// - `propagation`, `telemetry`: trace context and observation
// - `testing`, `clock`, `secret`: doubles for tests, time, secrets

pub mod body;
pub mod call;
pub mod clock;
pub mod failure;
pub mod idempotency;
pub mod job;
pub mod problem;
pub mod propagation;
pub mod publish;
pub mod receiver;
pub mod retry;
#[cfg(feature = "client")]
pub mod service;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod webhook;

#[cfg(feature = "client")]
mod exchange;
mod replay;
mod secret;

#[cfg(feature = "client")]
pub use exchange::{CONNECT_TIMEOUT, SetupError};
pub use failure::{Failure, HandlerResult};
pub use receiver::{InvalidSigningKey, Receiver};
pub use secret::{EmptySecret, Secret};

/// The page about handlers. Its code runs as doctests.
#[cfg(all(doctest, feature = "client", feature = "redis", feature = "testing"))]
#[expect(rustdoc::invalid_codeblock_attributes, reason = "blocks of other languages have words for their own runner")]
#[doc = include_str!("../../../docs/handlers.md")]
mod handlers {}
