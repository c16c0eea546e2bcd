//! The file of the embedded store: what survives, what is rejected, and how a full file behaves.

use crate::run_support::*;
use crate::support::*;
use bytes::Bytes;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{Op, State};
use posthaste_engine::message::Message;
use posthaste_store::sqlite::{OpenError, SqliteOptions, SqliteStore};
use posthaste_store::{Counts, Durability, EventFilter, Filter, Retention, Store, StoreError};
use posthaste_wire::id::Seq;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("posthaste.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.path(), SqliteOptions::default()).unwrap()
    }

    fn refusal(&self) -> OpenError {
        match SqliteStore::open(&self.path(), SqliteOptions::default()) {
            Ok(_) => panic!("the file was opened"),
            Err(error) => error,
        }
    }

    /// The files that a killed process leaves at this moment.
    fn as_after_a_kill(&self) -> Files {
        let copy = Files::new();
        for suffix in ["", "-wal"] {
            let file = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
            if file(&self.path()).exists() {
                std::fs::copy(file(&self.path()), file(&copy.path())).unwrap();
            }
        }
        copy
    }

    fn pragma(&self, sql: &str) {
        rusqlite::Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }
}

/// A message of each kind: live, ended and failed.
fn fill(store: &SqliteStore) -> [Arc<Message>; 3] {
    let rig = Rig::new(store);
    let [live, ended, failed] = [0, 1, 2].map(|millis| rig.publish(T0.plus_millis(millis)));
    rig.deliver(&ended, T0.plus_millis(SECOND));
    rig.fail(&failed, T0.plus_millis(SECOND), Some(500));
    [live, ended, failed]
}

fn check(store: &SqliteStore, [live, ended, failed]: &[Arc<Message>; 3]) {
    let rig = Rig::new(store);
    assert_eq!(store.counts().unwrap(), Counts { live: 1, dead_letters: 1 });
    assert_eq!(store.last_seq().unwrap(), failed.id.seq);
    assert_eq!(rig.live_ids(), [live.id]);
    assert_eq!(store.load_messages(&[live.id, ended.id]).unwrap(), [Arc::clone(live), Arc::clone(ended)]);
    assert_eq!(rig.story().len(), 5);
}

#[test]
fn everything_is_there_after_a_clean_close() {
    let files = Files::new();
    let store = files.open();
    let messages = fill(&store);
    store.close();
    let left: Vec<_> =
        std::fs::read_dir(files.directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["posthaste.db"], "a copy of the one file is a backup");
    check(&files.open(), &messages);
}

#[test]
fn everything_synced_is_there_after_a_kill() {
    let files = Files::new();
    let store = files.open();
    let messages = fill(&store);
    let killed = files.as_after_a_kill();
    drop(store);
    let recovered = killed.open();
    check(&recovered, &messages);
    let lines = Rig::new(&recovered).story();
    let newer = Rig::new(&recovered).publish(T0.plus_millis(SECOND));
    let mut expected = vec![(newer.id, State::Created)];
    expected.extend(lines);
    assert_eq!(Rig::new(&recovered).story(), expected, "lines of one millisecond stay in order over a restart");
}

/// SQLite appends lazy commits to the WAL and syncs the whole file with the next synced commit. The copy stands for a
/// kill, which loses nothing that was appended.
#[test]
fn a_lazy_commit_survives_a_kill() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let message = rig.draft(T0, |_| {});
    store.commit(SHARD, rig.epoch, &published(&message), Durability::Lazy).unwrap();
    let killed = files.as_after_a_kill();
    assert_eq!(Rig::new(&killed.open()).live_ids(), [message.id]);
}

/// SQLite does not sync a transaction that changes no page, so a flush must change one.
#[test]
fn a_flush_writes_to_the_wal_only_after_lazy_commits() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let wal = || std::fs::metadata(format!("{}-wal", files.path().display())).unwrap().len();
    let before = wal();
    store.flush().unwrap();
    store.probe().unwrap();
    assert_eq!(wal(), before, "everything is synced already");
    for flush in [true, false] {
        let message = rig.draft(T0, |_| {});
        store.commit(SHARD, rig.epoch, &published(&message), Durability::Lazy).unwrap();
        let lazy = wal();
        if flush {
            store.flush().unwrap();
        } else {
            store.commit(SHARD, rig.epoch, &[], Durability::Synced).unwrap();
        }
        assert!(wal() > lazy, "nothing would have been synced");
    }
}

