//! A queue with a fallback.

use super::alert::{Alert, AlertHook};
use super::message::Message;
use super::spool::Spool;
use super::{PublishFuture, Published, QueueService};
use crate::call::CallError;
use crate::propagation::Propagator;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Default pause after an outage. During the pause, messages go to the fallback immediately, without waiting for a
/// timeout.
pub const OUTAGE_PAUSE: Duration = Duration::from_secs(5);

/// Publishes to one queue, and to a fallback if the queue is unavailable.
///
/// The queue is unavailable if [`CallError::is_outage`]: no connection, no response in time, 408, 425, 429, 5xx. If
/// the queue rejects a message, the fallback is not tried. When `publish` returns `Ok`, one of the two has the
/// message. When it returns an error, possibly neither has it. Both can have it if the queue accepted it and the
/// response was lost; the deduplication id and the handler's idempotency then make it one. A message with
/// [`Dedup::Off`](super::Dedup::Off), or a batch with one, goes to the fallback only if the queue
/// [cannot have it](CallError::is_untouched); otherwise the error is returned.
///
/// ```
/// use posthaste_kit::call::CallError;
/// use posthaste_kit::publish::{FallbackQueue, InlineQueue, Message, QueueService, RecordingQueue, Route};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let first = Arc::new(RecordingQueue::default());
/// first.then([Some(CallError::network("connection refused"))]);
/// let queue = FallbackQueue::new(first, InlineQueue::new(|_message| async { Ok(()) }));
/// let published = queue.publish(&Message::bytes("https://app.example.com/job", "key", "body")).await?;
/// assert_eq!(published.route, Route::Inline);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FallbackQueue {
    first: Named,
    second: Second,
    pause: Duration,
    alerts: AlertHook,
    propagator: Option<Propagator>,
    outage: Mutex<Option<Instant>>,
}

struct Named(Arc<dyn QueueService>);

#[derive(Debug)]
enum Second {
    Spool(Arc<Spool>),
    Any(Named),
}

impl Second {
    fn service(&self) -> &dyn QueueService {
        match self {
            Second::Spool(spool) => &**spool,
            Second::Any(service) => &*service.0,
        }
    }
}

impl FallbackQueue {
    /// Creates a queue with a fallback.
    pub fn new(first: impl QueueService, second: impl QueueService) -> FallbackQueue {
        FallbackQueue::of(Arc::new(first), Second::Any(Named(Arc::new(second))))
    }

    /// Uses the disk as the fallback. [`drain`](Spool::drain) must run to publish its messages to the queue. Messages
    /// of a FIFO queue keep their order: while any message is on the disk, they go there too.
    pub fn with_spool(first: impl QueueService, spool: Arc<Spool>) -> FallbackQueue {
        FallbackQueue::of(Arc::new(first), Second::Spool(spool))
    }

    fn of(first: Arc<dyn QueueService>, second: Second) -> FallbackQueue {
        FallbackQueue {
            first: Named(first),
            second,
            pause: OUTAGE_PAUSE,
            alerts: AlertHook::default(),
            propagator: None,
            outage: Mutex::new(None),
        }
    }

    /// Sets a hook that is called when the queue becomes unavailable, and when it is available again.
    pub fn alerts(mut self, hook: AlertHook) -> FallbackQueue {
        self.alerts = hook;
        self
    }

    /// Sets the pause after an outage. Default: [`OUTAGE_PAUSE`]. Zero tries the queue for every message.
    pub fn pause(mut self, pause: Duration) -> FallbackQueue {
        self.pause = pause;
        self
    }

    /// Adds the trace context and the request id to messages that have none. They are those of the publish even if a
    /// message waits on the disk.
    pub fn propagator(mut self, propagator: Propagator) -> FallbackQueue {
        self.propagator = Some(propagator);
        self
    }

    async fn send(&self, message: &Message) -> Result<Published, CallError> {
        let propagated = self.propagated(message);
        let message = propagated.as_ref().unwrap_or(message);
        if self.goes_second(message) {
            return self.second.service().publish(message).await;
        }
        match self.first.0.publish(message).await {
            Err(error) if error.is_outage() => {
                self.note_outage(message, &error);
                if !message.is_repeatable_after(&error) {
                    return Err(error);
                }
                // If the second one fails as well, the error of the first would be lost.
                self.second.service().publish(message).await.inspect_err(|_| {
                    tracing::error!(error = %error.chain(), "the queue is unavailable, and the fallback failed too");
                })
            }
            outcome => {
                // A message that was rejected before it was sent says nothing about the queue.
                if outcome.as_ref().map_or_else(|error| error.status().is_some(), |_| true) {
                    self.note_answer();
                }
                outcome
            }
        }
    }

    async fn send_all(&self, messages: &[Message]) -> Result<Vec<Result<Published, CallError>>, CallError> {
        let all: Vec<Message> =
            messages.iter().map(|message| self.propagated(message).unwrap_or_else(|| message.clone())).collect();
        if all.iter().any(|message| self.goes_second(message)) {
            return self.second.service().publish_all(&all).await;
        }
        let mut results = match (self.first.0.publish_all(&all).await, all.first()) {
            (Err(error), Some(message)) if error.is_outage() => {
                self.note_outage(message, &error);
                if !all.iter().all(|message| message.is_repeatable_after(&error)) {
                    return Err(error);
                }
                return self.second.service().publish_all(&all).await;
            }
            (outcome, _) => outcome?,
        };
        let mut is_there = true;
        for (result, message) in results.iter_mut().zip(&all) {
            if let Err(error) = result
                && error.is_outage()
            {
                is_there = false;
                self.note_outage(message, error);
                if message.is_repeatable_after(error) {
                    *result = self.second.service().publish(message).await;
                }
            }
        }
        if is_there {
            self.note_answer();
        }
        Ok(results)
    }

    fn propagated(&self, message: &Message) -> Option<Message> {
        let headers = self.propagator.as_ref()?.headers();
        let mut message = message.clone();
        message.propagate(&headers);
        Some(message)
    }

    /// Whether the message goes to the fallback without trying the first.
    fn goes_second(&self, message: &Message) -> bool {
        let is_left_alone = self.outage().is_some_and(|until| Instant::now() < until);
        let would_overtake =
            matches!(&self.second, Second::Spool(spool) if message.queue().is_some() && !spool.is_quiet());
        is_left_alone || would_overtake
    }

    fn note_outage(&self, message: &Message, error: &CallError) {
        let until = Instant::now().checked_add(self.pause);
        let is_new = { std::mem::replace(&mut *self.outage(), until).is_none() };
        if is_new {
            self.alerts.fire(&Alert::Outage { message, error });
        }
    }

    fn note_answer(&self) {
        let was_away = { self.outage().take().is_some() };
        if was_away {
            self.alerts.fire(&Alert::Recovered);
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<Instant>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueService for FallbackQueue {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        Box::pin(self.send(message))
    }

    fn publish_all<'a>(&'a self, messages: &'a [Message]) -> PublishFuture<'a, Vec<Result<Published, CallError>>> {
        Box::pin(self.send_all(messages))
    }
}

impl std::fmt::Debug for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueService")
    }
}

#[cfg(test)]
mod tests;
