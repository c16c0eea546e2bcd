//! How the journal treats the database's files: the length of the WAL, and free pages.

use super::*;
use crate::{Durability, Epoch, ShardId, Store};
use posthaste_engine::bulk_action::{BulkAction, Task};

const SHARD: ShardId = ShardId(0);
const MIB: usize = 1024 * 1024;

struct Rig {
    store: JournalStore,
    epoch: Epoch,
    tenant: TenantId,
    written: usize,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let options = JournalOptions { apply_after: Duration::MAX, ..JournalOptions::default() };
        let (database, journal) = (directory.path().join("posthaste.db"), directory.path().join("journal"));
        let store = JournalStore::open(&database, &journal, options).unwrap();
        let (epoch, tenant) = (store.lease(SHARD, Timestamp(1)).unwrap(), store.tenant("default").unwrap());
        Rig { store, epoch, tenant, written: 0, _directory: directory }
    }

    /// Replaces the stored bytes with this many others. They differ each time, because pages that stay the same are not
    /// written.
    fn write(&mut self, bytes: usize) {
        self.written += 1;
        let text = format!("{:08}", self.written).repeat(bytes.div_ceil(8));
        let action = BulkAction {
            tenant: self.tenant,
            id: Seq(1),
            task: Task::Cancel,
            filter: vec![("label".to_owned(), vec![text])],
            until: Seq(1),
            after: Seq::MIN,
            count: None,
            rate: None,
            total: 0,
            processed: 0,
            refused: 0,
            problem: None,
            created_at: Timestamp(1),
            completed_at: None,
            stopped: false,
        };
        self.store.commit(SHARD, self.epoch, &[Op::PutBulkAction(action)], Durability::Lazy).unwrap();
        self.store.shared.apply_pending().unwrap();
    }

    fn unmoved(&self) -> u64 {
        self.store.shared.database.unmoved_bytes().unwrap()
    }
}

#[test]
fn the_thread_checkpoints_the_wal_at_the_limit() {
    let mut rig = Rig::new();
    for _ in 0..CHECKPOINT_BYTES / MIB as u64 + 2 {
        rig.write(MIB);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while rig.unmoved() >= CHECKPOINT_BYTES {
        assert!(Instant::now() < deadline, "{} bytes are not moved", rig.unmoved());
        std::thread::yield_now();
    }
}

#[test]
fn commits_checkpoint_the_wal_when_the_thread_is_too_slow() {
    let mut rig = Rig::new();
    rig.store.shared.state().stopping = true;
    rig.store.shared.changed.notify_all();
    rig.store.applier.take().unwrap().join().unwrap();
    let mut longest = 0;
    for _ in 0..160 {
        rig.write(MIB);
        longest = longest.max(rig.unmoved());
    }
    assert!((CHECKPOINT_BYTES..2 * CHECKPOINT_BYTES).contains(&longest), "{longest} bytes");
}

#[test]
fn freed_pages_count_as_reusable_space() {
    let mut rig = Rig::new();
    let outlook = rig.store.disk_outlook();
    rig.write(8 * MIB);
    let before = outlook.reusable.load(Ordering::Relaxed);
    rig.write(1);
    let after = outlook.reusable.load(Ordering::Relaxed);
    assert!(after >= before + 7 * MIB as u64, "{before} and then {after}");
    rig.write(8 * MIB);
    assert!(outlook.reusable.load(Ordering::Relaxed) < MIB as u64, "they are used again");
}

#[test]
fn on_a_nearly_full_disk_the_wal_is_checkpointed_without_further_writes() {
    let mut rig = Rig::new();
    let outlook = rig.store.disk_outlook();
    for _ in 0..16 {
        rig.write(MIB);
    }
    assert!(rig.unmoved() > 2 * TIGHT_CHECKPOINT_BYTES && outlook.backlog.load(Ordering::Relaxed) > 0);
    outlook.is_tight.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(60);
    while rig.unmoved() > 0 || outlook.backlog.load(Ordering::Relaxed) > 0 {
        assert!(Instant::now() < deadline, "{} bytes are not moved", rig.unmoved());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut longest = 0;
    for _ in 0..32 {
        rig.write(MIB);
        longest = longest.max(rig.unmoved());
    }
    assert!(longest < 3 * TIGHT_CHECKPOINT_BYTES, "{longest} bytes");
}
