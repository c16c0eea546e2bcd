//! Rows to values and back.
//!
//! SQLite integers are signed. Hashes are stored bit by bit; times and positions fit as they are.

use super::error::{Failure, Outcome};
use bytes::Bytes;
use posthaste_engine::event::{DeadLetter, EventDetail, State};
use posthaste_engine::message::{FlowKey, Live, Message, MessageSpec, Origin, Place, QueueKey, Turn};
use posthaste_wire::encoding::JsonError;
use posthaste_wire::id::{MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Columns that [`live`] reads.
pub(super) const LIVE_COLUMNS: &str =
    "seq, tag, tenant, origin, body_bytes, due, retried, cancel_requested, queue, turn_at, turn_seq, flow, step";
/// Columns that [`message_head`] reads. They leave out the body, because SQLite reads it even if the column is unused.
pub(super) const HEAD_COLUMNS: &str = "seq, tag, tenant, created_at, not_before, spec";
/// [`HEAD_COLUMNS`] and the body, which [`Snapshot::body`](super::read::Snapshot::body) reads.
pub(super) const MESSAGE_COLUMNS: &str = "seq, tag, tenant, created_at, not_before, spec, body";
/// The index of the body among [`MESSAGE_COLUMNS`].
pub(super) const BODY_COLUMN: usize = 6;
/// Columns that [`dead_letter`] reads, after those of the message.
pub(super) const LETTER_COLUMNS: &str = "at, retried, error, response";

/// A number that SQLite can hold; times and positions are never larger.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// All 64 bits of a hash.
pub(super) fn bits(hash: u64) -> i64 {
    hash.cast_signed()
}

/// JSON text.
pub(super) fn to_json<T: Serialize>(what: &'static str, value: &T) -> Outcome<String> {
    serde_json::to_string(value).map_err(|error| Failure::corrupt(what, error))
}

/// Parses a JSON text.
pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Outcome<T> {
    serde_json::from_str(text).map_err(|error| Failure::corrupt(what, JsonError::from(error)))
}

/// The JSON in a column.
pub(super) fn json<T: DeserializeOwned>(what: &'static str, row: &Row<'_>, column: usize) -> Outcome<T> {
    let text = row.get_ref(column)?.as_str().map_err(|error| Failure::corrupt(what, error))?;
    from_json(what, text)
}

fn number(row: &Row<'_>, column: usize) -> Outcome<u64> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

/// A time in a column.
pub(super) fn time(row: &Row<'_>, column: usize) -> Outcome<Timestamp> {
    Ok(Timestamp(number(row, column)?))
}

/// The id in two neighbouring columns, `seq` and `tag`.
pub(super) fn id(row: &Row<'_>, column: usize) -> Outcome<MessageId> {
    Ok(MessageId { seq: Seq(number(row, column)?), tag: number(row, column + 1)? })
}

/// A row of [`LIVE_COLUMNS`].
pub(super) fn live(row: &Row<'_>) -> Outcome<Live> {
    Ok(Live {
        id: id(row, 0)?,
        tenant: TenantId(row.get(2)?),
        origin: Origin(number(row, 3)?),
        body_bytes: row.get(4)?,
        due: time(row, 5)?,
        retried: row.get(6)?,
        cancel_requested: row.get(7)?,
        place: place(row)?,
        flow: row.get::<_, Option<i64>>(11)?.map(|flow| FlowKey(flow.cast_unsigned())),
        is_step: row.get(12)?,
    })
}

fn place(row: &Row<'_>) -> Outcome<Option<Place>> {
    let Some(queue) = row.get::<_, Option<i64>>(8)? else { return Ok(None) };
    let turn = Turn { at: time(row, 9)?, seq: Seq(number(row, 10)?) };
    Ok(Some(Place { queue: QueueKey(queue.cast_unsigned()), turn }))
}

/// A row of [`MESSAGE_COLUMNS`] without the body, which may be large and is often not needed.
pub(super) fn message_head(row: &Row<'_>) -> Outcome<Message> {
    Ok(Message {
        id: id(row, 0)?,
        tenant: TenantId(row.get(2)?),
        created_at: time(row, 3)?,
        not_before: time(row, 4)?,
        spec: json::<MessageSpec>("message", row, 5)?,
        body: Bytes::new(),
    })
}

/// A row of [`MESSAGE_COLUMNS`] and [`LETTER_COLUMNS`].
pub(super) fn dead_letter(row: &Row<'_>) -> Outcome<DeadLetter> {
    let id = id(row, 0)?;
    let response = row.get_ref(10)?.as_str_or_null().map_err(|error| Failure::corrupt("dead letter", error))?;
    Ok(DeadLetter {
        dlq_id: Position { at: time(row, 7)?, n: id.seq.0 },
        tenant: TenantId(row.get(2)?),
        id,
        retried: row.get(8)?,
        error: row.get(9)?,
        response: response.map(|text| from_json("response", text)).transpose()?,
    })
}

/// The number of a state.
pub(super) fn state_number(state: State) -> i64 {
    state as i64
}

/// The state with this number.
pub(super) fn state(number: i64) -> Outcome<State> {
    let found = usize::try_from(number).ok().and_then(|index| State::ALL.get(index)).copied();
    found.ok_or_else(|| Failure::corrupt("log line", format!("there is no state {number}")))
}

/// The details of a log line. Most lines have none.
pub(super) fn detail(text: Option<&str>) -> Outcome<EventDetail> {
    text.map_or_else(|| Ok(EventDetail::default()), |text| from_json("log line", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_number_of_a_state_never_changes() {
        for (index, expected) in State::ALL.into_iter().enumerate() {
            let number = i64::try_from(index).unwrap();
            assert_eq!(state_number(expected), number);
            assert_eq!(state(number).unwrap(), expected);
        }
        assert!(state(8).is_err() && state(-1).is_err());
    }
}
