//! The files of the journal: what a kill, a power cut and damage leave, and how the next start handles it.
//!
//! A power cut keeps everything up to the last sync, and either the old or the new bytes of each later sector.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::event::Op;
use posthaste_engine::message::{DedupKey, Message};
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::Attempt;
use posthaste_store::journal::frame::Seal;
use posthaste_store::journal::{JournalError, JournalOpenError, JournalOptions, JournalStore, frame};
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{Counts, Durability, Part, Retention, ShardId, Store, StoreError};
use posthaste_wire::id::{MessageId, Seq};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
/// The byte of a segment that contains the version of its frames.
const VERSION_AT: usize = 3;
const SEAL: Seal = Seal { key: 9, segment: 7 };

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files { directory: tempfile::tempdir().unwrap() }
    }

    fn database(&self) -> PathBuf {
        self.directory.path().join("posthaste.db")
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    fn try_open(&self, discard_damaged: bool) -> Result<JournalStore, JournalOpenError> {
        let options = JournalOptions { discard_damaged, apply_after: Duration::MAX, ..JournalOptions::default() };
        JournalStore::open(&self.database(), &self.journal(), options)
    }

    fn open(&self) -> JournalStore {
        self.try_open(false).unwrap()
    }

    /// The segments, in order.
    fn segments(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(self.journal()).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        found.sort();
        found
    }

    /// The length of the first segment.
    fn length(&self) -> usize {
        std::fs::metadata(&self.segments()[0]).unwrap().len() as usize
    }

    /// A copy of the files: what remains if the process is killed now.
    fn copy(&self) -> Files {
        let copy = Files::new();
        copy_all(self.directory.path(), copy.directory.path());
        copy
    }
}

/// Publishes one message and returns the resulting length of the journal.
fn publish(files: &Files, rig: &Rig<'_>, body: usize, durability: Durability) -> (Arc<Message>, usize) {
    let message = rig.draft(T0, |message| message.body = vec![b'x'; body].into());
    rig.store.commit(SHARD, rig.epoch, &published(&message), durability).unwrap();
    (message, files.length())
}

fn ids(store: &dyn Store) -> Vec<MessageId> {
    Rig { store, epoch: store.lease(SHARD, T0).unwrap(), tenant: store.tenant("default").unwrap() }.live_ids()
}

#[test]
fn commits_survive_a_kill() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let (first, _) = publish(&files, &rig, 10, Durability::Synced);
    let (second, _) = publish(&files, &rig, 10, Durability::Lazy);
    let killed = files.copy();
    assert_eq!(
        SqliteStore::open(&killed.copy().database(), SqliteOptions::default()).unwrap().counts().unwrap().live,
        0
    );
    let store = killed.open();
    assert_eq!(ids(&store), [first.id, second.id]);
    // Applied once, no matter how often the store is opened.
    drop(store);
    assert_eq!(ids(&killed.open()), [first.id, second.id]);
}

#[test]
fn a_message_that_has_ended_leaves_only_its_history() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let message = rig.publish(T0);
    rig.deliver(&message, T0);
    let buried = rig.publish(T0);
    rig.fail(&buried, T0, Some(500));
    let store = files.copy().open();
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 1 });
    assert_eq!(store.message(rig.tenant, message.id, Part::Whole).unwrap().unwrap().ended_at, Some(T0));
    assert_eq!(store.last_seq().unwrap(), buried.id.seq);
}

#[test]
fn a_clean_stop_leaves_everything_in_the_database_and_nothing_in_the_journal() {
    let files = Files::new();
    let store = files.open();
    let message = Rig::new(&store).publish(T0);
    assert_eq!(files.segments().len(), 1);
    drop(store);
    assert_eq!(files.segments(), [] as [PathBuf; 0]);
    let store = SqliteStore::open(&files.database(), SqliteOptions::default()).unwrap();
    assert_eq!(ids(&store), [message.id]);
}

