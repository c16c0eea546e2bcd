//! A journal in front of the database: a commit is one append and, if it must be, one sync; the database gets
//! the net effect of many commits a moment later.
//!
//! A batch that holds only what happens to messages and runs is appended to the `log` and kept in RAM as `pending`; that
//! is all its caller waits for. A thread applies what is pending to the database every [`APPLY_AFTER`]. Whoever
//! asks for something that may be pending has it applied first; what the engine asks for at every message is
//! answered from RAM instead. A batch with anything else in it goes straight to the database, behind all
//! that was before it.
//!
//! The database knows the number of the last frame that it has, so after a crash the frames behind it are
//! applied again. Stopping applies all and leaves an empty journal: then the database alone is everything.

pub mod frame;
pub(super) mod pending;
pub(super) mod pending_runs;

mod log;
mod run_check;
mod store_impl;

pub use log::JournalError;

use super::sqlite::{OpenError, SqliteOptions, SqliteStore};
use super::usage::Usage;
use super::{
    Counts, DiskOutlook, Durability, Epoch, Retained, Retention, ShardId, Store, StoreError, absent,
    duplicate_window_counts, lock,
};
use frame::Seal;
use log::{Found, Log};
use pending::Pending;
use pending_runs::Overlay;
use posthaste_engine::event::Op;
use posthaste_engine::message::{DedupKey, Message};
use posthaste_engine::workflow::Change;
use posthaste_faults::crash_point::{self, crash_point};
use posthaste_faults::panics::caught_in;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use run_check::RunCheck;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is pending gets into the database after this time, by default. Most messages have ended by then, so that
/// they never have a live row there.
pub const APPLY_AFTER: Duration = Duration::from_millis(250);
/// How long a file of the journal gets, by default: as much as arrives in half a second at full speed. Short where
/// tests kill the server, so that they meet the change from one file to the next.
pub const SEGMENT_BYTES: u64 = if crash_point::ENABLED { 64 * 1024 } else { 16 * 1024 * 1024 };
/// What is pending gets into the database without delay when its frames are this long.
const APPLY_BYTES: usize = 8 * 1024 * 1024;
/// The database's WAL is moved into its file when this much of it is not there yet. Pages that change often are then moved once
/// for many changes: at 4 MiB a publish cost a tenth more CPU.
pub const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;
/// The same while the disk has little room, where a long WAL could use up the reserve.
const TIGHT_CHECKPOINT_BYTES: u64 = 4 * 1024 * 1024;
/// How often the thread looks whether the disk has little room.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most bytes of a frame. A batch that is longer goes straight to the database.
const JOURNAL_FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A commit that finds frames of this length pending applies them itself: the database is slower than the callers.
const PENDING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What is missing when a batch is about a message that has ended.
const LIVE: &str = "live message";

/// What may be chosen about a store with a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// About the database.
    pub sqlite: SqliteOptions,
    /// Start although frames are damaged that were on disk: those and all later ones are set aside.
    pub discard_damaged: bool,
    /// How long something may be pending.
    pub apply_after: Duration,
    /// A file of the journal that has reached this length is followed by another.
    pub segment_bytes: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            sqlite: SqliteOptions::default(),
            discard_damaged: false,
            apply_after: APPLY_AFTER,
            segment_bytes: SEGMENT_BYTES,
        }
    }
}

