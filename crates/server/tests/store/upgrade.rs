//! Files of earlier formats: opened, brought up to date in one transaction, with everything that was in them.

use crate::run_support::*;
use crate::support::*;
use posthaste::store::sqlite::{SqliteOptions, SqliteStore};
use posthaste::store::{Counts, Filter, SigningKeys, Store};
use posthaste_engine::event::{Op, State};
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_engine::shard::Lane;
use posthaste_engine::url_group::{Endpoint, UrlGroup};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::signature::SigningKey;
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

const TENANT: TenantId = TenantId(1);

/// The tables of format 1, as its release made them at [`T0`].
const FORMAT_1: &str = include_str!("format_1.sql");

/// The conditions of a message as format 1 had them.
const SPEC_1: &str = r#"{"url":"https://example.org/hook","method":"POST",
    "headers":[["Content-Type","text/plain"]],"retries":3,"caller_ip":"127.0.0.1"}"#;

/// A file of format 1 with three live messages, of which two have been tried, and a dead letter.
struct File {
    directory: tempfile::TempDir,
    rows: Vec<Live>,
}

impl File {
    fn new() -> File {
        let file = File { directory: tempfile::tempdir().unwrap(), rows: (0..3).map(row).collect() };
        let connection = Connection::open(file.path()).unwrap();
        connection.execute_batch(FORMAT_1).unwrap();
        let (t0, body) = (number(T0.0), &b"hello"[..]);
        for row in &file.rows {
            let (seq, tag) = (number(row.id.seq.0), row.id.tag.cast_signed());
            let message = params![seq, tag, t0, "https://example.org/hook", SPEC_1, body];
            connection.execute("INSERT INTO message_80000 VALUES (?1, ?2, 1, ?3, ?3, ?4, ?5, ?6)", message).unwrap();
            let live = params![seq, tag, row.origin.0.cast_signed(), number(row.due.0), row.retried];
            connection.execute("INSERT INTO live VALUES (?1, ?2, 1, ?3, 5, ?4, ?5, 0, 0)", live).unwrap();
            connection.execute("INSERT INTO event_80000 VALUES (1, ?1, ?2, ?2, 0, NULL)", params![t0, seq]).unwrap();
        }
        let failed = dead_id();
        let letter = params![t0, number(failed.seq.0), failed.tag.cast_signed(), SPEC_1, body];
        connection
            .execute("INSERT INTO dlq_20000 VALUES (1, ?1, ?2, ?3, 3, 'refused', NULL, ?1, ?1, 'u', ?4, ?5)", letter)
            .unwrap();
        let key =
            params![&[7_u8; 32][..], number(file.rows[0].id.seq.0), file.rows[0].id.tag.cast_signed(), t0 + 600_000];
        connection.execute("INSERT INTO dedup_2880001 VALUES (1, ?1, ?2, ?3, ?4)", key).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("posthaste.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.path(), SqliteOptions::default()).unwrap()
    }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

fn row(index: u64) -> Live {
    let seq = Seq(Seq::first_at(T0).0 + index);
    let message = message(TENANT, MessageId { seq, tag: u64::MAX - index }, T0);
    let retried = u32::try_from(index).unwrap();
    Live { origin: Origin(u64::MAX - index % 2), due: T0.plus_millis(10 - index), retried, ..live(&message) }
}

fn dead_id() -> MessageId {
    MessageId { seq: Seq(Seq::first_at(T0).0 + 9), tag: 9 }
}

fn query<T: rusqlite::types::FromSql>(path: &Path, sql: &str) -> Vec<T> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_file_of_format_1_keeps_everything() {
    let file = File::new();
    // Once to bring it up to date, once more as the file that it is then.
    for _ in 0..2 {
        let store = file.open();
        let message = |row: &Live| Message { body: "hello".into(), ..message(TENANT, row.id, T0) };
        assert_eq!(store.counts().unwrap(), Counts { live: 3, dead_letters: 1 });
        assert_eq!(store.last_seq().unwrap(), file.rows[2].id.seq);
        assert_eq!(store.match_live(TENANT, &Filter::default(), Seq::MIN, 9).unwrap(), file.rows);
        let by_due: Vec<Live> = file.rows.iter().rev().copied().collect();
        let everything = due(None, DueKey::MIN, Timestamp::MAX, 9);
        assert_eq!(store.load(SHARD, &everything).unwrap(), by_due);
        let lane = (TENANT, Lane::Origin(Origin(u64::MAX - 1)));
        assert_eq!(store.load(SHARD, &due(Some(lane), DueKey::MIN, Timestamp::MAX, 9)).unwrap(), [file.rows[1]]);
        for row in &file.rows {
            let record = store.message(TENANT, row.id).unwrap().unwrap();
            assert_eq!((record.message.as_ref(), record.live), (&message(row), Some(*row)));
        }
        let letter = store.dead_letter(TENANT, DlqId { at: T0, n: dead_id().seq.0 }).unwrap().unwrap();
        assert_eq!((letter.letter.id, letter.letter.error.as_deref()), (dead_id(), Some("refused")));
        assert_eq!(letter.message.spec, message(&file.rows[0]).spec);
        let key = (TENANT, DedupKey([7; 32]));
        assert_eq!(store.find_duplicates(&[key], T0).unwrap(), [Some(file.rows[0].id)]);
        let keys = ["sig_one", "sig_two"].map(|key| SigningKey::new(key.to_owned()));
        let [current, next] = keys;
        assert_eq!(store.signing_keys(TENANT).unwrap(), Some(SigningKeys { current, next }));
        let endpoints = vec![Endpoint { url: "https://example.org".into(), name: None }];
        let (created_at, updated_at) = (Timestamp(1), Timestamp(2));
        let group = UrlGroup { name: "g".into(), created_at, updated_at, endpoints, headers: Vec::new() };
        assert_eq!(store.url_groups(TENANT).unwrap(), [group]);
        assert_eq!(store.tenant("default").unwrap(), TENANT);
        store.close();
        assert_eq!(query::<i64>(&file.path(), "PRAGMA user_version"), [4]);
    }
    let store = file.open();
    let rig = Rig::new(&store);
    assert_eq!(rig.epoch.0, 5, "owners are counted on");
    let story: Vec<State> = rig.story().into_iter().map(|(_, state)| state).collect();
    assert_eq!(story, [State::Created; 3]);
}

#[test]
fn a_file_of_format_1_takes_what_is_new() {
    let file = File::new();
    let store = file.open();
    let rig = Rig::new(&store);
    let queued_message = rig.publish_with(T0, |message| message.spec.queue = Some("q".into()));
    let moved = Live { place: live(&queued_message).place, flow: None, ..file.rows[0] };
    rig.commit(&[
        Op::PutQueue(queue(TENANT, "q")),
        Op::PutFlow(flow(TENANT, "key")),
        Op::PutSchedule(schedule(TENANT, "s").into()),
        Op::PutBulkAction(bulk_action(TENANT, Seq::next(store.last_seq().unwrap(), T0))),
        Op::Update(moved),
    ])
    .unwrap();
    let last_seq = store.last_seq().unwrap();
    let mut run = rig.start("run", T0);
    rig.append(&mut run, T0, vec![step(1, &"x".repeat(20_000))]);
    rig.wait(&mut run, T0, "event", 2);
    rig.attempt(&mut run, 0, T0, 200);
    let late = run.run.waits[0].timer.seq;
    store.close();
    let store = file.open();
    assert_eq!(store.queues(None).unwrap(), [queue(TENANT, "q")]);
    assert_eq!(store.flows().unwrap(), [flow(TENANT, "key")]);
    assert_eq!(store.schedules(TENANT).unwrap(), [schedule(TENANT, "s")]);
    assert_eq!(store.unfinished_bulk_actions().unwrap().len(), 1);
    assert_eq!(last_seq, store.unfinished_bulk_actions().unwrap()[0].id);
    assert_eq!(store.last_seq().unwrap(), late);
    assert_eq!(store.workflow(TENANT, run.run.no).unwrap(), Some(run));
    assert_eq!(store.waiters(TENANT, "event").unwrap().len(), 1);
    let rows = store.load(SHARD, &queued(TENANT, "q", None, 9)).unwrap();
    assert_eq!(rows, [moved, live(&queued_message)]);
}

/// The columns of `live`, which were added one by one, and all other tables that are in every file.
const SCHEMA: [&str; 2] = [
    "SELECT name || ' ' || type || ' ' || \"notnull\" FROM pragma_table_info('live')",
    "SELECT sql FROM sqlite_schema WHERE name <> 'live' AND name NOT GLOB '*[0-9]*' ORDER BY name",
];

#[test]
fn an_upgraded_file_is_like_a_new_one() {
    let (file, directory) = (File::new(), tempfile::tempdir().unwrap());
    let new = directory.path().join("posthaste.db");
    file.open().close();
    SqliteStore::open(&new, SqliteOptions::default()).unwrap().close();
    for sql in SCHEMA {
        let (upgraded, made) = (query::<Option<String>>(&file.path(), sql), query(&new, sql));
        assert!(upgraded.len() > 10);
        assert_eq!(upgraded, made);
    }
    assert_eq!(query::<String>(&file.path(), "PRAGMA integrity_check"), ["ok"]);
}

/// A file as it was before there were runs: what format 4 added is taken out again.
fn as_of_format_3(path: &Path) {
    let sql = "ALTER TABLE live DROP COLUMN step;
        DROP TABLE run; DROP TABLE run_entry; DROP TABLE waiter; PRAGMA user_version = 3;";
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn a_file_of_format_3_keeps_everything_and_takes_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("posthaste.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let store = open();
    let message = Rig::new(&store).publish(T0);
    store.close();
    let new = SCHEMA.map(|sql| query::<Option<String>>(&path, sql));
    as_of_format_3(&path);
    let store = open();
    let rig = Rig::new(&store);
    assert_eq!((rig.live_ids(), rig.story().len()), (vec![message.id], 1));
    let run = rig.start("run", T0);
    store.close();
    assert_eq!(SCHEMA.map(|sql| query::<Option<String>>(&path, sql)), new);
    assert_eq!(query::<i64>(&path, "PRAGMA user_version"), [4]);
    assert_eq!(query::<String>(&path, "PRAGMA integrity_check"), ["ok"]);
    assert_eq!(open().workflow(TENANT, run.run.no).unwrap(), Some(run));
}

#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let file = File::new();
    Connection::open(file.path()).unwrap().execute_batch("CREATE TABLE bulk_action(x)").unwrap();
    let contents = "SELECT sql FROM sqlite_schema ORDER BY name";
    let before = query::<Option<String>>(&file.path(), contents);
    assert!(SqliteStore::open(&file.path(), SqliteOptions::default()).is_err());
    assert_eq!(query::<Option<String>>(&file.path(), contents), before);
    assert_eq!(query::<i64>(&file.path(), "PRAGMA user_version"), [1]);
    Connection::open(file.path()).unwrap().execute_batch("DROP TABLE bulk_action").unwrap();
    assert_eq!(file.open().counts().unwrap(), Counts { live: 3, dead_letters: 1 });
}
