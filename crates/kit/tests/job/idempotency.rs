//! One message with any number of deliveries: the work is done once, and never if the store fails.

use crate::support::{Fault, Harness, message, takes};
use posthaste_kit::Failure;
use posthaste_kit::idempotency::{KEEP_DEFAULT as KEEP, LOCK_DEFAULT as LOCK};
use posthaste_kit::job::{LOCK_MIN, STORE_TIMEOUT};
use posthaste_kit::testing::{ScriptedQueue, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, advance};

/// Lets every task run until it waits. With the clock paused, a moment is enough.
async fn settled() {
    takes(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_handled_is_not_handled_again() {
    let harness = Harness::good();
    for _ in 0..3 {
        assert_eq!(harness.deliver(&message()).await.status, 204);
    }
    assert_eq!(harness.witness.ended(), 1);
    // The signature and the message are begun and completed. For a message that is done, only the signature is
    // completed.
    let (first, again) = (["begin", "begin", "complete", "complete"], ["begin", "begin", "complete"]);
    assert_eq!(harness.store.calls(), [&first[..], &again, &again].concat());
    // Another message is independent, and so is the same message after its retention.
    assert_eq!(harness.deliver(&message().message_id("msg_2")).await.status, 204);
    assert_eq!(harness.witness.ended(), 2);
    advance(KEEP).await;
    assert_eq!(harness.deliver(&message()).await.status, 204);
    assert_eq!(harness.witness.ended(), 3);
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_deliveries_at_once_one_runs() {
    let harness = Harness::new(|_| async {
        takes(Duration::from_secs(5)).await;
        Ok(())
    });
    let running: Vec<_> = (0..100).map(|_| harness.start(&message())).collect();
    let mut statuses = Vec::new();
    for answer in running {
        let answer = answer.await.unwrap();
        if answer.status == 409 {
            assert_eq!(answer.retry_after(), Some(LOCK.as_secs()));
        }
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!((statuses[0], &statuses[1..]), (204, &[409; 99][..]));
    assert_eq!((harness.witness.began(), harness.witness.ended()), (1, 1));
    assert_eq!(harness.deliver(&message()).await.status, 204);
    assert_eq!(harness.witness.began(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_lets_the_next_one_run_at_once() {
    type Make = fn(usize) -> Result<(), Failure>;
    let cases: [(Make, u16); 3] = [
        (|_| Err(Failure::retryable("no")), 503),
        (|_| Err(Failure::permanent("never")), 489),
        (|attempt| panic!("attempt {attempt}"), 500),
    ];
    for (fail, status) in cases {
        let attempts = Arc::new(AtomicUsize::new(0));
        let harness = Harness::new(move |_| {
            let attempt = attempts.fetch_add(1, Ordering::SeqCst);
            async move { if attempt < 2 { fail(attempt) } else { Ok(()) } }
        });
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(harness.deliver(&message()).await.status);
        }
        assert_eq!(statuses, [status, status, 204, 204]);
        assert_eq!(harness.witness.began(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_nothing_runs() {
    for fault in [Fault::Down, Fault::Silent, Fault::Panics] {
        let harness = Harness::good();
        harness.store.fails("begin", fault);
        let began = Instant::now();
        let answer = harness.deliver(&message()).await;
        assert_eq!(answer.status, if fault == Fault::Panics { 500 } else { 503 }, "{fault:?}");
        assert!(!answer.is_final());
        assert_eq!(began.elapsed() >= STORE_TIMEOUT, fault == Fault::Silent);
        assert_eq!(harness.witness.began(), 0, "{fault:?}");
        harness.store.heals();
        assert_eq!(harness.deliver(&message()).await.status, 204);
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_is_reported_even_if_the_store_does_not_record_it() {
    for fault in [Fault::Down, Fault::Silent, Fault::Lost] {
        let harness = Harness::good();
        harness.store.fails("complete", fault);
        assert_eq!(harness.deliver(&message()).await.status, 204, "{fault:?}");
        harness.store.heals();
        // If the response is lost, the lock still holds for a while.
        assert_eq!(harness.deliver(&message()).await.status, 409, "{fault:?}");
        assert_eq!(harness.witness.began(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_could_not_be_released_expires() {
    let harness =
        Harness::new(
            |job| async move { if job.delivery.attempt() == 1 { Err(Failure::retryable("no")) } else { Ok(()) } },
        );
    harness.store.fails("release", Fault::Down);
    assert_eq!(harness.deliver(&message()).await.status, 503);
    harness.store.heals();
    advance(LOCK - Duration::from_millis(1)).await;
    let answer = harness.deliver(&message().retried(1)).await;
    assert_eq!((answer.status, answer.retry_after()), (409, Some(1)));
    advance(Duration::from_millis(1)).await;
    assert_eq!(harness.deliver(&message().retried(2)).await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn the_lock_is_held_for_as_long_as_the_handler_runs() {
    let harness = Harness::new(|_| async {
        takes(10 * LOCK).await;
        Ok(())
    });
    let first = harness.start(&message());
    settled().await;
    for _ in 0..19 {
        takes(LOCK / 2).await;
        assert_eq!(harness.deliver(&message()).await.status, 409);
    }
    assert_eq!(first.await.unwrap().status, 204);
    assert_eq!(harness.deliver(&message()).await.status, 204);
    assert_eq!((harness.witness.began(), harness.witness.ended()), (1, 1));
    let heartbeats = harness.store.calls().iter().filter(|call| **call == "extend").count();
    assert!((29..=30).contains(&heartbeats), "{heartbeats}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_a_minimum_duration() {
    let harness = Harness::new(|_| async {
        takes(10 * LOCK_MIN).await;
        Ok(())
    })
    .configure(|jobs| jobs.lock(Duration::ZERO));
    assert_eq!(harness.deliver(&message()).await.status, 204);
    let calls = harness.store.calls();
    assert!((31..=34).contains(&calls.len()), "{}", calls.len());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_lost_the_lock_stops() {
    let harness = Harness::new(|_| async {
        takes(10 * LOCK).await;
        Ok(())
    });
    harness.store.fails("extend", Fault::Lost);
    let answer = harness.deliver(&message()).await;
    assert_eq!((answer.status, answer.is_final()), (503, false));
    assert_eq!((harness.witness.began(), harness.witness.ended()), (1, 0));
    assert_eq!(harness.store.calls(), ["begin", "begin", "extend"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_outage_is_survived_until_the_lock_must_have_expired() {
    // Heartbeats come at each third of the lock, so between two and three thirds of the lock remain when one fails.
    let short = LOCK * 2 / 3 - Duration::from_secs(5);
    for (fault, outage, survives) in [
        (Fault::Down, short, true),
        (Fault::Silent, short, true),
        (Fault::Down, LOCK, false),
        (Fault::Silent, LOCK, false),
    ] {
        for before in [Duration::ZERO, 5 * LOCK] {
            let harness = Harness::new(|_| async {
                takes(8 * LOCK).await;
                Ok(())
            });
            let began = Instant::now();
            let running = harness.start(&message());
            takes(before + Duration::from_secs(1)).await;
            harness.store.fails("extend", fault);
            takes(LOCK / 3 + outage).await;
            harness.store.heals();
            let answer = running.await.unwrap();
            let expected = if survives { (204, 1) } else { (503, 0) };
            assert_eq!((answer.status, harness.witness.ended()), expected, "{fault:?} {before:?} {outage:?}");
            assert!(survives || began.elapsed() >= before + LOCK, "{:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_dropped_when_the_lock_has_ended_and_not_before() {
    let dropped = Arc::new(Notify::new());
    struct Guard(Arc<Notify>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let guard = dropped.clone();
    let harness = Harness::new(move |_| {
        let guard = Guard(guard.clone());
        async move {
            let _guard = guard;
            takes(10 * LOCK).await;
            Ok(())
        }
    });
    harness.store.fails("extend", Fault::Down);
    let began = Instant::now();
    let running = harness.start(&message());
    dropped.notified().await;
    assert_eq!(began.elapsed().as_secs(), LOCK.as_secs());
    assert_eq!(running.await.unwrap().status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_handler_finishes_after_the_queue_closes_the_connection() {
    let harness = Harness::new(|_| async {
        takes(Duration::from_secs(30)).await;
        Ok(())
    });
    let running = harness.start(&message());
    settled().await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(harness.deliver(&message()).await.status, 409);
    takes(Duration::from_secs(30)).await;
    assert_eq!(harness.witness.ended(), 1);
    assert_eq!(harness.deliver(&message()).await.status, 204);
    assert_eq!(harness.witness.began(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_dropped_and_may_be_retried() {
    let limit = Duration::from_secs(20);
    let harness = Harness::new(|job| async move {
        takes(Duration::from_secs(if job.delivery.attempt() == 1 { 21 } else { 19 })).await;
        Ok(())
    })
    .configure(|jobs| jobs.run_max(limit));
    let began = Instant::now();
    let answer = harness.deliver(&message()).await;
    assert_eq!((answer.status, began.elapsed().as_secs()), (504, 20));
    assert_eq!(harness.deliver(&message().retried(1)).await.status, 204);
    assert_eq!((harness.witness.began(), harness.witness.ended()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_running_deliveries_is_limited() {
    let go = Arc::new(Notify::new());
    let waits = go.clone();
    let harness = Harness::new(move |_| {
        let waits = waits.clone();
        async move {
            waits.notified().await;
            Ok(())
        }
    })
    .configure(|jobs| jobs.running_max(1));
    let first = harness.start(&message());
    settled().await;
    let other = message().message_id("msg_2");
    let answer = harness.deliver(&other).await;
    assert_eq!((answer.status, answer.retry_after()), (503, Some(1)));
    assert_eq!(harness.store.calls(), ["begin", "begin"], "those of the first");
    go.notify_one();
    assert_eq!(first.await.unwrap().status, 204);
    go.notify_one();
    assert_eq!(harness.deliver(&other).await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn idle_waits_for_handlers_whose_connection_was_closed() {
    let harness = Harness::new(|_| async {
        takes(Duration::from_secs(30)).await;
        Ok(())
    });
    let running = harness.start(&message());
    settled().await;
    running.abort();
    let jobs = harness.jobs.clone();
    let idle = tokio::spawn(async move { jobs.idle().await });
    settled().await;
    assert_eq!(harness.deliver(&message().message_id("msg_2")).await.status, 503);
    assert!(!idle.is_finished());
    idle.await.unwrap();
    assert_eq!(harness.witness.ended(), 1);
    // If the process continues after all, so does the handler.
    assert_eq!(harness.deliver(&message()).await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn endless_durations_are_cut_to_the_maximum() {
    let mut harness = Harness::good();
    let never = Duration::MAX;
    harness.jobs = harness.jobs.lock(never).keep(never).store_timeout(never).run_max(never);
    for _ in 0..2 {
        assert_eq!(harness.deliver(&message()).await.status, 204);
    }
    assert_eq!(harness.witness.ended(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_scripted_queue_gets_a_message_through() {
    let harness = Harness::new(|job| async move {
        if job.delivery.attempt() < 4 { Err(Failure::retryable("not yet")) } else { Ok(()) }
    });
    let script = [Step::Unreachable, Step::HangUp, Step::Deliver, Step::LoseAnswer, Step::AtOnce(3)];
    let queue = ScriptedQueue::new(crate::support::KEY, harness.clock.clone()).script(script);
    let jobs = harness.jobs.clone();
    let report = queue
        .deliver(&message(), |request| {
            let jobs = jobs.clone();
            async move { jobs.handle(request).await }
        })
        .await;
    assert!(report.is_delivered());
    assert_eq!(report.statuses(), [503, 204, 204, 204, 204]);
    // The closed connection, the third attempt, and the fourth, which succeeded.
    assert_eq!(harness.witness.ended(), 3);
}
