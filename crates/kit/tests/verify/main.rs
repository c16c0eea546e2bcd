//! Deliveries and webhooks as they arrive from the internet: the vectors, the transport, and the route from the first
//! byte to the response.

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
