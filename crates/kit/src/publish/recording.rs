//! A queue that only remembers, for tests.

use super::message::Message;
use super::policy::PublishPolicy;
use super::{PublishFuture, Published, QueueService, Receipt, Route};
use crate::call::CallError;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most messages that are kept. Whatever comes after is refused, because a test that needs more has a loop.
pub const RECORDED_MAX: usize = 100_000;

/// Keeps what is published and delivers nothing. As at a server, a second message with the same dedup id makes nothing
/// new.
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
    /// What the next publishes end with; `None` takes one.
    script: VecDeque<Option<CallError>>,
}

impl RecordingQueue {
    /// What the next publishes end with, one each: an error, or `None` to take the message. Behind the last, all are
    /// taken.
    pub fn then(&self, outcomes: impl IntoIterator<Item = Option<CallError>>) {
        self.state().script.extend(outcomes);
    }

    /// All messages so far, in their order, without duplicates.
    pub fn messages(&self) -> Vec<Message> {
        self.state().messages.clone()
    }

    /// The same; they are forgotten, so that their like are none of their duplicates.
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
