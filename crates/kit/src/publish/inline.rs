//! A queue that runs the handler in this process.

use super::message::Message;
use super::policy::PublishPolicy;
use super::{PublishFuture, Published, QueueService, Receipt, Route};
use crate::call::CallError;
use crate::failure::{Failure, HandlerResult};
use http::HeaderMap;
use posthaste_wire::encoding::hex;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Default time limit of a handler. After that the publish fails, and the handler is stopped at its next await point.
pub const INLINE_TIMEOUT: Duration = Duration::from_secs(30);

type Handler = dyn Fn(Message) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> + Send + Sync;

/// Runs the handler in this process before `publish` returns: for development, for tests, and as the fallback of a
/// [`FallbackQueue`](super::FallbackQueue).
///
/// The handler gets one attempt, without the checks of a delivery. It must be idempotent, as behind a real queue.
/// Delayed messages are rejected with an [outage](CallError::is_outage).
///
/// ```
/// use posthaste_kit::publish::{InlineQueue, Message, QueueService};
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = InlineQueue::new(|message: Message| async move {
///     let job: Value = message.parse()?;
///     println!("a mail to {}", job["to"]);
///     Ok(())
/// });
/// let job = json!({ "to": "u_7" });
/// queue.publish(&Message::json("https://app.example.com/jobs/mail", "mail:u_7:welcome", &job)?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct InlineQueue {
    handler: Arc<Handler>,
    timeout: Duration,
    policy: PublishPolicy,
}

impl InlineQueue {
    /// Runs this function for every message.
    pub fn new<F, A>(handler: F) -> InlineQueue
    where
        F: Fn(Message) -> A + Send + Sync + 'static,
        A: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = Arc::new(move |message| Box::pin(handler(message)) as Pin<Box<dyn Future<Output = _> + Send>>);
        InlineQueue { handler, timeout: INLINE_TIMEOUT, policy: PublishPolicy::default() }
    }

    /// Sets the time limit of a handler. Default: [`INLINE_TIMEOUT`].
    pub fn timeout(mut self, timeout: Duration) -> InlineQueue {
        self.timeout = timeout;
        self
    }

    async fn run(&self, message: Message) -> Result<Published, CallError> {
        message.check(&self.policy)?;
        if message.is_delayed() {
            // The message is valid, so another queue may accept it although this one cannot.
            let error = CallError::network("a delayed message cannot be delivered inline");
            return Err(error.before_anything_was_sent().give_up());
        }
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| CallError::network(error.to_string()))?;
        // In its own task: it continues if the publisher stops waiting, and its panic does not reach the publisher.
        let handler = self.handler.clone();
        let task = tokio::spawn(async move { handler(message).await });
        let stop = task.abort_handle();
        match tokio::time::timeout(self.timeout, task).await {
            Ok(Ok(Ok(()))) => Ok(Published::by(Route::Inline, vec![Receipt::new(format!("msg_inline_{}", hex(&id)))])),
            Ok(Ok(Err(failure))) => Err(refused(&failure)),
            Ok(Err(ended)) => Err(status(500).with_detail(format!("the handler did not finish: {ended}"))),
            Err(_) => {
                stop.abort();
                Err(CallError::timeout(self.timeout))
            }
        }
    }
}

/// Like a server's response: a temporary failure is an outage, any other failure is not.
fn refused(failure: &Failure) -> CallError {
    let error = status(if failure.is_retryable() { 503 } else { 489 });
    error.with_detail("the handler failed").because(failure.to_string())
}

fn status(status: u16) -> CallError {
    CallError::from_status(status, &HeaderMap::new())
}

impl QueueService for InlineQueue {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        Box::pin(self.run(message.clone()))
    }
}

impl fmt::Debug for InlineQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineQueue").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn message() -> Message {
        Message::bytes("https://app.example.com/job", "key", "7")
    }

    #[tokio::test]
    async fn the_handler_has_run_when_publish_returns() {
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let queue = InlineQueue::new(move |message: Message| {
            counted.fetch_add(message.parse().unwrap(), Ordering::SeqCst);
            async { Ok(()) }
        });
        let published = queue.publish(&message()).await.unwrap();
        assert_eq!((published.route, runs.load(Ordering::SeqCst)), (Route::Inline, 7));
        assert!(published.message_id().unwrap().starts_with("msg_inline_"));
        assert!(queue.publish(&message().delay(Duration::from_secs(1))).await.unwrap_err().is_untouched());
        assert_eq!(runs.load(Ordering::SeqCst), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_the_handler_are_returned() {
        let passing = InlineQueue::new(|_| async { Err(Failure::retryable("mail server is away")) });
        let error = passing.publish(&message()).await.unwrap_err();
        assert!(error.is_outage(), "{error}");
        let lasting = InlineQueue::new(|_| async { Err(Failure::permanent("no such user")) });
        let error = lasting.publish(&message()).await.unwrap_err();
        assert!(!error.is_outage() && !error.is_retryable(), "{error}");
        assert!(error.chain().to_string().ends_with("no such user"), "{}", error.chain());
        let panicking = InlineQueue::new(|_| async { panic!("on purpose") });
        assert!(panicking.publish(&message()).await.unwrap_err().is_outage());
        // It panics before it even returns a future.
        let panicking = InlineQueue::new(|_| -> std::future::Ready<HandlerResult> { panic!("on purpose") });
        assert!(panicking.publish(&message()).await.unwrap_err().is_outage());
        let (held, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let hanging = InlineQueue::new(move |_| {
            let held = held.clone();
            async move {
                std::future::pending::<()>().await;
                drop(held);
                Ok(())
            }
        });
        assert!(hanging.publish(&message()).await.unwrap_err().is_timeout());
        // It does not hang forever: its resources are released.
        drop(hanging);
        assert!(tokio::time::timeout(INLINE_TIMEOUT, ended.recv()).await.is_ok());
    }
}
