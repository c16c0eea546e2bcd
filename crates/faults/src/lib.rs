//! How the process fails, on purpose and otherwise. This crate makes no decisions and knows no store, network or
//! tenant. Every crate that does I/O may use it.
//!
//! Start with [`panics`]: a panic fails one request or one attempt, or ends the process where that would be unsafe.
//! [`crash_point`] has the named places where the torture kills the process; they are empty in release builds.

pub mod panics;

pub mod crash_point;
