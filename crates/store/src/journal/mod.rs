//! A journal in front of the database. A commit is one append and, if required, one sync. The database gets the net
//! effect of many commits a moment later.
//!
//! A batch that contains only changes of messages and runs is appended to the `log` and kept in RAM as `pending`; its
//! caller waits for nothing else. A thread applies the pending changes to the database every [`APPLY_AFTER`]. Queries
//! that may depend on pending changes apply them first. Queries that the engine makes for every message are answered
//! from RAM instead. Any other batch goes straight to the database, after all earlier batches.
//!
//! The database stores the number of the last applied frame, so after a crash the later frames are applied again. A
//! clean shutdown applies everything and leaves an empty journal, so that the database alone is complete.

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

/// Default delay before pending changes are applied to the database. Most messages have ended by then, so the database
/// never stores a live row for them.
pub const APPLY_AFTER: Duration = Duration::from_millis(250);
/// Default length of a journal file: the data of about half a second at full speed. It is short in builds whose tests
/// kill the server, so that they reach the switch from one file to the next.
pub const SEGMENT_BYTES: u64 = if crash_point::ENABLED { 64 * 1024 } else { 16 * 1024 * 1024 };
/// Pending frames of this length are applied without delay.
const APPLY_BYTES: usize = 8 * 1024 * 1024;
/// The database's WAL is checkpointed when this much of it is not in the database file. Pages that change often are
/// then moved once for many changes: with 4 MiB a publish cost a tenth more CPU.
pub const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;
/// The same limit while the disk is nearly full, where a long WAL could use up the reserve.
const TIGHT_CHECKPOINT_BYTES: u64 = 4 * 1024 * 1024;
/// How often the thread checks whether the disk is nearly full.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most bytes of a frame. A longer batch goes straight to the database.
const JOURNAL_FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A commit that finds this many pending bytes applies them itself, because the database is slower than the callers.
const PENDING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The name of a missing live message in errors.
const LIVE: &str = "live message";

/// Options of a store with a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Options of the database.
    pub sqlite: SqliteOptions,
    /// Start although frames that were on disk are damaged: move them and all later frames aside.
    pub discard_damaged: bool,
    /// Longest delay before pending changes are applied.
    pub apply_after: Duration,
    /// Once a journal file has this length, the next one starts.
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
    /// The contents of the journal could not be applied to the database.
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
    /// Also serializes commits. Locks are taken in the order of these fields.
    log: Mutex<Log>,
    /// Held while pending changes are applied.
    apply_lock: Mutex<()>,
    state: Mutex<State>,
    /// Signals that changes are pending, or that the store is shutting down.
    changed: Condvar,
    apply_after: Duration,
    /// The pending bytes of each tenant.
    pending_usage: Usage,
    /// The latest [`State::backlog_bytes`], and the free pages of the database.
    disk: Arc<DiskOutlook>,
}

struct State {
    /// The changes of new commits.
    gathering: Pending,
    since: Option<Instant>,
    /// The changes that are being applied to the database.
    applying: Option<Arc<Pending>>,
    /// The last frame that is in the database.
    applied: u64,
    /// Approximate bytes of the database's WAL that are not in its file.
    unmoved_bytes: u64,
    epochs: HashMap<ShardId, Epoch>,
    counts: Counts,
    last_seq: Seq,
    /// Why the store has stopped writing.
    failure: Option<String>,
    stopping: bool,
}

impl JournalStore {
    /// Opens the database and applies the journal's later frames to it.
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
            // Causes a first checkpoint of the WAL that an earlier run left.
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
                // The core sees the failure before its next commit.
                for_thread.fail("the journal thread panicked".into());
            }
        });
        Ok(JournalStore { shared, applier: Some(applier.map_err(io)?) })
    }
}

/// Opens only the database, after applying the frames of a journal that may be present.
pub fn open_without_journal(
    database: &Path,
    directory: &Path,
    options: &JournalOptions,
) -> Result<SqliteStore, JournalOpenError> {
    let (database, ..) = recover(database, directory, options.sqlite.clone(), options.discard_damaged)?;
    Ok(database)
}

