//! How the process fails, on purpose and otherwise. It decides nothing, knows no store, no network and no tenant, and every
//! crate that does I/O may use it.
//!
//! Start with [`panics`]: a panic fails one request or one attempt, or ends the process where that would be unsafe.
//! [`crash_point`] has the named places at which the torture makes the process die; they are empty in release builds.

pub mod panics;

pub mod crash_point;
