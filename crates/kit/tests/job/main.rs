//! The job handler as its queue sees it: deliveries, responses, and a store and a handler that record their calls.
//!
//! `support` has a store that fails on demand, and the harness around one handler. Time is paused, and nothing sleeps.

#![expect(clippy::unwrap_used, reason = "also helpers of tests end a test that cannot go on")]

mod acceptance;
mod http;
mod idempotency;
mod property;
mod replay;
mod support;
mod telemetry;
