//! Webhooks that are published to a queue.

use crate::support::{NOW, STRIPE_SECRET, ask, at, hmac_hex, soon, stripe};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use posthaste_kit::call::CallError;
use posthaste_kit::publish::{Message, PublishFuture, Published, QueueService, RecordingQueue};
use posthaste_kit::webhook::{ANSWER_WITHIN, EVENT_TYPE_HEADER, GitHub, Stripe, Webhook};
use std::sync::Arc;
use tokio::sync::Notify;

const EVENT: &str = r#"{"id":"evt_1","type":"invoice.paid"}"#;
const DESTINATION: &str = "https://app.example.com/jobs/stripe";

fn route(queue: Arc<dyn QueueService>) -> Webhook {
    Webhook::publish(Stripe::new(STRIPE_SECRET).unwrap(), queue, DESTINATION).clock(at(NOW))
}

#[tokio::test]
async fn an_event_becomes_one_message_that_names_its_origin() {
    let queue = Arc::new(RecordingQueue::default());
    let webhook = route(queue.clone()).events(["invoice.paid"]);
    let mut request = stripe(EVENT);
    let headers = request.headers_mut();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("x-request-id", "req-7".parse().unwrap());
    headers.insert("cookie", "a secret".parse().unwrap());
    assert_eq!(ask(&webhook, request).await.status, 204);
    // The same event again, and one that is not selected.
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    assert_eq!(ask(&webhook, stripe(&EVENT.replace("paid", "void"))).await.status, 204);
    let messages = queue.messages();
    let [message] = &messages[..] else { panic!("{} messages", messages.len()) };
    assert_eq!(message.destination(), DESTINATION);
    assert_eq!(message.body(), EVENT);
    let header = |name: &str| message.forwarded_header(name);
    assert_eq!((header("x-event-id"), header(EVENT_TYPE_HEADER)), (Some("evt_1"), Some("invoice.paid")));
    assert_eq!((header("x-request-id"), header("cookie"), header("stripe-signature")), (Some("req-7"), None, None));
}

#[tokio::test]
async fn an_event_id_that_no_header_can_carry_is_still_published() {
    let queue = Arc::new(RecordingQueue::default());
    let body = r#"{"id":"über:1\r\n","type":"two words"}"#;
    assert_eq!(ask(&route(queue.clone()), stripe(body)).await.status, 204);
    let message = queue.messages().remove(0);
    let id = message.forwarded_header("x-event-id");
    assert!(id.is_some_and(|id| id.starts_with("sha256-")), "{id:?}");
    assert_eq!(message.forwarded_header(EVENT_TYPE_HEADER), None);
}

#[tokio::test]
async fn a_kind_that_is_in_a_header_is_passed_on() {
    let queue = Arc::new(RecordingQueue::default());
    let webhook = Webhook::publish(GitHub::new("s").unwrap(), queue.clone(), "github-events");
    let request = Request::post("/").header("x-hub-signature-256", format!("sha256={}", hmac_hex(b"s", b"{}")));
    let request = request.header("x-github-delivery", "d-1").header("x-github-event", "push");
    assert_eq!(ask(&webhook, request.body(Full::from(Bytes::from("{}"))).unwrap()).await.status, 204);
    let message = queue.messages().remove(0);
    let header = |name: &str| message.forwarded_header(name);
    assert_eq!((header(EVENT_TYPE_HEADER), header("x-event-id")), (Some("push"), Some("d-1")));
}

/// Deduplication ids belong to the tenant. The recording queue drops duplicates, as a server does.
#[tokio::test]
async fn the_same_event_is_published_once_per_route_and_destination() {
    let queue = Arc::new(RecordingQueue::default());
    let to = |destination: &str| {
        Webhook::publish(Stripe::new(STRIPE_SECRET).unwrap(), queue.clone(), destination).clock(at(NOW))
    };
    let elsewhere = "https://app.example.com/jobs/audit";
    let routes =
        [to(DESTINATION).named("a"), to(elsewhere).named("a"), to(elsewhere).named("b"), to(elsewhere).named("b")];
    for webhook in routes {
        assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    }
    let messages = queue.messages();
    let destinations: Vec<_> = messages.iter().map(Message::destination).collect();
    assert_eq!(destinations, [DESTINATION, elsewhere, elsewhere]);
    assert!(messages.iter().all(|message| message.forwarded_header("x-event-id") == Some("evt_1")));
}

#[tokio::test]
async fn the_sender_is_asked_to_retry_what_the_queue_does_not_accept() {
    let queue = Arc::new(RecordingQueue::default());
    let webhook = route(queue.clone());
    let errors = [CallError::network("connection refused"), CallError::invalid("no such group")];
    queue.then(errors.map(Some));
    for _ in 0..2 {
        assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 500);
        assert!(queue.messages().is_empty());
    }
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    assert_eq!(queue.messages().len(), 1);
}

/// A slow queue.
struct Slow {
    queue: RecordingQueue,
    go: Notify,
    taken: Notify,
}

impl QueueService for Slow {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        Box::pin(async move {
            self.go.notified().await;
            let published = self.queue.publish(message).await;
            self.taken.notify_one();
            published
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_queue_does_not_keep_the_sender_waiting_and_the_message_is_not_lost() {
    let slow = Arc::new(Slow { queue: RecordingQueue::default(), go: Notify::new(), taken: Notify::new() });
    let webhook = route(slow.clone());
    let started = tokio::time::Instant::now();
    let answer = ask(&webhook, stripe(EVENT)).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("30")));
    assert_eq!(started.elapsed().as_secs(), ANSWER_WITHIN.as_secs());
    slow.go.notify_one();
    soon(slow.taken.notified()).await;
    // The sender retries as it was asked to, and there is still one message.
    slow.go.notify_one();
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    assert_eq!(slow.queue.messages().len(), 1);
}
