//! Deliveries and webhooks as the internet sends them: the vectors, the transport, and the route from its first byte
//! to its answer.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod handler;
mod logs;
mod publish;
mod running;
mod support;
mod timing;
#[cfg(feature = "axum")]
mod transport;
mod vectors;
