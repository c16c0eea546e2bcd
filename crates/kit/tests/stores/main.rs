//! The idempotency stores. One suite runs on memory, a real Redis and a real PostgreSQL. Others test each store when
//! its server dies, stalls, loses data or returns malformed data.
//!
//! Start at `conformance.rs` for the guarantees of every store, and at `crash.rs` for the effects on their users.

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