#[test]
fn segments_are_numbered_and_reused() {
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::ZERO, segment_bytes: 10_000, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    let (mut published, mut seen) = (Vec::new(), BTreeSet::new());
    while seen.len() < 20 || files.segments().len() >= seen.len() {
        published.push(rig.publish_with(T0, |message| message.body = vec![b'x'; 3_000].into()).id);
        seen.extend(files.segments());
        assert!(published.len() < 5_000, "{} segments, and none that is safe in the database goes", seen.len());
    }
    assert_eq!(ids(&store), published);
    drop(store);
    assert_eq!(ids(&files.open()), published);
}

#[test]
fn segments_are_released_even_if_readers_always_apply_first() {
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::MAX, segment_bytes: 10_000, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    let mut seen = BTreeSet::new();
    for round in 0.. {
        let message = rig.publish_with(T0, |message| message.body = vec![b'x'; 3_000].into());
        assert_eq!(store.find_live(message.tenant, &[message.id]).unwrap().len(), 1);
        let segments = files.segments();
        seen.extend(segments.iter().cloned());
        if seen.len() > 20 && segments.len() < 8 {
            break;
        }
        assert!(round < 5_000, "{} of {} segments are still there", segments.len(), seen.len());
    }
}

#[test]
fn only_the_owner_may_read_the_journal() {
    let files = Files::new();
    let _store = files.open();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&files.journal()), mode(&files.segments()[0])), (0o700, 0o600));
}

#[test]
fn damage_that_later_frames_prove_is_refused_and_can_be_set_aside() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let (first, end) = publish(&files, &rig, 100, Durability::Synced);
    publish(&files, &rig, 100, Durability::Synced);
    publish(&files, &rig, 100, Durability::Synced);
    let damaged = files.copy();
    let path = &damaged.segments()[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[end + 60] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    match damaged.try_open(false) {
        Err(JournalOpenError::Journal(error @ JournalError::Damaged { missing: 2, .. })) => {
            let text = error.to_string();
            assert!(text.contains("batch 2") && text.contains("--discard-damaged-journal"), "{text}");
        }
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(std::fs::read(path).unwrap(), bytes, "nothing is changed by a refusal");
    let store = damaged.try_open(true).unwrap();
    assert_eq!(ids(&store), [first.id]);
    drop(store);
    assert_eq!(ids(&damaged.open()), [first.id]);
    let kept = std::fs::read_dir(damaged.journal())
        .unwrap()
        .any(|entry| entry.unwrap().path().extension().is_some_and(|extension| extension == "damaged"));
    assert!(kept, "the damaged files are kept for a human");
}

#[test]
fn damage_to_applied_frames_is_harmless() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let (first, end) = publish(&files, &rig, 100, Durability::Synced);
    assert_eq!(store.find_live(rig.tenant, &[first.id]).unwrap().len(), 1, "a question brings it into the database");
    let (second, _) = publish(&files, &rig, 100, Durability::Synced);
    let damaged = files.copy();
    let path = &damaged.segments()[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[..end].fill(0);
    std::fs::write(path, &bytes).unwrap();
    assert_eq!(ids(&damaged.open()), [first.id, second.id]);
}

#[test]
fn a_missing_segment_is_damage() {
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::MAX, segment_bytes: 10_000, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    while files.segments().len() < 3 {
        rig.publish(T0);
    }
    for (which, expected) in [(0, 1), (1, 0), (2, 0)] {
        let damaged = files.copy();
        std::fs::remove_file(&damaged.segments()[which]).unwrap();
        match damaged.try_open(false) {
            Err(JournalOpenError::Journal(JournalError::Damaged { missing, .. })) => {
                assert!(which < 2 && (expected == 0 || expected == missing), "{which}: {missing}");
            }
            // Nothing is left that could prove that the last segment existed.
            opened => assert!(which == 2 && opened.is_ok(), "{which}"),
        }
    }
}

#[test]
fn an_invalid_batch_is_not_written() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let (known, end) = publish(&files, &rig, 10, Durability::Synced);
    rig.deliver(&known, T0);
    let before = files.length();
    assert!(before > end);
    let result = rig.commit(&[Op::Remove { id: known.id }]);
    assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
    assert_eq!(files.length(), before);
}