#[test]
fn owners_and_tenants_are_counted_over_restarts() {
    let files = Files::new();
    let (epoch, tenant) = {
        let store = files.open();
        (store.lease(SHARD, T0).unwrap(), store.tenant("second").unwrap())
    };
    let store = files.open();
    assert!(store.lease(SHARD, T0).unwrap() > epoch);
    assert_eq!(store.tenant("second").unwrap(), tenant);
    let stale = store.commit(SHARD, epoch, &[], Durability::Synced);
    assert!(matches!(stale, Err(StoreError::Fenced)));
}

#[test]
fn positions_survive_retention_and_restart() {
    let files = Files::new();
    let last = {
        let store = files.open();
        let rig = Rig::new(&store);
        let message = rig.publish(T0);
        rig.deliver(&message, T0);
        retain_all(&store, 0, 0, T0.plus_millis(DAY));
        message.id.seq
    };
    let later = Seq::next(last, T0);
    {
        let store = files.open();
        assert_eq!(store.last_seq().unwrap(), last);
        let rig = Rig::new(&store);
        let action = BulkAction { completed_at: Some(T0), ..bulk_action(rig.tenant, later) };
        rig.commit(&[Op::PutBulkAction(action)]).unwrap();
        retain_all(&store, 0, 0, T0.plus_millis(9 * DAY));
        assert_eq!(store.bulk_action(rig.tenant, later).unwrap(), None);
    }
    assert_eq!(files.open().last_seq().unwrap(), later);
}

#[test]
fn named_objects_survive_a_kill() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let message = rig.publish_with(T0, |message| {
        message.spec.queue = Some("q".into());
        message.spec.flow = Some(flow_spec("key"));
    });
    let action = bulk_action(rig.tenant, Seq::next(store.last_seq().unwrap(), T0));
    let schedule = schedule(rig.tenant, "s");
    rig.commit(&[
        Op::PutQueue(queue(rig.tenant, "q")),
        Op::PutFlow(flow(rig.tenant, "key")),
        Op::PutSchedule(schedule.clone().into()),
        Op::PutBulkAction(action.clone()),
    ])
    .unwrap();
    let recovered = files.as_after_a_kill().open();
    assert_eq!(recovered.load(SHARD, &queued(rig.tenant, "q", None, 9)).unwrap(), [live(&message)]);
    assert_eq!(recovered.queues(None).unwrap(), [queue(rig.tenant, "q")]);
    assert_eq!(recovered.flows().unwrap(), [flow(rig.tenant, "key")]);
    assert_eq!(all_schedules(&recovered, rig.tenant), [schedule]);
    assert_eq!(
        (recovered.last_seq().unwrap(), recovered.unfinished_bulk_actions().unwrap()),
        (action.id, vec![(&action).into()])
    );
}

/// The cost of a match by queue or key depends only on the matching messages. The other rows here cannot even be
/// decoded.
#[test]
fn a_match_by_queue_or_key_decodes_nothing_else() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let [in_queue, with_key] = ["queue", "key"].map(|kind| {
        rig.publish_with(T0, |message| match kind {
            "queue" => message.spec.queue = Some("q".into()),
            _ => message.spec.flow = Some(flow_spec("key")),
        })
    });
    rig.publish(T0);
    files.pragma("UPDATE live SET retried = 'x' WHERE queue IS NULL AND flow IS NULL");
    let matched = |filter: &Filter| {
        let found = store.match_live(rig.tenant, filter, Seq::MIN, 9);
        found.map(|rows| rows.iter().map(|row| row.id).collect::<Vec<_>>())
    };
    let queues = Filter { queues: vec!["q".into()], ..Filter::default() };
    let keys = Filter { flow_keys: vec!["key".into()], ..Filter::default() };
    assert_eq!(matched(&queues).unwrap(), [in_queue.id]);
    assert_eq!(matched(&keys).unwrap(), [with_key.id]);
    assert!(matches!(matched(&Filter::default()), Err(StoreError::Corrupt { .. })));
}

#[test]
fn moved_messages_are_there_after_a_restart() {
    let files = Files::new();
    let message = {
        let store = files.open();
        let message = Rig::new(&store).publish(T0);
        retain_all(&store, 0, 0, T0.plus_millis(9 * DAY));
        message
    };
    let store = files.open();
    assert_eq!(store.load_messages(&[message.id]).unwrap(), [Arc::clone(&message)]);
    Rig::new(&store).fail(&message, T0.plus_millis(9 * DAY), None);
    assert_eq!(store.counts().unwrap(), Counts { live: 0, dead_letters: 1 });
}

#[test]
fn only_the_owner_may_read_the_files() {
    let files = Files::new();
    let _store = files.open();
    for file in std::fs::read_dir(files.directory.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.file_name());
    }
}

