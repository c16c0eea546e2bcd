//! Publishing messages to a queue, and fallbacks for when it is unavailable.
//!
//! Create a [`Message`] and pass it to a [`QueueService`]. The services:
//!
//! | service | what it does |
//! |---|---|
//! | `QueueClient` (feature `client`) | publishes over HTTP to Posthaste or QStash |
//! | [`RecordingQueue`] | keeps published messages, for tests |
//! | [`InlineQueue`] | runs the handler in this process immediately |
//! | [`Spool`] | keeps messages on disk, to publish them later |
//! | [`FallbackQueue`] | publishes to one service, and to another if the first is unavailable |

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

/// A queue. After `Ok` the message is stored by a server, stored on disk, or handled.
pub trait QueueService: Send + Sync + 'static {
    /// Publishes a message.
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published>;

    /// Publishes several messages in order, with a result for each. An error of the whole batch means that none was
    /// accepted, or that the outcome is unknown.
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

/// The result of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The service that accepted the message.
    pub route: Route,
    /// The stored messages: one, or one for each endpoint of a URL group. Empty while the message is on disk.
    pub receipts: Vec<Receipt>,
}

impl Published {
    pub(crate) fn by(route: Route, receipts: Vec<Receipt>) -> Published {
        Published { route, receipts }
    }

    /// Id of the message, or of the first one if there are several.
    pub fn message_id(&self) -> Option<&str> {
        self.receipts.first().map(|receipt| receipt.message_id.as_str())
    }

    /// Whether the message is a duplicate, so that nothing new was stored.
    pub fn is_duplicate(&self) -> bool {
        !self.receipts.is_empty() && self.receipts.iter().all(|receipt| receipt.deduplicated)
    }
}

/// The service that accepted a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// The queue.
    Queue,
    /// The handler in this process; it has finished.
    Inline,
    /// The disk; the message is published when the queue is available again.
    Spool,
    /// The list of a [`RecordingQueue`].
    Recording,
}

/// A message stored by the queue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Receipt {
    /// Its id.
    pub message_id: String,
    /// URL of the endpoint, for messages of a URL group.
    #[serde(default)]
    pub url: Option<String>,
    /// Whether the message is a duplicate of an earlier one.
    #[serde(default)]
    pub deduplicated: bool,
}

impl Receipt {
    pub(crate) fn new(message_id: impl Into<String>) -> Receipt {
        Receipt { message_id: message_id.into(), url: None, deduplicated: false }
    }
}
