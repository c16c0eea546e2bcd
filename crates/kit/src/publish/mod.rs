//! Publishing: what leaves the program to be delivered by a queue, and what happens when there is none.
//!
//! Write a [`Message`], give it to a [`QueueService`]. The services, in the order in which one meets them:
//!
//! | service | what it does |
//! |---|---|
//! | `QueueClient` (feature `client`) | publishes over HTTP, to Posthaste or QStash |
//! | [`RecordingQueue`] | keeps what is published, for tests |
//! | [`InlineQueue`] | runs the handler in this process, at once |
//! | [`Spool`] | keeps messages on the disk, to be published later |
//! | [`FallbackQueue`] | asks one, and another if the first is not there |

mod alert;
#[cfg(feature = "client")]
mod client;
mod dedup;
mod fallback;
mod inline;
mod message;
mod policy;
mod recording;
#[cfg(feature = "client")]
mod resources;
mod spool;

pub use alert::{Alert, AlertHook};
#[cfg(feature = "client")]
pub use client::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, HOSTED_URL, LIST_BYTES_MAX, QueueClient};
pub use dedup::{DEDUP_ID_BYTES_MAX, DEDUP_WINDOW, Dedup, DedupId};
pub use fallback::{FallbackQueue, OUTAGE_PAUSE};
pub use inline::{INLINE_TIMEOUT, InlineQueue};
pub use message::{FlowControl, HEADER_BYTES_MAX, LABELS_MAX, LINES_MAX, MESSAGE_BYTES_MAX, Message, URL_BYTES_MAX};
pub use policy::{PublishPolicy, RETRIES, RETRY_DELAY};
pub use recording::{RECORDED_MAX, RecordingQueue};
#[cfg(feature = "client")]
pub use resources::{
    DeadLetter, DeadLetterFilter, DeadLetterPage, DeadLetters, Endpoint, Queue, Queues, Schedule, Schedules,
    StoredMessage, UrlGroup, UrlGroups,
};
pub use spool::{DRAIN_EVERY, Drained, SPOOL_BYTES_MAX, SPOOL_MESSAGES_MAX, Spool, SpoolError, SpoolLimits};

use crate::call::CallError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A future that a queue returns.
pub type PublishFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send + 'a>>;

/// Takes messages. When it answers `Ok`, the message is in good hands: stored by a server, on the disk, or done.
pub trait QueueService: Send + Sync + 'static {
    /// Publishes a message.
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published>;

    /// Publishes several, in their order, and says of each what became of it. An error of the whole says that none was
    /// taken, or that nobody knows.
    fn publish_all<'a>(&'a self, messages: &'a [Message]) -> PublishFuture<'a, Vec<Result<Published, CallError>>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(messages.len());
            for message in messages {
                results.push(self.publish(message).await);
            }
            Ok(results)
        })
    }
}

impl<Q: QueueService + ?Sized> QueueService for Arc<Q> {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        (**self).publish(message)
    }

    fn publish_all<'a>(&'a self, messages: &'a [Message]) -> PublishFuture<'a, Vec<Result<Published, CallError>>> {
        (**self).publish_all(messages)
    }
}

/// A message that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Who took it.
    pub route: Route,
    /// What it became: one message, or one for each endpoint of a URL group. Empty for what is on the disk still.
    pub receipts: Vec<Receipt>,
}

impl Published {
    pub(crate) fn by(route: Route, receipts: Vec<Receipt>) -> Published {
        Published { route, receipts }
    }

    /// The id of the message; the first one's if there are several.
    pub fn message_id(&self) -> Option<&str> {
        self.receipts.first().map(|receipt| receipt.message_id.as_str())
    }

    /// Whether it had been published before, and nothing new was made.
    pub fn is_duplicate(&self) -> bool {
        !self.receipts.is_empty() && self.receipts.iter().all(|receipt| receipt.deduplicated)
    }
}

/// Who took a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// The queue.
    Queue,
    /// The handler, in this process: it is done.
    Inline,
    /// The disk: it is published as soon as the queue is there again.
    Spool,
    /// A list, for tests.
    Recording,
}

/// One message at the queue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Receipt {
    /// Its id.
    pub message_id: String,
    /// The endpoint of a URL group that it goes to.
    #[serde(default)]
    pub url: Option<String>,
    /// Whether it was there before.
    #[serde(default)]
    pub deduplicated: bool,
}

impl Receipt {
    pub(crate) fn new(message_id: impl Into<String>) -> Receipt {
        Receipt { message_id: message_id.into(), url: None, deduplicated: false }
    }
}
