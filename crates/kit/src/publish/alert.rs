//! Alerts: the queue is unavailable, or a message needs attention.

use super::message::Message;
use crate::call::CallError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// An event that someone should know about. It is also logged as an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum Alert<'a> {
    /// The queue is unavailable: from now on messages go to the fallback.
    Outage {
        /// The message whose publish failed.
        message: &'a Message,
        /// The cause.
        error: &'a CallError,
    },
    /// The queue is available again.
    Recovered,
    /// The queue will never accept a message from the disk, or may have it already and must not get it twice. The
    /// message was set aside and needs attention.
    PutAside {
        /// The file that has the message now.
        file: &'a str,
        /// The cause.
        error: &'a CallError,
    },
}

/// A function that is called for every [`Alert`], on the task that detected it, so it should return quickly. A panic in
/// it is logged.
#[derive(Clone, Default)]
pub struct AlertHook(Option<Arc<Hook>>);

type Hook = dyn Fn(&Alert<'_>) + Send + Sync;

impl AlertHook {
    /// Creates a hook from a function.
    pub fn new(hook: impl Fn(&Alert<'_>) + Send + Sync + 'static) -> AlertHook {
        AlertHook(Some(Arc::new(hook)))
    }

    pub(super) fn fire(&self, alert: &Alert<'_>) {
        match alert {
            Alert::Outage { message, error } => {
                tracing::error!(?message, error = %error.chain(), "the queue is unavailable; using the fallback");
            }
            Alert::Recovered => tracing::info!("the queue is available again"),
            Alert::PutAside { file, error } => {
                tracing::error!(file, error = %error.chain(), "a message was set aside and needs attention");
            }
        }
        if let Some(hook) = &self.0 {
            // A panic of the hook must not lose a message.
            if catch_unwind(AssertUnwindSafe(|| hook(alert))).is_err() {
                tracing::error!("the hook for alerts panicked");
            }
        }
    }
}

impl fmt::Debug for AlertHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AlertHook")
    }
}
