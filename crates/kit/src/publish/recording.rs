//! A queue that records messages, for tests.

use super::message::Message;
use super::policy::PublishPolicy;
use super::{PublishFuture, Published, QueueService, Receipt, Route};
use crate::call::CallError;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of recorded messages. Further ones are rejected, because a test that needs more probably loops.
pub const RECORDED_MAX: usize = 100_000;

/// Records published messages and delivers nothing. As on a server, a second message with the same deduplication id is
/// a duplicate.
///
/// ```
/// use posthaste_kit::publish::{Message, QueueService, RecordingQueue};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = RecordingQueue::default();
/// let message = Message::json("https://app.example.com/jobs/mail", "mail:u_7:welcome", &json!({ "to": "u_7" }))?;
/// queue.publish(&message).await?;
/// assert!(queue.publish(&message).await?.is_duplicate());
/// assert_eq!(queue.messages(), [message]);
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct RecordingQueue {
    policy: PublishPolicy,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    messages: Vec<Message>,
    /// The results of the next publishes; `None` accepts the message.
    script: VecDeque<Option<CallError>>,
}

impl RecordingQueue {
    /// Sets the results of the next publishes: an error, or `None` to accept the message. All further publishes are
    /// accepted.
    pub fn then(&self, outcomes: impl IntoIterator<Item = Option<CallError>>) {
        self.state().script.extend(outcomes);
    }

    /// All messages so far, in order, without duplicates.
    pub fn messages(&self) -> Vec<Message> {
        self.state().messages.clone()
    }

    /// Returns all messages and clears the record, so that new messages are not duplicates of them.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.state().messages)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, message: &Message) -> Result<Published, CallError> {
        message.check(&self.policy)?;
        let mut state = self.state();
        if let Some(Some(error)) = state.script.pop_front() {
            return Err(error);
        }
        let is_same = |known: &Message| message.dedup_id().is_some_and(|id| known.dedup_id() == Some(id));
        let known = state.messages.iter().position(is_same);
        if known.is_none() && state.messages.len() >= RECORDED_MAX {
            return Err(CallError::invalid(format!("more than {RECORDED_MAX} messages were recorded")));
        }
        let place = known.unwrap_or(state.messages.len());
        let receipt = Receipt { deduplicated: known.is_some(), ..Receipt::new(format!("msg_recorded_{place}")) };
        if known.is_none() {
            state.messages.push(message.clone());
        }
        Ok(Published::by(Route::Recording, vec![receipt]))
    }
}

impl QueueService for RecordingQueue {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        let result = self.record(message);
        Box::pin(async move { result })
    }
}
