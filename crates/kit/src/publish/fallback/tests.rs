//! Which service gets a message if the first one is unavailable.

use super::*;
use crate::publish::{Dedup, InlineQueue, RecordingQueue, Route};
use http::HeaderMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

fn message(key: usize) -> Message {
    Message::bytes("https://app.example.com/job", key, "body")
}

fn status(status: u16) -> CallError {
    CallError::from_status(status, &HeaderMap::new())
}

/// A queue, and the disk as its fallback.
async fn with_spool(directory: &TempDir) -> (Arc<RecordingQueue>, Arc<Spool>, FallbackQueue) {
    let first = Arc::new(RecordingQueue::default());
    let spool = Arc::new(Spool::open(directory.path()).await.unwrap());
    let queue = FallbackQueue::with_spool(first.clone(), spool.clone());
    (first, spool, queue)
}

#[tokio::test]
async fn only_an_outage_uses_the_fallback() {
    for (error, goes_on) in [
        (status(500), true),
        (status(503), true),
        (status(507), true),
        (status(429), true),
        (CallError::network("refused"), true),
        (CallError::timeout(Duration::from_secs(1)), true),
        (status(400), false),
        (status(401), false),
        (status(412), false),
        (CallError::invalid("no URL"), false),
    ] {
        let (first, second) = (Arc::new(RecordingQueue::default()), Arc::new(RecordingQueue::default()));
        let words = error.to_string();
        first.then([Some(error)]);
        let queue = FallbackQueue::new(first.clone(), second.clone());
        assert_eq!(queue.publish(&message(1)).await.is_ok(), goes_on, "{words}");
        assert_eq!((first.messages().len(), second.messages().len()), (0, usize::from(goes_on)), "{words}");
    }
}

#[tokio::test]
async fn messages_without_deduplication_use_the_fallback_only_if_the_queue_cannot_have_them() {
    let refused = || CallError::network("refused").before_anything_was_sent();
    let outages: [(fn() -> CallError, bool); 5] = [
        (refused, true),
        (|| status(429), true),
        (|| status(503), false),
        (|| CallError::network("reset"), false),
        (|| CallError::timeout(Duration::from_secs(1)), false),
    ];
    for (outage, goes_on) in outages {
        let (first, second) = (Arc::new(RecordingQueue::default()), Arc::new(RecordingQueue::default()));
        let queue = FallbackQueue::new(first.clone(), second.clone()).pause(Duration::ZERO);
        let (off, told) = (message(1).dedup(Dedup::Off), message(2));
        first.then([Some(outage())]);
        assert_eq!(queue.publish(&off).await.is_ok(), goes_on, "{}", outage());
        // One by one, and as a whole.
        first.then([Some(outage()), Some(outage())]);
        let results = queue.publish_all(&[off.clone(), told.clone()]).await.unwrap();
        assert_eq!((results[0].is_ok(), results[1].is_ok()), (goes_on, true), "{}", outage());
        assert_eq!(second.take().len(), if goes_on { 3 } else { 1 }, "{}", outage());
        let queue = FallbackQueue::new(NoBatches(outage), second.clone()).pause(Duration::ZERO);
        assert_eq!(queue.publish_all(&[off, told.clone()]).await.is_ok(), goes_on, "{}", outage());
        assert!(queue.publish_all(&[told]).await.is_ok());
    }
}

/// Returns this error for every batch.
struct NoBatches(fn() -> CallError);

impl QueueService for NoBatches {
    fn publish<'a>(&'a self, _: &'a Message) -> PublishFuture<'a, Published> {
        Box::pin(async { Err((self.0)()) })
    }

    fn publish_all<'a>(&'a self, _: &'a [Message]) -> PublishFuture<'a, Vec<Result<Published, CallError>>> {
        Box::pin(async { Err((self.0)()) })
    }
}

