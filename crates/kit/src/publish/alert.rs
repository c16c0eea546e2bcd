//! Telling somebody that the queue is not there, or that a message needs a person.

use super::message::Message;
use crate::call::CallError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Something that somebody should know. It is logged as an error in any case.
#[derive(Debug)]
#[non_exhaustive]
pub enum Alert<'a> {
    /// The queue is not there: messages go elsewhere from now on.
    Outage {
        /// The message that found it out.
        message: &'a Message,
        /// Why.
        error: &'a CallError,
    },
    /// The queue is there again.
    Recovered,
    /// A message on the disk will never be taken by the queue, or may have been and must not be published twice. It was
    /// put aside and needs a person.
    PutAside {
        /// The file that it is in now.
        file: &'a str,
        /// Why.
        error: &'a CallError,
    },
}

/// Is called for every [`Alert`], on the task that found out: it should return soon. If it panics, that is logged.
#[derive(Clone, Default)]
pub struct AlertHook(Option<Arc<Hook>>);

type Hook = dyn Fn(&Alert<'_>) + Send + Sync;

impl AlertHook {
    /// Calls this.
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
            // Messages are in the middle of their way: nothing that it does may cost one.
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
