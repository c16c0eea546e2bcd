//! Files of earlier formats: they are opened and upgraded in one transaction, with all their contents.

use crate::run_support::*;
use crate::support::*;
use posthaste_engine::event::{Op, Response, State};
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_engine::retry::Next;
use posthaste_engine::shard::Lane;
use posthaste_engine::url_group::{Edit, Endpoint, UrlGroup};
use posthaste_engine::workflow::Attempt;
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::Run;
use posthaste_store::journal::{JournalError, JournalOpenError, JournalOptions, JournalStore};
use posthaste_store::sqlite::fuzzing::usage_and_recount;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{Counts, Filter, ListedWait, NamePage, Part, ReadPool, RunFilter, SigningKeys, Store};
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::signature::SigningKey;
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const TENANT: TenantId = TenantId(1);

/// The tables of format 1, as its release created them at [`T0`].
const FORMAT_1: &str = include_str!("format_1.sql");

/// The settings of a message in format 1.
const SPEC_1: &str = r#"{"url":"https://example.org/hook","method":"POST",
    "headers":[["Content-Type","text/plain"]],"retries":3,"caller_ip":"127.0.0.1"}"#;

/// A file of format 1 with three live messages, two of them already attempted, and a dead letter.
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
    // The first round upgrades the file, the second opens the upgraded file.
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
            let record = store.message(TENANT, row.id, Part::Whole).unwrap().unwrap();
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
        assert_eq!(store.url_groups(TENANT, &NamePage::FIRST).unwrap().entries, [group]);
        assert_eq!(store.tenant("default").unwrap(), TENANT);
        store.close();
        assert_eq!(query::<i64>(&file.path(), "PRAGMA user_version"), [6]);
    }
    let store = file.open();
    let rig = Rig::new(&store);
    assert_eq!(rig.epoch.0, 5, "owners are counted on");
    let story: Vec<State> = rig.story().into_iter().map(|(_, state)| state).collect();
    assert_eq!(story, [State::Created; 3]);
}

#[test]
fn a_file_of_format_1_supports_all_later_features() {
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
    let late = run.waits[0].timer.seq;
    store.close();
    let store = file.open();
    assert_eq!(store.queues(None).unwrap(), [queue(TENANT, "q")]);
    assert_eq!(store.flows().unwrap(), [flow(TENANT, "key")]);
    assert_eq!(all_schedules(&store, TENANT), [schedule(TENANT, "s")]);
    assert_eq!(store.unfinished_bulk_actions().unwrap().len(), 1);
    assert_eq!(last_seq, store.unfinished_bulk_actions().unwrap()[0].id);
    assert_eq!(store.last_seq().unwrap(), late);
    assert_eq!(store.workflow(TENANT, run.run.no).unwrap(), Some(run));
    assert_eq!(store.waiters(TENANT, "event", usize::MAX).unwrap().len(), 1);
    let rows = store.load(SHARD, &queued(TENANT, "q", None, 9)).unwrap();
    assert_eq!(rows, [moved, live(&queued_message)]);
}

/// The columns of `live`, which were added one by one, and all other tables that exist in every file.
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

/// Turns a file into one of format 3, before there were runs: removes what format 4 added.
fn as_of_format_3(path: &Path) {
    let sql = "ALTER TABLE live DROP COLUMN step;
        DROP TABLE run; DROP TABLE run_entry; DROP TABLE run_note; DROP TABLE waiter;
        DROP TABLE shared_body; DROP TABLE usage; PRAGMA user_version = 3;";
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
    assert!(store.stored_bytes(TENANT) > message.body.len() as u64, "what was stored before counts");
    let run = rig.start("run", T0);
    store.close();
    let [counted, walked] = usage_and_recount(&path).unwrap();
    assert_eq!(counted, walked);
    assert_eq!(SCHEMA.map(|sql| query::<Option<String>>(&path, sql)), new);
    assert_eq!(query::<i64>(&path, "PRAGMA user_version"), [6]);
    assert_eq!(query::<String>(&path, "PRAGMA integrity_check"), ["ok"]);
    assert_eq!(open().workflow(TENANT, run.run.no).unwrap(), Some(run));
}

