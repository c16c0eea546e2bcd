//! `/v2/stats`: how a tenant stands now, and what happened in each of the last seconds.

use super::auth::Reader;
use super::error::ApiError;
use super::health::store_takes_writes;
use super::response::{from_core, turn};
use super::shape::{Object, put};
use crate::app::App;
use crate::core::CoreStats;
use crate::data_dir;
use crate::pulse::{Second, Seconds};
use axum::Json;
use axum::extract::State;
use posthaste_store::Tally;
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Dead letters, runs, and messages that have not ended are counted up to here; of more it is told that there are at least
/// so many.
const COUNTED_MAX: u64 = 10_000;

pub(super) async fn get(Reader { tenant, .. }: Reader, State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let turn = turn(&app, tenant).await?;
    let core = from_core(app.core.stats(tenant)).await?;
    let data_dir = app.config.data_dir.clone();
    let read =
        move |store: &dyn posthaste_store::Store| Ok((store.tally(tenant, COUNTED_MAX)?, data_dir::usage(&data_dir)));
    let (tally, usage) = app.read_with(turn, read).await?;
    let now = app.clock.now();
    let mut storage = Object::new();
    put_some(&mut storage, "bytes", usage.bytes);
    put_some(&mut storage, "freeBytes", usage.free_bytes);
    put(&mut storage, "diskLow", app.disk_is_low());
    put(&mut storage, "takesWrites", store_takes_writes(&app).await);
    let mut answer = json!({
        "time": now.as_millis(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime": app.clock.uptime().as_millis() as u64,
        "storage": storage,
        "messages": messages(&core, &tally),
        "dlq": counted("size", tally.dead_letters, tally.oldest_dead_letter),
        "runs": runs(&tally),
        "schedules": schedules(&core),
        "seconds": seconds(&core.seconds),
    });
    if let Some((p50, p99)) = core.seconds.latency_ms {
        answer["latency"] = json!({ "p50": p50, "p99": p99 });
    }
    Ok(Json(answer))
}

fn messages(core: &CoreStats, tally: &Tally) -> Object {
    let waiting = &core.waiting;
    let mut object = Object::new();
    put(&mut object, "live", tally.live_messages);
    put(&mut object, "liveHasMore", tally.more_live_messages);
    put(&mut object, "inFlight", core.in_flight);
    put(&mut object, "waiting", waiting.count);
    put(&mut object, "waitingHasMore", waiting.has_more || waiting.is_partial);
    put_some(&mut object, "oldestDue", waiting.oldest_due.map(Timestamp::as_millis));
    put(&mut object, "pausedQueues", waiting.paused_queues);
    put(&mut object, "pausedFlowControlKeys", waiting.paused_flows);
    put(&mut object, "partial", waiting.is_partial);
    object
}

/// A number that may stand for more, and the time of the oldest.
fn counted(name: &str, count: u64, oldest: Option<Timestamp>) -> Object {
    let mut object = Object::new();
    put(&mut object, name, count);
    put(&mut object, "hasMore", count >= COUNTED_MAX);
    put_some(&mut object, "oldest", oldest.map(Timestamp::as_millis));
    object
}

fn runs(tally: &Tally) -> Object {
    let mut object = Object::new();
    put(&mut object, "live", tally.live_runs);
    put(&mut object, "hasMore", tally.live_runs >= COUNTED_MAX);
    put(&mut object, "dlq", counted("size", tally.failed_runs, tally.oldest_failed_run));
    object
}

fn schedules(core: &CoreStats) -> Value {
    let next = core.next_schedules.iter();
    let next: Vec<Value> = next.map(|(at, id)| json!({ "scheduleId": &**id, "time": at.as_millis() })).collect();
    json!({ "count": core.schedules, "next": next })
}

/// One list per figure, all of the same length: much shorter than a list of objects.
fn seconds(seconds: &Seconds) -> Value {
    let list = |figure: fn(&Second) -> u32| seconds.seconds.iter().map(figure).collect::<Vec<u32>>();
    json!({
        "last": seconds.last,
        "published": list(|second| second.published),
        "delivered": list(|second| second.delivered),
        "failed": list(|second| second.failed),
        "deadLettered": list(|second| second.dead_lettered),
        "p50": list(|second| second.p50_ms),
        "p99": list(|second| second.p99_ms),
    })
}

fn put_some(object: &mut Object, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        put(object, name, value);
    }
}
