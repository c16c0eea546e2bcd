//! The second way to write the file: applies the sum of many batches from the journal.

use super::codec::int;
use super::error::{Failure, Outcome};
use super::write::{Delta, Writer};
use super::{Preconditions, Scope, SqliteStore};
use crate::journal::pending::{Pending, PendingMessage};
use crate::journal::pending_runs::{PendingEntry, PendingRuns, PendingWaiter};
use crate::run::{Body, Parts};
use crate::{Durability, ReadPool, StoreError};
use posthaste_engine::message::{DedupKey, Message};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;

/// The header before each page in the WAL.
const WAL_FRAME_HEADER_BYTES: u64 = 24;

impl SqliteStore {
    /// The last frame of the journal that was applied to the file.
    pub(crate) fn applied(&self) -> Result<u64, StoreError> {
        let applied = self.read_as_owner(|snapshot| {
            const SQL: &str = "SELECT value FROM meta WHERE key = 'journal'";
            Ok(snapshot.connection.query_row(SQL, [], |row| row.get::<_, i64>(0))?)
        })?;
        Ok(applied.cast_unsigned())
    }

    /// The secret of the data directory, which ties the frames of the journal to it.
    pub(crate) fn journal_key(&self) -> Result<u64, StoreError> {
        let key = self.read_as_owner(|snapshot| {
            const SQL: &str = "SELECT value FROM meta WHERE key = 'journal_key'";
            Ok(snapshot.connection.query_row(SQL, [], |row| row.get::<_, i64>(0))?)
        })?;
        Ok(key.cast_unsigned())
    }

    /// Makes all data in the file survive a power cut, including data that another process wrote.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.writer().transaction(Durability::Synced, |writer| writer.touch())
    }

    /// Moves the contents of the WAL into the database file. SQLite would do this automatically after a commit, but
    /// would not report a failed sync. A store behind a journal commits without a sync, so it does this explicitly.
    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        let writer = self.writer();
        let moved = writer.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        moved.map_err(|error| Failure::from(error).of_commit())
    }

    /// The bytes of the WAL that are not in the database file yet.
    pub(crate) fn unmoved_bytes(&self) -> Result<u64, StoreError> {
        let read = || -> Outcome<u64> {
            let writer = self.writer();
            let sql = "PRAGMA wal_checkpoint(NOOP)";
            let (written, moved) =
                writer.connection.query_row(sql, [], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
            let page_size: i64 = writer.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = (written - moved).max(0);
            Ok(pages.cast_unsigned() * (page_size.cast_unsigned() + WAL_FRAME_HEADER_BYTES))
        };
        read().map_err(Failure::of_read)
    }

    /// Bytes of free pages. The next writes use them before the file grows.
    pub(crate) fn reusable_bytes(&self) -> Result<u64, StoreError> {
        let read = || -> Outcome<u64> {
            let writer = self.writer();
            let number = |name| writer.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            Ok(number("freelist_count")?.cast_unsigned() * number("page_size")?.cast_unsigned())
        };
        read().map_err(Failure::of_read)
    }

    /// Applies the net effect of batches, and records their last frame, in one transaction.
    pub(crate) fn apply(&self, pending: &Pending) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let delta = writer.transaction(Durability::Lazy, |writer| writer.apply_pending(pending))?;
        self.add(delta);
        Ok(())
    }

    /// The messages of these duplicate keys, and the ends of their windows.
    pub(crate) fn find_windows(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Result<Vec<Option<(MessageId, Timestamp)>>, StoreError> {
        self.read_as_owner(|snapshot| snapshot.find_windows(keys, now))
    }

    /// The newest run of this name, or the one with this time of creation: its time and its number.
    pub(crate) fn find_run_and_time(
        &self,
        tenant: TenantId,
        id: &str,
        created_at: Option<Timestamp>,
        pool: ReadPool,
    ) -> Result<Option<(Timestamp, Seq)>, StoreError> {
        self.read_for(pool, |snapshot| snapshot.find_run(tenant, id, created_at))
    }

    /// The stored parts of a run, possibly without the run itself.
    pub(crate) fn run_parts<B: Body>(&self, no: Seq, scope: Scope, pool: ReadPool) -> Result<Parts<B>, StoreError> {
        self.read_for(pool, |snapshot| snapshot.parts(no, scope))
    }

    /// Checks the preconditions of a batch. Returns false if the journal cannot take it, and an error if a precondition
    /// is not met.
    pub(crate) fn check_preconditions(&self, preconditions: &Preconditions) -> Result<bool, StoreError> {
        self.read_as_owner(|snapshot| snapshot.check(preconditions))
    }
}

