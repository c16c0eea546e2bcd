//! `/v2/stats`: how a tenant stands now, and what happened in each of the last seconds.

use super::auth::Reader;
use super::error::ApiError;
use super::health::store_takes_writes;
use super::response::{from_core, turn};
use crate::app::App;
use crate::core::CoreStats;
use crate::data_dir;
use crate::pulse::{Second, Seconds};
use axum::Json;
use axum::extract::State;
use posthaste_api_types::stats::{
    CountedEntries, Latency, MessageStats, NextFiring, RunStats, ScheduleStats, SecondStats, Stats, StorageStats,
};
use posthaste_store::Tally;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// Dead letters, runs, and messages that have not ended are counted up to here; of more it is told that there are at least
/// so many.
const COUNTED_MAX: u64 = 10_000;

pub(super) async fn get(Reader { tenant, .. }: Reader, State(app): State<Arc<App>>) -> Result<Json<Stats>, ApiError> {
    let turn = turn(&app, tenant).await?;
    let core = from_core(app.core.stats(tenant)).await?;
    let data_dir = app.config.data_dir.clone();
    let read =
        move |store: &dyn posthaste_store::Store| Ok((store.tally(tenant, COUNTED_MAX)?, data_dir::usage(&data_dir)));
    let (tally, usage) = app.read_with(turn, read).await?;
    let now = app.clock.now();
    let storage = StorageStats {
        bytes: usage.bytes,
        free_bytes: usage.free_bytes,
        disk_low: app.disk_is_low(),
        takes_writes: store_takes_writes(&app).await,
    };
    Ok(Json(Stats {
        time: now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: app.clock.uptime().as_millis() as u64,
        storage,
        messages: messages(&core, &tally),
        dlq: counted(tally.dead_letters, tally.oldest_dead_letter),
        runs: RunStats {
            live: tally.live_runs,
            has_more: tally.live_runs >= COUNTED_MAX,
            dlq: counted(tally.failed_runs, tally.oldest_failed_run),
        },
        schedules: schedules(&core),
        latency: core.seconds.latency_ms.map(|(p50, p99)| Latency { p50: p50.into(), p99: p99.into() }),
        seconds: seconds(&core.seconds),
    }))
}

fn messages(core: &CoreStats, tally: &Tally) -> MessageStats {
    let waiting = &core.waiting;
    MessageStats {
        live: tally.live_messages,
        live_has_more: tally.more_live_messages,
        in_flight: core.in_flight as u64,
        waiting: waiting.count,
        waiting_has_more: waiting.has_more || waiting.is_partial,
        oldest_due: waiting.oldest_due,
        paused_queues: waiting.paused_queues as u64,
        paused_flow_control_keys: waiting.paused_flows as u64,
        partial: waiting.is_partial,
    }
}

/// A number that may stand for more, and the time of the oldest.
fn counted(size: u64, oldest: Option<Timestamp>) -> CountedEntries {
    CountedEntries { size, has_more: size >= COUNTED_MAX, oldest }
}

fn schedules(core: &CoreStats) -> ScheduleStats {
    let next = core.next_schedules.iter();
    let next = next.map(|(at, id)| NextFiring { schedule_id: id.to_string(), time: *at }).collect();
    ScheduleStats { count: core.schedules as u64, next }
}

fn seconds(seconds: &Seconds) -> SecondStats {
    let list = |figure: fn(&Second) -> u32| seconds.seconds.iter().map(figure).collect::<Vec<u32>>();
    SecondStats {
        last: seconds.last,
        published: list(|second| second.published),
        delivered: list(|second| second.delivered),
        failed: list(|second| second.failed),
        dead_lettered: list(|second| second.dead_lettered),
        p50: list(|second| second.p50_ms),
        p99: list(|second| second.p99_ms),
    }
}