/// A run of format 4, as its release wrote it.
const RUN_4: &str = r#"{"no":5,"tenant":1,"id":"r","created_at":1,"url":"u","config":{"features":{},"retries":3,
    "caller_ip":""},"invokers":[{"run_id":"p","created_at":1,"url":"u","step":{"stepId":1}}],"state":"RUN_FAILED",
    "ended_at":9,"result":"\"ok\"","failure":{"entry":0,"retried":3,"error":"e","response":{"status":500,"body":"b2s="},
    "dlq_id":{"at":9,"n":5},"is_in_dlq":true,"call":{"id":"msg_4CYo2cv96rizU2hTBrTFUu","state":"CALLBACK_INPROGRESS",
    "due":9,"errors":[{"at":9,"error":"no"}],"response":{"status":503,"headers":[["A","b"]],"truncated":true}}},
    "waits":[{"event":"e","step":{"stepId":2},"timer":"msg_4CYo2cv96rizU2hTBrTFUu","deadline":7,"timeout":"7d",
    "headers":[["H",["v"]]]}],"invokes":[{"step":{"stepId":3},"run_id":"c","created_at":2,"url":"u","body":"b","out":"o"}],
    "early":[{"event":"e","data":"AAEC"}]}"#;

/// Turns a file into one that the release of format 4 would have written.
fn as_of_format_4(path: &Path) {
    let connection = Connection::open(path).unwrap();
    let numbers = query::<i64>(path, "SELECT no FROM run");
    for no in numbers {
        let text = |sql: &str| connection.query_row(sql, [no], |row| row.get::<_, String>(0)).unwrap();
        let mut run: Value = serde_json::from_str(&text("SELECT data FROM run WHERE no = ?1")).unwrap();
        let sql = "SELECT kind, n, data, body FROM run_note WHERE run = ?1 ORDER BY kind, n";
        let mut statement = connection.prepare(sql).unwrap();
        let mut notes = statement.query([no]).unwrap();
        while let Some(note) = notes.next().unwrap() {
            let (kind, n) = (note.get::<_, i64>(0).unwrap(), note.get::<_, i64>(1).unwrap());
            let (data, body) = (note.get::<_, String>(2).unwrap(), note.get::<_, Vec<u8>>(3).unwrap());
            let text = String::from_utf8_lossy(&body).into_owned();
            add_note(&mut run, (kind, n), serde_json::from_str(&data).unwrap_or_default(), &body, text);
        }
        if let Some(failure) = run.get_mut("failure") {
            failure.as_object_mut().unwrap().retain(|name, _| !["status", "answer_bytes"].contains(&name.as_str()));
        }
        connection.execute("UPDATE run SET data = ?2 WHERE no = ?1", params![no, run.to_string()]).unwrap();
    }
    let sql = "ALTER TABLE run_entry RENAME TO newer;
        CREATE TABLE run_entry(run INTEGER NOT NULL, idx INTEGER NOT NULL, seq INTEGER NOT NULL, tag INTEGER NOT NULL,
            delivery TEXT NOT NULL, terms TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY(run, idx)) WITHOUT ROWID;
        INSERT INTO run_entry SELECT run, idx, seq, tag, delivery, terms, body FROM newer;
        DROP TABLE newer; DROP TABLE run_note; DROP TABLE shared_body; DROP TABLE usage; PRAGMA user_version = 4;";
    connection.execute_batch(sql).unwrap();
}

fn add_note(run: &mut Value, (kind, n): (i64, i64), mut data: Value, body: &[u8], text: String) {
    let mut push = |name: &str, value: Value| match run.get_mut(name) {
        Some(list) => list.as_array_mut().unwrap().push(value),
        None => run[name] = json!([value]),
    };
    let base64 = posthaste_wire::encoding::base64(body);
    match kind {
        0 => push("invokers", data),
        1 => push("waits", data),
        2 => {
            data["body"] = text.into();
            push("invokes", data);
        }
        3 => {
            let mut invokes = run["invokes"].as_array_mut().unwrap().iter_mut();
            invokes.find(|invoke| invoke["step"]["stepId"] == n).unwrap()["out"] = text.into();
        }
        4 => push("early", json!({ "event": data, "data": base64 })),
        5 => run["result"] = text.into(),
        6 => {
            data["body"] = base64.into();
            run["failure"]["response"] = data;
        }
        7 => {
            data["response"]["body"] = base64.into();
            let call = &mut run["failure"]["call"];
            (call["errors"], call["response"]) = (data["errors"].take(), data["response"].take());
        }
        other => panic!("a note of kind {other}"),
    }
}

