//! Recorded deliveries run nothing, whatever their id, and delay no genuine message.

use crate::support::{Answer, Harness, message, takes};
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use posthaste_kit::Failure;
use posthaste_kit::receiver::LEEWAY_MAX;
use posthaste_kit::testing::TestDelivery;
use std::time::Duration;
use tokio::time::advance;

async fn send(harness: &Harness, request: &Request<Full<Bytes>>) -> Answer {
    Answer::read(harness.jobs.handle(request.clone()).await).await
}

/// The same request under another id.
fn renamed(request: &Request<Full<Bytes>>, id: &'static str) -> Request<Full<Bytes>> {
    let mut request = request.clone();
    request.headers_mut().insert("upstash-message-id", HeaderValue::from_static(id));
    request
}

/// Signed like Posthaste, and like hosted QStash.
fn both() -> [(&'static str, TestDelivery); 2] {
    [("signed", message()), ("not signed", message().without_signed_id())]
}

#[tokio::test(start_paused = true)]
async fn a_recorded_delivery_runs_nothing_under_another_id_and_suppresses_no_message() {
    for (case, delivery) in both() {
        let harness = Harness::good();
        let recorded = harness.signed(&delivery);
        assert_eq!(send(&harness, &recorded).await.status, 204);
        let refused = send(&harness, &renamed(&recorded, "msg_2")).await;
        assert_eq!(refused.status, if case == "signed" { 401 } else { 409 }, "{case}");
        assert!(!refused.is_final(), "the queue tries again");
        assert_eq!(harness.witness.began(), 1, "{case}");
        // The genuine message with that id comes later and is handled.
        assert_eq!(harness.deliver(&delivery.message_id("msg_2")).await.status, 204);
        assert_eq!(harness.witness.ended(), 2, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_sent_twice_is_confirmed_only_if_its_id_is_signed() {
    for (case, delivery) in both() {
        let harness = Harness::good();
        let twice = harness.signed(&delivery);
        assert_eq!(send(&harness, &twice).await.status, 204);
        let again = send(&harness, &twice).await;
        assert_eq!(again.status, if case == "signed" { 204 } else { 409 }, "{case}");
        assert_eq!((again.retry_after(), again.is_final(), harness.witness.began()), (None, false, 1), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorded_delivery_repeats_nothing_that_failed_and_the_next_attempt_does() {
    for (case, delivery) in both() {
        let harness = Harness::new(|job| async move {
            if job.delivery.attempt() == 1 { Err(Failure::retryable("no")) } else { Ok(()) }
        });
        let recorded = harness.signed(&delivery);
        assert_eq!(send(&harness, &recorded).await.status, 503);
        let calls = harness.store.calls().len();
        for _ in 0..3 {
            let answer = send(&harness, &recorded).await;
            assert_eq!((answer.status, answer.is_final()), (409, false), "{case}");
        }
        assert_eq!(harness.witness.began(), 1, "{case}");
        // Only the signature was looked up; the lock of the message was not touched.
        assert_eq!(harness.store.calls()[calls..], ["begin"; 3], "{case}");
        assert_eq!(harness.deliver(&delivery.retried(1)).await.status, 204);
        assert_eq!(harness.witness.ended(), 2, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_arrives_twice_at_once_runs_once() {
    for (case, delivery) in both() {
        let harness = Harness::new(|_| async {
            takes(Duration::from_secs(5)).await;
            Ok(())
        });
        let twice = harness.signed(&delivery);
        let (one, other) = tokio::join!(send(&harness, &twice), send(&harness, &twice));
        let mut statuses = [one.status, other.status];
        statuses.sort_unstable();
        assert_eq!((statuses, harness.witness.began()), ([204, 409], 1), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signature_is_remembered_longer_than_it_is_valid_regardless_of_its_message() {
    let harness = Harness::good().configure(|jobs| jobs.keep(Duration::from_secs(1)));
    let recorded = harness.signed(&message());
    assert_eq!(send(&harness, &recorded).await.status, 204);
    let pass = async |seconds: u64| {
        advance(Duration::from_secs(seconds)).await;
        harness.clock.advance(Duration::from_secs(seconds));
    };
    for _ in 0..3 {
        pass(99).await;
        assert_eq!((send(&harness, &recorded).await.status, harness.witness.began()), (204, 1));
    }
    // For the clock of another process it is still valid for a while.
    advance(LEEWAY_MAX).await;
    assert_eq!((send(&harness, &recorded).await.status, harness.witness.began()), (204, 1));
    pass(3).await;
    assert_eq!((send(&harness, &recorded).await.status, harness.witness.began()), (401, 1));
    // The message was forgotten after the configured time, so a genuine delivery runs.
    assert_eq!((harness.deliver(&message()).await.status, harness.witness.began()), (204, 2));
}