impl Writer {
    fn apply_pending(&mut self, pending: &Pending) -> Outcome<Delta> {
        let mut delta = Delta::default();
        let mentioned = pending.mentioned();
        let is_kept = |entry: &&PendingMessage| !entry.is_ended_step() || mentioned.contains(&entry.id.seq);
        let published: Vec<&Message> =
            pending.messages.values().filter(is_kept).filter_map(|entry| entry.message.as_deref()).collect();
        self.insert_all(&published)?;
        let (last_inserted, last_seq) = (published.last().map(|message| message.id.seq), pending.last_seq());
        if last_seq > last_inserted {
            self.raise_last_seq(last_seq)?;
        }
        delta.last_seq = last_seq;
        let mut new = Vec::new();
        for entry in pending.messages.values() {
            match (&entry.message, &entry.live) {
                (Some(_), Some(live)) => new.push((entry.shard, *live)),
                // Published and ended within these batches.
                (Some(_), None) => {}
                (None, Some(live)) => self.update_live(entry.shard, live)?,
                (None, None) => {
                    self.remove_live(entry.shard, entry.id)?;
                    delta.live -= 1;
                }
            }
        }
        self.insert_live(&new)?;
        delta.live += new.len() as i64;
        self.log_all(&pending.events)?;
        for letter in &pending.letters {
            self.insert_dead_letter(letter)?;
            delta.dead_letters += 1;
        }
        for ((tenant, key), windows) in &pending.keys {
            for (id, expires) in windows {
                self.put_dedup_key(*tenant, key, *id, *expires)?;
            }
        }
        for queue in pending.queues.values() {
            self.put_queue(queue)?;
        }
        for flow in pending.flows.values() {
            self.put_flow(flow)?;
        }
        self.apply_runs(&pending.runs)?;
        // Every frame is applied exactly once and in order.
        const APPLIED: &str = "UPDATE meta SET value = ?2 WHERE key = 'journal' AND value = ?1 - 1";
        let applied = self.connection.prepare_cached(APPLIED)?.execute([int(pending.first), int(pending.last)])?;
        if applied != 1 {
            let text = format!("the batches {} to {} do not follow what is in the file", pending.first, pending.last);
            return Err(Failure::corrupt("journal", text));
        }
        Ok(delta)
    }

    fn apply_runs(&self, pending: &PendingRuns) -> Outcome<()> {
        for run in pending.runs() {
            self.put_run(run)?;
        }
        for ((run, index), entry) in pending.entries() {
            match entry {
                PendingEntry::Whole(entry, body) => self.put_entry(*run, entry, body)?,
                PendingEntry::Delivery(delivery) => self.set_delivery(*run, *index, delivery)?,
            }
        }
        for ((run, key), note) in pending.notes() {
            match note {
                Some(note) => self.put_note(*run, note)?,
                None => self.drop_note(*run, *key)?,
            }
        }
        for waiter in pending.waiters() {
            match waiter {
                PendingWaiter::Added(waiter) => self.put_waiter(waiter)?,
                PendingWaiter::Removed(waiter) => self.drop_waiter(waiter)?,
            }
        }
        Ok(())
    }
}
