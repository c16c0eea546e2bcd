//! The Posthaste server: modules in reading order.

pub mod store;