/// The database with all frames applied, the last frame, and the seal of the next segment.
fn recover(
    database: &Path,
    directory: &Path,
    sqlite: SqliteOptions,
    discard_damaged: bool,
) -> Result<(SqliteStore, u64, Seal), JournalOpenError> {
    let io = |source| JournalError::Io { path: directory.to_owned(), source };
    // This check comes before the upgrade of the database, because the release that wrote the journal must still be
    // able to open it.
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

/// Applies the frames that the database lacks.
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

    /// Checks a batch before it is acknowledged. Returns false if only the database can check it.
    fn is_for_journal(&self, shard: ShardId, epoch: Epoch, ops: &[Op]) -> Result<bool, StoreError> {
        let mut of_runs = RunCheck::default();
        {
            let state = self.state();
            state.check()?;
            if state.epochs.get(&shard) != Some(&epoch) {
                return Err(StoreError::Fenced);
            }
            let mut last_seq = state.last_seq;
            // Whether each message is live after the ops of this batch so far.
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

    /// Always synced, even if the batch is lazy: the database must not contain changes that depend on frames the
    /// journal may lose.
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

    /// How long the WAL may get before a checkpoint.
    fn checkpoint_bytes(&self) -> u64 {
        if self.disk.is_tight.load(Ordering::Relaxed) { TIGHT_CHECKPOINT_BYTES } else { CHECKPOINT_BYTES }
    }

    /// Call it after a write to the database's WAL. The thread checkpoints the WAL once it is long enough. If the
    /// thread is too slow, because others write all the time, the writer does it at twice that length.
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

    /// Drops history. Most pending changes need not be applied first: the database has the state of a moment ago, and
    /// later changes do not need the dropped rows. [`Pending::allows_retention`] finds the exceptions.
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

    /// Reads the counts from the database, while nothing is pending and no commit is in progress.
    fn recount(&self) -> Result<(), StoreError> {
        let (counts, last_seq) = (self.database.counts()?, self.database.last_seq()?);
        let mut state = self.state();
        state.counts = counts;
        state.last_seq = last_seq;
        Ok(())
    }

    /// Applies all earlier commits to the database.
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
            // The previous holder of the lock may have applied them.
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
        // Whichever thread applies, the journal's own thread releases the files.
        self.measure_wal()
    }

    /// The journal's thread: applies pending changes after their delay, and releases files.
    fn keep_applying(&self) {
        // The last frame that was in the database at the last release of files.
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

    /// Releases files after all frames up to `applied` have reached the database.
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
            // A reader may have prevented part of the checkpoint. The next write tries that part again.
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

    /// Empties the journal after everything was applied to the database.
    fn close(&self) -> Result<(), StoreError> {
        self.state().check()?;
        self.database.flush()?;
        crash_point("stop_journal_settled");
        lock(&self.log).remove().map_err(|error| StoreError::Unavailable(error.into()))?;
        crash_point("stop_journal_removed");
        Ok(())
    }

    /// Stops all writing from now on.
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

    /// Bytes that still have to be written: pending changes go to the WAL and from there to the database file, the WAL
    /// goes to the file.
    fn backlog_bytes(&self) -> u64 {
        self.unmoved_bytes + 2 * self.pending_bytes()
    }

    fn pending_bytes(&self) -> u64 {
        self.generations().map(|pending| pending.bytes as u64).sum()
    }

    /// The last committed frame.
    fn committed(&self) -> u64 {
        self.generations().map(|pending| pending.last).fold(self.applied, u64::max)
    }

    /// The pending generations, newest first.
    fn generations(&self) -> impl Iterator<Item = &Pending> {
        std::iter::once(&self.gathering).chain(self.applying.as_deref())
    }

    fn is_live(&self, shard: ShardId, id: MessageId) -> Option<bool> {
        self.generations().find_map(|pending| pending.is_live(shard, id))
    }

    fn message(&self, id: MessageId) -> Option<Arc<Message>> {
        self.generations().find_map(|pending| pending.message(id))
    }

    /// The pending changes of a run, and whether they are complete because its first message was published in these
    /// batches.
    fn overlay(&self, run: Seq) -> (Overlay, bool) {
        let mut overlay = Overlay::default();
        for pending in self.applying.as_deref().into_iter().chain([&self.gathering]) {
            overlay.add(run, &pending.runs);
        }
        (overlay, self.generations().any(|pending| pending.has_published(run)))
    }

    /// A value that changes whenever an application starts or ends.
    fn moment(&self) -> (u64, bool) {
        (self.applied, self.applying.is_some())
    }

    /// The window of a duplicate key that counts. If two end at the same time, the later one counts.
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
        // Changes that cannot be applied now stay in the journal, and the next start applies them.
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
