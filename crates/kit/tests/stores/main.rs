//! The stores of idempotency: one suite, run on memory, a real Redis and a real PostgreSQL, and what each does when its
//! server dies, sleeps, forgets or talks malformed.
//!
//! Start at `conformance.rs` for what every store promises, and at `crash.rs` for what happens to those who use one.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod conformance;
mod crash;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_faults;
mod property;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_faults;
mod support;
#[cfg(feature = "postgres")]
mod table;
#[cfg(feature = "postgres")]
mod table_crash;