#[test]
fn a_file_of_format_4_keeps_its_runs_and_continues_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("posthaste.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let store = open();
    let rig = Rig::new(&store);
    let mut runs = ["goes on", "returns", "fails"].map(|id| rig.start_with(id, T0, rich_run));
    for run in &mut runs {
        rig.append(run, T0, vec![step(1, &"x".repeat(20_000)), call(2)]);
        rig.wait(run, T0, "event", 3);
        rig.wait(run, T0, "other", 4);
        rig.keep(run, T0, "early", &[0, 255]);
        rig.keep(run, T0, "early", b"second");
        rig.invoke(run, T0, 5, "given");
        rig.invoke(run, T0, 6, "given, too");
    }
    rig.finish(&mut runs[1], T0);
    rig.attempt(&mut runs[2], 1, T0, 500);
    rig.invoked_has_ended(&mut runs[2], T0, 6, "out");
    for status in [500, 200] {
        let told = Attempt { outcome: &outcome(status), retried: 0, next: Next::RetryAt(T0), sent: b"" };
        rig.decide(T0, |out| runs[2].failure_told(told, out));
    }
    let records = runs.each_ref().map(|run| rig.record(run));
    store.close();
    let new = SCHEMA.map(|sql| query::<Option<String>>(&path, sql));
    as_of_format_4(&path);
    assert!(query::<String>(&path, "SELECT data FROM run").iter().any(|data| data.contains("\"early\"")));

    let store = open();
    assert_eq!(query::<i64>(&path, "PRAGMA user_version"), [6]);
    assert_eq!(SCHEMA.map(|sql| query::<Option<String>>(&path, sql)), new);
    let rig = Rig::new(&store);
    for (run, record) in runs.iter().zip(&records) {
        assert_eq!((rig.stored(run).as_ref(), &rig.record(run)), (Some(run), record));
    }
    assert_eq!(rig.list_failed(&RunFilter::default(), &latest(9)).entries, [runs[2].clone()]);
    let Run { url, config, .. } = runs[0].run.clone();
    let listed = ListedWait { url, redact: config.redact.clone(), wait: runs[0].waits[0].clone() };
    assert_eq!(store.waits(TENANT, "event", Seq::MIN, 9).unwrap(), [listed]);
    rig.wait(&mut runs[0], T0, "early", 7);
    let last: Value = serde_json::from_slice(rig.record(&runs[0]).bodies.last().unwrap()).unwrap();
    assert_eq!(last["out"], "AP8=");
    assert_eq!(rig.stored(&runs[0]).as_ref(), Some(&runs[0]));
    store.close();
    assert_eq!(query::<String>(&path, "PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn a_run_of_format_4_is_read_completely() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("posthaste.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    open().close();
    as_of_format_4(&path);
    let terms = r#"{"call_type":"step","content_type":"text/plain","accepted_at":1,"retries":0}"#;
    // In format 4 the result contained the data of the invoked run.
    let terms_of_result = r#"{"call_type":"step","content_type":"text/plain","accepted_at":1,"retries":0,"source":
        {"invoke":{"run_id":"d","created_at":1,"url":"u","body":"given","headers":[["A","b"]]}}}"#;
    let connection = Connection::open(&path).unwrap();
    let run = "INSERT INTO run VALUES (5, 1, 'r', 1, 2, 9, 9, 5, ?1)";
    connection.execute(run, [RUN_4]).unwrap();
    let entry = r#"INSERT INTO run_entry VALUES (5, 0, 5, 7, '{"state":"failed","due":5}', ?1, x'ff00')"#;
    connection.execute(entry, [terms]).unwrap();
    let result = r#"INSERT INTO run_entry VALUES (5, 1, 6, 8, '{"state":"done","due":5}', ?1, ?2)"#;
    connection
        .execute(result, params![terms_of_result, &br#"{"stepId":7,"stepType":"Invoke","out":"o"}"#[..]])
        .unwrap();
    drop(connection);
    let store = open();
    let record = store.run_record(TENANT, Seq(5), ReadPool::Core).unwrap().unwrap();
    let (workflow, response) = (&record.workflow, |status| Response { status, ..Response::default() });
    assert_eq!((workflow.invokers[0].run_id.as_str(), workflow.waits[0].timeout.as_str()), ("p", "7d"));
    let invoke = &workflow.invokes[0];
    assert_eq!((record.given(invoke), record.out(invoke), invoke.size), ("b".into(), Some("o".into()), 1));
    assert_eq!((workflow.early[0].event.as_str(), workflow.early[0].size), ("e", 3));
    let key = NoteKey { kind: NoteKind::Early, n: 0 };
    assert_eq!(store.note_body(Seq(5), key).unwrap(), vec![0, 1, 2]);
    assert_eq!(record.result.as_deref(), Some("\"ok\""));
    let failure = workflow.run.failure.as_ref().unwrap();
    assert_eq!((failure.status, failure.answer_bytes, failure.error.as_deref()), (500, 2, Some("e")));
    assert_eq!(record.answer.as_deref(), Some(&Response { body: b"ok".to_vec(), ..response(500) }));
    let told = Response { headers: vec![("A".into(), "b".into())], truncated: true, ..response(503) };
    assert_eq!(record.told.as_deref(), Some(&told));
    assert_eq!(workflow.told.as_ref().unwrap()[0].error.as_deref(), Some("no"));
    let (invoke, result) = (&workflow.invokes[1], &workflow.entries[1]);
    assert_eq!((invoke.run_id.as_str(), invoke.number(), record.given(invoke)), ("d", 7, "given".into()));
    assert_eq!((invoke.run_headers.len(), &result.terms.source, result.gist.info.id), (1, &None, 7));
}

#[test]
fn a_journal_of_format_4_must_be_applied_by_its_own_release() {
    let directory = tempfile::tempdir().unwrap();
    let (path, journal) = (directory.path().join("posthaste.db"), directory.path().join("journal"));
    SqliteStore::open(&path, SqliteOptions::default()).unwrap().close();
    as_of_format_4(&path);
    std::fs::create_dir(&journal).unwrap();
    std::fs::write(journal.join("000000000007.log"), b"PHj1 and more").unwrap();
    let refused = JournalStore::open(&path, &journal, JournalOptions::default()).err().unwrap();
    assert!(matches!(refused, JournalOpenError::Journal(JournalError::Foreign { .. })), "{refused:?}");
    assert_eq!(query::<i64>(&path, "PRAGMA user_version"), [4]);
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
    // A failure that is not caused by SQL alone.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("posthaste.db");
    SqliteStore::open(&path, SqliteOptions::default()).unwrap().close();
    as_of_format_4(&path);
    let wrong = "INSERT INTO run VALUES (5, 1, 'r', 1, 0, NULL, NULL, NULL, '{\"early\":7}')";
    Connection::open(&path).unwrap().execute_batch(wrong).unwrap();
    let before = query::<Option<String>>(&path, contents);
    assert!(SqliteStore::open(&path, SqliteOptions::default()).is_err());
    assert_eq!(query::<Option<String>>(&path, contents), before);
    assert_eq!(query::<i64>(&path, "PRAGMA user_version"), [4]);
}

/// An earlier release did not count URL groups, bulk actions and settings of runs. It left other sums and no mark.
#[test]
fn usage_sums_of_an_earlier_release_are_recounted_once() {
    const COUNTED: &str = "SELECT bytes FROM usage";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("posthaste.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let execute = |sql| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = open();
    let rig = Rig::new(&store);
    rig.start_with("run", T0, rich_run);
    let endpoints = vec![Endpoint { url: "https://example.org".to_owned(), name: None }];
    store.edit_url_group(TENANT, "group", &Edit::Add(endpoints), T0).unwrap().unwrap();
    rig.commit(&[Op::PutBulkAction(bulk_action(TENANT, Seq::first_at(T0.plus_millis(9))))]).unwrap();
    let stored = store.stored_bytes(TENANT);
    store.close();
    for earlier in [
        "DELETE FROM meta WHERE key GLOB 'counted*'; UPDATE usage SET bytes = 7",
        // It opened the file between two openings by this release.
        "UPDATE meta SET value = value + 1 WHERE key = 'opens'; UPDATE usage SET bytes = 7",
    ] {
        execute(earlier);
        let store = open();
        assert_eq!(store.stored_bytes(TENANT), stored);
        store.close();
        let [counted, walked] = usage_and_recount(&path).unwrap();
        assert_eq!(counted, walked);
    }
    execute("UPDATE usage SET bytes = 7");
    open().close();
    assert_eq!(query::<i64>(&path, COUNTED), [7], "a start of the same release counts nothing");
}
