//! Data of an earlier format, old enough that most of its history may go: deaths while it is brought up to date and
//! while retention works on it, and then under the usual load.

use crate::history::{Answer, Kind, Publish, Terms};
use crate::kills;
use crate::load::Load;
use crate::points::{armed, was_killed};
use crate::process::Launch;
use crate::report::Row;
use crate::round::Round;
use crate::witness::{Witness, body_of};
use posthaste::tenants::DEV_USERS;
use posthaste_faults::crash_point::{ALL, HASTE, PLANT};
use posthaste_wire::id::{MessageId, Seq};
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

pub(crate) const KIND: &str = "upgrade";
/// The tables of format 1, and when they were written.
const FORMAT_1: &str = include_str!("../../../store/tests/store/format_1.sql");
const WRITTEN_AT: Timestamp = Timestamp(20_000 * 86_400_000);
/// Messages that were still live.
const LIVE: u64 = 40;
/// Messages that had ended; more than one round of retention takes.
const ENDED: u64 = 2_500;
/// Deaths after the upgrade, under load.
const KILLS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(20);
/// Deaths in retention, and at which passing.
const RETENTION: [(&str, u64); 5] = [
    ("before_retain", 1),
    ("retention_in_transaction", 1),
    ("retention_in_transaction", 3),
    ("after_retain", 2),
    ("retention_in_transaction", 2),
];

/// Deaths at every place of a start, in retention, and at random moments.
pub(crate) async fn run(seed: u64) -> Row {
    let mut row = Row::new(KIND);
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let load = Load::new(Witness::start().await, 0);
    write_old(&data_dir.path().join("posthaste.db"), load.witness.address).expect("a file of format 1");
    load.note(|history| history.publishes.extend((0..LIVE).map(promised)));
    let launch = Launch::on(data_dir.path());
    for point in ALL.into_iter().filter(|point| point.starts_with("start_")) {
        let mut server = armed(&launch, point, 1).spawn();
        let status = server.wait_for(PATIENCE).await;
        assert!(status.is_some_and(was_killed), "{point} was not passed:\n{}", server.last_words());
        row.cycles += 1;
    }
    let mut round = Round::begin_with(load, launch, seed).await;
    for (point, passing) in RETENTION {
        let launch = armed(&round.launch, point, passing).with(PLANT, HASTE);
        let (mut server, _) = round.start(&launch).await;
        let status = round.wait(&mut server, PATIENCE).await;
        assert!(status.is_some_and(was_killed), "{point} was not passed:\n{}", server.last_words());
        row.cycles += 1;
    }
    for _ in 0..KILLS {
        kills::one(&mut round, None).await;
        row.cycles += 1;
    }
    row.add(&round.end().await);
    row.expect_deliveries();
    row
}

fn id_of(number: u64) -> MessageId {
    MessageId { seq: Seq(Seq::first_at(WRITTEN_AT).0 + number), tag: number }
}

fn key_of(number: u64) -> String {
    format!("old{number}")
}

/// A message that the earlier release had acknowledged.
fn promised(number: u64) -> Publish {
    let (key, kind, terms) = (key_of(number), Kind::Plain { delay_ms: 0 }, Terms::default());
    let answer = Answer::Acknowledged { id: id_of(number).to_string() };
    Publish { key, kind, terms, sent_at: 0, answered_at: 0, answer }
}

/// A file of format 1: messages that are due, and many that have ended.
fn write_old(path: &Path, witness: SocketAddr) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    connection.execute_batch(FORMAT_1)?;
    connection.execute("UPDATE tenant SET name = ?1", [DEV_USERS[0].name])?;
    let at = WRITTEN_AT.0.cast_signed();
    let transaction = connection.unchecked_transaction()?;
    for number in 0..LIVE + ENDED {
        let (id, key) = (id_of(number), key_of(number));
        let (seq, tag, body) = (id.seq.0.cast_signed(), id.tag.cast_signed(), body_of(&key));
        let url = format!("http://{witness}/plain/{key}");
        let spec = json!({ "url": url, "method": "POST", "headers": [], "retries": 3, "caller_ip": "127.0.0.1" });
        let message = params![seq, tag, at, url, spec.to_string(), body.as_bytes()];
        transaction.execute("INSERT INTO message_80000 VALUES (?1, ?2, 1, ?3, ?3, ?4, ?5, ?6)", message)?;
        transaction.execute("INSERT INTO event_80000 VALUES (1, ?1, ?2, ?2, 0, NULL)", params![at, seq])?;
        if number < LIVE {
            let live = params![seq, tag, body.len() as i64, at];
            transaction.execute("INSERT INTO live VALUES (?1, ?2, 1, 7, ?3, ?4, 0, 0, 0)", live)?;
        }
    }
    transaction.commit()
}
