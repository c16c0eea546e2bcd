//! Moments at which the machine stood still. What arrives after one may have been sent that much earlier, and whoever judges by
//! times of arrival makes allowance for it.

use crate::history::{Millis, Stall};
use crate::load::Load;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const TICK: Duration = Duration::from_millis(20);
/// Ticks that are further apart than this tell of a stall.
const STILL_MS: Millis = 120;

/// Notes every stall, without end.
pub(crate) async fn watch(load: Arc<Load>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = load.witness.now();
    loop {
        ticks.tick().await;
        let now = load.witness.now();
        if now - last > STILL_MS {
            load.note(|history| history.stalls.push(Stall { from: last, until: now }));
        }
        last = now;
    }
}
