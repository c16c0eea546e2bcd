//! Webhooks straight into a queue: verified, published with a deduplication id of the event, answered.

use super::{Event, Scheme, Webhook};
use crate::failure::Failure;
use crate::propagation::EVENT_ID_HEADER;
use crate::publish::{Message, QueueService};
use std::sync::Arc;

/// Says what kind of event a published message is about, in the words of the sender.
pub const EVENT_TYPE_HEADER: &str = "x-event-type";

impl Webhook {
    /// Takes any body and publishes it to a URL or a URL group, deduplicated by the name of the route, the destination
    /// and the id of the event: the whole of what a webhook should do while its sender waits. Whoever handles the message gets the body as the
    /// sender wrote it, with `x-event-id`, [`x-event-type`](EVENT_TYPE_HEADER) and `x-request-id`.
    ///
    /// An event that comes again within the queue's window (ten minutes) makes no second message; senders may come
    /// again after days, so the handler has to be idempotent by the id of the event. If the queue does not take the
    /// message, the sender hears an error and comes again.
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
                // Whatever is wrong with the queue is not the sender's fault: it should come again.
                queue.publish(&message).await.map(drop).map_err(Failure::retryable)
            }
        })
    }
}

fn message(destination: &str, event: Event<()>) -> Message {
    let id = event.id.as_str();
    // Deduplication ids count for all messages of a tenant: the same event may be for two routes or destinations.
    let key = format!("webhook\n{}\n{destination}\n{id}", event.route);
    let mut message =
        Message::bytes(destination, key, event.body.clone()).header(EVENT_ID_HEADER, id).request_id(&event.request_id);
    let content_type = event.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if let Some(content_type) = content_type {
        message = message.content_type(content_type);
    }
    // A kind from a body may have what no header can.
    if let Some(kind) = event.kind.filter(|kind| kind.bytes().all(|byte| byte.is_ascii_graphic())) {
        message = message.header(EVENT_TYPE_HEADER, kind);
    }
    message.propagate(&event.headers);
    message
}
