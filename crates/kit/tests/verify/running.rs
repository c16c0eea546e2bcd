//! Slow handlers: senders that do not wait for them, and how many run at once.

use crate::handler::{EVENT, scheme};
use crate::support::{Answer, NOW, Store, ask, at, soon, stripe};
use posthaste_kit::webhook::{Event, LOCK, StripeEvent, Webhook};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;

/// A handler that signals its start, continues on demand, and counts how often it finished.
#[derive(Clone, Default)]
struct Gate {
    begun: Arc<Notify>,
    go: Arc<Notify>,
    ended: Arc<Notify>,
    runs: Arc<AtomicUsize>,
    ends: Arc<AtomicUsize>,
}

impl Gate {
    fn route(&self, store: &Arc<Store>) -> Webhook {
        let gate = self.clone();
        let handler = move |_: Event<StripeEvent>| {
            let gate = gate.clone();
            async move {
                gate.runs.fetch_add(1, Ordering::SeqCst);
                gate.begun.notify_one();
                gate.go.notified().await;
                gate.ends.fetch_add(1, Ordering::SeqCst);
                gate.ended.notify_one();
                Ok(())
            }
        };
        Webhook::new(scheme(), store.clone(), handler).clock(at(NOW))
    }

    /// A request whose handler has begun and waits to continue.
    async fn hold<'a>(&self, webhook: &'a Webhook) -> Pin<Box<dyn Future<Output = Answer> + 'a>> {
        let mut asked = Box::pin(ask(webhook, stripe(EVENT)));
        tokio::select! {
            _ = &mut asked => panic!("it has not been told to go on"),
            () = self.begun.notified() => asked,
        }
    }

    fn counts(&self) -> (usize, usize) {
        (self.runs.load(Ordering::SeqCst), self.ends.load(Ordering::SeqCst))
    }
}

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Sends requests until the response has this status.
async fn until(webhook: &Webhook, status: u16) {
    for _ in 0..100 {
        if ask(webhook, stripe(EVENT)).await.status == status {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the answer is never {status}");
}

#[tokio::test]
async fn a_sender_that_closes_the_connection_does_not_stop_the_handler() {
    let (store, gate) = (Arc::new(Store::new()), Gate::default());
    let webhook = gate.route(&store);
    drop(gate.hold(&webhook).await);
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 409);
    gate.go.notify_one();
    soon(gate.ended.notified()).await;
    until(&webhook, 204).await;
    assert_eq!(gate.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_sender_gets_a_response_in_time_and_the_handler_continues() {
    let (store, gate) = (Arc::new(Store::new()), Gate::default());
    let webhook = gate.route(&store).answer_within(Duration::from_secs(3));
    let started = tokio::time::Instant::now();
    let answer = ask(&webhook, stripe(EVENT)).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("30")));
    assert_eq!(started.elapsed().as_secs(), 3);
    gate.go.notify_one();
    soon(gate.ended.notified()).await;
    until(&webhook, 204).await;
    assert_eq!(gate.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_handler_ends_before_its_lock_does() {
    let (store, gate) = (Arc::new(Store::new()), Gate::default());
    let webhook = gate.route(&store).answer_within(LOCK * 2);
    let started = tokio::time::Instant::now();
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 500);
    assert_eq!((started.elapsed().as_secs(), gate.counts()), (LOCK.as_secs(), (1, 0)));
    // It was stopped, and the next request starts over.
    gate.go.notify_one();
    assert_eq!((ask(&webhook, stripe(EVENT)).await.status, gate.counts()), (204, (2, 1)));
}

#[tokio::test]
async fn the_number_of_concurrent_handlers_is_limited() {
    let (store, gate) = (Arc::new(Store::new()), Gate::default());
    let webhook = gate.route(&store).at_once(1);
    let other = || stripe(&EVENT.replace("evt_1", "evt_2"));
    let first = gate.hold(&webhook).await;
    let answer = ask(&webhook, other()).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")));
    // A handler whose sender closed the connection still counts as running.
    drop(first);
    assert_eq!(ask(&webhook, other()).await.status, 503);
    gate.go.notify_one();
    soon(gate.ended.notified()).await;
    assert_eq!(gate.counts(), (1, 1));
    until(&webhook, 204).await;
    gate.go.notify_one();
    assert_eq!(ask(&webhook, other()).await.status, 204);
}

#[tokio::test]
async fn a_process_that_ends_can_wait_for_handlers_whose_sender_has_gone() {
    let (store, gate) = (Arc::new(Store::new()), Gate::default());
    let webhook = gate.route(&store);
    drop(gate.hold(&webhook).await);
    {
        let mut idle = pin!(webhook.idle());
        assert!(poll_once(&mut idle).await.is_pending());
        let answer = ask(&webhook, stripe(&EVENT.replace("evt_1", "evt_2"))).await;
        assert_eq!((answer.status, gate.counts()), (503, (1, 0)));
        gate.go.notify_one();
        soon(idle).await;
        assert_eq!(gate.counts(), (1, 1));
    }
    // If the process continues after all, so does the route.
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
}
