//! The outbound side against real sockets: where it refuses to connect, what receivers get, and what
//! becomes of every way in which they can misbehave.
//!
//! Receivers are scripts on loopback (see `support`); nothing sleeps, slow receivers meet short timeouts.

mod cases;
mod long_answers;
mod receivers;
mod request;
mod reuse;
mod script;
mod secure_cases;
mod ssrf;
mod support;
mod tls;