#[test]
fn a_dropped_run_leaves_no_rows_whenever_the_process_is_killed() {
    let mut files = Files::new();
    let mut store = files.open();
    let mut run = Rig::new(&store).start("a", T0);
    Rig::new(&store).append(&mut run, T0, (1..2_500).map(|number| step(number, "")).collect());
    Rig::new(&store).finish(&mut run, T0);
    let last_seq = store.last_seq().unwrap();
    let rows = |files: &Files, table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        rusqlite::Connection::open(files.path()).unwrap().query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    let policy = Retention { history_ms: HOUR, dlq_ms: HOUR };
    let mut left = vec![rows(&files, "run_entry")];
    // Its messages are dropped first, together with their table.
    while store.retain(&policy, T0.plus_millis(DAY)).unwrap().more {
        let entries = rows(&files, "run_entry");
        if entries < *left.last().unwrap() {
            left.push(entries);
            assert_eq!(store.workflow(run.run.tenant, run.run.no).unwrap(), None, "half a run is none");
            let killed = files.as_after_a_kill();
            store = killed.open();
            files = killed;
        }
    }
    assert_eq!(left, [2_500, 1_500, 500]);
    assert_eq!(["run", "run_entry", "run_note", "live"].map(|table| rows(&files, table)), [0, 0, 0, 0]);
    assert_eq!(files.open().last_seq().unwrap(), last_seq);
}

#[test]
fn a_file_of_a_later_release_is_refused_unchanged() {
    let files = Files::new();
    files.open().close();
    files.pragma("PRAGMA user_version = 7");
    let before = std::fs::read(files.path()).unwrap();
    let error = files.refusal();
    assert!(matches!(error, OpenError::Newer { found: 7, supported: 6 }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the store has format 7, but this release knows only up to 6: upgrade the posthaste binary"
    );
    assert_eq!(std::fs::read(files.path()).unwrap(), before);
}

#[test]
fn files_of_other_programs_are_refused_unchanged() {
    let foreign = |sql: &str| {
        let files = Files::new();
        files.pragma(sql);
        files
    };
    let text = Files::new();
    std::fs::write(text.path(), "this is not a database, but it is long enough to be read as one. ".repeat(20))
        .unwrap();
    for files in [
        foreign("PRAGMA application_id = 12345; CREATE TABLE t(x)"),
        foreign("CREATE TABLE t(x)"),
        foreign("PRAGMA user_version = 1"),
        text,
    ] {
        let before = std::fs::read(files.path()).unwrap();
        let error = files.refusal();
        assert!(matches!(error, OpenError::NotOurs { .. }), "{error:?}");
        assert_eq!(std::fs::read(files.path()).unwrap(), before);
    }
}

#[test]
fn a_missing_directory_is_an_io_error() {
    let files = Files::new();
    let path = files.directory.path().join("absent/posthaste.db");
    let result = SqliteStore::open(&path, SqliteOptions::default());
    assert!(matches!(result, Err(OpenError::Io { .. })));
}

#[test]
fn a_full_disk_stops_the_writer_and_nothing_else() {
    let files = Files::new();
    let kept = {
        let store = SqliteStore::open(&files.path(), SqliteOptions { pages_max: Some(60), ..SqliteOptions::default() })
            .unwrap();
        let rig = Rig::new(&store);
        let kept = rig.publish(T0);
        let large = rig.draft(T0, |message| message.body = Bytes::from(vec![b'x'; 1024 * 1024]));
        let small = rig.draft(T0, |_| {});
        let failed = rig.commit(&published(&large));
        assert!(matches!(failed, Err(StoreError::Unknown(_))), "{failed:?}");
        assert_eq!((rig.live_ids(), rig.story().len()), (vec![kept.id], 1), "readers go on");

        assert!(matches!(rig.commit(&published(&small)), Err(StoreError::Unknown(_))), "the writer has stopped");
        assert!(store.probe().is_err());
        assert!(store.tenant("new").is_err());
        assert!(store.flush().is_err());
        assert_eq!(store.counts().unwrap(), Counts { live: 1, dead_letters: 0 });
        kept
    };
    let store = files.open();
    let rig = Rig::new(&store);
    assert_eq!(rig.live_ids(), [kept.id]);
    let large = rig.publish_with(T0, |message| message.body = Bytes::from(vec![b'x'; 1024 * 1024]));
    assert_eq!(rig.live_ids(), [kept.id, large.id]);
}

/// A query sees the tables of its own snapshot, whichever tables the writer creates and drops in the meantime.
#[test]
fn queries_survive_tables_being_created_and_dropped() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    let kept = rig.publish_with(T0, |message| message.not_before = T0.plus_millis(300 * DAY));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    store.list_events(rig.tenant, &EventFilter::default(), &latest(100)).unwrap();
                    store.list_dead_letters(rig.tenant, &Filter::default(), &latest(100)).unwrap();
                    assert_eq!(store.load_messages(&[kept.id]).unwrap(), [Arc::clone(&kept)]);
                }
            });
        }
        for hours in (0..200).step_by(5) {
            let now = T0.plus_millis(hours * HOUR);
            let message = rig.publish(now);
            rig.fail(&message, now, Some(500));
            retain_all(&store, HOUR, HOUR, now);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.live_ids(), [kept.id]);
}

