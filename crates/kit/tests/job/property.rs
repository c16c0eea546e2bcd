//! Whatever the queue, the handler and the store do, there is no second success as long as the store forgets nothing.

use crate::support::{Fault, Harness, KEY, message, takes};
use posthaste_kit::Failure;
use posthaste_kit::testing::{Ended, ScriptedQueue, Step};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How the handler behaves in one attempt.
#[derive(Clone, Copy, Debug)]
enum Does {
    Succeeds,
    Fails,
    FailsForGood,
    Panics,
    TakesLong,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Deliver),
        2 => (2..6_usize).prop_map(Step::AtOnce),
        2 => Just(Step::LoseAnswer),
        2 => Just(Step::HangUp),
        1 => Just(Step::Unreachable),
    ];
    prop::collection::vec(step, 0..7)
}

fn doings() -> impl Strategy<Value = Vec<Does>> {
    let does = prop_oneof![
        3 => Just(Does::Succeeds),
        3 => Just(Does::Fails),
        1 => Just(Does::FailsForGood),
        1 => Just(Does::Panics),
        2 => Just(Does::TakesLong),
    ];
    prop::collection::vec(does, 1..7)
}

fn faults() -> impl Strategy<Value = Option<(&'static str, Fault)>> {
    let step = prop::sample::select(vec!["begin", "extend", "complete", "release"]);
    let fault = prop::sample::select(vec![Fault::Down, Fault::Silent]);
    prop::option::weighted(0.4, (step, fault))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_work_is_done_at_most_once_and_never_reported_undone(
        script in steps(),
        doings in doings(),
        fault in faults(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let successes = Arc::new(AtomicUsize::new(0));
            let left = Arc::new(Mutex::new(doings.into_iter()));
            let counted = successes.clone();
            let harness = Harness::new(move |_| {
                let does = left.lock().unwrap().next().unwrap_or(Does::Succeeds);
                let counted = counted.clone();
                async move {
                    match does {
                        Does::Fails => return Err(Failure::retryable("no")),
                        Does::FailsForGood => return Err(Failure::permanent("never")),
                        Does::Panics => panic!("wrong"),
                        Does::TakesLong => takes(Duration::from_secs(600)).await,
                        Does::Succeeds => {}
                    }
                    counted.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
            });
            if let Some((step, fault)) = fault {
                harness.store.fails(step, fault);
            }
            let jobs = harness.jobs.clone();
            let queue = ScriptedQueue::new(KEY, harness.clock.clone()).script(script).on_tokio_time();
            let report = queue.deliver(&message(), |request| {
                let jobs = jobs.clone();
                async move { jobs.handle(request).await }
            }).await;
            // Handlers whose connection was closed finish too.
            takes(Duration::from_secs(3_600)).await;
            let successes = successes.load(Ordering::SeqCst);
            // If neither the queue nor the store recorded a success, it is lost. Only a key next to the effect prevents
            // that.
            let may_forget = matches!(fault, Some(("complete", _)));
            prop_assert!(successes <= 1 || may_forget, "{successes} successes, {report:?}");
            if report.ended == Ended::Delivered {
                prop_assert!(successes >= 1, "{report:?}");
            }
            if matches!(fault, Some(("begin", _))) {
                prop_assert_eq!(harness.witness.began(), 0);
            }
            Ok(())
        })?;
    }
}
