//! Every store matches the model for random sequences of steps.

use crate::support::World;
use posthaste_kit::idempotency::model::{State, Taken};
use posthaste_kit::idempotency::{Begun, IdempotencyStore, Lease};
use posthaste_wire::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// All times are multiples of this. A whole case takes less time than one unit.
const UNIT_S: u64 = 100;
const KEYS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug)]
enum Step {
    Begin { actor: usize, key: usize, units: u64 },
    Extend { actor: usize, key: usize, units: u64 },
    Complete { actor: usize, key: usize, units: u64 },
    Release { actor: usize, key: usize },
    Pass { units: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (actor, key, units) = (0..3_usize, 0..KEYS.len(), 1..5_u64);
    let held = (actor, key, units);
    let step = prop_oneof![
        4 => held.clone().prop_map(|(actor, key, units)| Step::Begin { actor, key, units }),
        2 => held.clone().prop_map(|(actor, key, units)| Step::Extend { actor, key, units }),
        2 => held.clone().prop_map(|(actor, key, units)| Step::Complete { actor, key, units }),
        2 => held.prop_map(|(actor, key, _)| Step::Release { actor, key }),
        3 => (1..4_u64).prop_map(|units| Step::Pass { units }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Runs this many cases. It blocks, so it needs its own thread beside the runtime.
pub(crate) fn check(world: &dyn World, runtime: &Handle, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut case = 0;
    let counter = std::sync::Mutex::new(&mut case);
    let outcome = TestRunner::new(config).run(&steps(), |steps| {
        let mut counter = counter.lock().unwrap();
        **counter += 1;
        runtime.block_on(run(world, &steps, **counter))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// The state of the model.
#[derive(Default)]
struct Expected {
    states: HashMap<usize, State>,
    now: Timestamp,
}

async fn run(world: &dyn World, steps: &[Step], case: u64) -> Result<(), TestCaseError> {
    let store = world.store();
    let mut expected = Expected::default();
    // The last lease of each actor for each key, even if it was lost. An actor that never had one uses an invented
    // lease.
    let mut leases: HashMap<(usize, usize), Lease> = HashMap::new();
    let name = |key: usize| format!("property {case} {}", KEYS[key]);
    let mut fences = [0; KEYS.len()];
    for step in steps {
        let lease = |actor: usize, key: usize| {
            let made_up = || Lease { key: name(key), token: [actor as u8; 16], fence: 0 };
            leases.get(&(actor, key)).cloned().unwrap_or_else(made_up)
        };
        match *step {
            Step::Begin { actor, key, units } => {
                if let Some(lease) = begin(&store, &mut expected, key, &name(key), units).await? {
                    prop_assert!(!world.has_fences() || lease.fence > fences[key], "the fence did not grow");
                    fences[key] = lease.fence;
                    leases.insert((actor, key), lease);
                }
            }
            Step::Extend { actor, key, units } => {
                let lease = lease(actor, key);
                let next = State::extend(expected.state(key), lease.token, expected.now, seconds(units));
                prop_assert_eq!(store.extend(&lease, seconds(units)).await.unwrap(), next.is_some(), "{:?}", step);
                expected.change(key, next);
            }
            Step::Complete { actor, key, units } => {
                let lease = lease(actor, key);
                let next = State::complete(expected.state(key), lease.token, expected.now, seconds(units));
                prop_assert_eq!(store.complete(&lease, seconds(units)).await.unwrap(), next.is_some(), "{:?}", step);
                expected.change(key, next);
            }
            Step::Release { actor, key } => {
                let lease = lease(actor, key);
                let is_released = State::release(expected.state(key), lease.token, expected.now);
                prop_assert_eq!(store.release(&lease).await.unwrap(), is_released, "{:?}", step);
                if is_released {
                    expected.states.remove(&key);
                }
            }
            Step::Pass { units } => {
                world.pass(seconds(units)).await;
                expected.now = expected.now.plus_millis(units * UNIT_S * 1_000);
            }
        }
    }
    Ok(())
}

async fn begin(
    store: &Arc<dyn IdempotencyStore>,
    expected: &mut Expected,
    key: usize,
    name: &str,
    units: u64,
) -> Result<Option<Lease>, TestCaseError> {
    let begun = store.begin(name, seconds(units)).await.unwrap();
    let token = if let Begun::Acquired(lease) = &begun { lease.token } else { [0xFF; 16] };
    match (State::begin(expected.state(key), token, expected.now, seconds(units)), begun) {
        (Taken::Acquired(state), Begun::Acquired(lease)) => {
            expected.states.insert(key, state);
            Ok(Some(lease))
        }
        (Taken::UnderWay { left_ms }, Begun::UnderWay { retry_after }) => {
            let left = Duration::from_millis(left_ms);
            let is_near = retry_after <= left && retry_after > left.saturating_sub(seconds(1));
            prop_assert!(is_near, "{:?} are left, not {:?}", left, retry_after);
            Ok(None)
        }
        (Taken::Done, Begun::Done) => Ok(None),
        (expected, begun) => Err(TestCaseError::fail(format!("{begun:?} instead of {expected:?}"))),
    }
}

impl Expected {
    fn state(&self, key: usize) -> Option<State> {
        self.states.get(&key).copied()
    }

    fn change(&mut self, key: usize, next: Option<State>) {
        if let Some(state) = next {
            self.states.insert(key, state);
        }
    }
}

fn seconds(units: u64) -> Duration {
    Duration::from_secs(units * UNIT_S)
}
