//! Helpers for tests of your handlers: deliveries and webhooks with valid signatures, a manual clock, and a queue that
//! can be scripted to misbehave.
//!
//! ```
//! use posthaste_kit::testing::{ManualClock, TestDelivery};
//! use posthaste_kit::Receiver;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = ManualClock::new();
//! let receiver = Receiver::for_development("sig_1", "sig_2")?.at_base("https://app.example.com").clock(clock.clock());
//! let delivery = TestDelivery::to("https://app.example.com/jobs/mail").body(r#"{"to":"ada@example.com"}"#);
//! let request = delivery.sign("sig_1", clock.now());
//! assert!(receiver.verify(request.headers(), request.uri(), delivery.bytes()).is_ok());
//! # Ok(()) }
//! ```

mod clock;
mod delivery;
mod queue;
pub mod webhook;

pub use clock::ManualClock;
pub use delivery::TestDelivery;
pub use queue::{Attempt, Ended, Report, ScriptedQueue, Step};
