//! The Posthaste server: durable, signed, retried, deduplicated HTTP message delivery that speaks the
//! QStash protocol. Modules in reading order; `ARCHITECTURE.md` has the map.
//!
//! Modules:
//!
//! - `main`, `simulate`: the command line
//! - `config`, `quotas`, `nearest`: every setting, what a tenant may have, and the name nearest to a typo
//! - `tenants`, `browsers`: tokens and their scopes; which web pages may call the API
//! - `server`, `app`: puts a server together; what request handlers can reach
//! - `http`, `sse`: the listener and its bounds; server-sent events
//! - `api`: one file per resource
//! - `console`: pages for people, made of the API's answers
//! - `core`, `bulk`: the core thread: reads and commits for the node; bulk actions in the background
//! - `reads`, `blocking`: fair shares of reads; work on blocking threads
//! - `keys`, `sealed`, `credentials`: signing keys; encryption at rest; credentials that are sent on
//! - `data_dir`, `token_uses`: the data directory and its free space; the last use of tokens
//! - `clock`: the only place that reads the wall clock and draws randomness
//! - `metrics`, `telemetry`, `pulse`: what is counted, logged and charted
//! - `dev_output`, `port_holder`, `receiver`: `posthaste dev`: its terminal and the test receiver

pub mod config;
mod nearest;

pub mod browsers;

pub mod quotas;

pub mod tenants;

pub mod server;
pub mod simulate;
// What `posthaste dev` prints.
pub mod dev_output;
pub mod port_holder;

pub mod app;

mod http;

#[doc(hidden)]
pub use http::fuzzing as http_fuzzing;

mod sse;

pub mod api;

mod console;

#[doc(hidden)]
pub use console::fuzzing as console_fuzzing;

mod receiver;

pub mod core;

mod blocking;
mod bulk;

pub mod reads;

pub mod keys;

pub mod sealed;

pub mod credentials;

pub mod data_dir;

mod token_uses;

pub mod clock;

pub mod metrics;

pub mod pulse;

pub mod telemetry;