/// A publisher writes bytes that look like frames into the body of a message, for as many segments and numbers as fit.
/// The file is reused, and the server is killed. The remains of the old body after the new frames must not count.
#[test]
fn a_publisher_cannot_write_frames() {
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::ZERO, segment_bytes: 10_000, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    let mut forged = Vec::new();
    for segment in 1..20 {
        for number in 1..60 {
            let victim = Arc::new(message(rig.tenant, MessageId { seq: Seq(u64::MAX >> 2), tag: number }, T0));
            let mut frame = Vec::new();
            let seal = Seal { key: 0, segment };
            frame::encode(seal, number, u64::MAX - 1, SHARD, &[inserted(&victim)], &mut frame).unwrap();
            forged.extend(frame);
        }
    }
    let mut published = Vec::new();
    let mut seen = BTreeSet::new();
    while seen.len() < 12 {
        let body = if seen.len() < 4 { forged[..8_000].to_vec() } else { vec![b'x'; 100] };
        published.push(rig.publish_with(T0, |message| message.body = body.into()).id);
        seen.extend(files.segments());
        assert!(published.len() < 2_000, "no new segment is begun");
    }
    drop(store);
    // The same bytes after the end of a segment that is not empty.
    let store = files.open();
    published.push(Rig::new(&store).publish(T0).id);
    let killed = files.copy();
    let path = &killed.segments()[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes.extend(&forged);
    bytes.extend(b"PHj1\xff\xff\x7f\0".repeat(200_000));
    std::fs::write(path, bytes).unwrap();
    assert_eq!(ids(&killed.open()), published);
}

/// The database may lose commits when the power fails. The journal still has them.
#[test]
fn a_database_that_loses_commits_is_restored_from_the_journal() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let mut published = vec![rig.publish(T0).id];
    rig.live_ids();
    let early = files.copy();
    for _ in 0..3 {
        published.push(rig.publish(T0).id);
        // A query applies the changes to the database, which is not synced.
        assert_eq!(rig.live_ids(), published);
    }
    let last = rig.publish(T0);
    rig.deliver(&last, T0);
    let cut = files.copy();
    for name in ["posthaste.db", "posthaste.db-wal"] {
        std::fs::copy(early.directory.path().join(name), cut.directory.path().join(name)).unwrap();
    }
    std::fs::remove_file(cut.directory.path().join("posthaste.db-shm")).unwrap();
    let store = cut.open();
    assert_eq!(ids(&store), published);
    assert!(store.message(rig.tenant, last.id, Part::Whole).unwrap().unwrap().ended_at.is_some());
}

/// Commits, queries, retention and the applying thread run concurrently.
#[test]
fn no_commit_is_lost_between_threads() {
    let files = Files::new();
    let options =
        JournalOptions { apply_after: Duration::from_millis(1), segment_bytes: 20_000, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    let done = AtomicBool::new(false);
    let live = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let ids = rig.live_ids();
                    assert!(ids.is_sorted());
                    store.counts().unwrap();
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.retain(&Retention { history_ms: DAY, dlq_ms: DAY }, T0).unwrap();
            }
        });
        let mut live = Vec::new();
        for number in 0..1_500 {
            let message = rig.publish(T0);
            assert_eq!(store.load_messages(&[message.id]).unwrap(), [Arc::clone(&message)]);
            match number % 3 {
                0 => rig.deliver(&message, T0),
                1 => drop(rig.fail(&message, T0, None)),
                _ => live.push(message.id),
            }
        }
        done.store(true, Ordering::Relaxed);
        live
    });
    assert_eq!(rig.live_ids(), live);
    assert_eq!(store.counts().unwrap(), Counts { live: 500, dead_letters: 500 });
    drop(store);
    let store = SqliteStore::open(&files.database(), SqliteOptions::default()).unwrap();
    assert_eq!((ids(&store), store.counts().unwrap()), (live, Counts { live: 500, dead_letters: 500 }));
}

