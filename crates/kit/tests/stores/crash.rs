//! Processes that use a store can die at every await. Whatever they leave, the work is eventually done, and never by
//! two at once.

use crate::support::{World, acquired};
use posthaste_kit::idempotency::{Begun, IdempotencyStore, Lease, StoreError};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

const LOCK: Duration = Duration::from_secs(240);
const KEEP: Duration = Duration::from_secs(86_400);

/// All cases, on one world.
pub(crate) async fn all(world: &dyn World) {
    one_delivery_dies_at_each_await(world).await;
    many_deliveries_die_anywhere(world).await;
    a_paused_holder_is_rejected_by_the_fence(world).await;
}

/// The work: records whether it was done, and whether two did it at once.
#[derive(Default)]
struct Work {
    at_it: AtomicU32,
    overlaps: AtomicU32,
    times_done: AtomicU32,
    /// Deliveries that did the work and know that it was marked.
    marked: AtomicU32,
}

impl Work {
    /// Takes a while, so that others can overlap with it.
    async fn run(&self) {
        struct AtIt<'a>(&'a AtomicU32);
        impl Drop for AtIt<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        if self.at_it.fetch_add(1, SeqCst) > 0 {
            self.overlaps.fetch_add(1, SeqCst);
        }
        let _at_it = AtIt(&self.at_it);
        tokio::task::yield_now().await;
        self.times_done.fetch_add(1, SeqCst);
        tokio::task::yield_now().await;
    }
}

/// The code of a handler: it works only with the lock.
async fn deliver(store: &dyn IdempotencyStore, key: &str, work: &Work) -> Result<bool, StoreError> {
    // A crash before a step is sent, and a crash after it was done but before its response was received.
    tokio::task::yield_now().await;
    let begun = store.begin(key, LOCK).await?;
    tokio::task::yield_now().await;
    match begun {
        Begun::Acquired(lease) => {
            work.run().await;
            let is_marked = store.complete(&lease, KEEP).await?;
            assert!(is_marked, "nobody else can have had the key");
            work.marked.fetch_add(1, SeqCst);
            tokio::task::yield_now().await;
            Ok(true)
        }
        Begun::UnderWay { .. } => Ok(false),
        Begun::Done => Ok(true),
    }
}

/// Polls a future this many times, then drops it, as a crash would. Returns `None` if it did not finish before.
pub(crate) async fn crash_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The next poll is the crash, which needs no event.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn one_delivery_dies_at_each_await(world: &dyn World) {
    let store = world.store();
    for polls in 0.. {
        let (key, work) = (format!("crash after {polls}"), Work::default());
        let first = crash_after(polls, deliver(&store, &key, &work)).await;
        let (was_done, was_marked) = (work.times_done.load(SeqCst), work.marked.load(SeqCst));
        // A step of the dead process may arrive after this and take the key once more.
        for attempt in 0.. {
            world.pass(LOCK).await;
            if deliver(&store, &key, &work).await.unwrap() {
                break;
            }
            assert!(attempt < 5, "after {polls} polls the key is stuck");
        }
        assert!(matches!(store.begin(&key, LOCK).await.unwrap(), Begun::Done));
        let times_done = work.times_done.load(SeqCst);
        match (was_done, was_marked) {
            (0, _) => assert_eq!(times_done, 1),
            // The gap that a lock cannot close: the work is done, but the success was not recorded.
            (_, 0) => assert!(times_done <= 2),
            _ => assert_eq!(times_done, 1, "it was marked as done, and done again"),
        }
        if first.is_some() {
            assert!(polls > 5, "a crash at each await means several: {polls}");
            return;
        }
    }
}

async fn many_deliveries_die_anywhere(world: &dyn World) {
    let store = world.store();
    let mut random = TestRunner::deterministic();
    for round in 0..10 {
        let (key, work) = (format!("many {round}"), Arc::new(Work::default()));
        let mut lost = 0;
        loop {
            let mut deliveries = tokio::task::JoinSet::new();
            for _ in 0..16 {
                let polls = (0..30_u32).new_tree(&mut random).unwrap().current();
                let (store, key, work) = (Arc::clone(&store), key.clone(), Arc::clone(&work));
                deliveries.spawn(async move { crash_after(polls, deliver(&store, &key, &work)).await });
            }
            let outcomes = deliveries.join_all().await;
            if outcomes.into_iter().flatten().any(Result::unwrap) {
                break;
            }
            lost += 1;
            assert!(lost < 200, "nobody gets through");
            world.pass(LOCK).await;
        }
        assert_eq!(work.overlaps.load(SeqCst), 0, "two at once");
        assert!(matches!(store.begin(&key, LOCK).await.unwrap(), Begun::Done));
        let times_done = work.times_done.load(SeqCst);
        assert!((1..=lost + 1).contains(&times_done), "done {times_done} times with {lost} crashes");
    }
}

/// An effect that rejects a fence smaller than one it has seen.
#[derive(Default)]
struct Fenced(AtomicU64);

impl Fenced {
    fn write(&self, lease: &Lease) -> bool {
        self.0.fetch_max(lease.fence, SeqCst) <= lease.fence
    }
}

async fn a_paused_holder_is_rejected_by_the_fence(world: &dyn World) {
    if !world.has_fences() {
        return;
    }
    let (store, effect) = (world.store(), Fenced::default());
    let sleeper = acquired(store.begin("sleeper", LOCK).await);
    world.pass(LOCK).await;
    let next = acquired(store.begin("sleeper", LOCK).await);
    assert!(effect.write(&next));
    assert!(!effect.write(&sleeper), "the lock did not keep it from writing; the fence has to");
    assert!(!store.complete(&sleeper, KEEP).await.unwrap());
    assert!(store.complete(&next, KEEP).await.unwrap());
}
