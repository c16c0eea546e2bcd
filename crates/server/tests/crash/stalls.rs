//! Moments at which the machine stood still. What arrives after one may have been sent long before, so nothing that happened
//! near it is judged by the time of its arrival.

use crate::history::{Millis, Stall};
use crate::load::{Load, Phase};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const TICK: Duration = Duration::from_millis(20);
/// Ticks that are further apart than this tell of a stall.
const STILL_MS: Millis = 120;

/// Notes every stall until the run is over.
pub(crate) async fn watch(load: Arc<Load>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut phase = load.phase.subscribe();
    let mut last = load.witness.now();
    loop {
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Over) => return,
            _ = ticks.tick() => {}
        }
        let now = load.witness.now();
        if now - last > STILL_MS {
            load.note(|history| history.stalls.push(Stall { from: last, until: now }));
        }
        last = now;
    }
}
