//! Does something to many messages or dead letters, a piece at a time: others go on meanwhile.
//!
//! A caller who does not wait gets a bulk action, which is stored with its progress; [`run`] works on those in the
//! background, also on those that an earlier process left behind. `cancel` and `dead_letters` do the pieces. Which
//! filters there are is decided in `api`.

mod cancel;
mod dead_letters;
mod pace;

use crate::api::stored_filter;
use crate::app::App;
use crate::core::{BulkPiece, CoreError, Room};
use crate::data_dir::DiskPromise;
use pace::Pace;
use posthaste_engine::bulk_action::{BulkAction, Task};
use posthaste_faults::crash_point::crash_point;
use posthaste_faults::panics::{Panicked, caught};
use posthaste_store::{StoreError, UnfinishedAction};
use posthaste_wire::id::{BulkActionId, Seq, TenantId};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

pub(crate) use cancel::{Range, cancel_piece, count_matching};
pub(crate) use dead_letters::{count_dead_letters, dead_letters_of_now};

/// Messages that one transaction ends or makes.
const PIECE: usize = 1_000;
/// How long a bulk action pauses when the store or the core did not do what it asked.
const PAUSE: Duration = Duration::from_secs(1);

/// What the API and the worker share.
#[derive(Default)]
pub(crate) struct BulkActions {
    /// Held while one is begun, so that what was counted before stays true.
    pub(crate) beginning: Mutex<()>,
    /// Held from reading an action until its progress is stored, so that it cannot be stopped in between: once somebody
    /// was told that it has ended, it does nothing more.
    working: Mutex<()>,
    /// Tells the worker that there is something to do.
    pub(crate) begun: Notify,
}

/// Why a piece was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BulkError {
    /// What is meant could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The core did not do it.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// There is no room for what would be published again.
    #[error("the disk is nearly full, or the tenant has reached its storage quota")]
    DiskLow,
}

/// What is next in a bulk action; by default nothing.
#[derive(Default)]
struct Advance {
    /// What is to be done.
    piece: Option<BulkPiece>,
    /// There may be more after it.
    has_more: bool,
    /// Room on the disk for the messages of the piece.
    disk: Option<DiskPromise>,
}

/// What the worker does next.
enum Next {
    /// There is more to do.
    GoOn,
    /// Somebody may begin something.
    Wait,
    /// Nobody may do anything for so long.
    Pause(Duration),
}

/// Works on bulk actions until `stop`. What is under way then goes on at the next start.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    let mut not_before = HashMap::new();
    while !stop.is_cancelled() {
        let next = match caught(pin!(step(&app, &mut not_before))).await {
            Ok(Ok(next)) => next,
            Err(Panicked) => {
                tracing::error!("bulk actions stalled by a panic; retrying");
                Next::Pause(PAUSE)
            }
            Ok(Err(error)) => {
                tracing::warn!(error = %error, "bulk actions stalled; retrying");
                Next::Pause(PAUSE)
            }
        };
        let begun = app.bulk_actions.begun.notified();
        let wait = async {
            match next {
                Next::GoOn => {}
                Next::Wait => begun.await,
                Next::Pause(pause) => {
                    tokio::select! {
                        () = begun => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        };
        tokio::select! {
            () = wait => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Does one piece of every bulk action that is not finished and may go on. The map says at which uptime each may.
async fn step(app: &Arc<App>, not_before: &mut HashMap<Seq, Duration>) -> Result<Next, StoreError> {
    let unfinished = app.look_up(|store| store.unfinished_bulk_actions()).await?;
    not_before.retain(|id, _| unfinished.iter().any(|action| action.id == *id));
    for UnfinishedAction { tenant, id, rate } in unfinished {
        let now = app.clock.uptime();
        if not_before.get(&id).is_some_and(|time| now < *time) {
            continue;
        }
        let pace = Pace::of(rate);
        let pause = match do_piece(app, tenant, id, pace.piece).await {
            Ok(()) => pace.pause,
            Err(error) => {
                let id = BulkActionId(id);
                tracing::warn!(bulk_action.id = %id, error = %error, "bulk action stalled; retrying");
                PAUSE
            }
        };
        not_before.insert(id, now + pause);
    }
    let first = not_before.values().min();
    Ok(first.map_or(Next::Wait, |time| match time.saturating_sub(app.clock.uptime()) {
        Duration::ZERO => Next::GoOn,
        pause => Next::Pause(pause),
    }))
}

/// Does the next piece of a bulk action, unless it was stopped, and stores how far it is: in one transaction, so that
/// nothing is done twice and no more than `count`.
async fn do_piece(app: &Arc<App>, tenant: TenantId, id: Seq, max: usize) -> Result<(), BulkError> {
    let _alone = app.bulk_actions.working.lock().await;
    let action = app.look_up(move |store| store.bulk_action(tenant, id)).await?;
    let Some(action) = action.filter(|action| action.completed_at.is_none()) else { return Ok(()) };
    let (next, Advance { piece, disk, .. }) = advance(app, action, max).await?;
    let done = app.core.put_bulk_action(next, piece, Room { disk, ..Room::default() }).await?;
    app.duplicates.add(&done.duplicates, app.clock.now());
    crash_point("bulk_progress_stored");
    Ok(())
}

/// The next piece of a bulk action, and how far it is then. The core counts what it has done.
async fn advance(app: &Arc<App>, mut action: BulkAction, max: usize) -> Result<(BulkAction, Advance), BulkError> {
    let left = action.count.map_or(u64::MAX, |count| count.saturating_sub(action.processed));
    let max = usize::try_from(left).unwrap_or(usize::MAX).min(max);
    let filter = match stored_filter(&action.filter) {
        Ok(filter) => Arc::new(filter),
        Err(problem) => {
            let id = BulkActionId(action.id);
            tracing::error!(bulk_action.id = %id, problem, "stored bulk action is invalid; ending it");
            action.completed_at = Some(app.clock.now());
            return Ok((action, Advance::default()));
        }
    };
    let advance = match action.task {
        _ if max == 0 => Advance::default(),
        Task::Cancel => cancel::advance(app, &mut action, &filter, max).await?,
        Task::DlqRetry { .. } | Task::DlqDelete { .. } => dead_letters::advance(app, &mut action, &filter, max).await?,
    };
    if !advance.has_more {
        action.completed_at = Some(app.clock.now());
    }
    Ok((action, advance))
}

/// Ends a bulk action where it is, and gives it as it is then; `None` if there is none. One that has ended stays so.
pub(crate) async fn stop(app: &Arc<App>, tenant: TenantId, id: Seq) -> Result<Option<BulkAction>, BulkError> {
    let _alone = app.bulk_actions.working.lock().await;
    let Some(mut action) = app.look_up(move |store| store.bulk_action(tenant, id)).await? else { return Ok(None) };
    if action.completed_at.is_none() {
        action.completed_at = Some(app.clock.now());
        action.stopped = true;
        action = app.core.put_bulk_action(action, None, Room::default()).await?.action;
        app.bulk_actions.begun.notify_one();
    }
    Ok(Some(action))
}