#[test]
fn batches_being_applied_stay_visible() {
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::ZERO, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.journal(), options).unwrap();
    let rig = Rig::new(&store);
    // Blocks all other writers, so that applying cannot finish.
    let elsewhere = rusqlite::Connection::open(files.database()).unwrap();
    elsewhere.execute_batch("BEGIN IMMEDIATE").unwrap();
    let message = rig.draft(T0, |_| {});
    let key = (message.tenant, DedupKey([7; 32]));
    let mut ops = published(&message);
    ops.push(Op::PutDedupKey { tenant: key.0, key: key.1, id: message.id, expires: T0.plus_millis(1_000) });
    store.commit(SHARD, rig.epoch, &ops, Durability::Synced).unwrap();
    // The thread starts at once. The message must be visible at any moment.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        assert_eq!(store.find_duplicates(&[key], T0).unwrap(), [Some(message.id)]);
        assert_eq!(store.load_messages(&[message.id]).unwrap(), [Arc::clone(&message)]);
        let update = Op::Update(live(&message));
        store.commit(SHARD, rig.epoch, &[update], Durability::Lazy).unwrap();
    }
    elsewhere.execute_batch("COMMIT").unwrap();
    assert_eq!(rig.live_ids(), [message.id]);
    assert_eq!(store.find_duplicates(&[key], T0).unwrap(), [Some(message.id)]);
}

#[test]
fn a_journal_of_another_release_is_refused_and_kept() {
    let files = Files::new();
    drop(files.open());
    let path = files.journal().join("000000000007.log");
    std::fs::write(&path, b"PHj3 and more").unwrap();
    let refused = files.try_open(true).err().unwrap();
    assert!(matches!(refused, JournalOpenError::Journal(JournalError::Foreign { .. })), "{refused:?}");
    assert!(path.exists());
}

#[test]
fn a_flipped_bit_in_the_version_of_a_segment_is_refused_and_changes_nothing() {
    for bit in 0..8 {
        let files = Files::new();
        let store = files.open();
        let (message, _) = publish(&files, &Rig::new(&store), 100, Durability::Synced);
        let damaged = files.copy();
        let path = &damaged.segments()[0];
        let mut bytes = std::fs::read(path).unwrap();
        bytes[VERSION_AT] ^= 1 << bit;
        std::fs::write(path, &bytes).unwrap();
        let refused = damaged.try_open(false).err().unwrap();
        assert!(matches!(refused, JournalOpenError::Journal(JournalError::Foreign { .. })), "bit {bit}: {refused:?}");
        assert_eq!(std::fs::read(path).unwrap(), bytes, "the file stays as it is");
        bytes[VERSION_AT] ^= 1 << bit;
        std::fs::write(path, &bytes).unwrap();
        assert_eq!(ids(&damaged.open()), [message.id], "and is whole once the bit is mended");
    }
}

