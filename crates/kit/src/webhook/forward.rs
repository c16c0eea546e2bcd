//! Webhooks that are forwarded to a queue: verified, published with a deduplication id, and answered.

use super::{Event, Scheme, Webhook};
use crate::failure::Failure;
use crate::propagation::EVENT_ID_HEADER;
use crate::publish::{Message, QueueService};
use std::sync::Arc;

/// Header with the kind of the event that a published message is about, as the sender names it.
pub const EVENT_TYPE_HEADER: &str = "x-event-type";

impl Webhook {
    /// Accepts any body and publishes it to a URL or a URL group, deduplicated by the name of the route, the
    /// destination and the id of the event. This is all that a webhook should do while its sender waits. The handler of
    /// the message gets the original body with `x-event-id`, [`x-event-type`](EVENT_TYPE_HEADER) and `x-request-id`.
    ///
    /// An event that is sent again within the deduplication window (10 minutes) creates no second message. Senders may
    /// repeat events after days, so the handler must be idempotent by the event id. If the queue does not accept the
    /// message, the sender gets an error and retries.
    ///
    /// ```
    /// use posthaste_kit::publish::RecordingQueue;
    /// use posthaste_kit::webhook::{Stripe, Webhook};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let queue = Arc::new(RecordingQueue::default());
    /// let route = Webhook::publish(Stripe::new("whsec_…")?, queue, "https://app.example.com/jobs/stripe")
    ///     .events(["invoice.paid", "invoice.voided"]);
    /// # drop(route);
    /// # Ok(()) }
    /// ```
    pub fn publish(scheme: impl Scheme, queue: Arc<dyn QueueService>, destination: impl Into<String>) -> Webhook {
        let destination = destination.into();
        Webhook::forward(scheme, move |event| {
            let message = message(&destination, event);
            let queue = Arc::clone(&queue);
            async move {
                // Problems with the queue are not the sender's fault, so it should retry.
                queue.publish(&message).await.map(drop).map_err(Failure::retryable)
            }
        })
    }
}

fn message(destination: &str, event: Event<()>) -> Message {
    let id = event.id.as_str();
    // Deduplication ids apply to all messages of a tenant, and the same event may go to two routes or destinations.
    let key = format!("webhook\n{}\n{destination}\n{id}", event.route);
    let mut message =
        Message::bytes(destination, key, event.body.clone()).header(EVENT_ID_HEADER, id).request_id(&event.request_id);
    let content_type = event.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if let Some(content_type) = content_type {
        message = message.content_type(content_type);
    }
    // A kind from the body may contain characters that are invalid in a header.
    if let Some(kind) = event.kind.filter(|kind| kind.bytes().all(|byte| byte.is_ascii_graphic())) {
        message = message.header(EVENT_TYPE_HEADER, kind);
    }
    message.propagate(&event.headers);
    message
}
