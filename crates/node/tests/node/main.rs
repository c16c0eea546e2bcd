//! What a node reads, commits and answers, and in which order.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod bulk;
mod deliver_now;
mod driver;
mod pieces;
mod round;
mod schedules;
