//! The readers of this module that take bytes from outside, for the targets of `fuzz/`. Nothing else calls them.

pub use super::dlq::fuzzing::{DeadLetters, dead_letters};
pub use super::messages::fuzzing::{MessageList, messages};
pub use super::send::fuzzing::{Sent, sent};