/// Why a store with a journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// The database could not be opened.
    #[error(transparent)]
    Database(#[from] OpenError),
    /// The journal could not be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What the journal holds could not be brought into the database.
    #[error("the journal could not be applied to the database")]
    Apply(#[from] StoreError),
}

/// A database with a journal in front of it.
pub struct JournalStore {
    shared: Arc<Shared>,
    applier: Option<JoinHandle<()>>,
}

struct Shared {
    database: SqliteStore,
    /// Also what makes commits happen one after the other. Locks are taken in this order.
    log: Mutex<Log>,
    /// Held by whoever applies.
    apply_lock: Mutex<()>,
    state: Mutex<State>,
    /// Something is pending, or it is time to stop.
    changed: Condvar,
    apply_after: Duration,
    /// The bytes of each tenant that are pending.
    pending_usage: Usage,
    /// What [`State::backlog_bytes`] was when it changed last, and the free pages of the database.
    disk: Arc<DiskOutlook>,
}

struct State {
    /// Commits add to this.
    gathering: Pending,
    since: Option<Instant>,
    /// On its way into the database.
    applying: Option<Arc<Pending>>,
    /// The last frame that is in the database.
    applied: u64,
    /// How much of the database's WAL is not in its file, more or less.
    unmoved_bytes: u64,
    epochs: HashMap<ShardId, Epoch>,
    counts: Counts,
    last_seq: Seq,
    /// Why nothing is written any more.
    failure: Option<String>,
    stopping: bool,
}

impl JournalStore {
    /// Opens the database and brings into it what the journal has beyond it.
    pub fn open(database: &Path, directory: &Path, options: JournalOptions) -> Result<JournalStore, JournalOpenError> {
        let sqlite = SqliteOptions { checkpoints_by_hand: true, ..options.sqlite };
        let (database, last, seal) = recover(database, directory, sqlite, options.discard_damaged)?;
        let io = |source| JournalError::Io { path: directory.to_owned(), source };
        let log = Log::create(directory, last, seal, options.segment_bytes).map_err(io)?;
        let (counts, last_seq) = (database.counts()?, database.last_seq()?);
        let state = State {
            gathering: Pending::default(),
            since: None,
            applying: None,
            applied: last,
            // What an earlier run left in the WAL is moved first.
            unmoved_bytes: CHECKPOINT_BYTES,
            epochs: HashMap::new(),
            counts,
            last_seq,
            failure: None,
            stopping: false,
        };
        let disk = Arc::new(DiskOutlook { reusable: database.reusable_bytes()?.into(), ..DiskOutlook::default() });
        let shared = Arc::new(Shared {
            database,
            log: Mutex::new(log),
            apply_lock: Mutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            apply_after: options.apply_after,
            pending_usage: Usage::default(),
            disk,
        });
        let for_thread = shared.clone();
        let applier = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            if caught_in(|| for_thread.keep_applying()).is_err() {
                // The core finds the failure before its next commit.
                for_thread.fail("the journal thread panicked".into());
            }
        });
        Ok(JournalStore { shared, applier: Some(applier.map_err(io)?) })
    }
}

/// Opens the database alone, with what a journal in front of it may have left.
pub fn open_without_journal(
    database: &Path,
    directory: &Path,
    options: &JournalOptions,
) -> Result<SqliteStore, JournalOpenError> {
    let (database, ..) = recover(database, directory, options.sqlite.clone(), options.discard_damaged)?;
    Ok(database)
}

/// The database with everything in it, the last frame, and the seal of the next segment.
fn recover(
    database: &Path,
    directory: &Path,
    sqlite: SqliteOptions,
    discard_damaged: bool,
) -> Result<(SqliteStore, u64, Seal), JournalOpenError> {
    let io = |source| JournalError::Io { path: directory.to_owned(), source };
    // Before the database is brought up to date: the release that wrote the journal must be able to open it.
    log::refuse_foreign(directory)?;
    let database = SqliteStore::open(database, sqlite)?;
    let (key, applied) = (database.journal_key()?, database.applied()?);
    let found = log::find(directory, key, applied)?;
    crash_point("start_journal_found");
    let replayed =
        if found.is_damaged && !discard_damaged { Err(found.damage().into()) } else { replay(&found, &database) };
    match replayed {
        Ok(()) if found.is_damaged => {
            tracing::warn!(last = found.last, "journal damaged; moving all later frames aside");
        }
        Ok(()) if found.last > applied => {
            tracing::info!(batches = found.last - applied, "applied the journal of the last run to the database");
        }
        Ok(()) => {}
        Err(error) if discard_damaged => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "journal only partly applied to the database; moving the rest aside");
        }
        Err(error) => return Err(error),
    }
    let last = database.applied()?;
    database.sync()?;
    crash_point("start_journal_applied");
    if last < found.last || found.is_damaged { found.set_aside() } else { found.remove() }.map_err(io)?;
    crash_point("start_journal_removed");
    Ok((database, last, Seal { key, segment: found.next_segment() }))
}

