//! Hostile receivers, and what others notice of them.
//!
//! `catalogue` walks every receiver of `vectors/receivers.json`: publishes a message to it through a whole server
//! and says what must become of the message. Those that are a story rather than a script are in `stories`.
//! `isolation` and `overload` run the real binary and measure what healthy destinations,
//! other tenants and the server itself notice.
//! What one attempt brings is tested in `crates/delivery/tests/delivery`, with the same scripts.

mod catalogue;
mod isolation;
mod overload;
mod process;
mod stories;
mod world;

#[path = "../../../delivery/tests/delivery/cases.rs"]
mod cases;
#[path = "../../../delivery/tests/delivery/script.rs"]
mod script;
#[path = "../../../delivery/tests/delivery/secure_cases.rs"]
mod secure_cases;

/// Tests that start servers run one at a time: some of them measure.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
