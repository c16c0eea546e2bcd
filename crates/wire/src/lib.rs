//! What crosses the network, as types: parse once here, carry the type everywhere else.
//!
//! No I/O, no clock, no randomness: times and random bytes are arguments. Modules in reading order.

pub mod time;

pub mod id;

pub mod encoding;

pub mod redact;

pub mod signature;
