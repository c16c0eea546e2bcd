//! Workflow runs with a journal: which queries need no database, what the database gets, and what a kill leaves.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::event::{Op, Response, State};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::Delivery;
use posthaste_engine::workflow::{Attempt, Change, Overrides, Workflow};
use posthaste_store::journal::{JournalOptions, JournalStore};
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{Part, ReadPool, Retention, RunFilter, Store, StoreError};
use posthaste_wire::id::Seq;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

    fn open(&self, apply_after: Duration) -> JournalStore {
        let options = JournalOptions { apply_after, ..JournalOptions::default() };
        JournalStore::open(&self.database(), &self.directory.path().join("journal"), options).unwrap()
    }

    /// The files that a process leaves if it is killed now.
    fn copy(&self) -> Files {
        let copy = Files::new();
        copy_all(self.directory.path(), copy.directory.path());
        copy
    }
}

fn count(path: &Path, table: &str) -> i64 {
    let connection = Connection::open(path).unwrap();
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

/// Rows of messages in all tables.
fn messages(path: &Path) -> i64 {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'message_*'";
    let mut statement = connection.prepare(sql).unwrap();
    let tables = statement.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
    tables.collect::<Vec<_>>().iter().map(|table| count(path, table)).sum()
}

/// A run whose deliveries have all ended, except the last one.
fn busy(rig: &Rig<'_>, id: &str) -> Workflow {
    let mut run = rig.start(id, T0);
    for number in 1..5 {
        rig.append(&mut run, T0, vec![step(number, "out")]);
        rig.attempt(&mut run, number - 1, T0, 200);
    }
    run
}

#[test]
fn ended_steps_leave_no_message_in_the_database() {
    let files = Files::new();
    let store = files.open(Duration::MAX);
    let rig = Rig::new(&store);
    let mut run = busy(&rig, "a");
    rig.wait(&mut run, T0, "event", 5);
    rig.decide(T0, |out| run.notify("event", b"", out)).unwrap();
    rig.attempt(&mut run, 4, T0, 200);
    rig.finish(&mut run, T0);
    let last_seq = store.last_seq().unwrap();
    let killed = files.copy();
    drop(store);
    for files in [files, killed] {
        let store = files.open(Duration::MAX);
        assert_eq!(store.last_seq().unwrap(), last_seq, "its position is not given to another");
        assert_eq!(store.workflow(run.run.tenant, run.run.no).unwrap().as_ref(), Some(&run));
        drop(store);
        let rows = ["run", "run_entry", "waiter", "live", "run_note"].map(|table| count(&files.database(), table));
        assert_eq!((messages(&files.database()), rows), (0, [1, run.entries.len() as i64, 0, 0, 1]));
    }
}

#[test]
fn a_step_keeps_its_message_while_it_is_live_or_mentioned() {
    let files = Files::new();
    let store = files.open(Duration::MAX);
    let rig = Rig::new(&store);
    let (lives, told, buried) = (rig.start("a", T0), rig.start("b", T0), rig.start("c", T0));
    let message = |run: &Workflow| store.load_messages(&[run.entries[0].id]).unwrap().remove(0);
    let (told, buried) = (message(&told), message(&buried));
    rig.deliver(&told, T0);
    let letter = rig.fail(&buried, T0, Some(500));
    assert_eq!(rig.story().len(), 2);
    assert_eq!(store.message(rig.tenant, told.id, Part::Whole).unwrap().unwrap().final_state, Some(State::Delivered));
    assert_eq!(store.dead_letter(rig.tenant, letter.dlq_id).unwrap().unwrap().message, buried);
    assert_eq!(store.load_messages(&[lives.entries[0].id]).unwrap().len(), 1);
    // The step ends when its message is already in the database.
    rig.commit(&[Op::Remove { id: lives.entries[0].id }]).unwrap();
    assert_eq!((rig.live_ids(), rig.stored(&lives)), (vec![], Some(lives)));
}

/// Holds the write lock of the database until it is dropped.
fn busy_database(files: &Files) -> Connection {
    let elsewhere = Connection::open(files.database()).unwrap();
    elsewhere.execute_batch("BEGIN IMMEDIATE").unwrap();
    elsewhere
}

#[test]
fn the_queries_of_every_step_do_not_wait_for_the_database() {
    let files = Files::new();
    let store = files.open(Duration::MAX);
    let rig = Rig::new(&store);
    let (mut old, mut ended) = (busy(&rig, "old"), busy(&rig, "ended"));
    rig.finish(&mut ended, T0);
    rig.wait(&mut old, T0, "event", 7);
    assert_eq!(
        store.waiters(rig.tenant, "event", usize::MAX).unwrap().len(),
        1,
        "this brings all of it into the database"
    );
    let elsewhere = busy_database(&files);
    let find = |id: &str, at| store.find_run(rig.tenant, id, at, ReadPool::Core).unwrap();
    // Pending changes are layered over the stored run.
    rig.attempt(&mut old, 4, T0, 200);
    rig.append(&mut old, T0, vec![step(5, "five"), step(6, "six")]);
    rig.decide(T0, |out| old.notify("event", b"", out)).unwrap();
    assert_eq!(rig.stored(&old).as_ref(), Some(&old));
    assert_eq!((find("old", None), find("old", Some(T0))), (Some(old.run.no), Some(old.run.no)));
    // A run that is only pending, and one whose name was used before.
    let new = busy(&rig, "new");
    let mut again = rig.start("ended", T0.plus_millis(1));
    assert_eq!((rig.stored(&new), find("new", None)), (Some(new.clone()), Some(new.run.no)));
    assert_eq!(find("ended", None), Some(again.run.no));
    assert_eq!(find("ended", Some(T0)), Some(ended.run.no));
    rig.finish(&mut again, T0.plus_millis(2));
    assert_eq!((find("ended", None), rig.stored(&again)), (Some(again.run.no), Some(again.clone())));
    assert_eq!((find("none", None), store.workflow(rig.tenant, Seq(1)).unwrap()), (None, None));
    elsewhere.execute_batch("ROLLBACK").unwrap();
    let listed = rig.list(&RunFilter::default(), &latest(9)).entries;
    assert_eq!(listed, [again, new, ended, old]);
}

#[test]
fn a_run_is_complete_while_it_is_being_applied() {
    let files = Files::new();
    let store = files.open(Duration::ZERO);
    let rig = Rig::new(&store);
    let mut run = busy(&rig, "a");
    assert_eq!(store.waiters(rig.tenant, "event", usize::MAX).unwrap(), []);
    let elsewhere = busy_database(&files);
    // The thread starts to apply at once and cannot finish. The other changes are gathered after that.
    for number in 5..60 {
        rig.append(&mut run, T0, vec![step(number, "out")]);
        rig.attempt(&mut run, number - 1, T0, 200);
        assert_eq!(rig.stored(&run).as_ref(), Some(&run));
        assert_eq!(store.find_run(rig.tenant, "a", None, ReadPool::Core).unwrap(), Some(run.run.no));
    }
    elsewhere.execute_batch("COMMIT").unwrap();
    rig.finish(&mut run, T0);
    assert_eq!(rig.stored(&run).as_ref(), Some(&run));
    drop(store);
    let store = SqliteStore::open(&files.database(), SqliteOptions::default()).unwrap();
    assert_eq!(store.workflow(run.run.tenant, run.run.no).unwrap(), Some(run));
}

#[test]
fn a_resumed_run_is_complete_without_the_message_of_its_first_entry() {
    let files = Files::new();
    let store = files.open(Duration::MAX);
    let rig = Rig::new(&store);
    let mut run = busy(&rig, "a");
    rig.attempt(&mut run, 4, T0, 500);
    let failed = rig.record(&run);
    let again = rig.decide(T0, |out| failed.resumed("b".into(), T0, Overrides::default(), out));
    assert_eq!((rig.stored(&again).as_ref(), rig.stored(&run).as_ref()), (Some(&again), Some(&run)));
    let store = files.copy().open(Duration::MAX);
    assert_eq!(store.workflow(run.run.tenant, again.run.no).unwrap(), Some(again.clone()));
    assert_eq!(store.last_seq().unwrap(), again.entries[4].id.seq);
}

#[test]
fn a_change_of_a_run_writes_only_changed_rows() {
    const LARGE: usize = 300_000;
    let files = Files::new();
    let options = JournalOptions { apply_after: Duration::MAX, segment_bytes: u64::MAX, ..JournalOptions::default() };
    let store = JournalStore::open(&files.database(), &files.directory.path().join("journal"), options).unwrap();
    let rig = Rig::new(&store);
    let mut run = rig.start_with("a", T0, |new| new.config.failure = Some(Default::default()));
    let large = "x".repeat(LARGE);
    for number in 1..4 {
        rig.keep(&mut run, T0, "early", large.as_bytes());
        rig.invoke(&mut run, T0, number, &large);
        rig.append(&mut run, T0, vec![step(10 + number, &large)]);
    }
    let length = || {
        let mut files = std::fs::read_dir(files.directory.path().join("journal")).unwrap().map(Result::unwrap);
        let segment = files.find(|file| file.path().extension().is_some_and(|extension| extension == "log"));
        segment.unwrap().metadata().unwrap().len()
    };
    let mut before = length();
    assert!(before > 9 * LARGE as u64, "they are in one file");
    let mut written = |what: &str, max: u64| {
        let written = length() - before;
        before += written;
        assert!(written < max, "{what} writes {written} bytes");
    };
    rig.wait(&mut run, T0, "event", 20);
    written("a wait", 2_000);
    rig.decide(T0, |out| run.notify("event", b"", out)).unwrap();
    written("an event", 2_000);
    rig.keep(&mut run, T0, "early", b"small");
    written("an early event", 500);
    rig.invoke(&mut run, T0, 21, "small");
    written("an invoke", 1_000);
    rig.wait(&mut run, T0, "early", 22);
    written("a wait for what came early", 2 * LARGE as u64);
    let huge = Outcome {
        result: Ok(Response { status: 500, body: large.clone().into(), ..Response::default() }),
        ..outcome(500)
    };
    let failed = Attempt { outcome: &huge, retried: 0, next: Next::DeadLetter, sent: b"" };
    rig.decide(T0, |out| run.attempted(0, failed, out));
    written("a failure", 2 * LARGE as u64);
    let told = Attempt { outcome: &outcome(500), retried: 0, next: Next::RetryAt(T0), sent: b"" };
    rig.decide(T0, |out| run.failure_told(told, out));
    written("telling of it", 2_000);
    assert!(rig.decide(T0, |out| run.leave_dlq(out)));
    written("leaving the DLQ", 1_000);
    assert_eq!(rig.stored(&run).as_ref(), Some(&run));
    drop(store);
    let connection = Connection::open(files.database()).unwrap();
    let row: i64 = connection.query_row("SELECT length(data) FROM run", [], |row| row.get(0)).unwrap();
    assert!(row < 700, "the row of the run has {row} bytes");
}

#[test]
fn an_invalid_batch_about_runs_is_not_written() {
    let files = Files::new();
    let store = files.open(Duration::MAX);
    let rig = Rig::new(&store);
    let mut run = rig.start("a", T0);
    rig.wait(&mut run, T0, "event", 1);
    let waiter = store.waiters(rig.tenant, "event", usize::MAX).unwrap().remove(0);
    let gone = Op::Workflow(Change::NoWaiter(waiter));
    rig.commit(std::slice::from_ref(&gone)).unwrap();
    let length = || {
        let mut files = std::fs::read_dir(files.directory.path().join("journal")).unwrap().map(Result::unwrap);
        let segment = files.find(|file| file.path().extension().is_some_and(|extension| extension == "log"));
        segment.unwrap().metadata().unwrap().len()
    };
    let before = length();
    let absent = Change::Delivery { run: run.run.no, index: 1, delivery: Delivery::due_at(T0) };
    for impossible in [gone, Op::Workflow(absent)] {
        let result = rig.commit(&[impossible]);
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
        assert_eq!(length(), before);
    }
    rig.publish(T0);
    assert!(length() > before, "the store goes on");
}

/// Steps, queries, retention and the applying thread run concurrently.
#[test]
fn no_step_is_lost_between_threads() {
    let files = Files::new();
    let store = files.open(Duration::from_millis(1));
    let rig = Rig::new(&store);
    let done = AtomicBool::new(false);
    let shared = busy(&rig, "shared").run.no;
    let runs = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut longest = 0;
            while !done.load(Ordering::Relaxed) {
                let run = store.workflow(rig.tenant, shared).unwrap().unwrap();
                assert!(run.entries.len() >= longest, "a list never gets shorter");
                longest = run.entries.len();
                assert!(run.run.ended_at.is_none() || is_quiet(&run), "an end is seen whole");
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.retain(&Retention { history_ms: DAY, dlq_ms: DAY }, T0.plus_millis(2 * DAY)).unwrap();
                store.list_runs(rig.tenant, &RunFilter::default(), &latest(5)).unwrap();
            }
        });
        let late = T0.plus_millis(2 * DAY);
        let mut run = store.workflow(rig.tenant, shared).unwrap().unwrap();
        let mut runs = Vec::new();
        for number in 5..150 {
            rig.append(&mut run, late, vec![step(number, "out")]);
            rig.attempt(&mut run, number - 1, late, 200);
            assert_eq!(rig.stored(&run).as_ref(), Some(&run));
            // It ended so long ago that it may be dropped at once.
            let mut old = rig.start(&format!("old {number}"), T0);
            rig.finish(&mut old, T0);
            runs.push(old);
        }
        rig.finish(&mut run, late);
        done.store(true, Ordering::Relaxed);
        runs.push(run);
        runs
    });
    retain_all(&store, DAY, DAY, T0.plus_millis(2 * DAY));
    for run in &runs[..runs.len() - 1] {
        assert_eq!(rig.stored(run), None);
    }
    let last = runs.last().unwrap();
    assert_eq!(rig.stored(last).as_ref(), Some(last));
    drop(store);
    assert_eq!(
        (count(&files.database(), "run"), count(&files.database(), "run_entry")),
        (1, last.entries.len() as i64)
    );
}
