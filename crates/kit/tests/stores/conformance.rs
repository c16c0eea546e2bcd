//! The guarantees of every store, case by case.

use crate::support::{World, acquired};
use posthaste_kit::idempotency::{Begun, KEY_BYTES_MAX, Lease, TTL_MAX};
use std::collections::HashSet;
use std::time::Duration;

const LOCK: Duration = Duration::from_secs(240);
const KEEP: Duration = Duration::from_secs(86_400);
/// Tolerance for times: all cases together take less than this.
const SLACK: Duration = Duration::from_secs(60);

/// All cases, on one world.
pub(crate) async fn all(world: &dyn World) {
    a_key_has_one_holder(world).await;
    completed_work_is_remembered_for_a_while(world).await;
    released_keys_can_begin_again(world).await;
    a_holder_that_extends_keeps_the_key(world).await;
    a_lock_expires_and_the_late_holder_is_rejected(world).await;
    a_late_holder_may_complete_while_the_key_is_free(world).await;
    completing_can_be_repeated(world).await;
    holders_cannot_act_for_one_another(world).await;
    fences_grow(world).await;
    any_key_will_do(world).await;
    any_time_will_do(world).await;
    of_many_at_once_one_begins(world).await;
}

async fn a_key_has_one_holder(world: &dyn World) {
    let store = world.store();
    acquired(store.begin("one", LOCK).await);
    let Begun::UnderWay { retry_after } = store.begin("one", LOCK).await.unwrap() else { panic!("two holders") };
    assert!(retry_after <= LOCK && retry_after > LOCK - SLACK, "{retry_after:?}");
    acquired(store.begin("another", LOCK).await);
}

async fn completed_work_is_remembered_for_a_while(world: &dyn World) {
    let store = world.store();
    let lease = acquired(store.begin("done", LOCK).await);
    assert!(store.complete(&lease, KEEP).await.unwrap());
    assert!(matches!(store.begin("done", LOCK).await.unwrap(), Begun::Done));
    assert!(!store.extend(&lease, LOCK).await.unwrap(), "there is nothing to extend");
    assert!(!store.release(&lease).await.unwrap(), "what is done is not undone");
    world.pass(KEEP - SLACK).await;
    assert!(matches!(store.begin("done", LOCK).await.unwrap(), Begun::Done));
    world.pass(SLACK).await;
    acquired(store.begin("done", LOCK).await);
}

async fn released_keys_can_begin_again(world: &dyn World) {
    let store = world.store();
    let first = acquired(store.begin("released", LOCK).await);
    assert!(store.release(&first).await.unwrap());
    assert!(!store.release(&first).await.unwrap(), "it was free already");
    let second = acquired(store.begin("released", LOCK).await);
    assert_ne!(first.token, second.token);
    assert!(!store.release(&first).await.unwrap(), "it belongs to another");
    assert!(matches!(store.begin("released", LOCK).await.unwrap(), Begun::UnderWay { .. }));
}

async fn a_holder_that_extends_keeps_the_key(world: &dyn World) {
    let store = world.store();
    let lease = acquired(store.begin("extended", LOCK).await);
    for _ in 0..3 {
        world.pass(LOCK - SLACK).await;
        assert!(store.extend(&lease, LOCK).await.unwrap());
        assert!(matches!(store.begin("extended", LOCK).await.unwrap(), Begun::UnderWay { .. }));
    }
    assert!(store.complete(&lease, KEEP).await.unwrap());
}

async fn a_lock_expires_and_the_late_holder_is_rejected(world: &dyn World) {
    let store = world.store();
    let late = acquired(store.begin("late", LOCK).await);
    world.pass(LOCK).await;
    assert!(!store.extend(&late, LOCK).await.unwrap());
    assert!(!store.release(&late).await.unwrap());
    let next = acquired(store.begin("late", LOCK).await);
    assert!(!store.extend(&late, LOCK).await.unwrap());
    assert!(!store.release(&late).await.unwrap());
    assert!(!store.complete(&late, KEEP).await.unwrap());
    assert!(matches!(store.begin("late", LOCK).await.unwrap(), Begun::UnderWay { .. }), "nothing was marked");
    assert!(store.complete(&next, KEEP).await.unwrap());
    assert!(!store.complete(&late, KEEP).await.unwrap(), "it was done by another");
}

