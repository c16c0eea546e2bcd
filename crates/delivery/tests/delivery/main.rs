//! Outgoing requests against real sockets: refused destinations, the requests that receivers get, and the outcome of
//! every kind of misbehaviour.
//!
//! Receivers are scripts on loopback (see `support`). Nothing sleeps; slow receivers are tested with short timeouts.

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