/// Brings what the database lacks into it.
fn replay(found: &Found, database: &SqliteStore) -> Result<(), JournalOpenError> {
    let mut pending = Pending::default();
    found.replay(database.applied()?, |number, bytes, shard, ops| -> Result<(), JournalOpenError> {
        pending.add(number, bytes, shard, ops);
        if pending.bytes >= APPLY_BYTES {
            database.apply(&std::mem::take(&mut pending))?;
        }
        Ok(())
    })?;
    if !pending.is_empty() {
        database.apply(&pending)?;
    }
    Ok(())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn commit(&self, shard: ShardId, epoch: Epoch, ops: &[Op], durability: Durability) -> Result<(), StoreError> {
        let must_apply = {
            let mut log = lock(&self.log);
            if !ops.iter().all(frame::takes) || !self.is_for_journal(shard, epoch, ops)? {
                return self.commit_to_database(shard, epoch, ops);
            }
            let appended = log.append(shard, ops, durability == Durability::Synced);
            let Some((number, bytes)) = appended.map_err(|error| self.fail(error.into()))? else {
                return self.commit_to_database(shard, epoch, ops);
            };
            let mut state = self.state();
            state.count(ops);
            self.pending_usage.add(&state.gathering.add(number, bytes, shard, ops));
            self.note_backlog(&state);
            if state.since.is_none() {
                state.since = Some(Instant::now());
                self.changed.notify_all();
            } else if state.gathering.bytes >= APPLY_BYTES {
                self.changed.notify_all();
            }
            state.gathering.bytes >= PENDING_BYTES_MAX
        };
        if must_apply { self.apply_pending() } else { Ok(()) }
    }

    /// Checks a batch before it is promised; false if only the database can tell.
    fn is_for_journal(&self, shard: ShardId, epoch: Epoch, ops: &[Op]) -> Result<bool, StoreError> {
        let mut of_runs = RunCheck::default();
        {
            let state = self.state();
            state.check()?;
            if state.epochs.get(&shard) != Some(&epoch) {
                return Err(StoreError::Fenced);
            }
            let mut last_seq = state.last_seq;
            // What this batch itself has done to messages.
            let mut messages: HashMap<MessageId, bool> = HashMap::with_capacity(ops.len());
            for op in ops {
                let (id, lives_on) = match op {
                    Op::Insert { message, .. } if message.id.seq > last_seq => {
                        last_seq = message.id.seq;
                        messages.insert(message.id, true);
                        continue;
                    }
                    // Its position may be taken.
                    Op::Insert { .. } => return Ok(false),
                    Op::Update(live) => (live.id, true),
                    Op::Remove { id } => (*id, false),
                    Op::InsertDeadLetter(letter) => (letter.id, false),
                    Op::Workflow(change) if !of_runs.add(change, &state)? => return Ok(false),
                    _ => continue,
                };
                match messages.insert(id, lives_on).or_else(|| state.is_live(shard, id)) {
                    Some(true) => {}
                    Some(false) => return Err(absent(LIVE, id)),
                    None => of_runs.preconditions.live.push((shard, id)),
                }
            }
        }
        if of_runs.preconditions.is_empty() {
            Ok(true)
        } else {
            self.database.check_preconditions(&of_runs.preconditions)
        }
    }

    /// Also if it is lazy: what is in the database must not depend on what the journal may lose.
    fn commit_to_database(&self, shard: ShardId, epoch: Epoch, ops: &[Op]) -> Result<(), StoreError> {
        self.apply_pending()?;
        self.state().check()?;
        self.database.commit(shard, epoch, ops, Durability::Synced)?;
        self.measure_wal()?;
        self.recount()
    }

    fn note_backlog(&self, state: &State) {
        self.disk.backlog.store(state.backlog_bytes(), Ordering::Relaxed);
        self.disk.pending.store(state.pending_bytes(), Ordering::Relaxed);
    }

    /// How long the WAL may get before it is moved.
    fn checkpoint_bytes(&self) -> u64 {
        if self.disk.is_tight.load(Ordering::Relaxed) { TIGHT_CHECKPOINT_BYTES } else { CHECKPOINT_BYTES }
    }

    /// Something went into the database's WAL; the thread moves it when it is long enough. Where the thread does not get to it,
    /// because others write all the time, whoever writes does so at twice that length.
    fn measure_wal(&self) -> Result<(), StoreError> {
        let measure = || self.database.unmoved_bytes().map_err(|error| self.fail(error.into()));
        let mut unmoved_bytes = measure()?;
        if unmoved_bytes >= 2 * self.checkpoint_bytes() {
            self.database.checkpoint().map_err(|error| self.fail(error.into()))?;
            unmoved_bytes = measure()?;
        }
        let reusable = self.database.reusable_bytes().map_err(|error| self.fail(error.into()))?;
        self.disk.reusable.store(reusable, Ordering::Relaxed);
        let mut state = self.state();
        state.unmoved_bytes = unmoved_bytes;
        self.note_backlog(&state);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Drops history. What is pending may wait: the database is what the store was a moment ago, and nothing that is
    /// dropped there is needed by what came since, but for what [`Pending::allows_retention`] finds.
    fn retain(&self, policy: &Retention, now: Timestamp) -> Result<Retained, StoreError> {
        if !self.state().generations().all(|pending| pending.allows_retention(policy, now)) {
            self.apply_pending()?;
        }
        let _turn = lock(&self.apply_lock);
        self.state().check()?;
        let before = self.database.counts()?.dead_letters;
        let retained = self.database.retain(policy, now)?;
        let dropped = before.saturating_sub(self.database.counts()?.dead_letters);
        let mut state = self.state();
        state.counts.dead_letters = state.counts.dead_letters.saturating_sub(dropped);
        drop(state);
        self.measure_wal()?;
        Ok(retained)
    }

    /// What the database says; nothing is pending and no commit is under way.
    fn recount(&self) -> Result<(), StoreError> {
        let (counts, last_seq) = (self.database.counts()?, self.database.last_seq()?);
        let mut state = self.state();
        state.counts = counts;
        state.last_seq = last_seq;
        Ok(())
    }

    /// Brings everything that was committed before this call into the database.
    fn apply_pending(&self) -> Result<(), StoreError> {
        let target = {
            let state = self.state();
            state.check()?;
            match state.committed() {
                committed if committed > state.applied => committed,
                _ => return Ok(()),
            }
        };
        let _turn = lock(&self.apply_lock);
        let pending = {
            let mut state = self.state();
            state.check()?;
            // Whoever had the turn before may have done it.
            if state.applied >= target {
                return Ok(());
            }
            state.since = None;
            let pending = Arc::new(std::mem::take(&mut state.gathering));
            state.applying = Some(pending.clone());
            pending
        };
        crash_point("journal_before_apply");
        self.database.apply(&pending).map_err(|error| self.fail(error.into()))?;
        crash_point("journal_applied");
        let mut state = self.state();
        self.pending_usage.remove(&pending.usage);
        state.applying = None;
        state.applied = pending.last;
        drop(state);
        // Whoever applies, the thread lets go of files.
        self.measure_wal()
    }

    /// The thread: applies what has been pending long enough, and lets go of files.
    fn keep_applying(&self) {
        // The last frame that was in the database when files were let go of.
        let mut released = 0;
        loop {
            let mut state = self.state();
            let is_time_to_apply = loop {
                let patience = match state.since {
                    _ if state.stopping || state.failure.is_some() => return,
                    _ if state.applied > released || state.unmoved_bytes >= self.checkpoint_bytes() => break false,
                    Some(_) if state.gathering.bytes >= APPLY_BYTES => break true,
                    Some(since) => self.apply_after.saturating_sub(since.elapsed()),
                    None => Duration::MAX,
                };
                if patience.is_zero() {
                    break true;
                }
                state = match self.changed.wait_timeout(state, patience.min(LOOK_EVERY)) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            };
            released = state.applied;
            drop(state);
            let done = if is_time_to_apply { self.apply_pending() } else { self.release(released) };
            if let Err(error) = done {
                tracing::error!(error = &error as &dyn std::error::Error, "the journal cannot be applied");
                return;
            }
        }
    }

    /// Lets go of files whose frames are safe in the database: all up to this one are in it.
    fn release(&self, applied: u64) -> Result<(), StoreError> {
        if lock(&self.log).would_release(applied) {
            self.database.flush().map_err(|error| self.fail(error.into()))?;
            crash_point("journal_flushed");
            lock(&self.log).release(applied).map_err(|error| self.fail(error.into()))?;
        }
        if self.state().unmoved_bytes >= self.checkpoint_bytes() {
            self.state().unmoved_bytes = 0;
            crash_point("journal_before_checkpoint");
            self.database.checkpoint().map_err(|error| self.fail(error.into()))?;
            // A reader may have kept part of it from being moved; the next write tries that part again.
            let unmoved_bytes = self.database.unmoved_bytes().map_err(|error| self.fail(error.into()))?;
            let state = self.state();
            self.disk.backlog.store(state.backlog_bytes().max(unmoved_bytes), Ordering::Relaxed);
            drop(state);
            crash_point("journal_checkpointed");
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.state().check()?;
        lock(&self.log).sync().map_err(|error| self.fail(error.into()))
    }

    /// Everything is in the database: empties the journal.
    fn close(&self) -> Result<(), StoreError> {
        self.state().check()?;
        self.database.flush()?;
        crash_point("stop_journal_settled");
        lock(&self.log).remove().map_err(|error| StoreError::Unavailable(error.into()))?;
        crash_point("stop_journal_removed");
        Ok(())
    }

    /// From now on nothing is written.
    fn fail(&self, error: super::BoxError) -> StoreError {
        let mut state = self.state();
        state.failure.get_or_insert_with(|| chain(error.as_ref()));
        StoreError::Unknown(error)
    }
}

impl State {
    fn check(&self) -> Result<(), StoreError> {
        match &self.failure {
            None => Ok(()),
            Some(reason) => Err(StoreError::Unknown(format!("the store has stopped writing: {reason}").into())),
        }
    }

    /// What is pending gets into the WAL and from there into the database file; what is in the WAL, into that.
    fn backlog_bytes(&self) -> u64 {
        self.unmoved_bytes + 2 * self.pending_bytes()
    }

    fn pending_bytes(&self) -> u64 {
        self.generations().map(|pending| pending.bytes as u64).sum()
    }

    /// The last frame that was committed.
    fn committed(&self) -> u64 {
        self.generations().map(|pending| pending.last).fold(self.applied, u64::max)
    }

    /// The newest first.
    fn generations(&self) -> impl Iterator<Item = &Pending> {
        std::iter::once(&self.gathering).chain(self.applying.as_deref())
    }

    fn is_live(&self, shard: ShardId, id: MessageId) -> Option<bool> {
        self.generations().find_map(|pending| pending.is_live(shard, id))
    }

    fn message(&self, id: MessageId) -> Option<Arc<Message>> {
        self.generations().find_map(|pending| pending.message(id))
    }

    /// What is pending about a run, and whether that is all there is: its first message was published in these batches.
    fn overlay(&self, run: Seq) -> (Overlay, bool) {
        let mut overlay = Overlay::default();
        for pending in self.applying.as_deref().into_iter().chain([&self.gathering]) {
            overlay.add(run, &pending.runs);
        }
        (overlay, self.generations().any(|pending| pending.has_published(run)))
    }

    /// Changes whenever something begins to be applied, or has been.
    fn moment(&self) -> (u64, bool) {
        (self.applied, self.applying.is_some())
    }

    /// The window of a duplicate key that counts; of two that end together the one that was made later.
    fn find_window(&self, key: &(TenantId, DedupKey), now: Timestamp) -> Option<(MessageId, Timestamp)> {
        let made = self.applying.iter().flat_map(|pending| pending.windows(key)).chain(self.gathering.windows(key));
        made.filter(|(_, expires)| duplicate_window_counts(*expires, now)).max_by_key(|(_, expires)| *expires).copied()
    }

    fn count(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Insert { message, .. } => {
                    self.counts.live += 1;
                    self.last_seq = self.last_seq.max(message.id.seq);
                }
                Op::Workflow(Change::Entry { entry, .. }) => self.last_seq = self.last_seq.max(entry.id.seq),
                Op::Remove { .. } => self.counts.live -= 1,
                Op::InsertDeadLetter(_) => {
                    self.counts.live -= 1;
                    self.counts.dead_letters += 1;
                }
                _ => {}
            }
        }
    }
}

impl Drop for JournalStore {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.shared.changed.notify_all();
        if let Some(applier) = self.applier.take()
            && applier.join().is_err()
        {
            tracing::error!("the journal thread panicked");
        }
        // What cannot be applied now is in the journal, and is applied at the next start.
        if let Err(error) = self.shared.apply_pending().and_then(|()| self.shared.close()) {
            tracing::warn!(error = &error as &dyn std::error::Error, "journal not empty; the next start applies it");
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