/// One message: the length of its body, and whether its commit is synced.
fn commits() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..3_000_usize, any::<bool>()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whichever sectors after the last sync survive a power cut, the history is recovered as an exact prefix, and it
    /// contains everything that was synced.
    #[test]
    fn a_power_cut_keeps_what_was_synced(commits in commits(), kept in prop::collection::vec(any::<bool>(), 128)) {
        let files = Files::new();
        let store = files.open();
        let rig = Rig::new(&store);
        let (mut written, mut synced, mut synced_end) = (Vec::new(), 0, 0);
        for (body, sync) in commits {
            let durability = if sync { Durability::Synced } else { Durability::Lazy };
            let (message, end) = publish(&files, &rig, body, durability);
            written.push(message.id);
            if sync {
                (synced, synced_end) = (written.len(), end);
            }
        }
        let cut = files.copy();
        let path = &cut.segments()[0];
        let mut bytes = std::fs::read(path).unwrap();
        for (number, start) in (synced_end.next_multiple_of(SECTOR)..bytes.len()).step_by(SECTOR).enumerate() {
            if !kept[number % kept.len()] {
                let end = (start + SECTOR).min(bytes.len());
                bytes[start..end].fill(0);
            }
        }
        std::fs::write(path, &bytes).unwrap();
        let found = ids(&cut.open());
        prop_assert!(found.len() >= synced, "{} of {} that were synced", found.len(), synced);
        prop_assert_eq!(&found[..], &written[..found.len()]);
    }

    /// A flipped bit is detected, or it hits frames that were not acknowledged, or the last synced frame, where it
    /// looks like a cut. It never changes a message and never skips one.
    #[test]
    fn a_flipped_bit_never_changes_or_skips_a_message(commits in commits(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let files = Files::new();
        let store = files.open();
        let rig = Rig::new(&store);
        let mut written = BTreeMap::new();
        let (mut last_synced, mut proven) = (0, 0);
        for (number, (body, sync)) in commits.into_iter().enumerate() {
            // This frame proves all frames that were synced before it was written.
            proven = last_synced;
            let durability = if sync { Durability::Synced } else { Durability::Lazy };
            let (message, end) = publish(&files, &rig, body, durability);
            written.insert(end, message);
            if sync {
                last_synced = number + 1;
            }
        }
        let damaged = files.copy();
        let path = &damaged.segments()[0];
        let mut bytes = std::fs::read(path).unwrap();
        let hit = at.index(bytes.len());
        bytes[hit] ^= 1 << bit;
        std::fs::write(path, &bytes).unwrap();
        let index = written.range(..=hit).count();
        match damaged.try_open(false) {
            Err(JournalOpenError::Journal(JournalError::Damaged { missing, .. })) => {
                prop_assert_eq!(missing, index as u64 + 1);
            }
            // Only this byte makes the segment look like one of another release.
            Err(JournalOpenError::Journal(JournalError::Foreign { .. })) => prop_assert_eq!(hit, VERSION_AT),
            Err(other) => prop_assert!(false, "{other:?}"),
            Ok(store) => {
                prop_assert!(index >= proven, "frame {index} was damaged, and {proven} were proven");
                let expected: Vec<MessageId> = written.values().take(index).map(|message| message.id).collect();
                prop_assert_eq!(ids(&store), expected);
            }
        }
    }

    /// Ops round-trip through the journal. Any other contents of a frame are an error, not a panic.
    #[test]
    fn frames_round_trip_and_malformed_bytes_are_errors(malformed in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
        let files = Files::new();
        let store = files.open();
        let rig = Rig::new(&store);
        let message = rig.draft(T0, |message| {
            message.spec.queue = Some("q".into());
            message.spec.flow = Some(flow_spec("key"));
            message.body = malformed.clone().into();
        });
        let mut ops = published(&message);
        ops.push(Op::InsertDeadLetter(dead_letter(&message, T0, Some(500))));
        ops.push(Op::PutQueue(queue(rig.tenant, "q")));
        ops.push(Op::PutFlow(flow(rig.tenant, "key")));
        let mut run = rig.start_with("run", T0, rich_run);
        ops.extend(rig.decided(T0, |out| {
            run.append(vec![step(1, "one"), call(2)], &LIMITS, out).unwrap();
            let kept = |key| Err(format!("{key:?}: no event came early"));
            run.wait(wait_for("event", 3), kept, &LIMITS, out).unwrap().unwrap();
            run.attempted(1, Attempt { outcome: &outcome(500), retried: 0, next: Next::DeadLetter, sent: b"" }, out);
        }).1);
        let mut bytes = Vec::new();
        frame::encode(SEAL, 3, 2, ShardId(9), &ops, &mut bytes).unwrap();
        let whole = frame::decode(SEAL, &bytes).unwrap();
        prop_assert_eq!((whole.number, whole.synced_to, whole.bytes()), (3, 2, bytes.len()));
        prop_assert_eq!(frame::ops(whole.payload).unwrap(), (ShardId(9), ops));
        prop_assert!(frame::decode(Seal { segment: 8, ..SEAL }, &bytes).is_none(), "a frame of another segment does not count");
        prop_assert!(frame::decode(SEAL, &bytes[..cut.index(bytes.len())]).is_none());
        prop_assert!(frame::decode(SEAL, &malformed).is_none());
        // If the checksum does not protect it, a payload may contain anything.
        let _ = frame::ops(&malformed);
        prop_assert!(frame::ops(&whole.payload[..cut.index(whole.payload.len())]).is_err() || cut.index(whole.payload.len()) >= 2);
    }
}