async fn a_late_holder_may_complete_while_the_key_is_free(world: &dyn World) {
    let store = world.store();
    let late = acquired(store.begin("late effect", LOCK).await);
    world.pass(LOCK).await;
    assert!(store.complete(&late, KEEP).await.unwrap());
    assert!(matches!(store.begin("late effect", LOCK).await.unwrap(), Begun::Done));

    let late = acquired(store.begin("given back", LOCK).await);
    world.pass(LOCK).await;
    let next = acquired(store.begin("given back", LOCK).await);
    assert!(store.release(&next).await.unwrap());
    assert!(store.complete(&late, KEEP).await.unwrap());
    assert!(matches!(store.begin("given back", LOCK).await.unwrap(), Begun::Done));
}

async fn completing_can_be_repeated(world: &dyn World) {
    let store = world.store();
    let lease = acquired(store.begin("repeated", LOCK).await);
    for _ in 0..2 {
        assert!(store.complete(&lease, KEEP).await.unwrap());
    }
    assert!(matches!(store.begin("repeated", LOCK).await.unwrap(), Begun::Done));
}

async fn holders_cannot_act_for_one_another(world: &dyn World) {
    let store = world.store();
    let holder = acquired(store.begin("mine", LOCK).await);
    let thief = Lease { token: [0; 16], ..holder.clone() };
    assert!(!store.extend(&thief, KEEP).await.unwrap());
    assert!(!store.complete(&thief, KEEP).await.unwrap());
    assert!(!store.release(&thief).await.unwrap());
    assert!(store.release(&holder).await.unwrap());
}

async fn fences_grow(world: &dyn World) {
    let store = world.store();
    let mut last = 0;
    for n in 0..6 {
        let lease = acquired(store.begin("fenced", LOCK).await);
        if !world.has_fences() {
            assert_eq!(lease.fence, 0, "no fence is better than one that lies");
            return;
        }
        assert!(lease.fence > last, "{} after {last}", lease.fence);
        last = lease.fence;
        match n % 3 {
            0 => world.pass(LOCK).await,
            1 => assert!(store.release(&lease).await.unwrap()),
            _ => {
                assert!(store.complete(&lease, LOCK).await.unwrap());
                world.pass(LOCK).await;
            }
        }
    }
}

async fn any_key_will_do(world: &dyn World) {
    let store = world.store();
    let long = "k".repeat(KEY_BYTES_MAX);
    let longer = [format!("{long}1"), format!("{long}2")];
    let odd =
        ["", " ", "a\0b", "a\nb", "*", "{slot}", "schlüssel 🔑", "'; DROP TABLE idempotency_locks; --", "sha256:"];
    for key in odd.into_iter().chain([long.as_str()]).chain(longer.iter().map(String::as_str)) {
        let lease = acquired(store.begin(key, LOCK).await);
        assert_eq!(lease.key, key);
        assert!(matches!(store.begin(key, LOCK).await.unwrap(), Begun::UnderWay { .. }), "{key:?}");
        assert!(store.extend(&lease, LOCK).await.unwrap());
        assert!(store.complete(&lease, KEEP).await.unwrap());
        assert!(matches!(store.begin(key, LOCK).await.unwrap(), Begun::Done), "{key:?}");
    }
}

async fn any_time_will_do(world: &dyn World) {
    let store = world.store();
    let lease = acquired(store.begin("forever", Duration::MAX).await);
    let Begun::UnderWay { retry_after } = store.begin("forever", LOCK).await.unwrap() else { panic!("two holders") };
    assert!(retry_after <= TTL_MAX && retry_after > TTL_MAX - SLACK);
    assert!(store.extend(&lease, Duration::MAX).await.unwrap());
    assert!(store.complete(&lease, Duration::MAX).await.unwrap());
    assert!(matches!(store.begin("forever", LOCK).await.unwrap(), Begun::Done));

    acquired(store.begin("for no time", Duration::ZERO).await);
    world.pass(Duration::from_millis(1)).await;
    acquired(store.begin("for no time", LOCK).await);
}

async fn of_many_at_once_one_begins(world: &dyn World) {
    let mut deliveries = tokio::task::JoinSet::new();
    for n in 0..64 {
        let store = world.store();
        deliveries.spawn(async move { (n % 2, store.begin(&format!("contested {}", n % 2), LOCK).await.unwrap()) });
    }
    let all = deliveries.join_all().await;
    let winners: Vec<u8> =
        all.iter().filter(|(_, begun)| matches!(begun, Begun::Acquired(_))).map(|(key, _)| *key).collect();
    assert_eq!((winners.len(), winners.iter().collect::<HashSet<_>>().len()), (2, 2), "one per key: {winners:?}");
    assert!(all.iter().all(|(_, begun)| !matches!(begun, Begun::Done)));
}
