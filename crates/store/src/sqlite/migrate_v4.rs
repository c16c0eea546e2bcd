//! Converts runs from format 4. In that format a run was one JSON text that contained all its notes, and an entry did
//! not record what its body contained.

use super::codec::{self, int, to_json};
use super::error::{Failure, Outcome};
use bytes::Bytes;
use posthaste_engine::workflow::entry::{Entry, Terms};
use posthaste_engine::workflow::note::NoteKind;
use posthaste_engine::workflow::run::number_of;
use posthaste_wire::encoding::{JsonError, from_base64};
use posthaste_wire::id::MessageId;
use rusqlite::{Connection, params};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The fields of a JSON object.
type Object = Map<String, Value>;

/// Moves the rows of the renamed tables into the tables of format 5, inside a transaction.
pub(super) fn move_all(connection: &Connection) -> Outcome<()> {
    move_entries(connection)?;
    let mut statement = connection.prepare("SELECT no, data FROM run")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mut run: Object = codec::json("run", row, 1)?;
        let notes =
            take_notes(&mut run).ok_or_else(|| Failure::corrupt("run", "it does not read as one of format 4"))?;
        let no = row.get::<_, i64>(0)?;
        for note in &notes {
            put_note(connection, no, note)?;
        }
        let data = to_json("run", &run)?;
        connection.prepare_cached("UPDATE run SET data = ?2 WHERE no = ?1")?.execute(params![no, data])?;
    }
    Ok(())
}

fn move_entries(connection: &Connection) -> Outcome<()> {
    const SQL: &str = "INSERT INTO run_entry(run, idx, seq, tag, delivery, gist, terms, body)
        SELECT run, idx, seq, tag, delivery, ?3, ?4, body FROM run_entry_4 WHERE run = ?1 AND idx = ?2";
    let mut statement = connection.prepare("SELECT idx, seq, tag, delivery, terms, body, run FROM run_entry_4")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let no = row.get::<_, i64>(6)?;
        let body = row.get_ref(5)?.as_blob().map_err(|error| Failure::corrupt("entry", error))?;
        let mut terms: Object = codec::json("entry", row, 4)?;
        if let Some(invoke) = take_invoke(&mut terms, body) {
            put_note(connection, no, &invoke)?;
        }
        let terms: Terms = from_json(Value::Object(terms))?;
        let written = to_json("entry", &terms)?;
        let (id, delivery) = (codec::id(row, 1)?, codec::json("entry", row, 3)?);
        let entry = Entry::new(row.get(0)?, id, body, Arc::new(terms), delivery);
        let gist = to_json("entry", &entry.gist)?;
        connection.prepare_cached(SQL)?.execute(params![no, entry.index, gist, written])?;
    }
    drop(rows);
    Ok(connection.execute_batch("DROP TABLE run_entry_4")?)
}

/// Removes the data of the invoked run from a result; it becomes a note.
fn take_invoke(terms: &mut Object, body: &[u8]) -> Option<Note> {
    let source = terms.get("source")?.get("invoke")?.clone();
    terms.remove("source");
    let mut step: Object = serde_json::from_slice(body).ok()?;
    step.remove("out");
    let n = number_of(&step).into();
    let data = json!({
        "step": step, "run_id": source["run_id"], "created_at": source["created_at"], "url": source["url"],
        "run_headers": source.get("headers").cloned().unwrap_or_else(|| json!([])),
        "redact": source.get("redact").cloned().unwrap_or_else(|| json!({})),
    });
    let given = source["body"].as_str()?.to_owned();
    Some(Note { kind: NoteKind::Invoke, n, data: data.to_string(), body: given.into() })
}

/// Steps without a number may share a key. The last one is kept.
fn put_note(connection: &Connection, run: i64, note: &Note) -> Outcome<()> {
    const SQL: &str = "INSERT OR REPLACE INTO run_note(run, kind, n, data, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    let Note { kind, n, data, body } = note;
    connection.prepare_cached(SQL)?.execute(params![run, *kind as u8, int(*n), data, &body[..]])?;
    Ok(())
}

fn from_json<T: DeserializeOwned>(value: Value) -> Outcome<T> {
    serde_json::from_value(value).map_err(|error| Failure::corrupt("entry", JsonError::from(error)))
}

struct Note {
    kind: NoteKind,
    n: u64,
    data: String,
    body: Bytes,
}

/// Removes the data from a run that becomes notes; `None` if the run has another form.
fn take_notes(run: &mut Object) -> Option<Vec<Note>> {
    let mut notes = Vec::new();
    let mut add = |kind, n, data: String, body: Vec<u8>| notes.push(Note { kind, n, data, body: body.into() });
    for (n, invoker) in list(run, "invokers")?.into_iter().enumerate() {
        add(NoteKind::Invoker, n as u64, invoker.to_string(), Vec::new());
    }
    for wait in list(run, "waits")? {
        let timer: MessageId = wait.get("timer")?.as_str()?.parse().ok()?;
        add(NoteKind::Wait, timer.seq.0, wait.to_string(), Vec::new());
    }
    for mut invoke in list(run, "invokes")? {
        let invoke = invoke.as_object_mut()?;
        let n = number_of(invoke.get("step")?.as_object()?).into();
        let (body, out) = (text(invoke, "body")?, text(invoke, "out")?);
        add(NoteKind::Invoke, n, Value::from(invoke.clone()).to_string(), body.unwrap_or_default().into_bytes());
        if let Some(out) = out {
            add(NoteKind::InvokeOut, n, String::new(), out.into_bytes());
        }
    }
    for (n, early) in list(run, "early")?.into_iter().enumerate() {
        let data = from_base64(early.get("data")?.as_str()?)?;
        add(NoteKind::Early, n as u64, early.get("event")?.to_string(), data);
    }
    if let Some(result) = text(run, "result")? {
        add(NoteKind::Result, 0, String::new(), result.into_bytes());
    }
    let Some(failure) = run.get_mut("failure") else { return Some(notes) };
    let failure = failure.as_object_mut()?;
    let (mut status, mut answer_bytes) = (json!(0), 0);
    if let Some((answer, body)) = response(failure)? {
        (status, answer_bytes) = (answer.get("status")?.clone(), body.len());
        add(NoteKind::Answer, 0, answer.to_string(), body);
    }
    failure.insert("status".to_owned(), status);
    failure.insert("answer_bytes".to_owned(), json!(answer_bytes));
    if let Some(call) = failure.get_mut("call") {
        let call = call.as_object_mut()?;
        let errors = list(call, "errors")?;
        if let Some((answer, body)) = response(call)? {
            add(NoteKind::Told, 0, json!({ "errors": errors, "response": answer }).to_string(), body);
        }
    }
    Some(notes)
}

/// Removes an optional list.
fn list(object: &mut Object, name: &str) -> Option<Vec<Value>> {
    match object.remove(name) {
        None => Some(Vec::new()),
        Some(Value::Array(list)) => Some(list),
        Some(_) => None,
    }
}

/// Removes an optional text.
fn text(object: &mut Object, name: &str) -> Option<Option<String>> {
    match object.remove(name) {
        None => Some(None),
        Some(Value::String(text)) => Some(Some(text)),
        Some(_) => None,
    }
}

/// Removes an optional response, with its bytes split off.
fn response(object: &mut Object) -> Option<Option<(Value, Vec<u8>)>> {
    let Some(mut response) = object.remove("response") else { return Some(None) };
    let body = text(response.as_object_mut()?, "body")?.unwrap_or_default();
    Some(Some((response, from_base64(&body)?)))
}