/// A fan-out of one body: its frame contains it once, and so does the database after a kill.
#[test]
fn a_shared_body_is_in_the_journal_once() {
    let body = bytes::Bytes::from(vec![b'x'; 100_000]);
    let files = Files::new();
    let ids: Vec<_> = {
        let store = files.open();
        let rig = Rig::new(&store);
        let drafts: Vec<_> =
            (0..50).map(|ms| rig.draft(T0.plus_millis(ms), |message| message.body = body.clone())).collect();
        let before = store.stored_bytes(rig.tenant);
        rig.commit(&drafts.iter().flat_map(published).collect::<Vec<_>>()).unwrap();
        let added = store.stored_bytes(rig.tenant) - before;
        assert!((100_000..200_000).contains(&added), "{added} bytes count, also while they are pending");
        drafts.iter().map(|message| message.id).collect()
    };
    let frame = {
        let store = posthaste_store::memory::MemoryStore::new();
        let rig = Rig::new(&store);
        let drafts: Vec<_> =
            (0..50).map(|ms| rig.draft(T0.plus_millis(ms), |message| message.body = body.clone())).collect();
        let ops: Vec<_> = drafts.iter().flat_map(published).collect();
        let mut bytes = Vec::new();
        frame::encode(SEAL, 1, 0, SHARD, &ops, &mut bytes).unwrap();
        let (_, read) = frame::ops(frame::decode(SEAL, &bytes).unwrap().payload).unwrap();
        assert_eq!(read, ops);
        bytes.len()
    };
    assert!(frame < 200_000, "{frame} bytes");
    let store = files.open();
    let loaded = store.load_messages(&ids).unwrap();
    assert!(loaded.iter().all(|message| message.body == body));
}

#[test]
fn a_batch_that_is_too_long_for_a_frame_goes_to_the_database() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let first = rig.publish(T0);
    let part = bytes::Bytes::from(vec![b'x'; 90 * 1024 * 1024]);
    // Three equal bodies that do not share memory.
    let drafts: Vec<_> =
        (0..3).map(|ms| rig.draft(T0.plus_millis(ms), |message| message.body = part.to_vec().into())).collect();
    rig.commit(&drafts.iter().flat_map(published).collect::<Vec<_>>()).unwrap();
    let last = rig.publish(T0.plus_millis(3));
    drop(store);
    let store = files.open();
    assert_eq!(Rig::new(&store).live_ids().len(), 5);
    let ids = [first.id, drafts[2].id, last.id];
    assert_eq!(store.load_messages(&ids).unwrap()[1].body, part);
}

/// Each transaction writes a page of every tree that it changes, however small the change is.
#[test]
fn the_wal_stays_short_with_many_small_commits() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let wal = || std::fs::metadata(files.directory.path().join("posthaste.db-wal")).map_or(0, |found| found.len());
    let mut longest = 0;
    for ms in 0..2_000 {
        let message = rig.publish_with(T0.plus_millis(ms), |message| message.body = vec![b'x'; 20_000].into());
        assert!(store.message(rig.tenant, message.id, Part::Head).unwrap().is_some(), "a question settles");
        longest = longest.max(wal());
    }
    // Twice `CHECKPOINT_BYTES`, plus one commit. Tests beside the journal cover both ways to reach it.
    assert!(longest < 132 * 1024 * 1024, "{longest} bytes");
}
