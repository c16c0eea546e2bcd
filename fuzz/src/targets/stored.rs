//! Rows that another program wrote to the store: reading them gives an error, or a value that can be stored again.
//!
//! The first byte selects a JSON column of one of the types, or a row of any values.

use super::choice;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{EventDetail, Response};
use posthaste_engine::flow::Flow;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, Tick};
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::entry::{Delivery, Gist, Terms};
use posthaste_engine::workflow::run::{Invoke, Invoker, Run, Wait};
use posthaste_store::StoreError;
use posthaste_store::sqlite::fuzzing::{Decoded, Rows};
use rusqlite::types::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

pub(crate) fn run(data: &[u8]) {
    let (kind, data) = choice(data);
    let Ok(text) = std::str::from_utf8(data) else { return row(data) };
    match kind % 16 {
        0 => round_trip::<MessageSpec>(text),
        1 => round_trip::<EventDetail>(text),
        2 => round_trip::<Response>(text),
        3 => round_trip::<SchedulePlan>(text),
        4 => round_trip::<ScheduleState>(text),
        5 => round_trip::<Flow>(text),
        6 => round_trip::<UrlGroup>(text),
        7 => round_trip::<BulkAction>(text),
        9 => round_trip::<Run>(text),
        10 => round_trip::<Terms>(text),
        11 => round_trip::<Delivery>(text),
        12 => round_trip::<Gist>(text),
        13 => round_trip::<Wait>(text),
        14 => round_trip::<Invoke>(text),
        15 => round_trip::<Invoker>(text),
        _ => row(data),
    }
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &str) {
    let Ok(read) = serde_json::from_str::<T>(text) else { return };
    let written = serde_json::to_string(&read).expect("what was read can be written");
    let again: T = serde_json::from_str(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
    assert_eq!(again, read);
}

fn row(data: &[u8]) {
    thread_local! {
        static ROWS: Rows = Rows::open().expect("a database in memory can be opened");
    }
    let decoded = ROWS.with(|rows| rows.decode(values(data))).expect("the row itself can be read");
    let Decoded { live, message, dead_letter, schedule, queue, state, detail, entry, note } = decoded;
    check(live);
    check(message);
    check(dead_letter);
    check(queue);
    check(state);
    check(detail);
    check(entry);
    check(note);
    if let Some(schedule) = check(schedule) {
        fire(&schedule);
    }
}

/// A wrong value is damage, which stops the node. A temporary error would be retried forever.
fn check<T>(read: Result<T, StoreError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(StoreError::Corrupt { .. }) => None,
        Err(error) => panic!("a wrong value is called {error:?}"),
    }
}

/// A stored schedule with any cron expression fires without a panic.
fn fire(schedule: &Schedule) {
    match schedule.tick(super::NOW) {
        Tick::Fire { at, .. } => assert!(at <= super::NOW),
        Tick::Broken(state) => assert!(state.next.is_none()),
        Tick::Wait => {}
    }
}

/// Values of a row: one byte selects the kind, and for text and bytes the next one is the length.
fn values(data: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    let mut rest = data;
    while let Some((kind, after)) = rest.split_first() {
        let (value, after) = match kind % 5 {
            0 => (Value::Null, after),
            1 => {
                let (number, after) = after.split_at(after.len().min(8));
                let mut bytes = [0; 8];
                bytes[..number.len()].copy_from_slice(number);
                (Value::Integer(i64::from_le_bytes(bytes)), after)
            }
            2 => {
                (Value::Real(f64::from(after.first().copied().unwrap_or(0)) / 3.0), after.get(1..).unwrap_or_default())
            }
            kind => {
                let (length, after) =
                    after.split_first().map_or((0, after), |(length, after)| (usize::from(*length), after));
                let (bytes, after) = after.split_at(after.len().min(length));
                match std::str::from_utf8(bytes) {
                    Ok(text) if kind == 3 => (Value::Text(text.to_owned()), after),
                    _ => (Value::Blob(bytes.to_vec()), after),
                }
            }
        };
        values.push(value);
        rest = after;
    }
    values
}
