//! The Posthaste server: durable, signed, retried, deduplicated HTTP message delivery that speaks the
//! QStash protocol. Modules in reading order; `ARCHITECTURE.md` has the map.

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