#[tokio::test]
async fn an_error_is_returned_when_both_fail() {
    let (first, second) = (Arc::new(RecordingQueue::default()), Arc::new(RecordingQueue::default()));
    first.then([Some(status(503))]);
    second.then([Some(status(500))]);
    let error = FallbackQueue::new(first, second).publish(&message(1)).await.unwrap_err();
    assert_eq!(error.status(), Some(500));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_queue_is_paused_and_alerts_once() {
    let (first, second) = (Arc::new(RecordingQueue::default()), Arc::new(RecordingQueue::default()));
    let (outages, recoveries) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (told, told_again) = (outages.clone(), recoveries.clone());
    let hook = AlertHook::new(move |alert| match alert {
        Alert::Outage { error, .. } => {
            assert_eq!(error.status(), Some(503));
            told.fetch_add(1, Ordering::SeqCst);
        }
        Alert::Recovered => drop(told_again.fetch_add(1, Ordering::SeqCst)),
        other => panic!("{other:?}"),
    });
    let queue = FallbackQueue::new(first.clone(), second.clone()).alerts(hook);
    first.then([Some(status(503)), Some(status(503))]);
    queue.publish(&message(1)).await.unwrap();
    queue.publish(&message(2)).await.unwrap();
    tokio::time::advance(OUTAGE_PAUSE).await;
    // Tried again, and still unavailable.
    queue.publish(&message(3)).await.unwrap();
    assert_eq!(second.messages().len(), 3);
    assert_eq!((outages.load(Ordering::SeqCst), recoveries.load(Ordering::SeqCst)), (1, 0));
    tokio::time::advance(OUTAGE_PAUSE).await;
    // Rejected before sending, so nothing is learned about the queue.
    queue.publish(&Message::bytes("no URL", 9, "")).await.unwrap_err();
    assert_eq!((outages.load(Ordering::SeqCst), recoveries.load(Ordering::SeqCst)), (1, 0));
    queue.publish(&message(4)).await.unwrap();
    queue.publish(&message(5)).await.unwrap();
    assert_eq!(first.messages(), [message(4), message(5)]);
    assert_eq!((outages.load(Ordering::SeqCst), recoveries.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn an_outage_loses_nothing_and_keeps_the_order_of_queues() {
    let directory = TempDir::new().unwrap();
    let (first, spool, queue) = with_spool(&directory).await;
    let queue = queue.pause(Duration::ZERO);
    let in_queue = |key| message(key).in_queue("orders");
    queue.publish(&in_queue(0)).await.unwrap();
    first.then([Some(status(503))]);
    assert_eq!(queue.publish(&in_queue(1)).await.unwrap().route, Route::Spool);
    // The queue is available again, but this message must not overtake.
    assert_eq!(queue.publish(&in_queue(2)).await.unwrap().route, Route::Spool);
    // Messages without order are not held back.
    assert_eq!(queue.publish(&message(9)).await.unwrap().route, Route::Recording);
    while !spool.is_empty() {
        spool.drain_step(&first).await.unwrap();
    }
    assert_eq!(queue.publish(&in_queue(3)).await.unwrap().route, Route::Recording);
    assert_eq!(first.messages(), [in_queue(0), message(9), in_queue(1), in_queue(2), in_queue(3)]);
}

#[tokio::test]
async fn a_batch_falls_back_as_a_whole_or_in_part() {
    let directory = TempDir::new().unwrap();
    let (first, spool, queue) = with_spool(&directory).await;
    let queue = queue.pause(Duration::ZERO);
    let batch = [message(1), message(2), message(3)];
    first.then([None, Some(status(503)), Some(status(400))]);
    let results = queue.publish_all(&batch).await.unwrap();
    let routes: Vec<_> = results.iter().map(|result| result.as_ref().map(|published| published.route).ok()).collect();
    assert_eq!(routes, [Some(Route::Recording), Some(Route::Spool), None]);
    assert_eq!((first.messages(), spool.len()), (vec![message(1)], 1));
}

#[tokio::test]
async fn inline_then_disk() {
    let directory = TempDir::new().unwrap();
    let spool = Arc::new(Spool::open(directory.path()).await.unwrap());
    let inline = InlineQueue::new(|message: Message| async move {
        if message.body() == "good" { Ok(()) } else { Err("the database is away".into()) }
    });
    let first = RecordingQueue::default();
    first.then([Some(status(503))]);
    let queue = FallbackQueue::new(first, FallbackQueue::with_spool(inline, spool.clone()).pause(Duration::ZERO));
    let publish = |body: &'static str| Message::bytes("https://app.example.com/job", body, body);
    assert_eq!(queue.publish(&publish("good")).await.unwrap().route, Route::Inline);
    assert_eq!(queue.publish(&publish("bad")).await.unwrap().route, Route::Spool);
    assert_eq!(spool.len(), 1);
}

#[tokio::test]
async fn messages_that_fail_inline_are_published_when_the_queue_is_back() {
    let first = Arc::new(RecordingQueue::default());
    first.then([Some(status(503))]);
    let queue = FallbackQueue::new(first.clone(), InlineQueue::new(|_| async { Ok(()) }));
    let later = message(1).delay(Duration::from_secs(60));
    // The first time the queue is tried, the second time it is skipped.
    for _ in 0..2 {
        let error = queue.publish(&later).await.unwrap_err();
        assert!(error.is_outage() && error.is_untouched() && !error.is_retryable(), "{error}");
        assert!(error.into_failure().is_retryable());
    }
    let directory = TempDir::new().unwrap();
    let spool = Arc::new(Spool::open(directory.path()).await.unwrap());
    let queue = FallbackQueue::with_spool(InlineQueue::new(|_| async { Ok(()) }), spool);
    assert_eq!(queue.publish(&later).await.unwrap().route, Route::Spool);
}

#[tokio::test]
async fn a_panicking_hook_loses_no_message() {
    let (first, second) = (Arc::new(RecordingQueue::default()), Arc::new(RecordingQueue::default()));
    first.then([Some(status(503))]);
    let hook = AlertHook::new(|_| panic!("on purpose"));
    let queue = FallbackQueue::new(first.clone(), second.clone()).pause(Duration::ZERO).alerts(hook);
    queue.publish(&message(1)).await.unwrap();
    queue.publish(&message(2)).await.unwrap();
    assert_eq!((first.messages(), second.messages()), (vec![message(2)], vec![message(1)]));
}

#[tokio::test]
async fn the_trace_of_the_publish_is_kept_on_the_disk() {
    let directory = TempDir::new().unwrap();
    let (first, spool, queue) = with_spool(&directory).await;
    let queue = queue.propagator(Propagator::new(|headers| {
        headers.insert("traceparent", "00-publish".parse().unwrap());
    }));
    first.then([Some(status(503))]);
    queue.publish(&message(1)).await.unwrap();
    spool.drain_step(&first).await.unwrap();
    assert_eq!(first.messages()[0].forwarded_header("traceparent"), Some("00-publish"));
}
