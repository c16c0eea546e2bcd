//! Decodes rows with arbitrary contents for the targets of `fuzz/`, and examines files for tests. Not used elsewhere.

use super::codec;
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::schema::Buckets;
use super::{queue, run_parts, schedule, usage};
use crate::StoreError;
use bytes::Bytes;
use posthaste_engine::event::{DeadLetter, EventDetail, State};
use posthaste_engine::message::{Live, Message};
use posthaste_engine::queue::Queue;
use posthaste_engine::schedule::Schedule;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::Note;
use posthaste_wire::id::TenantId;
use rusqlite::Connection;
use rusqlite::types::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Columns of the widest row.
const COLUMNS: usize = 13;

/// The stored bytes of each tenant: as recorded in the file, and as counted by a walk over its tables.
pub fn usage_and_recount(path: &Path) -> Result<[BTreeMap<TenantId, i64>; 2], StoreError> {
    let both = || -> Outcome<_> {
        let connection = Connection::open(path)?;
        Ok([usage::load(&connection)?, usage::recount(&connection)?])
    };
    let found = both().map_err(Failure::of_read)?;
    Ok(found.map(|usage| usage.into_iter().filter(|(_, bytes)| *bytes != 0).collect()))
}

/// A row, decoded as a row of each table.
pub struct Decoded {
    /// As a live row.
    pub live: Result<Live, StoreError>,
    /// As a message.
    pub message: Result<Message, StoreError>,
    /// As a message and its dead letter.
    pub dead_letter: Result<DeadLetter, StoreError>,
    /// As a schedule.
    pub schedule: Result<Schedule, StoreError>,
    /// As a queue.
    pub queue: Result<Queue, StoreError>,
    /// As the state of a log line.
    pub state: Result<State, StoreError>,
    /// As the details of a log line.
    pub detail: Result<EventDetail, StoreError>,
    /// As an entry of a run with its bytes.
    pub entry: Result<(Entry, Bytes), StoreError>,
    /// As a note of a run.
    pub note: Result<Note, StoreError>,
}

/// A database in memory that contains only the row to decode, and no shared body.
pub struct Rows(Connection);

impl Rows {
    /// Opens it.
    pub fn open() -> Result<Rows, rusqlite::Error> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch("CREATE TABLE shared_body(id INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
        Ok(Rows(connection))
    }

    /// Decodes a row of these values. Missing columns are null.
    pub fn decode(&self, mut values: Vec<Value>) -> Result<Decoded, rusqlite::Error> {
        values.resize(COLUMNS, Value::Null);
        let places: Vec<String> = (1..=COLUMNS).map(|column| format!("?{column}")).collect();
        let mut statement = self.0.prepare_cached(&format!("SELECT {}", places.join(", ")))?;
        let text = match &values[0] {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        let snapshot = Snapshot { connection: &self.0, buckets: &Buckets::default() };
        let number = if let Value::Integer(number) = values[0] { number } else { -1 };
        let decode = |row: &rusqlite::Row<'_>| {
            Ok(Decoded {
                live: codec::live(row).map_err(Failure::of_read),
                message: snapshot.whole(row, &mut None).map_err(Failure::of_read),
                dead_letter: codec::dead_letter(row).map_err(Failure::of_read),
                schedule: schedule::decode(row).map_err(Failure::of_read),
                queue: queue::decode(row).map_err(Failure::of_read),
                state: codec::state(number).map_err(Failure::of_read),
                detail: codec::detail(text.as_deref()).map_err(Failure::of_read),
                entry: run_parts::entry(row).map_err(Failure::of_read),
                note: run_parts::note(row)
                    .map(|note| Note { key: note.key, data: note.data, body: note.body })
                    .map_err(Failure::of_read),
            })
        };
        statement.query_row(rusqlite::params_from_iter(values), decode)
    }
}