fn number(path: &Path, sql: &str) -> i64 {
    rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Messages that are published together with one body.
fn publish_together(rig: &Rig<'_>, second: u64, count: u64, body: &Bytes) -> Vec<Arc<Message>> {
    let drafts: Vec<_> = (0..count)
        .map(|ms| rig.draft(T0.plus_millis(second * SECOND + ms), |message| message.body = body.clone()))
        .collect();
    rig.commit(&drafts.iter().flat_map(published).collect::<Vec<_>>()).unwrap();
    drafts
}

#[test]
fn a_shared_body_is_stored_once_and_dropped_with_its_last_message() {
    const REFS: &str = "SELECT coalesce(sum(refs), 0) FROM shared_body";
    let files = Files::new();
    let (path, body) = (files.path(), Bytes::from(vec![b'x'; 1024 * 1024]));
    let store = files.open();
    let rig = Rig::new(&store);
    let messages = publish_together(&rig, 0, 100, &body);
    assert_eq!((number(&path, "SELECT count(*) FROM shared_body"), number(&path, REFS)), (1, 100));
    let stored = store.stored_bytes(rig.tenant);
    assert!((1024 * 1024..1024 * 1024 + 100_000).contains(&stored), "{stored} bytes are counted");
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    let loaded = store.load_messages(&ids).unwrap();
    assert_eq!(loaded, messages);
    assert!(loaded.iter().all(|message| message.body.as_ptr() == loaded[0].body.as_ptr()), "one copy in RAM");

    let letter = rig.fail(&messages[0], T0, None);
    assert_eq!(number(&path, REFS), 101, "the dead letter refers to it too");
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, messages[0]);
    for message in &messages[1..] {
        rig.deliver(message, T0);
    }
    let all = |history_ms, dlq_ms, days: u64| {
        while store.retain(&Retention { history_ms, dlq_ms }, T0.plus_millis(days * DAY)).unwrap().more {}
    };
    all(DAY, 100 * DAY, 10);
    assert_eq!(number(&path, REFS), 1, "the history is gone");
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, messages[0]);
    rig.commit(&[Op::DeleteDeadLetter { tenant: rig.tenant, dlq_id: letter.dlq_id }]).unwrap();
    assert_eq!(number(&path, "SELECT count(*) FROM shared_body"), 0);
    assert_eq!(store.stored_bytes(rig.tenant), 0);

    let messages = publish_together(&rig, 1, 2, &body);
    rig.fail(&messages[0], T0, None);
    all(DAY, DAY, 20);
    assert_eq!(number(&path, REFS), 1, "one still lives, and its row has moved");
    assert_eq!(store.load_messages(&[messages[1].id]).unwrap()[0].body, body);
    publish_together(&rig, 2, 3, &Bytes::from_static(b"small"));
    assert_eq!(number(&path, "SELECT count(*) FROM shared_body"), 1, "a small body is kept with each message");
}

/// Dropping rows with a large shared body walks its pages, so each row counts its share of the body.
#[test]
fn shared_bodies_are_dropped_a_bounded_number_of_bytes_at_a_time() {
    let files = Files::new();
    let store = files.open();
    let rig = Rig::new(&store);
    for second in 0..12 {
        let body = Bytes::from(vec![b'x'; 2 * 1024 * 1024]);
        for message in publish_together(&rig, second, 2, &body) {
            rig.deliver(&message, T0);
        }
    }
    let retained = || store.retain(&Retention { history_ms: DAY, dlq_ms: DAY }, T0.plus_millis(20 * DAY)).unwrap();
    let mut rounds = Vec::new();
    let mut left = number(&files.path(), "SELECT count(*) FROM shared_body");
    loop {
        let more = retained().more;
        let now = number(&files.path(), "SELECT count(*) FROM shared_body");
        rounds.push(left - now);
        left = now;
        if !more {
            break;
        }
    }
    assert!(rounds.iter().all(|dropped| *dropped <= 3), "bodies of 2 MiB that went at once: {rounds:?}");
    assert_eq!(number(&files.path(), "SELECT count(*) FROM shared_body"), 0);
}
