//! The job handler as its queue meets it: deliveries in, answers out, and a store and a handler that say what they saw.
//!
//! `support` has the store that fails when told to, and the harness around one handler. Time is paused: nothing sleeps.

#![expect(clippy::unwrap_used, reason = "also helpers of tests end a test that cannot go on")]

mod acceptance;
mod http;
mod idempotency;
mod property;
mod replay;
mod support;
mod telemetry;
